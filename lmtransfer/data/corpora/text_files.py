"""The text files of a corpus: how ``corpus.path`` is resolved to files, their digests, and their documents.

Digests are cached, so that a large corpus is not hashed again before every run. The key consists of path, size, inode
and both timestamps. A digest is cached only if the file had not changed for a few seconds when it was hashed. Otherwise
an edit within the clock's resolution would go undetected.
"""

from __future__ import annotations

import glob
import json
import os
import re
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from lmtransfer.config.types import TextFormat
from lmtransfer.data.documents import Document, Notes, clean
from lmtransfer.data.files import (
    COMPRESSIONS,
    SAVED_SET,
    SAVED_SPLITS,
    EncodingErrors,
    Meter,
    describe_splits,
    explain_irregular,
    find_file,
    plain_name,
    read_lines,
    saved_files,
)
from lmtransfer.data.remote_files import RemoteFile, SourceFile, list_files, source_file
from lmtransfer.data.tables import FORMATS, BadRows, ColumnSpec, TableLayout, format_by_name, open_table
from lmtransfer.errors import DataError
from lmtransfer.system import door
from lmtransfer.system.durable import file_hash, write_json
from lmtransfer.system.machine import is_address
from lmtransfer.system.safe_files import irregularity

Boundary = Literal["blank_line", "file", "line", "heading", "doc", "block"]

#: Suffixes of the files to read from a folder; tables and JSON there often describe the texts rather than contain them.
FOLDER_SUFFIXES = tuple(suffix for suffix in FORMATS if suffix not in (".tsv", ".csv", ".json"))
MAX_DOCUMENT_CHARACTERS = 1 << 24
_INDENTED = re.compile(r"(?:\t| {2})\s*\S")
#: Length of a document with ``boundary="block"``, about 2,000 English words.
_BLOCK_CHARACTERS = 10_000
#: The lines around each article in the files of WikiExtractor.
_DOC = re.compile(r"\s*(?:<doc id=.*>|</doc>)\s*")
_HEADING = re.compile(r"\s*= [^=].*[^=] =\s*$")
#: Maximum number of suffixes in the note on the files that are left out of a folder.
_MAX_KINDS = 12
#: Suffixes of files whose tags would be read as words.
HTML_SUFFIXES = (".html", ".htm", ".xhtml")
#: Suffixes of other formatted documents, which are not plain text either.
_DOCUMENT_SUFFIXES = (".pdf", ".docx", ".doc", ".odt", ".rtf", ".epub")
CONVERT_HTML = "for example with pandoc -t plain page.html -o page.txt"
MARKDOWN_SUFFIXES = (".md", ".markdown")
_HIDDEN = "hidden files and folders, left out"
#: The files of a saved data set that describe it.
_SAVED_DESCRIPTIONS = (SAVED_SET, "dataset_info.json")
_WORTH_REMEMBERING_BYTES = 1 << 22
_UNCHANGED_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class CorpusFiles:
    """The files of a corpus, whether the user named each one (and no folder), and what was left out of folders."""

    files: tuple[str, ...]
    named: bool
    left_out: Notes


def locate(paths: str | Sequence[str], *, key: str = "corpus.path") -> CorpusFiles:
    """Find the files that ``paths``, the value of the setting ``key``, refers to.

    Each entry is a file (its name also matches a compressed file), a folder, which is searched recursively for texts
    and may be written by ``Dataset.save_to_disk``, or a pattern with ``*``; or the address of one of these, such as
    ``s3://bucket/folder``. Relative paths start at the folder where the command was started. In a folder, hidden files
    and compressed copies of uncompressed files are skipped. Links are followed, and each file is read once.
    """
    entries = [paths] if isinstance(paths, str) else list(paths)
    if not entries:
        raise DataError(f"{key}: the list is empty; give a file, a folder or a pattern")
    files: dict[str, str] = {}
    left_out = Notes()
    named = True
    for entry in entries:
        if is_address(entry):
            place = entry
            matches, is_folder, hidden = list_files(entry, key=key)
            for name in hidden:
                left_out.add(_HIDDEN, name)
        else:
            path = Path(os.path.abspath(Path(entry).expanduser()))
            door.check(door.start_of(str(path)))
            place, file = str(path), find_file(path)
            is_folder = file is None and path.is_dir()
            if file is not None:
                matches = [str(file)]
            elif is_folder:
                matches = _walk(path, key, left_out)
            else:
                matches = sorted(_matches(place, left_out))
                for name in filter(os.path.isdir, [] if "**" in entry else matches):
                    left_out.add("folders that the pattern matches, not searched (list them in corpus.path)", name)
                matches = [name for name in matches if os.path.isfile(name)]
            if not is_folder and not matches and (irregular := explain_irregular([path])) is not None:
                raise DataError(f"{key}={entry}: {irregular}")
            if not is_folder and not matches:
                raise DataError(
                    f"{key}={entry}: no file or folder matches (searched for {path}; relative paths start at the "
                    "folder where the command was started)"
                )
        if is_folder:
            matches, suffixes = _choose_texts(matches, left_out)
            if not matches:
                formatted = (*HTML_SUFFIXES, *_DOCUMENT_SUFFIXES)
                other = next((suffix for suffix in suffixes if suffix not in formatted), "")
                problems = [f"{kind} (first: {left_out.first[kind]})" for kind in left_out.counts]
                raise DataError(
                    f"{key}={entry}: no file in {place} has a known format ("
                    f"{', '.join(FOLDER_SUFFIXES)}, each also with {', '.join(COMPRESSIONS)}); rename the files, or "
                    f"select them with a pattern such as {entry}/**/*{other}"
                    + "".join(f"; {each}" for each in problems)
                )
        named = named and len(matches) == 1
        for name in matches:
            if files.setdefault(_real_path(name), name) != name:
                left_out.add("files reached by more than one path, read once", name)
    return CorpusFiles(tuple(files.values()), named, left_out)


