"""The built-in corpus: the prose of the Python docstrings installed on every user's machine.

It contains the docstrings of the standard library and of seven libraries that lmtransfer depends on, so that
pretraining needs no download. Its downstream task is to classify docstrings by library. The modules of the task's dev
and test splits are not in the corpus.
"""

from __future__ import annotations

import ast
import contextlib
import gc
import json
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager
from dataclasses import astuple, dataclass, field, replace
from functools import cached_property
from hashlib import blake2b
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal

from typing_extensions import override

from lmtransfer.config.types import Folder, Name
from lmtransfer.data.corpora.corpus import BaseCorpus, SplitUnit, text_hash
from lmtransfer.data.corpora.libraries import BLANK, LIBRARIES, SourceFile, blank_names, find_library, source_files
from lmtransfer.data.documents import Document, Notes, clean
from lmtransfer.data.files import Meter
from lmtransfer.errors import DataError
from lmtransfer.system.durable import write_json
from lmtransfer.system.machine import default_cache_dir
from lmtransfer.system.workers import default_num_workers, workers

MIN_PARAGRAPH_WORDS = 3
MIN_PROSE_SHARE = 0.5

_FENCE = re.compile(r"\s*(```+|~~~+)")
# Start of a block that ends at the next blank line: a doctest with its output, or a table with multi-part rulers.
_TO_BLANK_LINE = re.compile(r"\s*(?:>>>|In \[\d*\]:|\$ |=+(?:\s+=+)+\s*$)")
_DIRECTIVE = re.compile(r"\.\.\s+([\w:-]+?)::\s*(.*)")
_PROSE_DIRECTIVES = frozenset(
    ("note", "warning", "tip", "hint", "important", "caution", "attention", "danger", "error", "seealso", "admonition",
     "topic", "todo", "rubric", "versionadded", "versionchanged", "deprecated", "describe", "function", "method",
     "class", "attribute", "data", "exception", "module", "option")
)  # fmt: skip
_RULER = re.compile(r"[^\w\s]{3,}(?:[\s|+]+[^\w\s]+)*\s*|[^\w]+")
_TAG_LINE = re.compile(r"</?[A-Za-z][^<>]*>|\[\[?[\w.-]+\]?\]")
_TYPE = re.compile(r"[*\w\\`., ]{1,60} : .{0,120}(?<![.])")  # numpydoc's ``name : type``
_TABLE = re.compile(r"[|+].*[|+]|\S.*\s{3,}\S.*\s{3,}\S.*")
_COMMENT = re.compile(r"\.\.\s+(?:_[^:]*:.*|\|[^|]*\|.*)|\.\.")
_DROPPED_LINES = (_RULER, _TABLE, _TYPE, _TAG_LINE, _COMMENT)
_CITATION = re.compile(r"\.\.\s+\[[^\]]+\]\s*")
_ITEM = re.compile(r"(?:[-*+\u2022]|\(?(?:\d{1,2}|[a-z])[.)]|#\.)\s+")
_FIELD = re.compile(r"[:@](?:param|parameter|arg|argument|keyword|kwarg|type|raises?|returns?|rtype|var|ivar|cvar)\b")
_FIELD_NAME = re.compile(r"[:@]\w+\s*((?:[^:]|:(?=\S))*):\s*")
_GOOGLE_ITEM = re.compile(r"[*\w.`]+(?:\s*\([^()]*(?:\([^()]*\)[^()]*)*\))?:(?:\s|$)")
_SECTION = re.compile(
    r"(?:(?:keyword |other |key word )?(?:args?|arguments?|parameters?|params)|returns?|yields?|raises?|warns|examples?"
    r"|notes?|attributes|methods|usage|see also|references|shape|inputs?|outputs?|variables|options|todo):?",
    re.IGNORECASE,
)

