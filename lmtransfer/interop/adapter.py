"""LoRA adapters in the format of peft: low-rank updates by the names of transformers' modules, and their settings.

Shape legend: D input width, E output width of a matrix, R rank; "theirs" are modules of transformers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lmtransfer.errors import CheckpointError
from lmtransfer.interop.families.base import Family
from lmtransfer.interop.families.key_map import Rewrite, rewrite_of
from lmtransfer.models.layers.lora import SavedUpdate

CONFIG_FILE, WEIGHT_FILE = "adapter_config.json", "adapter_model.safetensors"
#: Prefix of the names in the file: the model is inside two wrappers.
_WRAPPED = "base_model.model."
_TASK_TYPES = {
    "classification": "SEQ_CLS",
    "regression": "SEQ_CLS",
    "tagging": "TOKEN_CLS",
    "span": "QUESTION_ANS",
}


@dataclass(frozen=True, slots=True)
class ModuleUpdate:
    """The update ``alpha / R * B A`` of one module of transformers.

    Attributes:
        a_RD: A.
        b_ER: B.
        alpha: alpha.
        transposed: whether the module stores its matrix as (in, out).
    """

    a_RD: Tensor
    b_ER: Tensor
    alpha: float
    transposed: bool


@dataclass(frozen=True, slots=True)
class PublishedAdapter:
    """The content of an adapter's files.

    Attributes:
        config: content of adapter_config.json.
        tensors: content of adapter_model.safetensors.
    """

    config: dict[str, Any]
    tensors: dict[str, Tensor]


def to_adapter(
    family: Family,
    updates: Sequence[SavedUpdate],
    *,
    encoder: Mapping[str, Tensor],
    trained: Mapping[str, Tensor],
    kind: str,
    dropout: float,
    base: str,
) -> PublishedAdapter:
    """Convert low-rank updates of an encoder to an adapter.

    Args:
        family: the family of the encoder.
        updates: the updates, by our names of the encoder's layers; each layer has a published name.
        encoder: the encoder's tensors by our names, without updates.
        trained: tensors that are saved as a whole, by their full published names: the head, and a trained pooler.
        kind: kind of the task's head.
        dropout: dropout of the updates.
        base: folder or name of the base, which is recorded.

    Raises:
        CheckpointError: peft has no such updates for this family.
    """
    modules: dict[str, ModuleUpdate] = {}
    for layer in dict.fromkeys(update.layer for update in updates):
        rewrite = rewrite_of(f"{layer}.weight", family.key_map)
        assert rewrite is not None, f"{layer} has no published name"
        own = [update for update in updates if update.layer == layer]
        modules |= _modules(rewrite, own, num_rows=len(encoder[f"{layer}.weight"]))
    modules = {f"{family.prefix}{name}": update for name, update in modules.items()}
    tensors = {f"{_WRAPPED}{name}": tensor for name, tensor in trained.items()}
    for name, update in modules.items():
        tensors[f"{_WRAPPED}{name}.lora_A.weight"] = update.a_RD
        tensors[f"{_WRAPPED}{name}.lora_B.weight"] = update.b_ER
    settings = {name: (len(update.a_RD), update.alpha) for name, update in modules.items()}
    rank, alpha = next(iter(settings.values()))
    config = {
        "peft_type": "LORA",
        "task_type": _TASK_TYPES[kind],
        "base_model_name_or_path": base,
        "r": rank,
        "lora_alpha": _plain(alpha),
        "lora_dropout": dropout,
        "target_modules": list(modules),
        "rank_pattern": {name: own[0] for name, own in settings.items() if own[0] != rank},
        "alpha_pattern": {name: _plain(own[1]) for name, own in settings.items() if own[1] != alpha},
        "modules_to_save": list(dict.fromkeys(_saved_module(name, family) for name in trained)),
        "fan_in_fan_out": any(update.transposed for update in modules.values()),
        "bias": "none",
        "inference_mode": True,
    }
    return PublishedAdapter(config, {name: tensor.detach().clone().contiguous() for name, tensor in tensors.items()})


def _modules(rewrite: Rewrite, updates: Sequence[SavedUpdate], *, num_rows: int) -> dict[str, ModuleUpdate]:
    """The updates of one of our layers by their modules: one for each matrix, or one for all of a fused module.

    Raises:
        CheckpointError: transformers stores these matrices as parameters of a larger module, which peft cannot update.
    """
    names = [name.removesuffix(".weight") for name in rewrite.theirs]
    if rewrite.layout not in ("same", "in_out"):
        raise CheckpointError(
            f"transformers has no linear layer for {', '.join(names)}, so peft cannot update it: train with "
            "'transfer.lora_matrices=[expand,contract]', or export the merged model with format=auto"
        )
    transposed = rewrite.layout == "in_out"
    if len(names) > 1:
        return {
            names[update.number]: ModuleUpdate(update.a_RD, update.b_ER, _alpha(update), transposed)
            for update in updates
        }
    ranks = [len(update.a_RD) for update in updates]
    b_ER = updates[0].b_ER.new_zeros(num_rows, sum(ranks))
    for number, update in enumerate(updates):  # each matrix has its own columns, so B A is the same
        b_ER[update.rows, sum(ranks[:number]) : sum(ranks[: number + 1])] = update.b_ER
    a_RD = torch.cat([update.a_RD for update in updates])
    return {names[0]: ModuleUpdate(a_RD, b_ER, float(updates[0].scale) * sum(ranks), transposed)}


def _alpha(update: SavedUpdate) -> float:
    return float(update.scale) * len(update.a_RD)


def _plain(number: float) -> float | int:
    """A number without the rounding error of a scale in float32."""
    return round(number) if abs(number - round(number)) < 1e-6 * number else number


def _saved_module(name: str, family: Family) -> str:
    """The module that peft saves as a whole: the head, or the encoder's pooler."""
    inside = name.startswith(family.prefix)
    return f"{family.prefix if inside else ''}{name.removeprefix(family.prefix).partition('.')[0]}"


def with_adapter(tensors: Mapping[str, Tensor], adapter: PublishedAdapter) -> dict[str, Tensor]:
    """The tensors of a model of transformers with an adapter merged, as peft merges it.

    Args:
        tensors: tensors of the base, by their full published names.
        adapter: the adapter.
    """
    config, merged = adapter.config, dict(tensors)
    for key, tensor in adapter.tensors.items():
        name = key.removeprefix(_WRAPPED)
        if not name.endswith((".lora_A.weight", ".lora_B.weight")):
            merged[name] = tensor
    for key, a_RD in adapter.tensors.items():
        name = key.removeprefix(_WRAPPED).removesuffix(".lora_A.weight")
        if key.endswith(".lora_A.weight"):
            alpha = config["alpha_pattern"].get(name, config["lora_alpha"])
            update = alpha / len(a_RD) * (adapter.tensors[key.replace("lora_A", "lora_B")] @ a_RD)
            merged[f"{name}.weight"] = merged[f"{name}.weight"] + (update.T if config["fan_in_fan_out"] else update)
    return merged
