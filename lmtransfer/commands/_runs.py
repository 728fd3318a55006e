"""Reading run directories: the encoder, tokenizer and settings that another run starts from."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import torch
from omegaconf import DictConfig, OmegaConf
from torch import Tensor, nn

from lmtransfer.commands._published_folder import PREFIX
from lmtransfer.config.build import build
from lmtransfer.errors import RunDirectoryError
from lmtransfer.models.base import Encoder
from lmtransfer.randomness import derived_seed
from lmtransfer.tokenizers.base import Tokenizer
from lmtransfer.tokenizers.load import load_tokenizer
from lmtransfer.training import distributed
from lmtransfer.training.run_directory import RunDirectory
from lmtransfer.training.weights import load_weights, read_weights

CheckpointName = Literal["best", "last"]


@dataclass(frozen=True, slots=True)
class SavedRun:
    """A run directory that holds a model.

    Attributes:
        directory: its files.
        config: its resolved configuration, plain values.
        tokenizer: its tokenizer.
    """

    directory: RunDirectory
    config: dict[str, Any]
    tokenizer: Tokenizer

    @property
    def path(self) -> Path:
        """The directory, absolute."""
        return self.directory.path

    @property
    def model_node(self) -> DictConfig:
        """The component node of its encoder."""
        return OmegaConf.create(dict(self.config["model"]))

    def checkpoint(self, name: CheckpointName | None = None) -> Path:
        """The folder of a checkpoint: the named one, else ``best`` where there is one, else ``last``.

        Raises:
            RunDirectoryError: there is no such checkpoint.
        """
        folder = self.path / "checkpoints"
        seeds = seed_folders(self.path)
        if seeds and not folder.is_dir():
            raise RunDirectoryError(f"the run {self.path} has several seeds: name one of them, such as {seeds[0]}")
        if name is None:
            return self.directory.best_checkpoint()
        folder = folder / name
        if not folder.is_dir():
            raise RunDirectoryError(f"the run {self.path} has no checkpoint {name!r}")
        return folder


def run_folder(path: str | Path, *, key: str) -> RunDirectory:
    """The run directory that the user named; of ``hf:<folder or name on the hub>``, the one in the cache.

    Raises:
        RunDirectoryError: there is none.
        CheckpointError: there is no such published model, or it cannot be imported.
    """
    if str(path).startswith(PREFIX):
        # Most runs begin from no published model, and need not wait for what reads them.
        from lmtransfer.commands._imported import import_into_cache
        from lmtransfer.commands._imported_messages import imported_lines

        folder, imported = import_into_cache(str(path), key=key)
        if imported is not None and distributed.is_main():
            for line in [*imported_lines(imported), f"kept in the cache: {folder}"]:
                print(line, file=sys.stderr)
        return RunDirectory.open(folder)
    try:
        return RunDirectory.open(Path(path).expanduser())
    except RunDirectoryError as error:
        raise RunDirectoryError(f"{key}: {error}") from None


def open_saved(path: str | Path, *, key: str) -> SavedRun:
    """Open the run directory that the user named.

    Args:
        path: the directory, as given; ``hf:`` before it makes it a published model, which is imported.
        key: the configuration key that gave it, for messages.

    Raises:
        RunDirectoryError: it is missing, or no run that holds a model.
        CheckpointError: its tokenizer is torn, or a published model cannot be imported.
    """
    directory = run_folder(path, key=key)
    config = directory.read_config()
    if not isinstance(config.get("model"), Mapping) or not directory.tokenizer.is_dir():
        raise RunDirectoryError(
            f"{key}={path}: holds no model with its tokenizer; give a run of pretrain, import, probe or finetune, such "
            "as runs/pretrain/<name>"
        )
    return SavedRun(directory, config, load_tokenizer(directory.tokenizer))


def is_pretrained(path: str | Path) -> bool:
    """Whether the run was trained on text without labels, and has the heads for it.

    Raises:
        RunDirectoryError: it is no run.
        CheckpointError: a published model cannot be imported.
    """
    config = run_folder(path, key="run").read_config()
    return "objective" in config and "task" not in config


def trained_folders(path: str | Path) -> list[Path]:
    """The run of a task that the user named, or its seeds in their order.

    Raises:
        RunDirectoryError: no run of a task there, or none that has a checkpoint.
    """
    directory = run_folder(path, key="run")
    config = directory.read_config()
    if "transfer" not in config or "task" not in config:
        raise RunDirectoryError(
            f"run={path}: was not trained on a task; give a run of probe or finetune, made by lmtransfer finetune "
            f"init={path}"
        )
    folders = folders_with_checkpoints(directory.path)
    if not folders:
        raise RunDirectoryError(f"run={path}: holds no checkpoint yet; let it finish, or go on with it by resume=true")
    return folders


def folders_with_checkpoints(path: Path) -> list[Path]:
    """A run's folder, or those of its seeds in their order; none where nothing has been saved."""
    if (path / "checkpoints").is_dir():
        return [path]
    return [folder for folder in seed_folders(path) if (folder / "checkpoints").is_dir()]