# Inline markup: a mark that must occur in the line (most lines have none), a pattern and its replacement.
_INLINE = (
    ("http", re.compile(r"https?://[^\s<>)\]`]+"), ""),
    ("`", re.compile(r":[\w:.+-]+:`~?\.?([^`<]*?)(?:\s*<[^>`]*>)?`"), r"\1"),  # :role:`title <target>`
    ("`", re.compile(r"`([^`<]+?)\s*<[^>`]*>`_{0,2}"), r"\1"),  # `title <target>`_
    ("](", re.compile(r"\[([^\]\[]+)\]\([^()\s]*\)"), r"\1"),  # [title](target)
    ("]_", re.compile(r"\s*\[[\w#*-]{1,12}\]_"), ""),  # [1]_
    ("`", re.compile(r"`+~?\.?([^`]*)`+_{0,2}"), r"\1"),
    ("*", re.compile(r"(?<![\w*])\*{1,2}(?=[^\s*])([^*]*[^\s*])\*{1,2}(?!\w)"), r"\1"),
    ("`", re.compile(r"`"), ""),
    ("\\", re.compile(r"\\"), ""),
    ("(", re.compile(r"\(\s*\)"), ""),
    ("<>", re.compile(r"<>"), ""),
)
_SPACE_BEFORE_MARK = re.compile(r" (?=[.,;:!?)](?:\s|$))")
_EDGES = "\"'()[]{}<>,.;:!?*-\u2013\u2014\u2018\u2019\u201c\u201d"

_VERSION = 1  # increase when the same sources would produce different docstrings
_AT_ONCE = 32  # files
_WORTH_A_PROCESS = 500  # files; fewer are read faster than a process starts
MIN_WORDS = 8
_Scope = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
_COMPOUND = (
    ast.If, ast.For, ast.AsyncFor, ast.While, ast.With, ast.AsyncWith, ast.Try, ast.TryStar, ast.ExceptHandler,
    ast.Match, ast.match_case,
)  # fmt: skip
_BLOCKS = ("body", "handlers", "orelse", "finalbody", "cases")


def prose(docstring: str) -> str:
    """Return the English text of a docstring without indentation, one paragraph per line; empty if there is none."""
    paragraphs = (_plain(" ".join(lines)) for lines in _paragraphs(_without_code(docstring.expandtabs().split("\n"))))
    return "\n".join(paragraph for paragraph in paragraphs if is_prose(paragraph))


def is_prose(paragraph: str) -> bool:
    """Whether at least half of a paragraph's tokens, and at least three, are words."""
    tokens = paragraph.split()
    words = sum(map(_is_word, tokens))
    return words >= MIN_PARAGRAPH_WORDS and words >= MIN_PROSE_SHARE * len(tokens)


def _is_word(token: str) -> bool:
    if not token.isalpha():
        token = token.strip(_EDGES)
        if not token.isalpha():
            token = token.replace("-", "").replace("'", "")
    return token.isalpha() and (len(token) > 1 or token in "aAI")


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _without_code(lines: list[str]) -> Iterator[str]:
    """Yield the lines without doctests, fenced and literal blocks, tables, rulers, and directives without prose."""
    fence = ""
    dropping = False
    block: int | None = None  # lines with more indentation than this belong to a dropped block
    for line in lines:
        text = line.strip()
        if fence:
            fence = "" if text.startswith(fence) else fence
            continue
        if not text:
            dropping = False
            yield ""
            continue
        if block is not None and _indent(line) > block:
            continue
        block = None
        if dropping or _TO_BLANK_LINE.match(line):
            dropping = True
            continue
        if mark := _FENCE.match(line):
            fence = mark[1]
            yield ""
            continue
        if directive := _DIRECTIVE.match(text):
            if directive[1].split(":")[-1].lower() in _PROSE_DIRECTIVES:
                yield ""
                yield " " * _indent(line) + re.sub(r"^[\d.]+\s*", "", directive[2])
            else:
                block = _indent(line)
            continue
        if any(pattern.fullmatch(text) for pattern in _DROPPED_LINES):
            yield ""
            continue
        if text.endswith("::"):
            block = _indent(line)
            line = line.rstrip()[:-1]
        yield _CITATION.sub("", line)


