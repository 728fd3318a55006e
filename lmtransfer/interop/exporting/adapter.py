"""Exports an adapter for peft: LoRA's low-rank updates, the head, and the base model unless the user names one.

Shape legend: D input width and E output width of a matrix, R rank.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from lmtransfer.errors import CheckpointError, ConfigError
from lmtransfer.interop.exporting.folder import check_head, run_to_publish, write_published
from lmtransfer.interop.exporting.run import OpenRun
from lmtransfer.interop.families.family import Family, Rewrite, TaskArchitecture, TaskKind, rewrite_of
from lmtransfer.interop.reading import read_published
from lmtransfer.interop.writing import PublishedFiles, to_published_files
from lmtransfer.models.layers.lora import SavedUpdate, split_updates
from lmtransfer.training.weights import read_weights, weights
from lmtransfer.transfer.learner import TaskLearner

#: Folder of the base inside the export, unless the user names a base.
BASE = "base"
#: Largest difference between a merged weight and the sum of base and update that rounding explains.
_ROUNDING = 1e-5
CONFIG_FILE, WEIGHT_FILE = "adapter_config.json", "adapter_model.safetensors"
#: Prefix of the tensor names in the file; peft puts the model inside two wrappers.
_WRAPPED = "base_model.model."
_TASK_TYPES = {
    "classification": "SEQ_CLS",
    "regression": "SEQ_CLS",
    "tagging": "TOKEN_CLS",
    "span": "QUESTION_ANS",
}


@dataclass(frozen=True, slots=True)
class AdapterFiles:
    """The files of an adapter."""

    base: Path
    architecture: str  #: the transformers class that loads the base with the head
    num_labels: int
    notes: tuple[str, ...]
    verification: str  #: a line on the comparison with the merged model


def write_adapter(run: OpenRun, folder: Path, *, base: str | None, export_name: str) -> AdapterFiles:
    """Write adapter_config.json, adapter_model.safetensors, the tokenizer, and the base if the user names none.

    Args:
        run: a run with transfer=lora; the updates are merged in ``run.learner``.
    """
    encoder, updates = _split_run(run)
    check_head(run)
    try:
        words = run.write_tokenizer(folder)
        merged = run_to_publish(run, words)
        bare = replace(merged, kind="encoder", encoder=encoder, head={}, labels=())
        whole, body = to_published_files(merged), to_published_files(bare)
    except CheckpointError as error:
        raise CheckpointError(f"run={run.run_path}: {error}. To export its tensors, set format=tensors") from error
    task = run.family.task(cast(TaskKind, run.kind))
    if isinstance(task, TaskArchitecture) and task.needs_own_base:
        if base is not None:
            keys = ", ".join(f"{key}={value}" for key, value in task.config.items())
            raise ConfigError(
                f"base={base}: {task.name} needs {keys} in the base's config.json; leave base out, so that the export "
                "includes a suitable base"
            )
        body = replace(body, config={**body.config, **task.config})
    if base is None:
        place = folder / BASE
        place.mkdir()
        run.write_tokenizer(place)
        write_published(body, place, run.published_config)
    else:
        place = Path(base).expanduser().absolute()
        _check_base(place, run, encoder)
    config, tensors = _to_adapter(
        run.family,
        updates,
        encoder=encoder,
        trained=_trained_tensors(run, whole),
        kind=run.kind,
        dropout=run.method.lora.dropout if run.method.lora else 0.0,
        base=base or f"{export_name.rstrip('/')}/{BASE}",
    )
    (folder / CONFIG_FILE).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    save_file(tensors, folder / WEIGHT_FILE, metadata={"format": "pt"})
    return AdapterFiles(
        base=place,
        architecture=whole.architecture,
        num_labels=len(run.head["output.bias"]),
        notes=(*run.notes, *words.notes, *whole.notes),
        verification=_read_back(run, folder, body, whole),
    )


def _split_run(run: OpenRun) -> tuple[dict[str, Tensor], list[SavedUpdate]]:
    """Return the encoder's tensors before the updates, and the updates; updates of shared layers occur once."""
    names = weights(run.encoder).keys()
    encoder, updates = split_updates(read_weights(run.checkpoint, prefix="encoder."))
    encoder = {name: tensor for name, tensor in encoder.items() if name in names}
    updates = [update for update in updates if f"{update.layer}.weight" in names]
    if not isinstance(run.learner, TaskLearner) or not updates:
        raise ConfigError(
            f"format=adapter: run={run.run_path} was not trained with transfer=lora, so it has no low-rank updates; "
            "export it with format=auto"
        )
    return encoder, updates


def _trained_tensors(run: OpenRun, whole: PublishedFiles) -> dict[str, Tensor]:
    """Return the tensors that were trained in full, under their published names: those of the head and its pooler."""
    family = run.family
    pooler = [f"{family.prefix}{name}" for name in family.pooler_names]
    uses_pooler = isinstance(run.learner, TaskLearner) and run.learner.use_pooler
    return {
        name: tensor
        for name, tensor in whole.tensors.items()
        if not name.startswith(family.prefix) or (uses_pooler and name in pooler)
    }


