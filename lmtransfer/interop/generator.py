"""The conversion of ELECTRA's generator, a smaller model, between a published folder and a part of our objective."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lmtransfer.interop.families.family import GeneratorFormat
from lmtransfer.interop.families.index import defaults_of
from lmtransfer.models.generator import generator_shape

#: Arguments in which a generator's encoder may differ from the main encoder.
_GENERATOR_ARGUMENTS = ("dim", "num_heads", "hidden_dim", "dropout")


@dataclass(frozen=True, slots=True)
class SeparateGenerator:
    """A generator as a model of its own."""

    shape: dict[str, Any]  #: the arguments in which its encoder differs from the main encoder
    encoder: dict[str, Tensor]  #: tensors of its encoder, including the shared ones
    head: dict[str, Tensor]  #: tensors of its head, under ``mlm.``
    loss_arguments: dict[str, dict[str, Any]]


def join_generator(
    generator: GeneratorFormat,
    model: Mapping[str, Any],
    encoder: Mapping[str, Tensor],
    other_model: Mapping[str, Any],
    other_encoder: Mapping[str, Tensor],
    other_head: Mapping[str, Tensor],
) -> tuple[dict[str, Tensor], float] | str:
    """Convert a generator that was read as a model of its own to tensors of the objective."""
    if not any(name.startswith("mlm.") for name in other_head):
        return "it has no mlm head"
    differ = [key for key in model if key not in _GENERATOR_ARGUMENTS and other_model.get(key) != model[key]]
    if differ:
        return f"it differs from the encoder in {', '.join(differ)}"
    if model["activation"] != "gelu":
        return f"the encoder has activation={model['activation']}, but the generator's head has gelu"
    size = other_model["dim"] / model["dim"]
    shape = generator_shape(dim=model["dim"], hidden_dim=model["hidden_dim"], size=min(size, 1.0))
    wrong = [
        f"{key}={other_model[key]} instead of {value}"
        for key, value in shape._asdict().items()
        if other_model[key] != value
    ]
    if wrong:
        return "; ".join(wrong)
    shared = [name for name in encoder if name.startswith(generator.shared_prefix)]
    if not all(name in other_encoder and torch.equal(encoder[name], other_encoder[name]) for name in shared):
        return "it has its own embeddings, but in lmtransfer the generator shares those of the encoder"
    layers = {
        f"{generator.loss}.{generator.layers}{name}": other_encoder[name]
        for name in other_encoder
        if name not in shared
    }
    head = {
        f"{generator.loss}.{generator.head}{name.removeprefix('mlm.')}": tensor for name, tensor in other_head.items()
    }
    return layers | head, size


def split_generator(
    generator: GeneratorFormat,
    own: Mapping[str, Tensor],
    *,
    encoder: Mapping[str, Tensor],
    arguments: Mapping[str, Any],
    node: Mapping[str, Any],
) -> tuple[dict[str, Tensor], SeparateGenerator | None]:
    """Split an objective's tensors into those of its own head and, if there is one, the generator."""
    layers, head = f"{generator.loss}.{generator.layers}", f"{generator.loss}.{generator.head}"
    own = {
        name: tensor
        for name, tensor in own.items()
        if name.removeprefix(f"{generator.loss}.") not in generator.training_only
    }
    rest = {name: tensor for name, tensor in own.items() if not name.startswith((layers, head))}
    if len(rest) == len(own):
        return rest, None
    values = {**defaults_of(generator.objective), **node}
    shape = generator_shape(dim=arguments["dim"], hidden_dim=arguments["hidden_dim"], size=values["generator_size"])
    shared = {name: tensor for name, tensor in encoder.items() if name.startswith(generator.shared_prefix)}
    body = {name.removeprefix(layers): tensor for name, tensor in own.items() if name.startswith(layers)}
    return rest, SeparateGenerator(
        shape=shape._asdict(),
        encoder={**shared, **body},
        head={f"mlm.{name.removeprefix(head)}": own[name] for name in own if name.startswith(head)},
        loss_arguments={"mlm": {key: values[key] for key in ("activation", "norm_eps")}},
    )