def _real_path(name: str) -> str:
    return name if is_address(name) else os.path.realpath(name)


def _folders(top: str, left_out: Notes) -> Iterator[tuple[str, list[str]]]:
    """Yield a folder and those below it that are not hidden, with the names in each; each is visited only once.

    Links are followed, and those that lead back to a visited folder are counted.
    """

    def note(error: OSError) -> None:
        if error.filename in (top, None):  # None: the door is closed
            raise error
        left_out.add("folders that cannot be read, left out", str(error.filename))

    visited: set[str] = set()
    for parent, folders, names in os.walk(top, followlinks=True, onerror=note):
        real = os.path.realpath(parent)
        if real in visited:
            left_out.add("links to folders that are read anyway, not followed", parent)
            folders.clear()
            continue
        visited.add(real)
        for name in sorted(folders):
            if name.startswith("."):
                left_out.add(_HIDDEN, os.path.join(parent, name))
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield parent, names


def _matches(pattern: str, left_out: Notes) -> Iterator[str]:
    """Yield the paths that match a pattern; ``**`` stands for any folders, each of which is visited only once."""
    head, stars, tail = pattern.partition("/**/") if not pattern.endswith("/**") else (pattern[:-3], "/**", "*")
    if not stars:
        yield from glob.iglob(pattern)
        return
    for top in filter(os.path.isdir, glob.iglob(head or "/")):
        for folder, _ in _folders(top, left_out):
            yield from _matches(os.path.join(glob.escape(folder), tail), left_out)


def _walk(folder: Path, key: str, left_out: Notes) -> list[str]:
    """Return the files below a folder that are not hidden, or those of a set of ``datasets.save_to_disk``."""
    files: list[str] = []
    for parent, names in _folders(str(folder), left_out):
        if SAVED_SPLITS in names:
            raise DataError(f"{key}: {parent} {describe_splits(Path(parent))}")
        saved = [file.name for file in saved_files(Path(parent))] if SAVED_SET in names else []
        for name in sorted(names):
            if name.startswith("."):
                left_out.add(_HIDDEN, os.path.join(parent, name))
            elif saved and name not in (*saved, *_SAVED_DESCRIPTIONS):
                left_out.add("files beside those of a saved data set, left out", os.path.join(parent, name))
        files += [os.path.join(parent, name) for name in saved or names if not name.startswith(".")]
    return files


