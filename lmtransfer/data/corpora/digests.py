"""Digests of source files, remembered so that a large corpus is not hashed again before every run.

A digest is remembered by path, size, inode and both time stamps, and only for files that had been left alone for a
while when they were hashed: an edit within the clock's resolution would otherwise go unnoticed.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

from lmtransfer.system.durable import file_hash, write_json

_WORTH_REMEMBERING_BYTES = 1 << 22
_SETTLED_SECONDS = 5.0


def _stamp(path: Path) -> list[int]:
    status = path.stat()
    return [status.st_size, status.st_ino, status.st_mtime_ns, status.st_ctime_ns]


def source_digest(path: Path, memo_folder: Path | None = None) -> str:
    """128-bit hex digest of a file's bytes.

    Args:
        path: the file, absolute.
        memo_folder: a folder of remembered digests (``source_digests.json``); None reads the file.
    """
    before = _stamp(path)
    if memo_folder is None or before[0] < _WORTH_REMEMBERING_BYTES:
        return file_hash(path)
    memo = memo_folder / "source_digests.json"
    known = _read(memo)
    entry = known.get(str(path))
    if entry and entry["stamp"] == before:
        return str(entry["digest"])
    digest = file_hash(path)
    settled = max(before[2:]) < time.time_ns() - int(_SETTLED_SECONDS * 1e9)
    if settled and _stamp(path) == before:
        memo_folder.mkdir(parents=True, exist_ok=True)
        write_json(memo, {**_read(memo), str(path): {"stamp": before, "digest": digest}})
    return digest


def _read(memo: Path) -> dict[str, dict[str, object]]:
    try:
        known = json.loads(memo.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # no memo yet, or a damaged one: nothing is lost but time
        return {}
    return known if isinstance(known, dict) else {}
