"""Whatever a component's argument names outside the run has a type that says so."""

from __future__ import annotations

import importlib
import pkgutil
import re
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

import lmtransfer
from lmtransfer.config.component import BASES, all_bases, arguments_of, is_subclass
from lmtransfer.config.paths import conf_dir
from lmtransfer.config.sources import named_sources, source_of
from lmtransfer.config.types import DataFile
from lmtransfer.launch.composing import compose_files

#: Words of which one in the name of an argument means that its text names something outside the run.
WORDS = re.compile(
    "path|paths|file|files|folder|folders|dir|directory|root|source|sources|place|train|dev|test|dataset|datasets|hub|"
    "url|uri|address|endpoint|host|server|repo|repository|space|input|output|corpus|cache"
)
#: Texts whose names have such a word, but which only choose a part of a data set that another argument names.
PARTS = re.compile("hub_(config|splits?|subset|validation_split|line_break|columns)|file_format")


def components() -> list[type]:
    found = []
    for module in pkgutil.walk_packages(lmtransfer.__path__, "lmtransfer."):
        for value in vars(importlib.import_module(module.name)).values():
            if isinstance(value, type) and value.__module__ == module.name and is_subclass(value, all_bases()):
                found.append(value)
    return found


def untyped(cls: type) -> list[str]:
    """The arguments that take text, are called like something outside the run, and do not have its type."""
    return [
        name
        for name, argument in arguments_of(cls).items()
        if any(map(WORDS.fullmatch, name.split("_"))) and not PARTS.fullmatch(name)
        if re.search(r"\bstr\b|\bAny\b|Path\b", str(argument.annotation)) and source_of(argument.annotation) is None
    ]


def test_every_argument_that_names_something_outside_has_its_type() -> None:
    wrong = {f"{cls.__module__}.{cls.__name__}": names for cls in components() if (names := untyped(cls))}
    assert not wrong


def test_the_components_are_all_found() -> None:
    names = {f"{cls.__module__}.{cls.__name__}" for cls in components()}
    outside = {base for bases in BASES.values() for base in bases if base.startswith("lmtransfer.")}
    assert outside <= names
    assert len(names) > 100


class _Untyped:
    def __init__(self, *, template_file: str, folders: list[str] | None = None, num_dev: int = 3) -> None: ...


class _Typed:
    def __init__(self, *, files: dict[str, DataFile | list[DataFile] | None], root: Path | None = None) -> None: ...


def test_an_argument_without_its_type_is_noticed() -> None:
    assert untyped(_Untyped) == ["template_file", "folders"]
    assert untyped(_Typed) == []


def shipped() -> list[Path]:
    return sorted(path for group in ("corpus", "task") for path in (conf_dir() / group).glob("*.yaml"))


@pytest.mark.parametrize("path", shipped(), ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_what_looks_like_a_file_in_a_shipped_config_is_found(path: Path) -> None:
    group = path.parent.name
    node = {group: OmegaConf.to_container(compose_files(None, [f"+{group}={path.stem}"])[group], resolve=False)}
    named = {named.value for named in named_sources(node)}
    looks = re.compile(r"[\w.{}-]+(/[\w.{}*-]+)+|[\w{}.-]+\.(tsv|csv|txt|jsonl?|parquet|conllu?|gz|raw)")
    assert {text for text in texts(node) if looks.fullmatch(text)} <= named


def texts(value: Any, name: str = "") -> list[str]:
    if isinstance(value, dict):
        return [text for key, item in value.items() if key != "_target_" for text in texts(item, key)]
    if isinstance(value, list):
        return [text for item in value for text in texts(item, name)]
    return [value] if isinstance(value, str) and not PARTS.fullmatch(name) else []