def _choose_texts(files: Sequence[str], left_out: Notes) -> tuple[list[str], list[str]]:
    """Return a folder's text files, in path order, and the suffixes of its other files, the most frequent first.

    The other files, and compressed copies of text files, are counted in ``left_out``.
    """
    texts: dict[str, str] = {}
    tables: dict[str, str] = {}
    others: list[str] = []
    for name in sorted(files):  # the plain name sorts before its compressed copies
        file = source_file(name)
        plain = plain_name(file)
        suffix = Path(plain).suffix.lower()
        if suffix not in FORMATS:
            if os.path.islink(name) and not os.path.exists(name):
                left_out.add("links that lead nowhere, left out", name)
            else:
                others.append(name)
            continue
        problem = irregularity(file) if isinstance(file, Path) else None
        if problem is not None:
            raise DataError(f"{name}: {problem}, or remove it from the folder")
        kind = texts if suffix in FOLDER_SUFFIXES else tables
        if kind.setdefault(name.removesuffix(file.name) + plain, name) != name:
            left_out.add("compressed copies of files beside them, left out", name)
    if tables:
        kind_of_note = "table and JSON files in the folder, left out (a pattern such as folder/*.csv reads them)"
        left_out.add(kind_of_note, next(iter(tables.values())), len(tables))
    counts = Counter(Path(plain_name(source_file(name))).suffix.lower() for name in others)
    if others:
        kinds = ", ".join(
            f"{count:,} {suffix or 'without a suffix'}" for suffix, count in counts.most_common(_MAX_KINDS)
        )
        more = f" and {len(counts) - _MAX_KINDS} more kinds" if len(counts) > _MAX_KINDS else ""
        ways = ["a pattern such as folder/**/*.rst reads files as text"]
        if any(suffix in HTML_SUFFIXES for suffix in counts):
            ways.insert(0, f"HTML has to be converted first, {CONVERT_HTML}")
        way = "; ".join(ways)
        left_out.add(f"files of other kinds in the folder, left out ({kinds}{more}; {way})", others[0], len(others))
    suffixes = [
        *dict.fromkeys(Path(name).suffix for name in tables.values()),
        *(suffix for suffix, _ in counts.most_common()),
    ]
    return [texts[plain] for plain in sorted(texts)], suffixes


def source_digest(path: SourceFile, memo_folder: str | Path | None = None) -> str:
    """Return the 128-bit hex digest of a file's bytes, cached in ``memo_folder`` if the file is large.

    The digest of a remote file is that of its version (see ``RemoteFile.digest``).
    """
    if isinstance(path, RemoteFile):
        return path.digest()
    before = _stamp(path)
    if memo_folder is None or before[0] < _WORTH_REMEMBERING_BYTES:
        return file_hash(path)
    memo = Path(memo_folder) / "source_digests.json"
    digests = _read_memo(memo)
    entry = digests.get(str(path))
    if entry and entry["stamp"] == before:
        return str(entry["digest"])
    digest = file_hash(path)
    unchanged = max(before[2:]) < time.time_ns() - int(_UNCHANGED_SECONDS * 1e9)
    if unchanged and _stamp(path) == before:
        with suppress(OSError):  # the cache may be read-only
            memo.parent.mkdir(parents=True, exist_ok=True)
            write_json(memo, {**_read_memo(memo), str(path): {"stamp": before, "digest": digest}})
    return digest


