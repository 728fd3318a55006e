"""The checkpoints of a run, which are saved atomically, and the state of the run that they hold.

They are ``<run>/checkpoints/last``, ``best`` and the revisions. A revision, ``tokens-<count>``, holds the model after
that many training tokens (``train.save_at``): ``model.safetensors`` and ``state.json``, but nothing that only resuming
needs. Later revisions never replace it.

A save is staged in a folder next to its destination (``.last.new``), flushed to disk, and swapped in with two renames
(``last`` to ``.last.old``, ``.last.new`` to ``last``). After a crash at any time, one of these folders is complete, and
``Checkpoints.find_newest`` finds it.

A checkpoint holds ``model.safetensors``, ``optimizer.safetensors``, ``state.json``, and ``manifest.json`` with the
size and SHA-256 of each file, which is written last. Some runs have further files: ``carry.safetensors`` with the
recurrent state; ``raw.safetensors`` with the trained weights if the model is an average; and one file for each other
part of the learner.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, Required, TypeAlias

from pydantic import AllowInfNan
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor
from typing_extensions import TypedDict

from lmtransfer.config.types import LargeCount, NonNegative, Whole
from lmtransfer.errors import CheckpointError
from lmtransfer.system.durable import flush, remove
from lmtransfer.system.safe_files import is_file_name, read_json, read_tensors
from lmtransfer.training import process_group

MANIFEST = "manifest.json"
STATE = "state.json"

_REVISION = "tokens-"
_NEEDED = ("config.yaml", "tokenizer")

_Finite: TypeAlias = Annotated[float, AllowInfNan(False)]
_Seconds: TypeAlias = Annotated[NonNegative, AllowInfNan(False)]


class PhaseStart(TypedDict):
    """One phase of a run with phases: its name, and the state of the run when the phase began."""

    name: str
    step: Whole
    tokens: Whole
    stream_step: Whole
    seconds: _Seconds


class SavedState(TypedDict, total=False):
    """The content of ``state.json``; a checkpoint that was not saved by training has only the step."""

    step: Required[Whole]
    skipped: Whole
    tokens: Whole
    evaluations_since_best: Whole
    seconds: _Seconds
    prepared: _Seconds
    epoch: _Seconds
    metrics: dict[str, float]
    best_metrics: dict[str, float]
    best: _Finite | None
    best_step: Whole | None
    finished: str | None
    record: dict[str, Any]
    evaluation_due: bool
    shares_used: list[_Seconds]
    phases: list[PhaseStart]
    aliases: dict[str, str]
    carry: dict[str, Any]
    loss_scale: dict[str, _Finite] | None
    watchers: dict[str, dict[str, Any]]
    world_size: LargeCount
    threads: LargeCount
    averaged: LargeCount
    files: list[str]


@dataclass(slots=True)
class TrainState:
    """The state of a run, saved in every checkpoint.

    Attributes:
        step: number of optimizer steps taken from the stream, which is the index of the next step.
        skipped: number of these steps without an update (a non-finite loss, an fp16 overflow), as far as the host has
            read them.
        tokens: number of real tokens in these steps, over all ranks.
        seconds: training time, including evaluation and saving.
        prepared: the part of ``seconds`` before the first step, for counting token embeddings.
        finished: why training ended ("budget" or "patience"), or None.
        record: the log record (in ``metrics.jsonl``) of the latest step, as far as it is known.
        evaluation_due: whether the evaluation of the latest step was interrupted; a resumed run evaluates first.
        shares_used: for a budget in seconds, the share used before each step since the last log record; the next record
            contains them.
    """

    step: int = 0
    skipped: int = 0
    tokens: int = 0
    seconds: float = 0.0
    prepared: float = 0.0
    epoch: float = 0.0
    metrics: dict[str, float] = field(default_factory=dict)
    best_metrics: dict[str, float] = field(default_factory=dict)
    best: float | None = None
    best_step: int | None = None
    evaluations_since_best: int = 0
    finished: str | None = None
    record: dict[str, Any] = field(default_factory=dict)
    evaluation_due: bool = False
    shares_used: list[float] = field(default_factory=list)
    phases: list[PhaseStart] = field(default_factory=list)

    def state_dict(self) -> dict[str, Any]:
        """Return the state as plain values."""
        return asdict(self)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> TrainState:
        """Build the state from ``state_dict`` values; other keys are ignored."""
        return cls(**{f.name: values[f.name] for f in fields(cls)})

    def update(self, other: TrainState) -> None:
        """Copy every value of ``other``."""
        for f in fields(self):
            setattr(self, f.name, getattr(other, f.name))


class _File(TypedDict):
    bytes: Whole
    sha256: str


class _Manifest(TypedDict):
    files: dict[str, _File]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A complete checkpoint: its folder and the content of its ``state.json``."""

    folder: Path
    state: SavedState

    @property
    def step(self) -> int:
        """The step after which the checkpoint was saved."""
        return self.state["step"]

    def tensors(self, name: str) -> dict[str, Tensor]:
        """Return the tensors of ``<name>.safetensors``, on the CPU; empty if there is no such file."""
        path = self.folder / f"{name}.safetensors"
        return read_tensors(path, error=CheckpointError) if path.exists() else {}


