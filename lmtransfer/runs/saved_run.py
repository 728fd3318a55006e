"""The contents of run directories that other runs start from: the encoder, the tokenizer and the settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn

from lmtransfer.config.component import Node, build, component_problems, is_component
from lmtransfer.config.revisions import with_revision
from lmtransfer.errors import CheckpointError, ConfigError, RunDirectoryError, list_problems
from lmtransfer.models.base import Encoder, shapes_only
from lmtransfer.models.layers.lora import merge_saved_updates
from lmtransfer.randomness import derive_seed
from lmtransfer.runs.run_directory import RunDirectory
from lmtransfer.runs.trust import is_trusted
from lmtransfer.system.safe_files import read_json
from lmtransfer.system.validation import describe_value, value_at
from lmtransfer.tokenizers.base import Tokenizer
from lmtransfer.tokenizers.load import load_tokenizer
from lmtransfer.training.checkpoints import STATE, SavedState
from lmtransfer.training.weights import check_weights, load_weights, read_weights

CheckpointName = Literal["best", "last"]
M = TypeVar("M", bound=nn.Module)

#: Errors that a constructor raises if its arguments have the right types but are inconsistent.
_NOT_BUILT = (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)


@dataclass(frozen=True, slots=True)
class SavedRun:
    """A run directory that holds a model.

    Attributes:
        trusted: whether files and data sets named in its configuration may be read, because the user produced the run
            or trusts it.
    """

    directory: RunDirectory
    config: dict[str, Any]
    tokenizer: Tokenizer
    trusted: bool
    revision: int | None = None

    @property
    def reference(self) -> str:
        """The path of the run, followed by ``@`` and the token count of a revision."""
        return with_revision(self.path, self.revision)

    @property
    def name(self) -> str:
        """The name of the run's folder, followed by ``@`` and the token count of a revision."""
        return with_revision(self.path.name, self.revision)

    @property
    def path(self) -> Path:
        """The absolute path of the run directory."""
        return self.directory.path

    @property
    def data_root(self) -> str | None:
        """The data folder in its configuration; None if the run is not trusted."""
        return self.config.get("data_root") if self.trusted else None

    @property
    def cache_dir(self) -> str | None:
        """The cache folder in its configuration; None if the run is not trusted."""
        return self.config.get("cache_dir") if self.trusted else None

    @property
    def model_node(self) -> Node[Encoder]:
        """The node of the encoder."""
        return self.component("model", "vocab_size")

    def component(self, key: str, *supplied: str) -> Node[Any]:
        """Return the node at a dotted key; ``supplied`` names the arguments that the command adds."""
        node = value_at(self.config, key)
        source = self.directory.config_path
        if not is_component(node):
            raise RunDirectoryError(
                f"{source}: {key} is {describe_value(node)}, but must be a component (a node with _target_)"
            )
        problems = component_problems(dict(node), key=key, nodes={key: set(supplied)}, complete=True)
        if problems:
            lines = [f"{where}: {problem}" for where, problem in problems.items()]
            raise RunDirectoryError(f"{source}: {lines[0]}" if len(lines) == 1 else list_problems(f"{source}:", lines))
        return Node(node, key)

    def with_weights(
        self, make: Callable[[], M], tensors: Mapping[str, Tensor], *, checkpoint: Path, keys: str = "model"
    ) -> M:
        """Build a module of the configuration and load a checkpoint's weights.

        The module is first built on the meta device, without memory: a configuration may ask for any size, whereas a
        file's tensors have fixed sizes.
        """
        self.check_fit(make, tensors, checkpoint=checkpoint, keys=keys)
        module = make()
        load_weights(module, tensors, source=str(checkpoint))
        return module

    def check_fit(
        self, make: Callable[[], nn.Module], tensors: Mapping[str, Tensor], *, checkpoint: Path, keys: str = "model"
    ) -> None:
        """Check, without allocating memory, that weights match a module; raise the same errors as ``with_weights``."""
        source = self.directory.config_path
        try:
            with torch.random.fork_rng(devices=[]), shapes_only(num_saved=len(tensors)):
                skeleton = make()
        except (ConfigError, *_NOT_BUILT) as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise RunDirectoryError(f"{source}: {keys} cannot be built with these settings ({reason})") from error
        check_weights(skeleton, tensors, source=f"{checkpoint} ({source}: {keys})")

    def checkpoint(self, name: CheckpointName | None = None) -> Path:
        """Return the folder of the named checkpoint; the default is the revision, else ``best``, else ``last``."""
        folder = self.path / "checkpoints"
        seeds = seed_folders(self.path)
        if seeds and not folder.is_dir():
            raise RunDirectoryError(f"the run {self.path} has several seeds: choose a seed, such as {seeds[0]}")
        if self.revision is not None:
            if name is not None:
                raise RunDirectoryError(
                    f"{self.reference} names a revision, so checkpoint={name} has no effect: leave it out"
                )
            folder = self.directory.revision(self.revision)
        else:
            folder = self.directory.best_checkpoint() if name is None else folder / name
        if not folder.is_dir():
            raise RunDirectoryError(f"the run {self.path} has no checkpoint {name!r}")
        self._check_phase(folder)
        return folder

    def _check_phase(self, folder: Path) -> None:
        """Raise an error if the checkpoint is from a phase before the last, which trains the run's main objective."""
        phases = self.config.get("phases") or {}
        if not phases or not (folder / STATE).is_file():
            return
        started = read_json(folder / STATE, SavedState, error=CheckpointError, finite=False).get("phases") or []
        if not started or len(started) >= len(phases):
            return
        phase = describe_value(started[-1]["name"])
        if self.revision is not None:
            raise RunDirectoryError(
                f"{self.reference} was saved in the phase {phase}, before the phase with the run's main objective: "
                "choose a later revision"
            )
        raise RunDirectoryError(
            f"the run {self.path} was interrupted in its phase {phase}, before the phase with its main objective: "
            "continue it with resume=true"
        )


