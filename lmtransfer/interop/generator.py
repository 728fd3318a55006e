"""ELECTRA's generator: a smaller model inside the objective ``rtd``, published in a subfolder as a model of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from lmtransfer.interop.families.index import defaults_of
from lmtransfer.models.electra import generator_shape
from lmtransfer.objectives.replaced_token import ReplacedTokenDetection

FOLDER = "generator"
LOSS = ReplacedTokenDetection.name
#: Prefixes of the objective's tensors in the subfolder: the generator's layers, and its head, published as one for mlm.
PREFIXES = ("generator.", "generator_head.")
_LAYERS, _HEAD = (f"{LOSS}.{prefix}" for prefix in PREFIXES)
#: Prefix of the encoder's tensors that the generator shares.
_SHARED = "embeddings."
#: A tensor that only training needs, and that is not published.
_TRAINING_ONLY = f"{LOSS}.difference.weight"
#: Arguments in which a generator's encoder may differ from the main encoder.
_ARGUMENTS = ("dim", "num_heads", "hidden_dim", "dropout")


def join_generator(
    model: Mapping[str, Any],
    encoder: Mapping[str, Tensor],
    other_model: Mapping[str, Any],
    other_encoder: Mapping[str, Tensor],
    other_head: Mapping[str, Tensor],
) -> tuple[dict[str, Tensor], float] | str:
    """Convert a generator that was read as a model of its own (``other_...``) to tensors of the objective.

    Returns:
        Its tensors by our names under ``objectives.``, and its width as a fraction of the encoder's width; or the
        reason why it does not fit the encoder.
    """
    if not any(name.startswith("mlm.") for name in other_head):
        return "it has no mlm head"
    differ = [key for key in model if key not in _ARGUMENTS and other_model.get(key) != model[key]]
    if differ:
        return f"it differs from the encoder in {', '.join(differ)}"
    if model["activation"] != "gelu":
        return f"the encoder has activation={model['activation']}, but the generator's head has gelu"
    size = other_model["dim"] / model["dim"]
    shape = generator_shape(dim=model["dim"], hidden_dim=model["hidden_dim"], size=min(size, 1.0))._asdict()
    wrong = [f"{key}={other_model[key]} instead of {shape[key]}" for key in shape if other_model[key] != shape[key]]
    if wrong:
        return "; ".join(wrong)
    shared = [name for name in encoder if name.startswith(_SHARED)]
    if not all(name in other_encoder and torch.equal(encoder[name], other_encoder[name]) for name in shared):
        return "it has its own embeddings, but in lmtransfer the generator shares those of the encoder"
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
    """Split the objective's tensors ``own`` into those of its own head and the generator.

    The generator is given as the arguments in which its ``RunToPublish`` differs; empty if there is none.
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
