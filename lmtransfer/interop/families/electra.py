"""ELECTRA and its generator in the layout of Hugging Face transformers.

In lmtransfer, the generator is a smaller model inside the objective ``rtd`` and shares the encoder's embeddings. It is
published in a subfolder as a model of its own, whose head is that of the objective ``mlm``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from lmtransfer.interop.families.bert import (
    BERT,
    DROPOUTS,
    FIXED,
    HIDDEN_ACT,
    IGNORED,
    NORM_EPS,
    SEGMENTS,
    SIZES,
    OneSegmentRow,
)
from lmtransfer.interop.families.family import (
    ConfigSetting,
    ConfigTable,
    Family,
    PretrainingArchitecture,
    PretrainingHead,
    Rewrite,
    TaskArchitecture,
    defaults_of,
    linear,
    task_heads,
)
from lmtransfer.models.electra import ElectraEncoder, generator_shape
from lmtransfer.objectives.masked_lm import MaskedLanguageModel
from lmtransfer.objectives.replaced_token import ReplacedTokenDetection

#: ``transformers.ElectraModel`` and our post-norm ``ElectraEncoder``: the tables of BERT without the pooler.
ELECTRA = [
    *(rewrite for rewrite in BERT if not rewrite.ours.startswith("pooler.")),
    *linear("project", "embeddings_project"),
]

#: The head of ``transformers.ElectraForPreTraining`` (the discriminator) and the head of our objective ``rtd``.
DISCRIMINATOR_HEAD = [
    *linear("rtd.dense", "discriminator_predictions.dense"),
    *linear("rtd.output", "discriminator_predictions.dense_prediction"),
]


#: The head of ``transformers.ElectraForMaskedLM`` (the generator) and the head of our objective ``mlm``.
_GENERATOR_HEAD = [
    *linear("mlm.dense", "generator_predictions.dense"),
    *linear("mlm.norm", "generator_predictions.LayerNorm"),
    Rewrite("mlm.bias", ("generator_lm_head.bias",)),
]

_CLASSIFIER = TaskArchitecture(
    name="ElectraForSequenceClassification",
    key_map=[*linear("hidden", "classifier.dense"), *linear("output", "classifier.out_proj")],
    dropouts=("classifier_dropout",),
)

ELECTRA_FAMILY = Family(
    model_types=("electra",),
    encoder=ElectraEncoder,
    prefix="electra.",
    config=ConfigTable(
        (ConfigSetting("embedding_dim", "embedding_size", 128), *SIZES, SEGMENTS, HIDDEN_ACT, NORM_EPS, *DROPOUTS),
        FIXED,
        implied_values={"norm": "post"},
    ),
    key_map=ELECTRA,
    ignored_patterns=IGNORED,
    body="ElectraModel",
    heads=(
        PretrainingHead(
            objective=ReplacedTokenDetection,
            key_map=DISCRIMINATOR_HEAD,
            settings=(HIDDEN_ACT, NORM_EPS),
        ),
        PretrainingHead(
            objective=MaskedLanguageModel,
            key_map=_GENERATOR_HEAD,
            repeats={"generator_lm_head.weight": "embeddings.word_embeddings.weight"},
            settings=(NORM_EPS,),
            implied_values={"activation": "gelu"},
        ),
    ),
    pretraining=(
        PretrainingArchitecture("ElectraForPreTraining", {"rtd": "logits"}),
        PretrainingArchitecture("ElectraForMaskedLM", {"mlm": "logits"}),
    ),
    tasks=task_heads("Electra", _CLASSIFIER),
    quirks=OneSegmentRow(),
)


#: Subfolder of the generator, which is published as a model of its own.
GENERATOR_FOLDER = "generator"
RTD = ReplacedTokenDetection.name
#: Prefixes of the objective's tensors that are published in the subfolder: those of the generator's layers and head.
GENERATOR_PREFIXES = ("generator.", "generator_head.")
_LAYERS, _HEAD = (f"{RTD}.{prefix}" for prefix in GENERATOR_PREFIXES)
#: Prefix of the encoder's tensors that the generator shares.
_SHARED = "embeddings."
#: A tensor that is not published, because only training needs it.
_TRAINING_ONLY = f"{RTD}.difference.weight"
#: Arguments in which the generator may differ from the encoder.
_ARGUMENTS = ("dim", "num_heads", "hidden_dim", "dropout")


def join_generator(
    model: Mapping[str, Any],
    encoder: Mapping[str, Tensor],
    other_model: Mapping[str, Any],
    other_encoder: Mapping[str, Tensor],
    other_head: Mapping[str, Tensor],
) -> tuple[dict[str, Tensor], float] | str:
    """Convert a generator that was read as a model of its own (``other_...``) to tensors of the objective ``rtd``.

    Returns:
        The generator's tensors under our names, which begin with ``objectives.``, and its width as a fraction of the
        encoder's width; or the reason why the generator does not belong to the encoder.
    """
    if not any(name.startswith("mlm.") for name in other_head):
        return "the generator has no mlm head"
    differ = [key for key in model if key not in _ARGUMENTS and other_model.get(key) != model[key]]
    if differ:
        return f"the generator differs from the encoder in {', '.join(differ)}"
    if model["activation"] != "gelu":
        return f"the encoder has activation={model['activation']}, but the generator's head has gelu"
    size = other_model["dim"] / model["dim"]
    shape = generator_shape(dim=model["dim"], hidden_dim=model["hidden_dim"], size=min(size, 1.0))._asdict()
    wrong = [f"{key}={other_model[key]} instead of {shape[key]}" for key in shape if other_model[key] != shape[key]]
    if wrong:
        return "; ".join(wrong)
    shared = [name for name in encoder if name.startswith(_SHARED)]
    if not all(name in other_encoder and torch.equal(encoder[name], other_encoder[name]) for name in shared):
        return "the generator has its own embeddings, but in lmtransfer it shares those of the encoder"
    layers = {f"{_LAYERS}{name}": tensor for name, tensor in other_encoder.items() if name not in shared}
    head = {f"{_HEAD}{name.removeprefix('mlm.')}": tensor for name, tensor in other_head.items()}
    return layers | head, size


def split_generator(
    own: Mapping[str, Tensor],
    *,
    encoder: Mapping[str, Tensor],
    model: Mapping[str, Any],
    arguments: Mapping[str, Any],
    node: Mapping[str, Any],
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Split the tensors of the objective ``rtd`` into those of the discriminator's head and the generator.

    The generator is returned as the changes that turn the ``RunToPublish`` of the run into that of the generator, or
    as an empty dictionary if ``own`` holds no generator.
    """
    published = {name: tensor for name, tensor in own.items() if name != _TRAINING_ONLY}
    rest = {name: tensor for name, tensor in published.items() if not name.startswith((_LAYERS, _HEAD))}
    if len(rest) == len(published):
        return rest, {}
    values = {**defaults_of(ReplacedTokenDetection), **node}
    shape = generator_shape(dim=arguments["dim"], hidden_dim=arguments["hidden_dim"], size=values["generator_size"])
    shared = {name: tensor for name, tensor in encoder.items() if name.startswith(_SHARED)}
    layers = {name.removeprefix(_LAYERS): tensor for name, tensor in own.items() if name.startswith(_LAYERS)}
    return rest, {
        "model": {**model, **shape._asdict()},
        "encoder": {**shared, **layers},
        "head": {f"mlm.{name.removeprefix(_HEAD)}": own[name] for name in own if name.startswith(_HEAD)},
        "loss_arguments": {"mlm": {key: values[key] for key in ("activation", "norm_eps")}},
    }