def write_checkpoint(folder: Path, *, tensors: Mapping[str, Mapping[str, Tensor]], state: Mapping[str, Any]) -> None:
    """Write a checkpoint to a new folder and flush it to disk; the manifest, written last, marks it as complete.

    Args:
        state: plain numbers, strings, lists and dicts; must contain ``step``.

    Raises:
        OSError, SafetensorError: the checkpoint cannot be written.
    """
    folder.mkdir(parents=True)
    for file, content in tensors.items():
        if content:
            on_host = {key: tensor.detach().cpu().contiguous() for key, tensor in content.items()}
            save_file(on_host, folder / f"{file}.safetensors")
    (folder / STATE).write_text(json.dumps(state, indent=1) + "\n", encoding="ascii")
    mode = (folder / STATE).stat().st_mode  # safetensors makes its files readable by their owner only
    files = {}
    for path in sorted(folder.iterdir()):
        path.chmod(mode)
        files[path.name] = _size_and_hash(path)
        flush(path)
    (folder / MANIFEST).write_text(json.dumps({"files": files}, indent=1) + "\n", encoding="ascii")
    flush(folder / MANIFEST)
    flush(folder)


def open_checkpoint(folder: Path) -> Checkpoint:
    """Open the checkpoint in ``folder``, which must be complete."""
    problem = find_damage(folder)
    if problem is not None:
        raise CheckpointError(f"{problem}: choose another checkpoint, or restore the folder from a backup")
    return Checkpoint(folder, read_state(folder))


def read_state(folder: Path) -> SavedState:
    """Read ``state.json``."""
    # Not ``finite``: the state may contain the losses of a skipped step.
    return read_json(folder / STATE, SavedState, error=CheckpointError, finite=False)


def find_damage(folder: Path) -> str | None:
    """Return a description of the damage to the checkpoint in ``folder``, or None if every file is intact."""
    if not folder.is_dir():
        return f"there is no checkpoint {folder}"
    if not (folder / MANIFEST).exists():
        return f"the checkpoint {folder} has no {MANIFEST}, so it is incomplete"
    try:
        files = read_json(folder / MANIFEST, _Manifest, error=CheckpointError)["files"]
    except CheckpointError as error:
        return str(error)
    for name, expected in files.items():
        path = folder / name
        if not is_file_name(name):
            return f"{folder / MANIFEST}: the entry {name[:60]!r} in files is outside the folder of the checkpoint"
        if not path.is_file():
            return f"the checkpoint {folder} has no file {name}"
        if path.stat().st_size != expected["bytes"]:
            return f"{path} has {path.stat().st_size} bytes instead of {expected['bytes']}: it is truncated or altered"
        if _size_and_hash(path)["sha256"] != expected["sha256"]:
            return f"{path} has changed since it was written (its SHA-256 differs): it is damaged or altered"
    unlisted = {STATE, *(path.name for path in folder.glob("*.safetensors"))} - set(files)
    if unlisted:
        return f"{folder / MANIFEST}: files does not list {min(unlisted)}, so this file cannot be checked"
    try:
        read_state(folder)
    except CheckpointError as error:
        return str(error)
    return None


