"""A smaller model that an objective owns (ELECTRA's generator): a folder of its own there, part of it here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lmtransfer.interop.families.base import GeneratorFormat
from lmtransfer.interop.families.index import defaults_of
from lmtransfer.models.generator import generator_shape

#: What a generator's encoder may have otherwise than the encoder that it belongs to.
_OF_A_GENERATOR = ("dim", "num_heads", "hidden_dim", "dropout")


@dataclass(frozen=True, slots=True)
class SeparateGenerator:
    """A generator as a run of its own.

    Attributes:
        shape: its encoder's arguments where they are not those of the encoder that it belongs to.
        encoder: its encoder's tensors, the shared ones among them.
        head: those of its head, under ``mlm.``.
        loss_arguments: arguments of that head's objective, by its name.
    """

    shape: dict[str, Any]
    encoder: dict[str, Tensor]
    head: dict[str, Tensor]
    loss_arguments: dict[str, dict[str, Any]]


def joined_generator(
    generator: GeneratorFormat,
    model: Mapping[str, Any],
    encoder: Mapping[str, Tensor],
    other_model: Mapping[str, Any],
    other_encoder: Mapping[str, Tensor],
    other_head: Mapping[str, Tensor],
) -> tuple[dict[str, Tensor], float] | str:
    """A generator that was read by itself as part of the objective, or why it is none of this encoder.

    Args:
        generator: the names.
        model: component node of the encoder.
        encoder: its tensors by our names.
        other_model: component node of the generator's.
        other_encoder: its tensors.
        other_head: those of its head, under ``mlm.``.

    Returns:
        Its tensors by our names under ``objectives.``, and its width as a share of the encoder's.
    """
    if not any(name.startswith("mlm.") for name in other_head):
        return "it has no head of mlm"
    differ = [key for key in model if key not in _OF_A_GENERATOR and other_model.get(key) != model[key]]
    if differ:
        return f"another {', '.join(differ)}"
    if model["activation"] != "gelu":
        return f"activation={model['activation']} in the encoder and gelu in its head"
    size = other_model["dim"] / model["dim"]
    shape = generator_shape(dim=model["dim"], hidden_dim=model["hidden_dim"], size=min(size, 1.0))
    wrong = [
        f"{key}={other_model[key]}, not {value}" for key, value in shape._asdict().items() if other_model[key] != value
    ]
    if wrong:
        return "; ".join(wrong)
    shared = [name for name in encoder if name.startswith(generator.shared)]
    if not all(name in other_encoder and torch.equal(encoder[name], other_encoder[name]) for name in shared):
        return "embeddings of its own, and lmtransfer's are shared"
    layers = {
        f"{generator.loss}.{generator.layers}{name}": other_encoder[name]
        for name in other_encoder
        if name not in shared
    }
    head = {
        f"{generator.loss}.{generator.head}{name.removeprefix('mlm.')}": tensor for name, tensor in other_head.items()
    }
    return layers | head, size


def separate_generator(
    generator: GeneratorFormat,
    own: Mapping[str, Tensor],
    *,
    encoder: Mapping[str, Tensor],
    arguments: Mapping[str, Any],
    node: Mapping[str, Any],
) -> tuple[dict[str, Tensor], SeparateGenerator | None]:
    """The objective's tensors without the generator's, and the generator where it has one.

    Args:
        generator: the names.
        own: the objective's tensors, under its name.
        encoder: the encoder's.
        arguments: of the encoder, defaults included.
        node: component node of the objective.
    """
    layers, head = f"{generator.loss}.{generator.layers}", f"{generator.loss}.{generator.head}"
    own = {
        name: tensor
        for name, tensor in own.items()
        if name.removeprefix(f"{generator.loss}.") not in generator.unpublished
    }
    rest = {name: tensor for name, tensor in own.items() if not name.startswith((layers, head))}
    if len(rest) == len(own):
        return rest, None
    given = {**defaults_of(generator.objective), **node}
    shape = generator_shape(dim=arguments["dim"], hidden_dim=arguments["hidden_dim"], size=given["generator_size"])
    shared = {name: tensor for name, tensor in encoder.items() if name.startswith(generator.shared)}
    body = {name.removeprefix(layers): tensor for name, tensor in own.items() if name.startswith(layers)}
    return rest, SeparateGenerator(
        shape=shape._asdict(),
        encoder={**shared, **body},
        head={f"mlm.{name.removeprefix(head)}": own[name] for name in own if name.startswith(head)},
        loss_arguments={"mlm": {key: given[key] for key in ("activation", "norm_eps")}},
    )
