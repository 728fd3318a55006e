"""Files that are complete or absent: staged beside their place, flushed to disk, then renamed into it."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Any

_CHUNK_BYTES = 1 << 20


def flush(path: Path) -> None:
    """Make what was written to ``path`` (a file, or a folder's entries) survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError:
        if not path.is_dir():  # some file systems refuse to flush a folder; none refuses a file without a reason
            raise
    finally:
        os.close(descriptor)


def write_text(path: Path, text: str) -> None:
    """Replace the contents of ``path``, so that it holds the whole of the new text, or what it held before."""
    staged = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    staged.write_text(text, encoding="utf-8")
    flush(staged)
    staged.replace(path)
    flush(path.parent)


def write_json(path: Path, value: Any) -> None:
    """Write ``value`` as JSON so that ``path`` holds the whole of it, or what it held before."""
    write_text(path, json.dumps(value, indent=1, ensure_ascii=True) + "\n")


@contextmanager
def staged_folder(folder: Path) -> Iterator[Path]:
    """A folder to fill, which becomes ``folder`` when the block ends without an error, and vanishes otherwise.

    What was at ``folder`` before is replaced.
    """
    staged = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    shutil.rmtree(staged, ignore_errors=True)
    staged.mkdir(parents=True)
    try:
        yield staged
        for file in staged.rglob("*"):
            if file.is_file():
                flush(file)
        flush(staged)
        if folder.exists():
            shutil.rmtree(folder)
        staged.replace(folder)
        flush(folder.parent)
    finally:
        shutil.rmtree(staged, ignore_errors=True)


def file_hash(path: Path) -> str:
    """128-bit hex digest of a file's bytes, read in pieces."""
    digest = blake2b(digest_size=16)
    with path.open("rb") as file:
        while piece := file.read(_CHUNK_BYTES):
            digest.update(piece)
    return digest.hexdigest()