def _paragraphs(lines: Iterator[str]) -> Iterator[list[str]]:
    """Group lines into paragraphs: a blank line, list item, field or change of indentation starts a new paragraph."""
    paragraph: list[str] = []
    indent = 0
    hanging = False
    for line in lines:
        text = line.strip()
        begins = not text
        item = _ITEM.match(text) if text else None
        if text and (item or _FIELD.match(text)):
            begins = True
        elif text and paragraph and _indent(line) != indent:
            # The first continuation line of an item may be indented; any other change begins a paragraph.
            begins = not (hanging and len(paragraph) == 1 and _indent(line) > indent and not _GOOGLE_ITEM.match(text))
            indent = indent if begins else _indent(line)
        elif text and _GOOGLE_ITEM.match(text) and _indent(line) > 0:
            begins = True
        if begins and paragraph:
            yield paragraph
            paragraph = []
        if not text:
            continue
        if not paragraph:
            indent = _indent(line)
            hanging = bool(item or _FIELD.match(text) or _GOOGLE_ITEM.match(text)) and not _SECTION.fullmatch(text)
        if item:
            text = text[item.end() :]
        elif _FIELD.match(text) and (name := _FIELD_NAME.match(text)):
            text = f"{name[1].strip()}: {text[name.end() :]}" if name[1].strip() else text[name.end() :]
        paragraph.append(text)
    if paragraph:
        yield paragraph


def _plain(text: str) -> str:
    for mark, pattern, replacement in _INLINE:
        if mark in text:
            text = pattern.sub(replacement, text)
    return _SPACE_BEFORE_MARK.sub("", " ".join(text.split()))


@dataclass(frozen=True, slots=True)
class Docstring:
    """The prose of one docstring.

    Attributes:
        name: qualified name of the documented object within the module; empty for the module itself.
        text: the paragraphs, one per line.
        identity: 64-bit hash of the text without case, white space and library names; equal for docstrings that differ
            only in these.
    """

    library: str
    module: str
    name: str
    text: str
    identity: int


