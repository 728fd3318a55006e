"""Writes ``lmtransfer/__init__.pyi``, which tells editors and type checkers the settings of each function.

Run ``python -m scripts.stub`` after you change a setting.
"""

from __future__ import annotations

import ast
import textwrap
import types
import typing
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, Union

import lmtransfer
from lmtransfer.config import paths
from lmtransfer.config.component import Node
from lmtransfer.config.settings import COMMANDS, Settings
from lmtransfer.config.sources import source_of
from lmtransfer.launch.config_files import primary_config

PATH = Path(lmtransfer.__file__).with_suffix(".pyi")
_API = PATH.with_name("api.py")
_WIDTH = 120
_HEADER = '''\
"""The public interface of lmtransfer, for editors and type checkers; written by ``python -m scripts.stub``."""

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypedDict

from lmtransfer.api import Report, Run, TransferRun
from lmtransfer.api import load as load
from lmtransfer.api import load_records as load_records

__version__: str
__all__ = [{names}]

#: A path in the file system.
Folder: TypeAlias = str | PathLike[str]
#: The name of a config, several names, or keys with their values.
Choice: TypeAlias = Sequence[str] | Mapping[str, Any]
'''


def content() -> str:
    """Return the content of the stub."""
    source = ast.parse(_API.read_text(encoding="utf-8"))
    functions = [node for node in source.body if isinstance(node, ast.FunctionDef) and node.name in COMMANDS]
    groups = dict.fromkeys(_key_groups(COMMANDS[function.name] for function in functions))
    header = _HEADER.format(names=", ".join(f'"{name}"' for name in lmtransfer.__all__))
    return "\n".join([header, *map(_group, groups), *map(_function, functions)])


def _key_groups(settings: Iterable[type[Settings]]) -> Iterator[type[Settings]]:
    for kind in settings:
        inner = [model for model in map(kind.model_of, kind.model_fields) if model and _is_key_group(model)]
        yield from (*_key_groups(inner), *inner)


def _is_key_group(kind: type[Settings]) -> bool:
    """Whether a group has only plain settings; others depend on the chosen components."""
    return not any(_has_component(kind.annotation_of(name)) for name in kind.model_fields)


def _has_component(annotation: Any) -> bool:
    if isinstance(annotation, type) and issubclass(annotation, Settings):
        return not _is_key_group(annotation)
    is_node = annotation is Any or typing.get_origin(annotation) is Node
    return is_node or any(map(_has_component, typing.get_args(annotation)))


def _group(kind: type[Settings]) -> str:
    lines = [f"class {_group_name(kind)}(TypedDict, total=False):"]
    for name, field in kind.model_fields.items():
        lines.append(f"    {name}: {_type(kind, name)}")
        lines += _wrapped(f'"""{field.description}."""', "    ")
    return "\n".join(lines) + "\n"


def _group_name(kind: type[Settings]) -> str:
    return kind.__name__.removesuffix("Settings").removeprefix("_")


def _function(function: ast.FunctionDef) -> str:
    settings = COMMANDS[function.name]
    words, returned = ast.unparse(function.args).partition(",")[0], ast.unparse(function.returns or [])
    known = [key for key in primary_config(function.name) if key in settings.model_fields]
    lines = [f"def {function.name}(", f"    {words},", "    config_dir: Folder | None = None,"]
    lines += [f"    {key}: {_type(settings, key)} = ...," for key in known]
    lines += [f") -> {returned}:", *textwrap.indent(f'"""{ast.get_docstring(function)}', "    ").splitlines()]
    lines += ["", "    Args:"]
    docs = {"words": "words of the command line, such as train.steps=500", "config_dir": "folder with your own configs"}
    docs |= {key: settings.model_fields[key].description or "" for key in known}
    for key, text in docs.items():
        lines += _wrapped(f"{key}: {text}", " " * 8, " " * 12)
    return "\n".join([*lines, '    """', ""])


def _wrapped(text: str, indent: str, following: str | None = None) -> list[str]:
    return textwrap.wrap(
        text, _WIDTH, initial_indent=indent, subsequent_indent=following or indent, break_on_hyphens=False
    )


def _type(kind: type[Settings], name: str) -> str:
    """Return the type of a setting, as text: a group that has configs also accepts the name of one."""
    annotation = kind.annotation_of(name)
    model = kind.model_of(name)
    null = " | None" if kind.may_be_null(name) else ""
    if _has_component(annotation):
        return f"Choice{null}"
    if model is not None:
        named = "str | " if paths.is_group(name, [paths.conf_dir()]) else ""
        return f"{named}{_group_name(model)}{null}"
    return " | ".join(dict.fromkeys(_parts(annotation, is_path=name in paths.PATH_SETTINGS)))


def _parts(annotation: Any, *, is_path: bool) -> Iterator[str]:
    """Yield the alternatives of a type."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (Union, types.UnionType):
        for part in arguments:
            yield from _parts(part, is_path=is_path)
    elif origin is typing.Annotated:
        yield from _parts(arguments[0], is_path=is_path or source_of(annotation) is not None)
    elif origin is Literal:
        yield f"Literal[{', '.join(map(_quoted, arguments))}]"
    elif origin is not None:
        inner = [" | ".join(_parts(argument, is_path=is_path)) for argument in arguments]
        yield f"{origin.__name__}[{', '.join(inner)}]"
    elif annotation is str and is_path:
        yield "Folder"
    else:
        yield "None" if annotation is type(None) else annotation.__name__


def _quoted(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else repr(value)


if __name__ == "__main__":
    PATH.write_text(content(), encoding="utf-8")
