"""The folder of an export, which is written completely or not at all and never replaces other files."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lmtransfer.errors import ConfigError
from lmtransfer.system.durable import staged_folder

_CARD = "README.md"
#: The line in an export's card that lists its files, so that files added later are recognized.
_RECORD = re.compile(r"^<!-- files of this export: (.*) -->$", re.MULTILINE)


@contextmanager
def export_folder(folder: Path, *, overwrite: bool, source: Path | None = None) -> Iterator[Path]:
    """Yield a staging folder, which becomes ``folder`` if the block ends without an error and is deleted otherwise.

    Args:
        source: the folder that the model was imported from, if any; this folder is never replaced.
    """
    folder = folder.expanduser().resolve()
    check_place(folder, overwrite=overwrite, source=source)
    missing = [parent for parent in folder.parents if not parent.exists()]
    try:
        with staged_folder(folder) as staged:
            yield staged
            names = [path.relative_to(staged).as_posix() for path in sorted(staged.rglob("*")) if not path.is_dir()]
            with (staged / _CARD).open("a", encoding="utf-8") as card:
                card.write(f"\n<!-- files of this export: {json.dumps(sorted({*names, _CARD}))} -->\n")
            mode = folder.parent.stat().st_mode & 0o666
            for path in staged.rglob("*.safetensors"):  # safetensors writes files that only the owner may read
                path.chmod(mode)
    except OSError as error:
        raise ConfigError(f"to={folder}: cannot be written ({error.strerror or error}); give another folder") from error
    finally:
        if not folder.exists():
            for parent in missing:
                if parent.is_dir() and not any(parent.iterdir()):
                    parent.rmdir()


def check_place(folder: Path, *, overwrite: bool, source: Path | None = None) -> None:
    """Check that an export may be written to a folder; see ``export_folder``."""
    problem = _problem(folder, overwrite=overwrite)
    if source is not None and source.expanduser().resolve() == folder:
        problem = "is the folder that the model was imported from; give another folder"
    if problem:
        raise ConfigError(f"to={folder}: {problem}")


def empty(folder: Path) -> None:
    """Delete the content of a folder."""
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
    names = _names_on_card(folder)
    if names is None:
        return "holds files that are not an export, or an export that does not list its files; give a new folder"
    others = [path for path in sorted(folder.rglob("*")) if path.is_symlink() or not path.is_dir()]
    others = [path for path in others if path.relative_to(folder).as_posix() not in names]
    if others:
        return f"holds {others[0].relative_to(folder)}, which is not part of the export; give a new folder"
    return None if overwrite else "already holds an export; replace it with overwrite=true, or give a new folder"


def _names_on_card(folder: Path) -> set[str] | None:
    """Read the names of an export's files from its card; None if the card does not list them."""
    try:
        records = _RECORD.findall((folder / _CARD).read_text(encoding="utf-8"))
        names = json.loads(records[-1]) if records else None
    except (OSError, ValueError):
        return None
    return set(names) if isinstance(names, list) and all(isinstance(name, str) for name in names) else None
