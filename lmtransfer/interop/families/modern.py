"""ModernBERT in the layout of Hugging Face transformers.

Shape legend: D width, K labels.

A published classifier has a dense layer and a LayerNorm before its linear layer, whereas our head is a single linear
layer. Our head is written in the published form as follows. The encoder ends with a LayerNorm, so its states are
x = weight * n + bias, where the entries of n have mean 0, even after averaging over tokens. The dense layer subtracts
the bias, divides by the weight, and makes n very small. The variance of such a small vector is negligible compared to
epsilon, so the LayerNorm of the classifier only divides the vector by sqrt(epsilon). The linear layer undoes both
scalings. The result is linear up to a relative error of 2^-21.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import torch
from torch import Tensor
from typing_extensions import override

from lmtransfer.errors import CheckpointError
from lmtransfer.interop.families.bert import activation
from lmtransfer.interop.families.family import (
    Config,
    ConfigSetting,
    ConfigTable,
    Family,
    FixedKey,
    PretrainingArchitecture,
    PretrainingHead,
    Quirks,
    Rewrite,
    TaskArchitecture,
    TaskKind,
    Tensors,
    linear,
)
from lmtransfer.models.modern import ModernEncoder
from lmtransfer.objectives.masked_lm import MaskedLanguageModel

#: The activation between the dense layer and the norm must be the identity.
_CONFIG: Final = {"classifier_activation": "linear"}

_NOTE: Final = (
    "ModernBERT's classifiers have a dense layer and a norm before the last layer. In this export the three layers "
    "together compute the run's linear head, up to rounding in float32 and bfloat16, and up to about 1 % in float16. "
    "To continue training with transformers, start from an export of the pretrained encoder"
)

#: Scale of the entries of n relative to sqrt(epsilon); a power of two, so that scaling is exact.
_SMALL = 2.0**-10

_OURS, _THEIRS = "stack.layers.{i}", "layers.{i}"
#: ``transformers.ModernBertModel`` and our ``ModernEncoder`` with default arguments. The rewrites of biases are used
#: only if the model has biases (``bias`` here; ``attention_bias``, ``mlp_bias`` and ``norm_bias`` in transformers).
MODERN_BERT = [
    Rewrite("embeddings.token.weight", ("embeddings.tok_embeddings.weight",)),
    *linear("embeddings.norm", "embeddings.norm"),
    *linear(f"{_OURS}.attention_norm", f"{_THEIRS}.attn_norm"),
    *linear(f"{_OURS}.attention.query_key_value", f"{_THEIRS}.attn.Wqkv"),
    *linear(f"{_OURS}.attention.output", f"{_THEIRS}.attn.Wo"),
    *linear(f"{_OURS}.feed_forward_norm", f"{_THEIRS}.mlp_norm"),
    *linear(f"{_OURS}.feed_forward.expand", f"{_THEIRS}.mlp.Wi"),
    *linear(f"{_OURS}.feed_forward.contract", f"{_THEIRS}.mlp.Wo"),
    *linear("stack.final_norm", "final_norm"),
]
#: Published tensors that hold no weights.
IGNORED = (r"rotary_emb\..*",)
#: The head of ``transformers.ModernBertForMaskedLM``, with ``classifier_bias`` and ``norm_bias``, and the head of our
#: objective ``mlm``, which always has these biases.
MLM_HEAD = [
    *linear("mlm.dense", "head.dense"),
    *linear("mlm.norm", "head.norm"),
    Rewrite("mlm.bias", ("decoder.bias",)),
]
_HEAD_BIASES = ("head.dense.bias", "head.norm.bias", "decoder.bias")
_ACTIVATION = activation("hidden_activation")
_NORM_EPS = ConfigSetting("norm_eps", "norm_eps", 1e-5, float)


def _as_classifier(output: Mapping[str, Tensor], norm: Mapping[str, Tensor], *, eps: float) -> dict[str, Tensor]:
    """Express a linear head as a published classifier.

    Args:
        output: the linear head: ``weight``, (K, D), and ``bias``, (K,).
        norm: the last LayerNorm of the encoder: ``weight``, (D,), and optionally ``bias``, (D,).
    """
    weight_KD, bias_K, scale_D = output["weight"], output["bias"], norm["weight"]
    small = _SMALL * math.sqrt(eps)
    dense_D = small / scale_D
    if not dense_D.isfinite().all():
        raise CheckpointError(
            "the last norm of the encoder has a weight of 0, so this head cannot be written as a ModernBERT classifier"
        )
    tensors = {
        "head.dense.weight": torch.diag(dense_D),
        "head.norm.weight": torch.ones_like(scale_D),
        "classifier.weight": weight_KD * scale_D / _SMALL,
        "classifier.bias": bias_K,
    }
    if "bias" in norm:
        tensors["head.dense.bias"] = -dense_D * norm["bias"]
        tensors["head.norm.bias"] = torch.zeros_like(scale_D)
        tensors["classifier.bias"] = bias_K + weight_KD @ norm["bias"]
    return tensors


def _from_classifier(tensors: Mapping[str, Tensor], *, eps: float) -> dict[str, Tensor]:
    """Convert a published classifier back to a linear head; the inverse of ``_as_classifier``."""
    inner_KD = tensors["classifier.weight"] * tensors["head.norm.weight"] / math.sqrt(eps)
    weight_KD, bias_K = inner_KD @ tensors["head.dense.weight"], tensors["classifier.bias"]
    if "head.dense.bias" in tensors:
        bias_K = bias_K + inner_KD @ tensors["head.dense.bias"]
        bias_K = bias_K + tensors["classifier.weight"] @ tensors["head.norm.bias"]
    return {"weight": weight_KD, "bias": bias_K}


class MissingBiases(Quirks):
    """Inserts or drops zero biases in heads and norms where only the published model or only ours has a bias.

    This class also reads newer versions of config.json, which list layer types and rope parameters, and it writes the
    linear head of a task as a published classifier (see ``_as_classifier``).
    """

    @override
    def read_config(self, config: Config) -> Config:
        """Convert layer types and rope parameters to the older keys, where the older keys can express them."""
        settings = dict(config)
        every = _every(settings.get("layer_types"), settings.get("global_attn_every_n_layers"))
        if every is not None:
            del settings["layer_types"]
            settings["global_attn_every_n_layers"] = every
        angles = settings.get("rope_parameters")
        if isinstance(angles, dict):
            for layers, key in (("full_attention", "global_rope_theta"), ("sliding_attention", "local_rope_theta")):
                angle = angles.get(layers)
                if isinstance(angle, dict) and angle.get("rope_type", "default") == "default":
                    angles = {name: value for name, value in angles.items() if name != layers}
                    settings[key] = angle.get("rope_theta")
            settings["rope_parameters"] = angles or None
        if "local_rope_theta" in config and config["local_rope_theta"] is None:
            settings["local_rope_theta"] = settings.get("global_rope_theta")
        return settings

    @override
    def read_tensors(self, tensors: Tensors, arguments: dict[str, Any], config: Config, notes: list[str]) -> Tensors:
        """Drop norm biases that are all zero if the encoder has no biases."""
        if arguments["bias"]:
            return tensors
        return {name: tensor for name, tensor in tensors.items() if not name.endswith("norm.bias") or tensor.any()}

    @override
    def read_heads(self, tensors: Tensors, config: Config) -> Tensors:
        dense = tensors.get("head.dense.weight")
        if dense is None or not dense.ndim or "head.norm.weight" not in tensors:
            return tensors
        declared = (config.get("classifier_bias"), config.get("norm_bias"), config.get("decoder_bias", True))
        sizes = (dense.shape[0], dense.shape[0], config["vocab_size"])
        more = {
            name: dense.new_zeros(size)
            for name, there, size in zip(_HEAD_BIASES, declared, sizes, strict=True)
            if name not in tensors and not there
        }
        return tensors | more

    @override
    def read_task_head(self, tensors: Tensors, config: Config) -> Tensors:
        linear_head = _from_classifier(tensors, eps=config["norm_eps"])
        return {f"classifier.{name}": tensor for name, tensor in linear_head.items()}

    @override
    def write(self, body: Tensors, head: Tensors, config: dict[str, Any], *, arguments: Config, pad_id: int) -> None:
        config["norm_bias"] = arguments["bias"]
        if "classifier.weight" in head:
            final_norm, output = _under("final_norm", body), _under("classifier", head)
            head |= _as_classifier(output, final_norm, eps=config["norm_eps"])
            config["classifier_bias"] = arguments["bias"]
            return
        if not head:
            return
        for name, key in zip(_HEAD_BIASES, ("classifier_bias", "norm_bias", "decoder_bias"), strict=True):
            if not head[name].any() and not (key == "norm_bias" and arguments["bias"]):
                del head[name]
            config[key] = name in head
        if config["norm_bias"] and not arguments["bias"]:
            norms = [name for name in body if name.endswith("norm.weight")]
            body |= {f"{name.removesuffix('weight')}bias": torch.zeros_like(body[name]) for name in norms}


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of a module by their names inside the module."""
    return {
        name.removeprefix(f"{prefix}."): tensor for name, tensor in tensors.items() if name.startswith(f"{prefix}.")
    }


