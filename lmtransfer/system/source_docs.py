"""Reads what the source of a class says about the arguments of its constructor, without importing the class.

Importing a component imports torch, which takes seconds; its help page and the completion of its settings need only a
few lines of its source.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

_SECTIONS = ("Args:", "Attributes:")


@cache
def argument_docs(target: str) -> dict[str, str]:
    """Return the descriptions in the docstrings of the class, its bases, their constructors and ``Settings`` models."""
    docs: dict[str, str] = {}
    for _, node in _family(*target.rpartition(".")[::2]):
        for documented in (node, *_members(node, ast.FunctionDef, "__init__")):
            docs |= _entries(ast.get_docstring(documented) or "")
    return docs


def argument_choices(target: str, name: str) -> list[str]:
    """Return the values of an argument that its annotation lists, as in a config file; empty if it lists none."""
    choices: list[str] = []
    for module, node in _family(*target.rpartition(".")[::2]):
        fields = {field.target.id: field.annotation for field in _members(node, ast.AnnAssign)}
        for constructor in _members(node, ast.FunctionDef, "__init__"):
            arguments = [*constructor.args.args, *constructor.args.kwonlyargs]
            fields |= {argument.arg: argument.annotation for argument in arguments}
        if fields.get(name) is not None:
            choices = _choices(module, fields[name])
    return choices


def _family(module: str, name: str) -> Iterator[tuple[str, ast.ClassDef]]:
    """Yield the modules and sources of the bases of a class, of the class, and of its ``Settings`` model."""
    module, node = _find(module, name)
    if not isinstance(node, ast.ClassDef):
        return
    for base in node.bases:
        yield from _family(module, ast.unparse(base).partition("[")[0])
    yield module, node
    if "." not in name and _members(node, ast.ClassDef, "Settings"):
        yield from _family(module, f"{node.name}.Settings")


def _find(module: str, name: str) -> tuple[str, ast.stmt | None]:
    """Find the module and the statement that define a name, which may be nested (``Task.Settings``).

    Imports are followed within a package and into this one.
    """
    outer, _, inner = name.partition(".")
    packages = ("lmtransfer", module.partition(".")[0])
    for node in _statements(module):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] in packages:
            imported = next((alias.name for alias in node.names if outer == (alias.asname or alias.name)), None)
            if imported is not None:
                return _find(node.module, f"{imported}.{inner}".rstrip("."))
        elif isinstance(node, ast.ClassDef) and node.name == outer:
            nested = _members(node, ast.ClassDef, inner) if inner else [node]
            return module, next(iter(nested), None)
        elif isinstance(node, ast.AnnAssign | ast.Assign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(isinstance(target, ast.Name) and target.id == outer for target in targets):
                return module, node
    return module, None


def _members(node: ast.ClassDef, kind: Any, name: str | None = None) -> list[Any]:
    """Return the statements of a kind in the body of a class, with the name if one is set."""
    return [member for member in node.body if isinstance(member, kind) and name in (None, getattr(member, "name", ""))]


@cache
def _statements(module: str) -> list[ast.stmt]:
    """Parse a module; none of its packages is imported."""
    top, *parts = module.split(".")
    spec = find_spec(top) if all(part.isidentifier() for part in [top, *parts]) and top != "__main__" else None
    if spec is None:
        return []
    files = [] if parts or not spec.origin else [Path(spec.origin)]
    for folder in spec.submodule_search_locations or []:
        path = Path(folder, *parts)
        files += [path.with_suffix(".py"), path / "__init__.py"]
    file = next((file for file in files if file.is_file()), None)
    try:
        return ast.parse(file.read_bytes()).body if file else []
    except (SyntaxError, ValueError):  # the error is shown when a command imports the module
        return []


def _entries(docstring: str) -> dict[str, str]:
    """Return the entries of the sections ``Args`` and ``Attributes`` of a Google-style docstring."""
    entries: dict[str, str] = {}
    name, is_open = "", False
    for line in docstring.splitlines():
        if line and not line.startswith(" "):
            is_open = line in _SECTIONS
        elif is_open and line.startswith(" " * 5):
            entries[name] += f" {line.strip()}"
        elif is_open and line:
            name, _, text = line.strip().partition(": ")
            entries[name] = text
    return {name: text.removesuffix(".") for name, text in entries.items()}


def _choices(module: str, annotation: ast.expr | None) -> list[str]:
    if isinstance(annotation, ast.BinOp):
        return [*_choices(module, annotation.left), *_choices(module, annotation.right)]
    if isinstance(annotation, ast.Constant):
        return ["null"] if annotation.value is None else [str(annotation.value)]
    if isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value) == "Literal":
        parts = annotation.slice.elts if isinstance(annotation.slice, ast.Tuple) else [annotation.slice]
        return [choice for part in parts for choice in _choices(module, part)]
    if not isinstance(annotation, ast.Name):
        return []
    if annotation.id == "bool":
        return ["true", "false"]
    module, node = _find(module, annotation.id)
    return _choices(module, node.value) if isinstance(node, ast.Assign | ast.AnnAssign) else []
