"""The locations of configuration files, and the names of settings that are paths."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

#: The names of settings, at any depth, that are a path or a list of paths.
PATH_SETTINGS = frozenset(
    {"init", "run", "runs", "source", "add", "input", "output", "to", "results", "data_root", "output_root"}
    | {"cache_dir", "tokenizer_from", "base", "path"}
)


def conf_dir() -> Path:
    """Return the folder of the built-in configs: inside the package in a wheel, next to the package in a checkout."""
    package = Path(__file__).resolve().parents[1]
    packaged = package / "conf"
    return packaged if packaged.is_dir() else package.parent / "conf"


def search_folders(sources: Iterable[Any]) -> list[Path]:
    """Return the config folders of a composition, in search order."""
    return [Path(source.path) for source in sources if source.schema == "file"]


def find(name: str, folders: Sequence[Path]) -> Path | None:
    """Return the path of the file ``name`` in the first folder that contains it; None if no folder does."""
    return next((folder / name for folder in folders if (folder / name).is_file()), None)


def group_options(group: str, folders: Sequence[Path]) -> list[str]:
    """Return the choices of a group, sorted."""
    files = (path for folder in folders for path in (folder / group).glob("*.yaml"))
    return sorted({path.stem for path in files})


def is_group(name: str, folders: Sequence[Path]) -> bool:
    """Whether ``name`` is a config group in one of ``folders``."""
    return bool(name) and any((folder / name).is_dir() for folder in folders)


def shadowed_configs(folder: Path) -> list[Path]:
    """List the configs in a user's folder that are never read, because a built-in config has the same relative path."""
    own = (path.relative_to(folder) for path in folder.rglob("*.yaml"))
    return sorted(path for path in own if (conf_dir() / path).is_file())
