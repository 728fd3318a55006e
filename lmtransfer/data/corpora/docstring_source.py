"""The docstrings of one source file as prose; nothing is imported or run. Kept light, for worker processes."""

from __future__ import annotations

import ast
import gc
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from lmtransfer.data.corpora.docstring_prose import prose
from lmtransfer.data.corpora.library_names import blank_names
from lmtransfer.data.corpora.python_sources import SourceFile
from lmtransfer.data.corpora.split import text_hash
from lmtransfer.data.documents import Notes, clean

MIN_WORDS = 8
_Scope = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
_COMPOUND = (
    ast.If, ast.For, ast.AsyncFor, ast.While, ast.With, ast.AsyncWith, ast.Try, ast.TryStar, ast.ExceptHandler,
    ast.Match, ast.match_case,
)  # fmt: skip
_BLOCKS = ("body", "handlers", "orelse", "finalbody", "cases")


@dataclass(frozen=True, slots=True)
class Docstring:
    """The prose of one docstring.

    Attributes:
        library: name of the library it comes from.
        module: dotted name of its module.
        name: what it documents, within the module; empty for the module itself.
        text: its paragraphs, one a line.
        identity: 64-bit hash of the text with case, white space and libraries' names taken out; equal for docstrings
            that say the same.
    """

    library: str
    module: str
    name: str
    text: str
    identity: int


def read_source(file: SourceFile) -> tuple[list[Docstring], Notes]:
    """The docstrings of a module that have at least 8 words of prose, and what was odd; a bad file has none."""
    notes = Notes()
    docstrings = []
    defined: Counter[str] = Counter()
    try:
        for name, docstring in docstrings_of(file.path.read_bytes()):
            defined[name] += 1
            if defined[name] > 1:  # overloads, properties, definitions by platform
                name = f"{name}#{defined[name]}"
            text = prose(clean(docstring, str(file.path), notes))
            if len(text.split()) >= MIN_WORDS:
                identity = text_hash(" ".join(blank_names(text).casefold().split()))
                docstrings.append(Docstring(file.library, file.module, name, text, identity))
    except (OSError, SyntaxError, ValueError, RecursionError):
        notes.add("source files that cannot be read or parsed, skipped", str(file.path))
        return [], notes
    return docstrings, notes


def docstrings_of(source: bytes) -> Iterator[tuple[str, str]]:
    """Name and docstring (indentation removed) of a module and all that it defines, in their order.

    Raises:
        SyntaxError, ValueError, RecursionError: ``source`` is no Python that this interpreter can parse.
    """
    with warnings.catch_warnings(), _without_garbage_collection():
        warnings.simplefilter("ignore")  # invalid escapes in other people's strings
        tree = ast.parse(source)
    stack: list[tuple[str, ast.AST]] = [("", tree)]
    while stack:
        name, node = stack.pop()
        if isinstance(node, ast.Module | _Scope) and (docstring := ast.get_docstring(node)):
            yield name, docstring
        children: list[tuple[str, ast.AST]] = []
        for field in _BLOCKS:
            for child in getattr(node, field, ()):
                if isinstance(child, _Scope):
                    children.append((f"{name}.{child.name}" if name else child.name, child))
                elif isinstance(child, _COMPOUND):
                    children.append((name, child))
        stack.extend(reversed(children))


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    # A syntax tree is many small objects and no cycles: the collector would only walk them over and over.
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