def _check_base(place: Path, run: OpenRun, encoder: dict[str, Tensor]) -> None:
    """Check that a folder holds the encoder that the updates belong to.

    The pooler is not compared, because it is part of the adapter.
    """
    try:
        published = read_published(place)
    except CheckpointError as error:
        raise ConfigError(
            f"base={place}: {error}; give the folder of an exported encoder, or leave base out"
        ) from error
    tensors = dict(published.encoder)
    if run.family.token in tensors:
        # The published embedding may have one more row, for padding.
        tensors[run.family.token] = tensors[run.family.token][: run.encoder.vocab_size]
    wrong = [
        name
        for name, tensor in encoder.items()
        if not name.startswith("pooler.") and (name not in tensors or not torch.equal(tensors[name].float(), tensor))
    ]
    if wrong:
        raise ConfigError(
            f"base={place} is not the base of run={run.run_path}: {len(wrong)} of {len(encoder)} tensors differ, such "
            f"as {wrong[0]}. Give the export of {run.saved.config.get('init') or 'its base'}, or leave base out, so "
            "that the export includes the base"
        )


def _read_back(run: OpenRun, folder: Path, body: PublishedFiles, whole: PublishedFiles) -> str:
    """Read the adapter back, merge it into the base, and compare the result with the run's merged model."""
    config = json.loads((folder / CONFIG_FILE).read_text(encoding="utf-8"))
    base = {f"{run.family.prefix}{name}": tensor for name, tensor in body.tensors.items()}
    merged = _merge_adapter(base, config, load_file(folder / WEIGHT_FILE))
    largest = 0.0
    for name, tensor in whole.tensors.items():
        difference = float((merged[name] - tensor).abs().max()) if name in merged else float("inf")
        if not difference <= _ROUNDING:
            raise CheckpointError(
                f"{WEIGHT_FILE}: {name} differs from the run's weight by {difference:.1e}; nothing was exported"
            )
        largest = max(largest, difference)
    rounded = f"{largest:.0e}" if largest else "0"
    modules = len(config["target_modules"])
    return f"read back: base and adapter reproduce the merged weights; {modules} updates, largest difference {rounded}"


@dataclass(frozen=True, slots=True)
class _ModuleUpdate:
    """The update ``alpha / R * B A`` of one module of transformers.

    Attributes:
        transposed: whether the module stores its matrix as (in, out).
    """

    a_RD: Tensor
    b_ER: Tensor
    alpha: float
    transposed: bool


def _to_adapter(
    family: Family,
    updates: Sequence[SavedUpdate],
    *,
    encoder: Mapping[str, Tensor],
    trained: Mapping[str, Tensor],
    kind: str,
    dropout: float,
    base: str,
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Convert low-rank updates of an encoder to the settings and tensors of an adapter.

    Args:
        trained: tensors to save in full, under their published names with prefix: those of the head and of a trained
            pooler.
    """
    modules: dict[str, _ModuleUpdate] = {}
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
    return config, {name: tensor.detach().clone().contiguous() for name, tensor in tensors.items()}


def _modules(rewrite: Rewrite, updates: Sequence[SavedUpdate], *, num_rows: int) -> dict[str, _ModuleUpdate]:
    """Return the updates of one of our layers by published module: one per matrix, or one for a fused module."""
    names = [name.removesuffix(".weight") for name in rewrite.theirs]
    if rewrite.layout not in ("same", "in_out"):
        raise CheckpointError(
            f"peft cannot update {', '.join(names)}, because transformers has no linear layer for this: train with "
            "'transfer.lora_matrices=[expand,contract]', or export the merged model with format=auto"
        )
    transposed = rewrite.layout == "in_out"
    if len(names) > 1:
        return {
            names[update.index]: _ModuleUpdate(update.a_RD, update.b_ER, _alpha(update), transposed)
            for update in updates
        }
    ranks = [len(update.a_RD) for update in updates]
    b_ER = updates[0].b_ER.new_zeros(num_rows, sum(ranks))
    for i, update in enumerate(updates):  # each matrix has its own columns, so B A does not change
        b_ER[update.rows, sum(ranks[:i]) : sum(ranks[: i + 1])] = update.b_ER
    a_RD = torch.cat([update.a_RD for update in updates])
    return {names[0]: _ModuleUpdate(a_RD, b_ER, float(updates[0].scale) * sum(ranks), transposed)}


def _alpha(update: SavedUpdate) -> float:
    return float(update.scale) * len(update.a_RD)


def _plain(value: float) -> float | int:
    return round(value) if abs(value - round(value)) < 1e-6 * value else value


def _saved_module(name: str, family: Family) -> str:
    """Return the module of a tensor that peft saves in full: the head, or the encoder's pooler."""
    inside = name.startswith(family.prefix)
    return f"{family.prefix if inside else ''}{name.removeprefix(family.prefix).partition('.')[0]}"


def _merge_adapter(
    tensors: Mapping[str, Tensor], config: Mapping[str, Any], adapter: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Merge an adapter into the tensors of a transformers model, as peft does."""
    merged = dict(tensors)
    for key, tensor in adapter.items():
        name = key.removeprefix(_WRAPPED)
        if not name.endswith((".lora_A.weight", ".lora_B.weight")):
            merged[name] = tensor
    for key, a_RD in adapter.items():
        name = key.removeprefix(_WRAPPED).removesuffix(".lora_A.weight")
        if key.endswith(".lora_A.weight"):
            alpha = config["alpha_pattern"].get(name, config["lora_alpha"])
            update = alpha / len(a_RD) * (adapter[key.replace("lora_A", "lora_B")] @ a_RD)
            merged[f"{name}.weight"] = merged[f"{name}.weight"] + (update.T if config["fan_in_fan_out"] else update)
    return merged