def read_saved(
    directory: RunDirectory, *, reference: str | Path, key: str, trust: bool = False, revision: int | None = None
) -> SavedRun:
    """Read the model of a run directory; error messages refer to it by ``key`` and ``reference``."""
    directory = directory.model
    config = directory.read_config()
    if not isinstance(config.get("model"), Mapping) or not directory.tokenizer.is_dir():
        raise RunDirectoryError(
            f"{key}={reference} contains no model with a tokenizer; choose a run that pretrain, import, probe or "
            "finetune has created, such as runs/pretrain/<name>"
        )
    trusted = is_trusted(directory.path, trust=trust)
    return SavedRun(directory, config, load_tokenizer(directory.tokenizer), trusted, revision)


def folders_with_checkpoints(path: Path) -> list[Path]:
    """Return the folder of a run's model, or the folders of its seeds in order; empty if nothing has been saved."""
    model = RunDirectory(path).model
    if model.checkpoints.exists():
        return [model.path]
    return [folder for folder in seed_folders(path) if (folder / "checkpoints").is_dir()]


def pretraining_seeds(run: SavedRun, *, key: str = "init") -> list[SavedRun]:
    """Return the run itself, or its seeds in order if it was pretrained with several; messages name it by ``key``."""
    folders = seed_folders(run.path)
    if not folders or "task" in run.config or (run.path / "checkpoints").is_dir():
        return [run]
    num_seeds = run.config.get("seeds")
    if isinstance(num_seeds, int) and len(folders) < num_seeds:
        raise RunDirectoryError(
            f"the run {run.path} has {len(folders)} of its {num_seeds} seeds so far: continue it with resume=true, or "
            f"choose a seed, such as {folders[0]}"
        )
    seeds = [
        read_saved(RunDirectory.open(folder), reference=folder, key=key, revision=run.revision) for folder in folders
    ]
    for seed in seeds:
        seed.checkpoint()
        if seed.tokenizer.fingerprint != run.tokenizer.fingerprint:
            raise RunDirectoryError(
                f"the seeds of {run.path} have different tokenizers, for example {seed.path.name}: choose a single "
                f"seed, such as {seed.path}"
            )
    return seeds


def pretraining_seed(run: SavedRun) -> int | None:
    """Return the seed of the run's pretraining; None if unknown."""
    seed = run.config.get("seed")
    if "task" in run.config:
        seed = run.directory.read_result().more.get("pretraining_seed") if run.directory.is_finished else None
    return seed if isinstance(seed, int) else None


def seed_folders(path: Path) -> list[Path]:
    """Return the seed folders of a run, sorted by pretraining seed, then by seed, in ascending order."""
    folders: dict[tuple[int, int], Path] = {}
    for folder in [*path.glob("seed-*"), *path.glob("pretraining-*/seed-*")]:
        parts = folder.relative_to(path).parts
        numbers = [part.rpartition("-")[2] for part in parts]
        if all(number.isdecimal() for number in numbers):
            folders[int(numbers[0]) if len(parts) > 1 else -1, int(numbers[-1])] = folder
    return [folders[place] for place in sorted(folders)]


def new_encoder(model_node: Node[Encoder] | Mapping[str, Any], tokenizer: Tokenizer, *, seed: int) -> Encoder:
    """Build an encoder with random weights that depend only on ``seed``; torch's global generator does not change."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(seed, "initialisation"))
        encoder: Encoder = build(model_node, vocab_size=tokenizer.vocab_size)
        return encoder


def read_encoder(run: SavedRun, checkpoint: CheckpointName | None = None) -> dict[str, Tensor]:
    """Read a run's encoder tensors, with low-rank updates merged, and check them against its configuration."""
    node, folder = run.model_node, run.checkpoint(checkpoint)
    tensors = merge_saved_updates(read_weights(folder, prefix="encoder."))
    run.check_fit(lambda: new_encoder(node, run.tokenizer, seed=0), tensors, checkpoint=folder)
    return tensors
