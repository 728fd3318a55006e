"""Writing that survives a crash: a file holds the whole of the new text, or what it held before."""

from __future__ import annotations

import os
from pathlib import Path


def flush(path: Path) -> None:
    """Make what was written to ``path`` (a file, or a folder's entries) survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError:
        if not path.is_dir():  # some file systems refuse to flush a folder
            raise
    finally:
        os.close(descriptor)


def write_text(path: Path, text: str) -> None:
    """Replace the contents of ``path``."""
    staged = path.with_name(f".{path.name}.new")
    staged.write_text(text, encoding="utf-8")
    flush(staged)
    staged.replace(path)
    flush(path.parent)
