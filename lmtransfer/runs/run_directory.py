"""The run directory: all files of a run. It can be moved, copied and mailed, and nothing in it can run code.

::

    runs/<command>/<name>/
        config.yaml        the resolved configuration
        versions.json      versions of Python, PyTorch and other packages, the user's git commit, hashes of the data
        tokenizer/         the tokenizer, which turns text into ids
        token_shares.safetensors   each token's share of the training text, for a pretraining run
        checkpoints/       last and best, and the revisions of ``train.save_at`` (see ``training.checkpoints``)
        metrics.jsonl      one object per logged step
        trackers/          the record id of each other tracker, and the files that it keeps in the run
        predictions/       the predicted answer for each example (see ``runs.predictions``), for a run on a task
        folds/             a run directory for each fold of a cross-validation
        final/             the run directory of the final model, which is then the model of this run
        result.json        the result, once the run is finished
"""

from __future__ import annotations

import json
import platform
import subprocess
from collections.abc import Mapping
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, Required, TypeVar, cast, overload

import numpy as np
import torch
import yaml
from annotated_types import MinLen
from safetensors.numpy import save
from typing_extensions import TypedDict

from lmtransfer.config.revisions import count_text
from lmtransfer.config.types import LargeCount, Whole
from lmtransfer.errors import RunDirectoryError
from lmtransfer.runs.create_or_resume import check_run_folder, create_run_folder
from lmtransfer.runs.result import FINAL, RunResult
from lmtransfer.system import door
from lmtransfer.system.durable import remove, write_bytes, write_text
from lmtransfer.system.safe_files import check_folder, read_json, read_tensors, read_yaml
from lmtransfer.training import process_group
from lmtransfer.training.checkpoints import Checkpoints, explain_deletion

R = TypeVar("R", bound=RunResult)
_TOKEN_SHARES = "token_shares.safetensors"
#: The packages whose versions are saved.
_PACKAGES = (
    "lmtransfer",
    "torch",
    "numpy",
    "hydra-core",
    "omegaconf",
    "safetensors",
    "sentencepiece",
    "tokenizers",
    "datasets",
)


class _Component(TypedDict):
    _target_: str


class _Objective(TypedDict, total=False):
    losses: Required[Annotated[dict[str, _Component], MinLen(1)]]
    rows: _Component
    corruption: _Component
    max_length: LargeCount


class _Config(TypedDict, total=False):
    """The fields of ``config.yaml`` that other commands use; components are checked when they are built."""

    model: _Component | None
    task: _Component | None
    transfer: _Component | None
    corpus: _Component | None
    objective: _Objective
    tokenizer: dict[str, Any] | None
    train: dict[str, Any] | None
    hardware: dict[str, Any] | None
    optimizer: dict[str, Any] | None
    schedule: dict[str, Any] | None
    tracker: dict[str, Any] | None
    phases: dict[str, Any] | None
    name: str | None
    init: str | None
    run: str | None
    tokenizer_from: str | None
    data_root: str | None
    cache_dir: str | None
    source: str | None
    output_root: str
    seed: Whole
    seeds: LargeCount
    control: bool
    final: bool
    keep_weights: bool


class _Versions(TypedDict, total=False):
    data: dict[str, str]