def pretraining_seeds(run: SavedRun) -> list[SavedRun]:
    """A run, or its seeds in their order where it was pretrained with several.

    Raises:
        RunDirectoryError: a seed is not there or holds no checkpoint yet, or their tokenizers are not one and the same.
    """
    folders = seed_folders(run.path)
    if not folders or "task" in run.config or (run.path / "checkpoints").is_dir():
        return [run]
    wanted = run.config.get("seeds")
    if isinstance(wanted, int) and len(folders) < wanted:
        raise RunDirectoryError(
            f"the run {run.path} has {len(folders)} of its {wanted} seeds so far: go on with it by resume=true, or "
            f"name one of them, such as {folders[0]}"
        )
    found = [open_saved(folder, key="init") for folder in folders]
    for one in found:
        one.checkpoint()
        if one.tokenizer.fingerprint != run.tokenizer.fingerprint:
            raise RunDirectoryError(
                f"the seeds of {run.path} have different tokenizers ({one.path.name} has another one): name one of "
                f"them, such as {one.path}"
            )
    return found


def pretraining_seed(run: SavedRun) -> int | None:
    """The seed of the pretraining behind a run, where that is known."""
    seed = run.config.get("seed")
    if "task" in run.config:
        seed = run.directory.read_result().get("pretraining_seed") if run.directory.is_finished else None
    return seed if isinstance(seed, int) else None


def seed_folders(path: Path) -> list[Path]:
    """The folders of a run's seeds: those of one pretraining seed together, in ascending order."""
    found: dict[tuple[int, int], Path] = {}
    for folder in [*path.glob("seed-*"), *path.glob("pretraining-*/seed-*")]:
        parts = folder.relative_to(path).parts
        numbers = [part.rpartition("-")[2] for part in parts]
        if all(number.isdigit() for number in numbers):
            found[int(numbers[0]) if len(parts) > 1 else -1, int(numbers[-1])] = folder
    return [found[place] for place in sorted(found)]


def new_encoder(model_node: DictConfig | Mapping[str, Any], tokenizer: Tokenizer, *, seed: int) -> Encoder:
    """An encoder with random weights that depend on ``seed`` alone; torch's generator is left as it was.

    Args:
        model_node: component node.
        tokenizer: gives the vocabulary's size.
        seed: of the weights.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derived_seed(seed, "initialisation"))
        return cast(Encoder, build(model_node, vocab_size=tokenizer.vocab_size))


def encoder_weights(run: SavedRun, checkpoint: CheckpointName | None = None) -> dict[str, Tensor]:
    """The encoder's tensors of a run, by name.

    Raises:
        RunDirectoryError: no such checkpoint.
        CheckpointError: it is torn, or holds no encoder.
    """
    return read_weights(run.checkpoint(checkpoint), prefix="encoder.")


def load_encoder(
    run_path: str | Path, *, checkpoint: CheckpointName | None = None
) -> tuple[Encoder, Tokenizer, DictConfig]:
    """The encoder of a run with its tokenizer and its component node.

    Args:
        run_path: run directory of any training command.
        checkpoint: ``best`` or ``last``; None takes ``best`` where there is one.

    Raises:
        RunDirectoryError: no run, or no such checkpoint.
        ConfigError: its component node is not allowed or does not fit.
        CheckpointError: torn, or an encoder tensor is missing, left over or of another shape.
    """
    run = open_saved(run_path, key="init")
    encoder = new_encoder(run.model_node, run.tokenizer, seed=0)
    load_weights(cast(nn.Module, encoder), encoder_weights(run, checkpoint), source=str(run.checkpoint(checkpoint)))
    return encoder, run.tokenizer, run.model_node