@dataclass(frozen=True, slots=True)
class DocstringSet:
    """Distinct docstrings, sorted by module; their hex digest; and notes on skipped files and repeated texts."""

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
    """Read all docstrings of ``libraries``; the result for the same files is cached in ``cache_dir``."""
    files: list[SourceFile] = []
    stamp = blake2b(f"{_VERSION}\n".encode(), digest_size=16)
    for name in libraries:
        library = find_library(name)
        of_library = source_files(library)
        files += of_library
        stamp.update(f"{name} {library.version} {library.root}\n".encode())
        for file in of_library:
            status = file.path.stat()
            stamp.update(f"{file.path} {status.st_size} {status.st_mtime_ns}\n".encode("utf-8", "surrogateescape"))
    memo = Path(cache_dir) / "python_docs" / f"{stamp.hexdigest()}.json"
    cached_set = _recall(memo)
    if cached_set is not None:
        return cached_set
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
            for number, (docstrings, file_notes) in enumerate(results, start=1):
                yield from docstrings
                for kind, count in file_notes.counts.items():
                    notes.add(kind, file_notes.first[kind], count)
                if on_progress is not None:
                    on_progress(number / len(files))
        except BrokenProcessPool:
            raise DataError(
                "corpus=python_docs: a process that reads source files was killed, probably because memory ran out; "
                "close other programs, and run the command again"
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
    except (OSError, ValueError, TypeError, KeyError):  # missing or damaged: the sources are read again
        pass
    return None


def read_source(file: SourceFile) -> tuple[list[Docstring], Notes]:
    """Return a module's docstrings with at least 8 words of prose, and notes; none if the file cannot be parsed."""
    notes = Notes()
    docstrings = []
    defined: Counter[str] = Counter()
    try:
        for name, docstring in docstrings_of(file.path.read_bytes()):
            defined[name] += 1
            if defined[name] > 1:  # overloads, properties, platform-specific definitions
                name = f"{name}#{defined[name]}"
            text = prose(clean(docstring, file.module, notes))
            if len(text.split()) >= MIN_WORDS:
                identity = text_hash(" ".join(blank_names(text).casefold().split()))
                docstrings.append(Docstring(file.library, file.module, name, text, identity))
    except (OSError, SyntaxError, ValueError, RecursionError):
        notes.add("source files that cannot be read or parsed, skipped", file.module)
        return [], notes
    return docstrings, notes


def docstrings_of(source: bytes) -> Iterator[tuple[str, str]]:
    """Yield the names and docstrings (without indentation) of a module, its classes and functions, in source order."""
    with warnings.catch_warnings(), _without_garbage_collection():
        warnings.simplefilter("ignore")  # invalid escapes in other people's strings
        tree = ast.parse(source)
    stack: list[tuple[str, ast.AST]] = [("", tree)]
    while stack:
        name, node = stack.pop()
        if isinstance(node, ast.Module | _Scope) and (docstring := ast.get_docstring(node)):
            yield name, docstring
        children: list[tuple[str, ast.AST]] = []
        for block in _BLOCKS:
            for child in getattr(node, block, ()):
                if isinstance(child, _Scope):
                    children.append((f"{name}.{child.name}" if name else child.name, child))
                elif isinstance(child, _COMPOUND):
                    children.append((name, child))
        stack.extend(reversed(children))


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    # A syntax tree has many small objects and no cycles, so garbage collection would only waste time.
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


Split = Literal["train", "dev", "test"]

SPLITS: tuple[Split, ...] = ("train", "dev", "test")
HELD_OUT: dict[Split, tuple[int, float]] = {"test": (200, 0.2), "dev": (120, 0.12)}  # documents, share of a library
MAX_MODULE_DOCUMENTS = 40
MIN_TASK_WORDS = 15  # shorter texts, such as "Return True if the two are equal.", do not reveal the library


@dataclass(kw_only=True, eq=False, repr=False)
class PythonDocs(BaseCorpus):
    """One document per docstring, ordered by module, without the modules of the task's dev and test splits."""

    name: Name = "python_docs"
    split_unit: SplitUnit = field(default="document", init=False)
    cache_dir: Folder | Path | None = None

    @cached_property
    def _docstrings(self) -> DocstringSet:
        def on_progress(fraction: float) -> None:
            self._meter.done, self._meter.total = round(fraction * 1000), 1000

        return _read_all(self.cache_dir, on_progress)

    @cached_property
    def _pretraining(self) -> list[Docstring]:
        return pretraining_docstrings(self._docstrings.items)

    @override
    def _read(self, notes: Notes, meter: Meter) -> Iterator[Document]:
        read_notes = self._docstrings.notes
        for kind, count in read_notes.counts.items():
            notes.add(kind, read_notes.first[kind], count)
        meter.total = len(self._pretraining)
        for meter.done, item in enumerate(self._pretraining, start=1):
            yield Document(item.text, f"{item.module}:{item.name}" if item.name else item.module)

    @override
    def _content(self) -> dict[str, Any]:
        digest = blake2b(digest_size=16)
        for item in self._pretraining:
            digest.update(f"{item.text}\x00".encode())
        return {"docstrings": digest.hexdigest()}


def module_splits(docstrings: Iterable[Docstring]) -> dict[tuple[str, str], Split]:
    """Return the split of each module, by (library, module).

    In each library, modules are taken in the order of the hashes of their names. They go to the test split until it has
    200 documents (or 20 % of the library's), then to the dev split until it has 120 (12 %), then to the train split.
    Modules with more than 40 documents always go to the train split, because they would dominate a smaller split. Only
    documents that are long enough for the task are counted.
    """
    sizes: Counter[tuple[str, str]] = Counter()
    for item in docstrings:
        sizes[item.library, item.module] += len(item.text.split()) >= MIN_TASK_WORDS
    totals: Counter[str] = Counter()
    for (library, _), size in sizes.items():
        totals[library] += size
    splits: dict[tuple[str, str], Split] = {}
    held_out: Counter[tuple[str, Split]] = Counter()
    for library, module in sorted(sizes, key=lambda key: text_hash(" ".join(key))):
        size = sizes[library, module]
        splits[library, module] = "train"
        for split, (most, share) in HELD_OUT.items():
            if size <= MAX_MODULE_DOCUMENTS and held_out[library, split] < min(most, share * totals[library]):
                splits[library, module] = split
                held_out[library, split] += size
                break
    return splits


def pretraining_docstrings(docstrings: Sequence[Docstring]) -> list[Docstring]:
    """Return the train modules' docstrings except those that occur in dev or test modules (ignoring library names)."""
    splits = module_splits(docstrings)
    sides = [splits[item.library, item.module] for item in docstrings]
    held_out = {item.identity for side, item in zip(sides, docstrings, strict=True) if side != "train"}
    return [
        item for side, item in zip(sides, docstrings, strict=True) if side == "train" and item.identity not in held_out
    ]


def docstring_examples(*, max_per_library: int, cache_dir: str | Path | None = None) -> dict[Split, list[Docstring]]:
    """Return docstrings by split with library names blanked out, the same number for each library.

    A text that occurs in two libraries or in two splits is removed from all. A dev or test text is removed if at least
    half of its words are in paragraphs that also occur in train modules. If a library has too many texts, those with
    the smallest hashes are kept, so that the choice does not depend on any order. Texts are on one line, ordered by
    library and hash.
    """
    items = _read_all(cache_dir).items
    splits = module_splits(items)
    owners: dict[int, set[tuple[str, Split]]] = {}
    for item in items:
        owners.setdefault(item.identity, set()).add((item.library, splits[item.library, item.module]))
    groups: dict[Split, dict[str, dict[int, Docstring]]] = {
        split: {library: {} for library in LIBRARIES} for split in SPLITS
    }
    train_paragraphs = {
        paragraph
        for item in items
        if splits[item.library, item.module] == "train"
        for paragraph in item.text.casefold().split("\n")
    }
    for item in items:
        split = splits[item.library, item.module]
        if len(owners[item.identity]) == 1 and (split == "train" or overlap_share(item.text, train_paragraphs) < 0.5):
            groups[split][item.library].setdefault(item.identity, item)
    return {
        split: _balance([_blank(members.values(), max_per_library) for members in group.values()])
        for split, group in groups.items()
    }


def overlap_share(text: str, paragraphs: Set[str]) -> float:
    """Return the share of a text's words whose paragraph is one of ``paragraphs``, which are case-folded."""
    own_paragraphs = text.casefold().split("\n")
    words = [len(paragraph.split()) for paragraph in own_paragraphs]
    return sum(n for n, paragraph in zip(words, own_paragraphs, strict=True) if paragraph in paragraphs) / sum(words)


def _blank(docstrings: Iterable[Docstring], most: int) -> list[Docstring]:
    """Return the first ``most`` docstrings by hash that have enough words, not counting blanks."""
    ordered = sorted(docstrings, key=lambda item: item.identity)
    texts = ((item, blank_names(item.text).split()) for item in ordered)
    enough = (
        replace(item, text=" ".join(words))
        for item, words in texts
        if len(words) - words.count(BLANK) >= MIN_TASK_WORDS
    )
    return list(islice(enough, most))


def _balance(groups: Sequence[list[Docstring]]) -> list[Docstring]:
    size = min(len(group) for group in groups)
    return [item for group in groups for item in group[:size]]


def _read_all(cache_dir: str | Path | None, on_progress: Callable[[float], None] | None = None) -> DocstringSet:
    folder = default_cache_dir() if cache_dir is None else Path(cache_dir)
    return read_docstrings(LIBRARIES, cache_dir=folder, num_workers=default_num_workers(), on_progress=on_progress)
