"""One checkpoint: a folder of safetensors and JSON files, which cannot execute code.

It holds ``model.safetensors``, ``optimizer.safetensors``, ``state.json``, and ``manifest.json`` with the size and
SHA-256 of each file, which is written last. Some runs have further files: ``carry.safetensors`` with the recurrent
state; ``raw.safetensors`` with the trained weights if the model is an average; and one file for each other part of the
learner.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from typing_extensions import TypedDict

from lmtransfer.config.types import Whole
from lmtransfer.errors import CheckpointError
from lmtransfer.system.durable import flush
from lmtransfer.system.safe_files import check_tensor_file, read_json
from lmtransfer.training.state import SavedState

MANIFEST = "manifest.json"
STATE = "state.json"


class _File(TypedDict):
    bytes: Whole
    sha256: str


class _Manifest(TypedDict):
    files: dict[str, _File]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One complete checkpoint.

    Attributes:
        folder: folder of the checkpoint.
        state: content of ``state.json``.
    """

    folder: Path
    state: SavedState

    @property
    def step(self) -> int:
        """The step after which it was saved."""
        return self.state["step"]

    def tensors(self, name: str) -> dict[str, Tensor]:
        """The tensors of ``<name>.safetensors``, on the CPU; empty if there is no such file.

        Raises:
            CheckpointError: the file is truncated, or its header is invalid.
        """
        path = self.folder / f"{name}.safetensors"
        return read_tensors(path) if path.exists() else {}


def write_checkpoint(folder: Path, *, tensors: Mapping[str, Mapping[str, Tensor]], state: Mapping[str, Any]) -> None:
    """Write a checkpoint to a new folder, and flush it to disk; it is complete once its manifest is written.

    Args:
        folder: must not exist.
        tensors: tensors by file name without suffix; no file is written for an empty mapping.
        state: plain numbers, strings, lists and dicts; must contain ``step``.

    Raises:
        OSError, SafetensorError: it cannot be written.
    """
    folder.mkdir(parents=True)
    for file, content in tensors.items():
        if content:
            on_host = {key: tensor.detach().cpu().contiguous() for key, tensor in content.items()}
            save_file(on_host, folder / f"{file}.safetensors")
    (folder / STATE).write_text(json.dumps(state, indent=1) + "\n", encoding="ascii")
    mode = (folder / STATE).stat().st_mode  # safetensors writes files that only their owner can read
    files = {}
    for path in sorted(folder.iterdir()):
        path.chmod(mode)
        files[path.name] = _size_and_hash(path)
        flush(path)
    (folder / MANIFEST).write_text(json.dumps({"files": files}, indent=1) + "\n", encoding="ascii")
    flush(folder / MANIFEST)
    flush(folder)


def open_checkpoint(folder: Path) -> Checkpoint:
    """The checkpoint in ``folder``, which must be complete.

    Raises:
        CheckpointError: it is missing, truncated or altered.
    """
    problem = find_damage(folder)
    if problem is not None:
        raise CheckpointError(f"{problem}: choose another checkpoint, or restore the folder from a copy")
    return Checkpoint(folder, read_state(folder))


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file, on the CPU, after a check of its header against the file.

    Raises:
        CheckpointError: the file cannot be read or is truncated, or its header is invalid.
    """
    check_tensor_file(path, error=CheckpointError)
    try:
        return load_file(path)
    except (SafetensorError, OSError, ValueError) as error:
        raise CheckpointError(f"{path}: is damaged or incomplete, or not a safetensors file: {error}") from error


def read_state(folder: Path) -> SavedState:
    """The content of ``state.json``.

    Raises:
        CheckpointError: the file cannot be read, or its content is not valid.
    """
    # Not ``finite``: the state may contain the losses of a skipped step.
    return read_json(folder / STATE, SavedState, error=CheckpointError, finite=False)


def find_damage(folder: Path) -> str | None:
    """The problem of the checkpoint in ``folder``, or None if every file is as it was written."""
    if not folder.is_dir():
        return f"there is no checkpoint {folder}"
    if not (folder / MANIFEST).exists():
        return f"the checkpoint {folder} has no {MANIFEST}, so it is not complete"
    try:
        files = read_json(folder / MANIFEST, _Manifest, error=CheckpointError)["files"]
    except CheckpointError as error:
        return str(error)
    for name, expected in files.items():
        path = folder / name
        if Path(name).name != name:
            return f"{folder / MANIFEST}: files names {name[:60]!r}, which is outside the folder of the checkpoint"
        if not path.is_file():
            return f"the checkpoint {folder} has no file {name}"
        if path.stat().st_size != expected["bytes"]:
            return f"{path} has {path.stat().st_size} bytes instead of {expected['bytes']}: it is truncated or altered"
        if _size_and_hash(path)["sha256"] != expected["sha256"]:
            return f"{path} has changed since it was written (its SHA-256 differs): it is damaged or altered"
    unlisted = {STATE, *(path.name for path in folder.glob("*.safetensors"))} - set(files)
    if unlisted:
        return f"{folder / MANIFEST}: files does not list {min(unlisted)}, so that file cannot be checked"
    try:
        read_state(folder)
    except CheckpointError as error:
        return str(error)
    return None


def _size_and_hash(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256")
    return {"bytes": path.stat().st_size, "sha256": digest.hexdigest()}