def _every(layers: Any, fallback: Any) -> int | None:
    """Return the distance between global layers, in layers; None if the list is missing or not periodic.

    ``fallback`` is the distance to assume if only the first layer is global.
    """
    if not isinstance(layers, list) or not layers:
        return None
    places = [place for place, kind in enumerate(layers) if kind == "full_attention"]
    every = (
        places[1]
        if len(places) > 1
        else fallback
        if isinstance(fallback, int) and fallback > 0
        else max(len(layers), 1)
    )
    kinds = ["sliding_attention" if place % every else "full_attention" for place in range(len(layers))]
    return every if kinds == layers else None


def _tasks() -> dict[TaskKind, TaskArchitecture | str]:
    def architecture(name: str, **config: Any) -> TaskArchitecture:
        return TaskArchitecture(
            name=f"ModernBertFor{name}",
            key_map=linear("output", "classifier"),
            dropouts=("classifier_dropout",),
            config={**_CONFIG, **config},
            needs_own_base=True,
            note=_NOTE,
        )

    of_texts = architecture("SequenceClassification", classifier_pooling="mean")
    return {
        "classification": of_texts,
        "regression": of_texts,
        "tagging": architecture("TokenClassification"),
        "span": architecture("QuestionAnswering"),
    }


MODERN_FAMILY = Family(
    model_types=("modernbert",),
    encoder=ModernEncoder,
    prefix="model.",
    config=ConfigTable(
        (
            ConfigSetting("dim", "hidden_size"),
            ConfigSetting("num_layers", "num_hidden_layers"),
            ConfigSetting("num_heads", "num_attention_heads"),
            ConfigSetting("hidden_dim", "intermediate_size"),
            ConfigSetting("max_length", "max_position_embeddings", 8192),
            ConfigSetting("window", "local_attention", 128),
            ConfigSetting("global_every", "global_attn_every_n_layers", 3),
            ConfigSetting("global_theta", "global_rope_theta", 160_000.0, float),
            ConfigSetting("local_theta", "local_rope_theta", 10_000.0, float),
            ConfigSetting("bias", "attention_bias", False, bool, copies=("mlp_bias",), copies_must_agree=True),
            _NORM_EPS,
            _ACTIVATION,
            ConfigSetting("dropout", "embedding_dropout", 0.0, float, copies=("mlp_dropout",)),
            ConfigSetting("attention_dropout", "attention_dropout", 0.0, float, is_used=False),
        ),
        (
            FixedKey("layer_types", None, "in lmtransfer the first layer and every n-th layer after it are global"),
            FixedKey("rope_parameters", None, "lmtransfer supports only rotary positions without scaling"),
        ),
        implied_values={"query_key_norm": False, "normalise_first_input": False},
    ),
    key_map=MODERN_BERT,
    ignored_patterns=IGNORED,
    body="ModernBertModel",
    heads=(
        PretrainingHead(
            objective=MaskedLanguageModel,
            key_map=MLM_HEAD,
            repeats={"decoder.weight": "embeddings.tok_embeddings.weight"},
            settings=(activation("classifier_activation"), _NORM_EPS),
        ),
    ),
    pretraining=(PretrainingArchitecture("ModernBertForMaskedLM", {"mlm": "logits"}),),
    tasks=_tasks(),
    specials={"bos_token_id": "cls", "eos_token_id": "sep", "cls_token_id": "cls", "sep_token_id": "sep"},
    quirks=MissingBiases(),
)
