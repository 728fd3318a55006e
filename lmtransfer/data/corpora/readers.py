"""Readers of documents from text files or a table column. They hold one document in memory at a time."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from lmtransfer.config.types import TextFormat
from lmtransfer.data.documents import Document, Notes, clean
from lmtransfer.data.files import EncodingErrors, Meter, plain_name, read_lines
from lmtransfer.data.tables import FORMATS, TEXT_COLUMNS, BadRows, ColumnSpec, TableLayout, format_by_name, open_table
from lmtransfer.errors import DataError

Boundary = Literal["blank_line", "file", "line", "heading", "doc", "block"]

#: Suffixes of the files to read from a folder; tables and JSON there often describe the texts rather than contain them.
FOLDER_SUFFIXES = tuple(suffix for suffix in FORMATS if suffix not in (".tsv", ".csv", ".json"))
MAX_DOCUMENT_CHARACTERS = 1 << 24
_INDENTED = re.compile(r"(?:\t| {2})\s*\S")
#: The lines around each article in the files of WikiExtractor.
#: Length of a document with ``boundary="block"``, about 2,000 English words.
_BLOCK_CHARACTERS = 10_000
_DOC = re.compile(r"\s*(?:<doc id=.*>|</doc>)\s*")
_HEADING = re.compile(r"\s*= [^=].*[^=] =\s*$")


def format_of(path: Path) -> TextFormat:
    """Return a file's format by its name; text if the name does not decide."""
    return format_by_name(path) or "text"


def is_extracted(path: Path) -> bool:
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
    path: Path, boundary: Boundary, encoding_errors: EncodingErrors, notes: Notes, meter: Meter
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
    path: Path, layout: TableLayout, text_field: str | None, line_break: str | None, notes: Notes, meter: Meter
) -> Iterator[Document]:
    text_column = ColumnSpec(
        TEXT_COLUMNS if text_field is None else (text_field,),
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
    path: Path,
    *,
    file_format: TextFormat | None,
    boundary: Boundary,
    text_field: str | None,
    delimiter: str | None,
    encoding_errors: EncodingErrors,
    line_break: str | None,
    notes: Notes,
    meter: Meter,
) -> Iterator[Document]:
    """Yield the documents of one file; see ``FileCorpus`` for the settings."""
    if file_format == "text" or (file_format is None and format_of(path) == "text"):
        return _text_documents(path, boundary, encoding_errors, notes, meter)
    layout = TableLayout(file_format, encoding_errors=encoding_errors, delimiter=delimiter)
    return _table_documents(path, layout, text_field, line_break, notes, meter)