def _read_memo(memo: Path) -> dict[str, dict[str, object]]:
    try:
        digests = json.loads(memo.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # the cache file is missing or damaged: the digests are computed again
        return {}
    return digests if isinstance(digests, dict) else {}


def _stamp(path: Path) -> list[int]:
    status = path.stat()
    return [status.st_size, status.st_ino, status.st_mtime_ns, status.st_ctime_ns]


def format_of(path: SourceFile) -> TextFormat:
    """Return the format that a file's name implies; ``text`` if the name implies none."""
    return format_by_name(path) or "text"


def is_extracted(path: SourceFile) -> bool:
    """Whether WikiExtractor wrote a text file: its first line is ``<doc id=...>``."""
    lines = read_lines(path, encoding_errors="replace")
    return bool(_DOC.fullmatch(next((line for _, line in lines if line.strip()), "")))


def join_lines(lines: Iterator[tuple[str, str]], boundary: Boundary, notes: Notes) -> Iterator[Document]:
    """Join lines, given as pairs of ``file:line`` and text, into documents.

    A document of more than ``MAX_DOCUMENT_CHARACTERS`` (16 million: several long novels) is cut at a line end, so that
    a file without boundaries does not fill the memory; the cuts are counted.

    Args:
        boundary: ``blank_line``: blank lines separate documents; ``file``: all lines are one document; ``line``: each
            non-blank line is a document; ``heading``: a document begins at a line ``= Title =`` after a blank line, as
            in WikiText; ``doc``: lines ``<doc ...>`` and ``</doc>``, which are not text, enclose a document, as in the
            files of WikiExtractor; ``block``: a document ends with the line at which it has 10,000 characters, for
            files without boundaries whose lines belong together, such as one utterance per line.
    """
    paragraphs: list[str] = []
    key, size, blank_before = "", 0, True
    for where, line in lines:
        blank = not line or line.isspace()
        is_tag = "<" in line[:8] and _DOC.fullmatch(line) is not None
        if is_tag and boundary == "doc":
            blank = True
        elif is_tag:
            notes.add(
                "lines <doc ...> and </doc> from WikiExtractor, read as text (corpus.boundary=doc drops them)", where
            )
        starts = boundary == "heading" and blank_before and not blank and bool(_HEADING.match(line))
        ends = starts or boundary == "line" or (boundary == "blank_line" and blank) or (boundary == "doc" and is_tag)
        ends = ends or (boundary == "block" and size >= _BLOCK_CHARACTERS)
        if not ends and size + len(line) > MAX_DOCUMENT_CHARACTERS and paragraphs:
            notes.add("documents over 16 million characters, cut at a line end", where)
            ends = True
        if ends and paragraphs:
            yield Document("\n".join(paragraphs), key)
            paragraphs, size = [], 0
        blank_before = blank
        text = "" if blank else _strip_line(clean(line, where, notes), where, notes)
        if text:
            key = key if paragraphs else where
            paragraphs.append(text)
            size += len(text) + 1
    if paragraphs:
        yield Document("\n".join(paragraphs), key)


def _strip_line(line: str, where: str, notes: Notes) -> str:
    """Return a line without the white space at its ends; count text that a model will not see."""
    if _INDENTED.match(line):
        notes.add("indented lines, whose indentation is lost (every tokenizer reads white space as one space)", where)
    line = line.strip()
    if "\r" in line:
        notes.add("carriage returns inside lines, read as spaces (end lines with line feeds instead)", where)
    return line


def build_document(text: object, where: str, notes: Notes, line_break: str | None = None) -> Document | None:
    """Build a document from a record's text, without blank lines; None, counted in ``notes``, if no text is left."""
    if text is None:
        text = ""
    if not isinstance(text, str):
        raise DataError(
            f"{where}: the text is a {type(text).__name__}, not a string; set corpus.text_field to another column"
        )
    if line_break:
        text = text.replace(line_break, "\n")
    lines = (_strip_line(line, where, notes) for line in clean(text, where, notes).split("\n"))
    text = "\n".join(line for line in lines if line)
    if not text:
        notes.add("empty documents skipped", where)
        return None
    return Document(text, where)


def _text_documents(
    path: SourceFile, boundary: Boundary, encoding_errors: EncodingErrors, notes: Notes, meter: Meter
) -> Iterator[Document]:
    def lines() -> Iterator[tuple[str, str]]:
        for number, line in read_lines(path, encoding_errors=encoding_errors, notes=notes, meter=meter):
            where = f"{path}:{number}"
            if number == 1 and _is_object(line):
                notes.add("files of JSON objects, read as lines of text (corpus.format=jsonl reads a field)", where)
            yield where, line

    empty = True
    for document in join_lines(lines(), boundary, notes):
        empty = False
        yield document
    if empty:
        notes.add("empty files skipped", str(path))


def _is_object(line: str) -> bool:
    try:
        return line.startswith("{") and isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _table_documents(
    path: SourceFile,
    layout: TableLayout,
    text_fields: Sequence[str],
    line_break: str | None,
    notes: Notes,
    meter: Meter,
) -> Iterator[Document]:
    text_column = ColumnSpec(
        tuple(text_fields),
        "corpus.text_field",
        advice="corpus.format=text to read its lines as text",
        is_text=True,
    )
    bad_rows = BadRows("refuse", notes, "or remove it")
    for record in open_table(path, [text_column], layout=layout, bad_rows=bad_rows, meter=meter).records:
        document = build_document(record.text(text_column), record.where, notes, line_break)
        if record.number == 0 and Path(plain_name(path)).suffix.lower() not in FOLDER_SUFFIXES:
            kind = f"table whose column {record.name_of(text_column)!r} is read (corpus.format=text reads its lines)"
            notes.add(kind, str(path))
        if document is not None:
            yield document


def read_documents(
    path: SourceFile,
    *,
    file_format: TextFormat | None,
    boundary: Boundary,
    text_fields: Sequence[str],
    delimiter: str | None,
    encoding_errors: EncodingErrors,
    line_break: str | None,
    notes: Notes,
    meter: Meter,
) -> Iterator[Document]:
    """Yield the documents of one file; see ``FileCorpus`` for the settings.

    Args:
        text_fields: possible names of the column with the text, of which the first that a row has is used.
    """
    if file_format == "text" or (file_format is None and format_of(path) == "text"):
        return _text_documents(path, boundary, encoding_errors, notes, meter)
    layout = TableLayout(file_format, encoding_errors=encoding_errors, delimiter=delimiter)
    return _table_documents(path, layout, text_fields, line_break, notes, meter)