def _size_and_hash(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256")
    return {"bytes": path.stat().st_size, "sha256": digest.hexdigest()}


class Checkpoints:
    """The checkpoints of one run, in its folder ``checkpoints``."""

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)
        self._needed: set[Path] = set()

    def exists(self) -> bool:
        """Whether the folder holds any checkpoint, complete or not."""
        return self.folder.is_dir() and any(self.folder.iterdir())

    def note_files(self) -> None:
        """Record the files that the run's checkpoints depend on; each save checks that they still exist."""
        run = self.folder.parent
        paths = (run, *(path for name in _NEEDED for path in (run / name, *(run / name).rglob("*"))))
        self._needed = {path for path in paths if path.exists()}

    def _check_nothing_missing(self) -> None:
        missing = [path for path in sorted(self._needed) if not path.exists()]
        if missing:
            raise CheckpointError(explain_deletion(missing[0]))

    def save(self, name: str, *, tensors: Mapping[str, Mapping[str, Tensor]], state: Mapping[str, Any]) -> Path:
        """Write ``last``, ``best`` or a revision; the previous one is kept until the new one is complete."""
        final, staged = self.folder / name, self.folder / f".{name}.new"
        _check_no_link(self.folder)
        if self._needed and not self.folder.parent.is_dir():
            self._check_nothing_missing()  # before anything is written
        try:
            self._finish_interrupted_save(name)
            write_checkpoint(staged, tensors=tensors, state=state)
            self._swap_in(name)
        except (OSError, SafetensorError) as error:
            raise CheckpointError(
                f"cannot save the checkpoint {final}: {error}. The previous checkpoint is unchanged: free some disk "
                "space or correct the permissions of the folder, then continue with resume=true"
            ) from error
        if self._needed:
            others = {path for path in self._needed if not path.is_relative_to(final)}
            self._needed = {*others, final, *final.iterdir()}
        self._check_nothing_missing()
        return final

    def _swap_in(self, name: str) -> None:
        """Move the complete staged checkpoint to its destination."""
        final, staged, old = self.folder / name, self.folder / f".{name}.new", self.folder / f".{name}.old"
        remove(old)
        if final.exists():
            final.rename(old)
        staged.rename(final)
        flush(self.folder)
        remove(old)

    def finish_interrupted_saves(self) -> None:
        """Finish or undo interrupted saves after a crash, so that each name has its newest complete checkpoint.

        Only the process that writes the run calls this, before it resumes. Otherwise a complete staged ``best`` would
        be ignored, and the run would keep the previous ``best`` unless a better one follows.
        """
        _check_no_link(self.folder)
        try:
            for name in ("last", "best", *self._staged_revisions()):
                self._finish_interrupted_save(name)
        except OSError as error:
            raise CheckpointError(
                f"cannot finish an interrupted save in {self.folder}: {error}; correct the permissions of the folder"
            ) from error

    def _finish_interrupted_save(self, name: str) -> None:
        """Finish or undo the interrupted save of one name, so that its newest complete checkpoint is in place."""
        final, staged, old = self.folder / name, self.folder / f".{name}.new", self.folder / f".{name}.old"
        if staged.exists() and find_damage(staged) is None:
            self._swap_in(name)
        elif old.exists() and not final.exists():
            old.rename(final)
        remove(staged)
        remove(old)

    def revisions(self) -> dict[int, Path]:
        """Return each revision's folder, by token count in ascending order; a folder may be damaged."""
        return {tokens: self.folder / revision_name(tokens) for tokens in sorted(_tokens_of(self.folder))}

    def drop_revisions(self, *, after: int) -> None:
        """Remove the revisions after a step, because a run that resumes from an earlier checkpoint saves them again."""
        for folder in self.revisions().values():
            with suppress(CheckpointError):  # a damaged revision is reported when it is used
                if read_state(folder)["step"] > after:
                    remove(folder)

    def _staged_revisions(self) -> list[str]:
        staged = self.folder.glob(f".{_REVISION}*") if self.folder.is_dir() else ()
        return sorted({path.name.removeprefix(".").partition(".")[0] for path in staged})

    def recover_newest(self) -> tuple[Checkpoint | None, list[str]]:
        """Finish interrupted saves on the main rank, then return ``find_newest()``; all ranks must call this."""
        if process_group.is_main():
            self.finish_interrupted_saves()
        process_group.barrier()
        return self.find_newest()

    def find_newest(self) -> tuple[Checkpoint | None, list[str]]:
        """Return the newest complete checkpoint, and a sentence for each damaged checkpoint that was skipped.

        The checkpoint is None if the run was interrupted before its first save.
        """
        checkpoints: list[Checkpoint] = []
        problems: list[str] = []
        for name in ("last", ".last.new", ".last.old", "best", ".best.new", ".best.old"):
            folder = self.folder / name
            if not folder.is_dir():
                continue
            problem = find_damage(folder)
            if problem is None:
                checkpoints.append(Checkpoint(folder, read_state(folder)))
            elif not name.endswith(
                ".new"
            ):  # after a crash, an incomplete staging folder is normal, and no data is lost
                problems.append(problem)
        if problems and not checkpoints:
            detail = "\n".join(f"  - {problem}" for problem in problems)
            raise CheckpointError(
                f"there is no complete checkpoint in {self.folder}:\n{detail}\n"
                "start a new run with a different name, or restore the folder from a backup"
            )
        return max(checkpoints, key=lambda checkpoint: checkpoint.step, default=None), problems