class RunDirectory:
    """The files of one run; ``create`` makes the directory, ``open`` opens an existing one."""

    def __init__(self, path: Path) -> None:
        self.path = Path(path).absolute()
        self.config_path = self.path / "config.yaml"
        self.tokenizer = self.path / "tokenizer"
        self.metrics_path = self.path / "metrics.jsonl"
        self.folds = self.path / "folds"
        self.result_path = self.path / "result.json"

    @classmethod
    def create(cls, root: Path | str, command: str, name: str, *, resume: bool = False) -> RunDirectory:
        """Create ``<root>/<command>/<name>``, or open it again to resume the run.

        Under ``torchrun``, rank 0 creates the directory, and every rank gets the same result.
        """
        parts = Path(name).parts
        if not name or Path(name).is_absolute() or ".." in parts or parts != tuple(name.split("/")):
            raise RunDirectoryError(
                f"name={name!r} is not a valid run name: use letters, digits, '-', '_', and '/' for folders"
            )
        run = cls(Path(root) / command / name)
        door.admit(run.path)
        problem = process_group.broadcast(
            create_run_folder(run.path, resume=resume) if process_group.is_main() else None
        )
        if problem is not None:
            raise RunDirectoryError(problem)
        return run

    @classmethod
    def open(cls, path: Path | str) -> RunDirectory:
        """Open an existing run, which someone else may have written."""
        run = cls(Path(path))
        check_run_folder(run.path)
        check_folder(run.path, error=RunDirectoryError)
        return run

    @property
    def checkpoints(self) -> Checkpoints:
        """The checkpoints, complete or not."""
        return Checkpoints(self.path / "checkpoints")

    @property
    def model(self) -> RunDirectory:
        """The directory with the model of the run: that of the final model if there is one, else this one."""
        final = RunDirectory(self.path / FINAL)
        return final if final.checkpoints.exists() else self

    @property
    def is_finished(self) -> bool:
        """Whether the run has a result."""
        return self.result_path.is_file()

    def best_checkpoint(self) -> Path:
        """Return the folder of the checkpoint to use: ``best``, or ``last`` if there is no ``best``."""
        self.check_not_divided()
        for name in ("best", "last"):
            if (self.path / "checkpoints" / name).is_dir():
                return self.path / "checkpoints" / name
        self.check_kept()
        raise RunDirectoryError(
            f"the run {self.path} has no checkpoint yet: let it finish, or continue it with resume=true"
        )

    def check_kept(self) -> None:
        """Check that the user has not deleted the weights."""
        if self.is_finished and self.read_config().get("keep_weights") is False:
            raise RunDirectoryError(
                f"the run {self.path} still has its scores, but not its weights, because it was started with "
                "keep_weights=false; start a new run with keep_weights=true and another name (name=...)"
            )

    def delete_weights(self) -> None:
        """Delete the checkpoints, including those of folds."""
        if process_group.is_main():
            for folder in [self.path, *self.folds.glob("fold-*")]:
                remove(folder / "checkpoints")
        process_group.barrier()

    def revision(self, tokens: int) -> Path:
        """Return the folder of the revision that was kept at ``tokens`` tokens."""
        revisions = self.checkpoints.revisions()
        if tokens in revisions:
            return revisions[tokens]
        existing = (
            f"its revisions are {', '.join(map(count_text, revisions))}"
            if revisions
            else "it has no revisions at all (train.save_at saves them)"
        )
        raise RunDirectoryError(f"the run {self.path} has no revision {count_text(tokens)}: {existing}")

    def check_not_divided(self) -> None:
        """Check that the run was not cross-validated, so that it has a single model."""
        if self.folds.is_dir():
            if not self.is_finished and self.read_config().get("final"):
                raise RunDirectoryError(
                    f"the run {self.path} is not finished: its final model is trained after the folds; wait for it, or "
                    "repeat its command with resume=true"
                )
            raise RunDirectoryError(
                f"the run {self.path} was cross-validated, so it has one model per fold, but none for all examples: "
                "repeat its command with final=true resume=true to train one, or choose a fold, such as "
                f"{self.folds / 'fold-0'}"
            )

    def write_token_shares(self, shares_V: np.ndarray) -> None:
        """Save each token's share of the training text, float, shape (vocabulary,)."""
        write_bytes(self.path / _TOKEN_SHARES, save({"shares": shares_V.astype(np.float32)}))

    def read_token_shares(self) -> np.ndarray | None:
        """Return each token's share of the training text, float32, shape (vocabulary,); None if it was not saved."""
        path = self.path / _TOKEN_SHARES
        if not path.is_file():
            return None
        shares = read_tensors(path, error=RunDirectoryError).get("shares")
        if shares is None or shares.ndim != 1 or shares.dtype != torch.float32 or not (shares > 0).any():
            raise RunDirectoryError(f"{path}: the file has no token frequencies; delete the file to score without them")
        return shares.numpy()

    def revision_words(self) -> dict[int, int]:
        """Return the number of words that each revision was trained on, rounded to three digits, by token count.

        Raises:
            RunDirectoryError: the run has no revisions, or its result does not state the number of words.
        """
        revisions = self.checkpoints.revisions()
        if not revisions:
            raise RunDirectoryError(
                f"run={self.path} has no revisions: pretrain with train.save_at=[0,100k,1M] or train.save_at_words to "
                "save some"
            )
        result = self.read_result()
        words = result.more.get("words")
        if not isinstance(words, int) or words < 1 or not result.tokens:
            raise RunDirectoryError(
                f"run={self.path}: the result does not state the number of words: choose a run that was pretrained on "
                "a single corpus"
            )
        return {tokens: int(float(f"{tokens * words / result.tokens:.3g}")) for tokens in revisions}

    def write_config(self, config: Mapping[str, Any]) -> None:
        """Save the resolved configuration as plain values; only rank 0 writes."""
        if process_group.is_main():
            write_text(self.config_path, yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True))

    def read_config(self) -> dict[str, Any]:
        """Return the run's configuration, as plain values."""
        return cast("dict[str, Any]", read_yaml(self.config_path, _Config, error=RunDirectoryError))

    def write_versions(self, versions: Mapping[str, Any]) -> None:
        """Save the result of ``versions``; only rank 0 writes."""
        if process_group.is_main():
            write_text(self.path / "versions.json", json.dumps(dict(versions), indent=1) + "\n")

    def write_result(self, result: RunResult) -> None:
        """Save the result; only rank 0 writes."""
        if process_group.is_main():
            if not self.config_path.is_file():
                raise RunDirectoryError(explain_deletion(self.config_path))
            result.write(self.result_path)

    def read_versions(self) -> dict[str, Any]:
        """Return the versions with which the run was produced; empty if there is no such file."""
        path = self.path / "versions.json"
        if not path.exists():
            return {}
        return {**read_json(path, _Versions, error=RunDirectoryError)}

    @overload
    def read_result(self) -> RunResult: ...
    @overload
    def read_result(self, kind: type[R]) -> R: ...
    def read_result(self, kind: type[RunResult] = RunResult) -> RunResult:
        """Read the result as an instance of ``kind``."""
        if not self.result_path.exists():
            raise RunDirectoryError(f"the run {self.path} has no result yet: continue it with resume=true")
        return kind.read(self.result_path)


def versions(*, data: dict[str, str] | None = None, folder: Path | None = None) -> dict[str, Any]:
    """Return the versions of Python and of important packages, the machine, and the git commit, as plain values."""
    return {
        "python": platform.python_version(),
        "packages": {name: _package(name) for name in _PACKAGES},
        "platform": platform.platform(),
        "processor": _processor(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "threads": torch.get_num_threads(),
        "world_size": process_group.world_size(),
        "git_commit": _git_commit(folder or Path.cwd()),
        "data": data or {},
    }


@cache
def _package(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()


def _git_commit(folder: Path) -> str | None:
    """Return the commit checked out in ``folder``, with ``+changes`` if files differ; None outside a repository."""
    try:
        commit = _git(folder, "rev-parse", "HEAD")
        changed = _git(folder, "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.SubprocessError):
        return None
    return commit + ("+changes" if changed else "")


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=folder, check=True, capture_output=True, text=True, timeout=10)
    return done.stdout.strip()
