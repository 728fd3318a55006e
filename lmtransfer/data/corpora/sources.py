"""The files of a corpus: the resolution of ``corpus.path`` to files in a fixed order, and their digests.

Digests are cached, so that a large corpus is not hashed again before every run. The key consists of path, size, inode
and both timestamps. A digest is cached only if the file had not changed for a few seconds when it was hashed. Otherwise
an edit within the clock's resolution would go undetected.
"""

from __future__ import annotations

import glob
import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lmtransfer.data.corpora.readers import FOLDER_SUFFIXES
from lmtransfer.data.files import (
    COMPRESSIONS,
    SAVED_SET,
    SAVED_SPLITS,
    describe_splits,
    find_file,
    plain_name,
    saved_files,
)
from lmtransfer.data.tables import FORMATS
from lmtransfer.errors import DataError
from lmtransfer.system.durable import file_hash, write_json
from lmtransfer.system.safe_files import irregularity

_WORTH_REMEMBERING_BYTES = 1 << 22
_UNCHANGED_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class CorpusFiles:
    """A corpus's files, whether the user named each of them (no folder), and tables left out of folders."""

    files: tuple[str, ...]
    named: bool
    skipped_files: tuple[str, ...] = ()


def locate(paths: str | Sequence[str], *, key: str = "corpus.path") -> CorpusFiles:
    """Find the files that ``paths``, the value of the setting ``key``, name.

    Each entry is a file (its name also matches a compressed file), a folder, which is searched recursively for texts
    and may be a folder of ``datasets.save_to_disk``, or a pattern with ``*``. Relative paths start at the folder where
    the command was started. In a folder, hidden files and compressed copies of uncompressed files are skipped.
    """
    entries = [paths] if isinstance(paths, str) else list(paths)
    if not entries:
        raise DataError(f"{key}: the list is empty; give a file, a folder or a pattern")
    files: list[str] = []
    skipped_files: list[str] = []
    named = True
    for entry in entries:
        path = Path(os.path.abspath(Path(entry).expanduser()))
        file = find_file(path)
        if file is not None:
            files.append(str(file))
            continue
        if path.is_dir():
            matches, others = _search(path, key)
            skipped_files.extend(others)
            if not matches:
                pattern = f"{entry}/**/*{Path(others[0]).suffix}" if others else f"{entry}/**/*"
                raise DataError(
                    f"{key}={entry}: no file in {path} has a known format ("
                    f"{', '.join(FOLDER_SUFFIXES)}, each also with {', '.join(COMPRESSIONS)}); rename the files, or "
                    f"select them with a pattern such as {pattern}"
                )
        else:
            matches = sorted(name for name in glob.glob(str(path), recursive=True) if os.path.isfile(name))
            if not matches:
                raise DataError(
                    f"{key}={entry}: no file or folder matches (searched for {path}; relative paths start at the "
                    "folder where the command was started)"
                )
        files.extend(matches)
        named = named and len(matches) == 1
    return CorpusFiles(tuple(dict.fromkeys(files)), named, tuple(skipped_files))


def _search(folder: Path, key: str) -> tuple[list[str], list[str]]:
    """Return a folder's text files, and its table and JSON files, by path, without copies of uncompressed files."""
    texts: dict[str, str] = {}
    others: dict[str, str] = {}
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        if SAVED_SPLITS in names:
            raise DataError(f"{key}: {parent} {describe_splits(Path(parent))}")
        saved = [file.name for file in saved_files(Path(parent))] if SAVED_SET in names else []
        for name in saved or sorted(names):  # the plain name sorts before its compressed copies
            plain = plain_name(Path(name))
            suffix = Path(plain).suffix.lower()
            if not name.startswith(".") and suffix in FORMATS:
                problem = irregularity(Path(parent, name))
                if problem is not None:
                    raise DataError(f"{os.path.join(parent, name)}: {problem}, or remove it from the folder")
                kind = texts if suffix in FOLDER_SUFFIXES else others
                kind.setdefault(os.path.join(parent, plain), os.path.join(parent, name))
    return [texts[plain] for plain in sorted(texts)], [others[plain] for plain in sorted(others)]


def source_digest(path: Path, memo_folder: str | Path | None = None) -> str:
    """Return the 128-bit hex digest of a file's bytes, cached in ``memo_folder`` if the file is large."""
    before = _stamp(path)
    if memo_folder is None or before[0] < _WORTH_REMEMBERING_BYTES:
        return file_hash(path)
    memo = Path(memo_folder) / "source_digests.json"
    digests = _read_memo(memo)
    entry = digests.get(str(path))
    if entry and entry["stamp"] == before:
        return str(entry["digest"])
    digest = file_hash(path)
    unchanged = max(before[2:]) < time.time_ns() - int(_UNCHANGED_SECONDS * 1e9)
    if unchanged and _stamp(path) == before:
        memo.parent.mkdir(parents=True, exist_ok=True)
        write_json(memo, {**_read_memo(memo), str(path): {"stamp": before, "digest": digest}})
    return digest


def _read_memo(memo: Path) -> dict[str, dict[str, object]]:
    try:
        digests = json.loads(memo.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # the cache file is missing or damaged: the digests are computed again
        return {}
    return digests if isinstance(digests, dict) else {}


def _stamp(path: Path) -> list[int]:
    status = path.stat()
    return [status.st_size, status.st_ino, status.st_mtime_ns, status.st_ctime_ns]
