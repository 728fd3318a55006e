"""Where an export goes: a folder that is complete or not there, and never one that holds anything else."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lmtransfer.durable import staged_folder
from lmtransfer.errors import ConfigError

#: What makes a folder an export: one of these.
_EXPORTS = ("model.safetensors", "model.onnx")


@contextmanager
def export_folder(folder: Path, *, overwrite: bool) -> Iterator[Path]:
    """A folder to fill, which becomes ``folder`` when the block ends without an error; else nothing is left of it.

    Args:
        folder: where the export is to be.
        overwrite: whether an export that is there may be replaced.

    Raises:
        ConfigError: it holds something already, or cannot be made.
    """
    folder = folder.expanduser().resolve()
    problem = _problem(folder, overwrite=overwrite)
    if problem:
        raise ConfigError(f"to={folder}: {problem}")
    made = [parent for parent in folder.parents if not parent.exists()]
    try:
        with staged_folder(folder) as staged:
            yield staged
            mode = folder.parent.stat().st_mode & 0o666
            for path in staged.rglob("*.safetensors"):  # safetensors writes files that only their owner may read
                path.chmod(mode)
    except OSError as error:
        raise ConfigError(f"to={folder}: cannot be written ({error.strerror or error}); give another folder") from error
    finally:
        if not folder.exists():
            for parent in made:
                if parent.is_dir() and not any(parent.iterdir()):
                    parent.rmdir()


def empty(folder: Path) -> None:
    """Remove what is in a folder."""
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def _problem(folder: Path, *, overwrite: bool) -> str | None:
    if not folder.exists():
        return None
    if not folder.is_dir():
        return "is a file; give a folder"
    if not any(folder.iterdir()):
        return None
    if not any((folder / name).is_file() for name in _EXPORTS) or (folder / "checkpoints").exists():
        return "holds files that are no export; give a new folder"
    return None if overwrite else "holds an export already; replace it by overwrite=true, or give a new folder"
