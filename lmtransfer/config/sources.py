"""What a configuration names outside the run: files, folders, patterns, addresses and names on the hub.

Such values are found by the types of the components' arguments (see ``config.types.Source``), never by their names.
"""

from __future__ import annotations

import os
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lmtransfer.config.component import arguments_of, is_component, resolve
from lmtransfer.config.paths import PATH_SETTINGS
from lmtransfer.config.revisions import split_revision
from lmtransfer.config.sweep_names import sweep_name
from lmtransfer.config.types import Source
from lmtransfer.errors import ConfigError
from lmtransfer.system import door
from lmtransfer.system.machine import default_cache_dir, is_address
from lmtransfer.system.validation import join, texts

#: Type of a path that only code sets.
_PATH = Source(frozenset({"file", "folder"}))
_REPOSITORY = Source(frozenset({"folder", "hub"}))
_HUB_PREFIX = "hf:"
#: Settings with repositories on the hub, some without the prefix ``hf:``.
_HUB_SETTINGS = frozenset({"init", "run", "source", "push"})
_COMPRESSIONS = (".gz", ".xz", ".zst")


@dataclass(frozen=True, slots=True)
class NamedSource:
    """A value that names something outside the run, with its full key."""

    key: str
    source: Source
    value: str

    def paths(self, data_root: str | None) -> list[Path]:
        """Return the absolute paths to which the value may refer, in the order in which they are searched."""
        path = Path(door.start_of(self.value)).expanduser()
        roots = [*([Path(data_root).expanduser()] if data_root and self.source.in_data else []), Path()]
        return list(dict.fromkeys(Path(os.path.abspath(root / path)) for root in roots))


def source_of(annotation: Any) -> Source | None:
    """Return the source that a type names, also inside a list, a mapping or a union; None if it names none."""
    if isinstance(annotation, Source):
        return annotation
    if annotation is Path:
        return _PATH
    return next(filter(None, map(source_of, typing.get_args(annotation))), None)


def named_sources(value: Any, key: str = "") -> Iterator[NamedSource]:
    """Yield everything that the components in plain data name outside the run, however deeply they are nested.

    A component whose class is not allowed names nothing: it is never built.
    """
    return _named(value, key, None)


def _named(value: Any, key: str, source: Source | None) -> Iterator[NamedSource]:
    if isinstance(value, str):
        if source is not None and value:
            yield NamedSource(key, source, value)
    elif isinstance(value, Mapping):
        sources = _sources_of(value)
        for name, item in value.items():
            yield from _named(item, join(key, str(name)), source if sources is None else sources.get(name))
    elif isinstance(value, list | tuple):
        for place, item in enumerate(value):
            yield from _named(item, join(key, place), source)


def replace_sources(value: Any, replace: Callable[[Source, Any], Any]) -> Any:
    """Return plain data in which ``replace(source, value)`` replaces each argument that names something outside."""
    if isinstance(value, Mapping):
        sources = _sources_of(value) or {}
        return {
            name: replace(sources[name], item) if name in sources and item else replace_sources(item, replace)
            for name, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [replace_sources(item, replace) for item in value]
    return value


def _sources_of(value: Mapping[str, Any]) -> dict[str, Source] | None:
    """Return the sources among the arguments of a component; None for other mappings."""
    if not is_component(value):
        return None
    try:
        arguments = arguments_of(resolve(value["_target_"]))
    except ConfigError:
        return {}
    found = {name: source_of(argument.annotation) for name, argument in arguments.items()}
    return {name: source for name, source in found.items() if source is not None}


def with_absolute_paths(value: Any) -> Any:
    """Return plain data in which the texts of corpora are lists of absolute paths, and addresses stay as they are."""

    def absolute(source: Source, named: Any) -> Any:
        if "pattern" not in source.kinds:
            return named
        paths = [str(path) for path in (named if isinstance(named, list) else [named])]
        return [path if is_address(path) else str(Path(path).expanduser().absolute()) for path in paths]

    return replace_sources(value, absolute)


def without_hub(value: Any) -> Any:
    """Return plain data in which no component names a data set on the hub."""
    return replace_sources(value, lambda source, named: None if "hub" in source.kinds else named)


def named_by_user(values: Mapping[str, Any], command: str) -> Callable[[], tuple[list[Path], list[str]]]:
    """Return a function that lists the paths, and the names on the hub and addresses, in a command's plain settings."""

    def named() -> tuple[list[Path], list[str]]:
        data_root = values.get("data_root")
        paths = [default_cache_dir()]
        if values.get("output_root") and values.get("name"):
            paths.append(Path(values["output_root"]) / command / sweep_name(str(values["name"])))
        names = []
        for source in [*named_sources(values), *_settings(values)]:
            if is_address(source.value):
                names.append(door.start_of(source.value))
                continue
            if "hub" in source.source.kinds:
                names.append(source.value.partition("@")[0])
            for path in source.paths(data_root):
                paths += [path, *(path.with_name(path.name + suffix) for suffix in _COMPRESSIONS if path.name)]
        return paths, names

    return named


def _settings(values: Mapping[str, Any]) -> Iterator[NamedSource]:
    """Yield the settings of the command itself that are paths or names on the hub."""
    for key, text in texts(values):
        name = key.rpartition(".")[2].partition("[")[0]
        if text and name in (PATH_SETTINGS | _HUB_SETTINGS) - {"output_root"}:
            source = _REPOSITORY if name in _HUB_SETTINGS else _PATH
            for value in {text, split_revision(text)[0]}:
                yield NamedSource(key, source, value.removeprefix(_HUB_PREFIX))
