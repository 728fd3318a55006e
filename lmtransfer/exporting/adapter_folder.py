"""An export that peft loads onto its base: the low-rank updates of LoRA, the head, and on request the base."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from lmtransfer.errors import CheckpointError, ConfigError
from lmtransfer.exporting.folder import as_published, check_head, write_published
from lmtransfer.exporting.run import OpenRun
from lmtransfer.interop.adapter import CONFIG_FILE, WEIGHT_FILE, PublishedAdapter, to_adapter, with_adapter
from lmtransfer.interop.families.base import TaskArchitecture, TaskKind
from lmtransfer.interop.reading import read_published
from lmtransfer.interop.writing import PublishedFiles, to_published
from lmtransfer.models.layers.lora import SavedUpdate, split_updates
from lmtransfer.training.weights import read_weights, weights
from lmtransfer.transfer.learner import TaskLearner

#: The folder of the base inside the export, unless the user gives one.
BASE = "base"
#: Largest difference between a merged weight and base plus update, which only rounding explains.
_ROUNDING = 1e-5


@dataclass(frozen=True, slots=True)
class WrittenAdapter:
    """The written adapter.

    Attributes:
        base: folder of the base.
        architecture: class of transformers that loads the base with the head.
        num_labels: number of outputs of the head.
        notes: notes on what was left out or changed.
        checked: what was compared, in words.
    """

    base: Path
    architecture: str
    num_labels: int
    notes: tuple[str, ...]
    checked: str


def write_adapter(run: OpenRun, folder: Path, *, base: str | None, named: str) -> WrittenAdapter:
    """Write adapter_config.json, adapter_model.safetensors, the tokenizer, and the base if the user gives none.

    Args:
        run: a run of transfer=lora; its updates are merged in ``run.learner``.
        folder: where to; exists.
        base: the folder of the base that the user gave, or None.
        named: the path of the export as the user gave it.

    Raises:
        ConfigError: the run has no low-rank updates, or the folder of the base is not its base.
        NotInTransformers: transformers has no such model.
        CheckpointError: transformers or peft have no such head or updates.
    """
    encoder, updates = _apart(run)
    check_head(run)
    try:
        words = run.write_tokenizer(folder)
        merged = as_published(run, words)
        alone = replace(merged, kind="encoder", encoder=encoder, head={}, labels=())
        whole, body = to_published(merged), to_published(alone)
    except CheckpointError as error:
        raise CheckpointError(f"run={run.named}: {error}. Its tensors can be written with format=tensors") from error
    task = run.family.task(cast(TaskKind, run.kind))
    if isinstance(task, TaskArchitecture) and task.own_base:
        if base is not None:
            keys = ", ".join(f"{key}={value}" for key, value in task.config.items())
            raise ConfigError(
                f"base={base}: {task.name} needs {keys} in the config.json of its base; leave base out, so that such a "
                "base is written too"
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
    adapter = to_adapter(
        run.family,
        updates,
        encoder=encoder,
        trained=_trained(run, whole),
        kind=run.kind,
        dropout=run.method.lora.dropout if run.method.lora else 0.0,
        base=base or f"{named.rstrip('/')}/{BASE}",
    )
    (folder / CONFIG_FILE).write_text(json.dumps(adapter.config, indent=2) + "\n", encoding="utf-8")
    save_file(adapter.tensors, folder / WEIGHT_FILE, metadata={"format": "pt"})
    return WrittenAdapter(
        base=place,
        architecture=whole.architecture,
        num_labels=len(run.head["output.bias"]),
        notes=(*run.notes, *words.notes, *whole.notes),
        checked=_read_back(run, folder, body, whole),
    )


def _apart(run: OpenRun) -> tuple[dict[str, Tensor], list[SavedUpdate]]:
    """The tensors of the encoder without updates, and the updates; those of shared layers once.

    Raises:
        ConfigError: there are none.
    """
    names = weights(run.encoder).keys()
    encoder, updates = split_updates(read_weights(run.checkpoint, prefix="encoder."))
    encoder = {name: tensor for name, tensor in encoder.items() if name in names}
    updates = [update for update in updates if f"{update.layer}.weight" in names]
    if not isinstance(run.learner, TaskLearner) or not updates:
        raise ConfigError(
            f"format=adapter: run={run.named} was not trained with transfer=lora, so it has no low-rank updates; "
            "export it with format=auto"
        )
    return encoder, updates


def _trained(run: OpenRun, whole: PublishedFiles) -> dict[str, Tensor]:
    """The tensors that were trained as a whole, by their published names: those of the head, and its pooler."""
    family = run.family
    pooler = [f"{family.prefix}{name}" for name in family.pooler_names]
    uses_pooler = isinstance(run.learner, TaskLearner) and run.learner.use_pooler
    return {
        name: tensor
        for name, tensor in whole.tensors.items()
        if not name.startswith(family.prefix) or (uses_pooler and name in pooler)
    }


def _check_base(place: Path, run: OpenRun, encoder: dict[str, Tensor]) -> None:
    """Check that a folder holds the encoder to which the updates belong; a pooler is part of the adapter.

    Raises:
        ConfigError: it is not such a folder.
    """
    try:
        published = read_published(place)
    except CheckpointError as error:
        raise ConfigError(f"base={place}: {error}; give the folder of an exported encoder, or none") from error
    found = dict(published.encoder)
    if run.family.token in found:
        found[run.family.token] = found[run.family.token][: run.encoder.vocab_size]  # there may be a row for padding
    wrong = [
        name
        for name, tensor in encoder.items()
        if not name.startswith("pooler.") and (name not in found or not torch.equal(found[name].float(), tensor))
    ]
    if wrong:
        raise ConfigError(
            f"base={place}: is not the base of run={run.named}: {len(wrong)} of {len(encoder)} tensors differ, such as "
            f"{wrong[0]}. Give the export of {run.saved.config.get('init') or 'its base'}, or leave base out, so that "
            "the base is written too"
        )


def _read_back(run: OpenRun, folder: Path, body: PublishedFiles, whole: PublishedFiles) -> str:
    """Read the adapter back, and compare base plus adapter with the merged model.

    Raises:
        CheckpointError: a weight differs.
    """
    config = json.loads((folder / CONFIG_FILE).read_text(encoding="utf-8"))
    read = PublishedAdapter(config, load_file(folder / WEIGHT_FILE))
    merged = with_adapter({f"{run.family.prefix}{name}": tensor for name, tensor in body.tensors.items()}, read)
    largest = 0.0
    for name, tensor in whole.tensors.items():
        difference = float((merged[name] - tensor).abs().max()) if name in merged else float("inf")
        if not difference <= _ROUNDING:
            raise CheckpointError(f"{WEIGHT_FILE}: {name} differs by {difference:.1e}; nothing was exported")
        largest = max(largest, difference)
    shown = f"{largest:.0e}" if largest else "0"
    modules = len(config["target_modules"])
    return f"read back: base and adapter are the merged weights, {modules} updates, largest difference {shown}"
