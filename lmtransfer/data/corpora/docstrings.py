"""The docstrings of installed libraries as prose, read from source files; nothing is imported or run."""

from __future__ import annotations

import ast
import contextlib
import gc
import json
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager
from dataclasses import astuple, dataclass
from hashlib import blake2b
from itertools import chain
from pathlib import Path

from lmtransfer.data.corpora.docstring_prose import prose
from lmtransfer.data.corpora.libraries import SourceFile, blank_names, find_library, source_files
from lmtransfer.data.corpora.split import text_hash
from lmtransfer.data.documents import Notes, clean
from lmtransfer.errors import DataError
from lmtransfer.system.durable import write_json
from lmtransfer.system.workers import workers

_VERSION = 1  # increase it when the same sources would give other docstrings
_AT_ONCE = 32  # files
_WORTH_A_PROCESS = 500  # files; reading fewer takes less time than starting a process
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
        name: qualified name of the documented object within the module; empty for the module itself.
        text: its paragraphs, one per line.
        identity: 64-bit hash of the text without case, white space and libraries' names; equal for docstrings that
            differ only in these.
    """

    library: str
    module: str
    name: str
    text: str
    identity: int


@dataclass(frozen=True, slots=True)
class DocstringSet:
    """Docstrings by module name, each text once.

    Attributes:
        items: the docstrings.
        digest: hex digest of all docstrings.
        notes: counts of skipped files that do not parse and of repeated docstrings.
    """

    items: tuple[Docstring, ...]
    digest: str
    notes: Notes


def read_docstrings(
    libraries: Sequence[str],
    *,
    cache_dir: Path,
    num_workers: int,
    on_progress: Callable[[float], None] | None = None,
) -> DocstringSet:
    """Read all docstrings of ``libraries``, or return the cached result of an earlier call for the same files.

    Args:
        libraries: import names, or ``stdlib``.
        cache_dir: folder for the result; if it is not writable, the docstrings are read again each time.
        num_workers: number of worker processes; the result does not depend on it.
        on_progress: called with the share of the files that has been read, 0 to 1.

    Raises:
        DataError: a library is missing, or a worker process was killed.
    """
    files: list[SourceFile] = []
    stamp = blake2b(f"{_VERSION}\n".encode(), digest_size=16)
    for name in libraries:
        library = find_library(name)
        found = source_files(library)
        files += found
        stamp.update(f"{name} {library.version} {library.root}\n".encode())
        for file in found:
            status = file.path.stat()
            stamp.update(f"{file.path} {status.st_size} {status.st_mtime_ns}\n".encode("utf-8", "surrogateescape"))
    memo = Path(cache_dir) / "python_docs" / f"{stamp.hexdigest()}.json"
    known = _recall(memo)
    if known is not None:
        return known
    files.sort(key=lambda file: (file.module, file.library, str(file.path)))
    notes = Notes()
    items = tuple(_unique(_read(files, notes, num_workers, on_progress), notes))
    result = DocstringSet(items, _digest(items), notes)
    with contextlib.suppress(OSError):
        memo.parent.mkdir(parents=True, exist_ok=True)
        write_json(
            memo,
            {
                "digest": result.digest,
                "counts": notes.counts,
                "first": notes.first,
                "items": [list(astuple(item)) for item in items],
            },
        )
    return result


def _read(
    files: Sequence[SourceFile], notes: Notes, num_workers: int, on_progress: Callable[[float], None] | None
) -> Iterator[Docstring]:
    with ExitStack() as stack:
        results: Iterable[tuple[list[Docstring], Notes]] = map(read_source, files)
        if num_workers > 1 and len(files) > _WORTH_A_PROCESS:
            pool = stack.enter_context(workers(num_workers))
            pending = [pool.submit(_read_sources, files[at : at + _AT_ONCE]) for at in range(0, len(files), _AT_ONCE)]
            results = chain.from_iterable(future.result() for future in pending)
        try:
            for number, (docstrings, met) in enumerate(results, start=1):
                yield from docstrings
                for kind, count in met.counts.items():
                    notes.add(kind, met.first[kind], count)
                if on_progress is not None:
                    on_progress(number / len(files))
        except BrokenProcessPool:
            raise DataError(
                "python_docs: a process that reads source files was killed, probably because memory ran out; run again "
                "while fewer other programs run"
            ) from None


def _read_sources(files: Sequence[SourceFile]) -> list[tuple[list[Docstring], Notes]]:
    return [read_source(file) for file in files]


def _unique(docstrings: Iterable[Docstring], notes: Notes) -> Iterator[Docstring]:
    seen: set[str] = set()
    for docstring in docstrings:
        if docstring.text in seen:
            notes.add("repeated docstrings dropped", f"{docstring.module}:{docstring.name}")
        else:
            seen.add(docstring.text)
            yield docstring


def _digest(items: Iterable[Docstring]) -> str:
    digest = blake2b(digest_size=16)
    for item in items:
        digest.update("\x00".join((*map(str, astuple(item)), "")).encode())
    return digest.hexdigest()


def _recall(memo: Path) -> DocstringSet | None:
    try:
        value = json.loads(memo.read_text(encoding="utf-8"))
        items = tuple(Docstring(*item) for item in value["items"])
        if _digest(items) == value["digest"]:
            return DocstringSet(items, value["digest"], Notes(value["counts"], value["first"]))
    except (OSError, ValueError, TypeError, KeyError):  # missing or damaged: read the sources again
        pass
    return None


def read_source(file: SourceFile) -> tuple[list[Docstring], Notes]:
    """The docstrings of a module with at least 8 words of prose, and notes; none if the file cannot be parsed."""
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
    """Name and docstring (without indentation) of a module and of its classes and functions, in source order.

    Raises:
        SyntaxError, ValueError, RecursionError: this interpreter cannot parse ``source``.
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
    # A syntax tree has many small objects and no cycles, so garbage collection would only cost time.
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
