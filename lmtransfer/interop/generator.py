"""ELECTRA's generator, which is a folder of its own there and part of the objective here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lmtransfer.interop.families.base import TwinFormat
from lmtransfer.models.twin import twin_shape

if TYPE_CHECKING:
    from lmtransfer.interop.publishing import RunToPublish

_MLM = "lmtransfer.objectives.masked_lm.MaskedLanguageModel"
#: What a twin's encoder may have otherwise than the encoder whose twin it is.
_OWN = ("dim", "num_heads", "hidden_dim", "dropout")
#: What ``ReplacedTokenDetection`` takes where its node says nothing.
_DEFAULTS = {"generator_size": 0.25, "activation": "gelu", "norm_eps": 1e-12}


@dataclass(frozen=True, slots=True)
class JoinedTwin:
    """A generator as part of the objective.

    Attributes:
        tensors: by our names under ``objectives.``.
        size: its width as a share of the encoder's.
    """

    tensors: dict[str, Tensor]
    size: float


def joined_twin(
    twin: TwinFormat,
    model: Mapping[str, Any],
    encoder: Mapping[str, Tensor],
    other_model: Mapping[str, Any],
    other_encoder: Mapping[str, Tensor],
    other_head: Mapping[str, Tensor],
) -> JoinedTwin | str:
    """A generator that was read by itself, or why it is none of this encoder.

    Args:
        twin: the names.
        model: component node of the encoder.
        encoder: its tensors by our names.
        other_model: component node of the generator's.
        other_encoder: its tensors.
        other_head: those of its head, under ``mlm.``.
    """
    if not any(name.startswith("mlm.") for name in other_head):
        return "it has no head of mlm"
    differ = [key for key in model if key not in _OWN and other_model.get(key) != model[key]]
    if differ:
        return f"another {', '.join(differ)}"
    if model["activation"] != "gelu":
        return f"activation={model['activation']} in the encoder and gelu in its head"
    size = other_model["dim"] / model["dim"]
    shape = twin_shape(dim=model["dim"], hidden_dim=model["hidden_dim"], size=min(size, 1.0))
    wrong = [
        f"{key}={other_model[key]}, not {value}" for key, value in shape._asdict().items() if other_model[key] != value
    ]
    if wrong:
        return "; ".join(wrong)
    shared = [name for name in encoder if name.startswith(twin.shared)]
    if not all(name in other_encoder and torch.equal(encoder[name], other_encoder[name]) for name in shared):
        return "embeddings of its own, and lmtransfer's are shared"
    layers = {f"{twin.loss}.{twin.layers}{name}": other_encoder[name] for name in other_encoder if name not in shared}
    head = {f"{twin.loss}.{twin.head}{name.removeprefix('mlm.')}": tensor for name, tensor in other_head.items()}
    return JoinedTwin(layers | head, size)


def apart_twin(
    twin: TwinFormat, run: RunToPublish, arguments: Mapping[str, Any], own: Mapping[str, Tensor]
) -> tuple[dict[str, Tensor], RunToPublish | None]:
    """The objective's tensors without the generator's, and the generator as a run of its own.

    Args:
        twin: the names.
        run: the discriminator's.
        arguments: of its encoder, defaults included.
        own: the objective's tensors.
    """
    layers, head = f"{twin.loss}.{twin.layers}", f"{twin.loss}.{twin.head}"
    rest = {name: tensor for name, tensor in own.items() if not name.startswith((layers, head))}
    if len(rest) == len(own):
        return rest, None
    node = {**_DEFAULTS, **run.loss_arguments.get(twin.loss, {})}
    shape = twin_shape(dim=arguments["dim"], hidden_dim=arguments["hidden_dim"], size=node["generator_size"])
    shared = {name: tensor for name, tensor in run.encoder.items() if name.startswith(twin.shared)}
    body = {name.removeprefix(layers): tensor for name, tensor in own.items() if name.startswith(layers)}
    small = replace(
        run,
        model={**run.model, **shape._asdict()},
        encoder={**shared, **body},
        head={f"mlm.{name.removeprefix(head)}": own[name] for name in own if name.startswith(head)},
        loss_arguments={"mlm": {"_target_": _MLM, "activation": node["activation"], "norm_eps": node["norm_eps"]}},
    )
    return rest, small