def explain_deletion(path: Path) -> str:
    """Return the error message for a file that was deleted during training."""
    return (
        f"{path} was deleted during training, and without this file the run is useless: restore it from a backup and "
        "continue with resume=true, or start a new run with a different name"
    )


def revision_name(tokens: int) -> str:
    """Return the name of the revision that is kept after ``tokens`` tokens."""
    return f"{_REVISION}{tokens}"


def _tokens_of(folder: Path) -> list[int]:
    numbers = (path.name.removeprefix(_REVISION) for path in folder.glob(f"{_REVISION}*") if path.is_dir())
    return [int(number) for number in numbers if number.isdecimal()]


def preflight(folder: Path, *, num_bytes: int, kept_bytes: int = 0) -> None:
    """Check before training that checkpoints can be written: permissions and free disk space."""
    _check_no_link(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".probe"
        probe.write_bytes(b"lmtransfer")
        probe.unlink()
        free = shutil.disk_usage(folder).free
    except OSError as error:
        raise CheckpointError(
            f"cannot write checkpoints to {folder}: {error}; set output_root=<another folder>"
        ) from error
    needed = 3 * num_bytes + kept_bytes  # last, best, and the staged one
    if free < needed:
        revisions = f", and {kept_bytes / 1e6:,.0f} MB for train.save_at" if kept_bytes else ""
        raise CheckpointError(
            f"checkpoints need {needed / 1e6:,.0f} MB (for last, best and a new one during a save{revisions}), but the "
            f"disk of {folder} has only {free / 1e6:,.0f} MB free: free some disk space, or set "
            "output_root=<a folder on another disk>"
        )


def _check_no_link(folder: Path) -> None:
    """Reject a link: old checkpoints would be deleted in its target, which can be any folder."""
    if folder.is_symlink():
        raise CheckpointError(
            f"{folder} is a link to {folder.resolve()}, but a run replaces and deletes files only in its own folder: "
            "replace the link with a folder, or set output_root=<a folder on another disk>"
        )
