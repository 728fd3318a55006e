"""From what a user writes as ``corpus.path`` to the files that are read, in an order that is always the same."""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lmtransfer.data.corpora.readers import FORMATS
from lmtransfer.data.files import COMPRESSIONS, find_file, plain_name
from lmtransfer.errors import DataError
from lmtransfer.untrusted.files import not_regular


@dataclass(frozen=True, slots=True)
class Located:
    """Files of a corpus.

    Attributes:
        files: absolute paths.
        named: whether each path was named by the user as one file (rather than found in a folder or by a pattern).
    """

    files: tuple[str, ...]
    named: bool


def locate(paths: str | Sequence[str], *, key: str = "corpus.path") -> Located:
    """Find the files that ``paths`` name.

    Each entry is a file (or the name of a file that lies there compressed), a folder, which is searched at any depth
    for files of a known format, or a pattern with ``*``. Relative paths resolve from where the command was started.
    In a folder, hidden files are left out, and so is a compressed copy of a file that is there plain as well.

    Args:
        paths: one entry or several.
        key: the configuration key, for messages.

    Raises:
        DataError: an entry names nothing, or nothing that can be read.
    """
    entries = [paths] if isinstance(paths, str) else list(paths)
    if not entries:
        raise DataError(f"{key}: an empty list; give a file, a folder or a pattern")
    files: list[str] = []
    named = True
    for entry in entries:
        path = Path(os.path.abspath(Path(entry).expanduser()))
        file = find_file(path)
        if file is not None:
            files.append(str(file))
            continue
        if path.is_dir():
            found = _search(path)
            if not found:
                raise DataError(
                    f"{key}={entry}: no file of a known format in {path} (known: {', '.join(FORMATS)}, each also with "
                    f"{', '.join(COMPRESSIONS)}); rename the files, or name them by a pattern such as {entry}/*.raw"
                )
        else:
            found = sorted(name for name in glob.glob(str(path), recursive=True) if os.path.isfile(name))
            if not found:
                raise DataError(
                    f"{key}={entry}: no such file, folder or pattern (looked for {path}; relative paths start where "
                    f"the command was started)"
                )
        files.extend(found)
        named = named and len(found) == 1
    return Located(tuple(dict.fromkeys(files)), named)


def _search(folder: Path) -> list[str]:
    """Readable files below a folder, by path; only the plain one of a file and its compressed copies.

    Raises:
        DataError: one that leads nowhere, or is no regular file.
    """
    found: dict[str, str] = {}
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):  # the plain name sorts before its compressed copies
            plain = plain_name(Path(name))
            if not name.startswith(".") and Path(plain).suffix.lower() in FORMATS:
                problem = not_regular(Path(parent, name))
                if problem is not None:
                    raise DataError(f"{os.path.join(parent, name)}: {problem}, or take it out of the folder")
                found.setdefault(os.path.join(parent, plain), os.path.join(parent, name))
    return [found[plain] for plain in sorted(found)]
