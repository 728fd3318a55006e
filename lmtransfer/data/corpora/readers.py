"""Read documents from files: text, or a column of a table, one document in memory at a time."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from lmtransfer.data import tables
from lmtransfer.data.documents import Document, Notes, clean
from lmtransfer.data.files import Meter, plain_name
from lmtransfer.data.tables import BadRows, Column, TableFormat, TableLayout, open_table, whole_table
from lmtransfer.data.text_lines import EncodingErrors, read_lines
from lmtransfer.errors import DataError

FileFormat = Literal["text", "tsv", "quoted_tsv", "csv", "jsonl", "parquet"]
Format = Literal["auto", "text", "tsv", "quoted_tsv", "csv", "jsonl", "parquet"]
Boundary = Literal["auto", "blank_line", "file", "line", "heading"]

#: Formats of the files that are read from a folder; tables and JSON there are often about the texts, not the texts.
FORMATS: dict[str, FileFormat] = {
    ".txt": "text",
    ".text": "text",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
    ".arrow": "parquet",
}
MAX_DOCUMENT_CHARACTERS = 1 << 24
_INDENTED = re.compile(r"(?:\t| {2})\s*\S")
_HEADING = re.compile(r"\s*= [^=].*[^=] =\s*$")


def format_of(path: Path) -> FileFormat:
    """The format of a file by its suffix (ignoring a compression suffix); text if the suffix is unknown."""
    suffix = Path(plain_name(path)).suffix.lower()
    return TableLayout().format_of(path) if suffix in tables.FORMATS else "text"


def join_lines(
    lines: Iterator[tuple[str, str]], boundary: Literal["blank_line", "file", "line", "heading"], notes: Notes
) -> Iterator[Document]:
    """Join lines to documents.

    A document of more than ``MAX_DOCUMENT_CHARACTERS`` (16 million: several long novels) is cut at a line end, so that
    a file without any boundary does not fill the memory; the cuts are counted.

    Args:
        lines: pairs of ``file:line`` and text.
        boundary: ``blank_line``: blank lines separate documents; ``file``: all lines are one document; ``line``: each
            line that is not blank is a document; ``heading``: a document begins at a line ``= Title =`` after a blank
            line, as in WikiText.
        notes: counts irregularities.
    """
    paragraphs: list[str] = []
    key, size, blank_before = "", 0, True
    for where, line in lines:
        blank = not line or line.isspace()
        starts = boundary == "heading" and blank_before and not blank and bool(_HEADING.match(line))
        ends = starts or boundary == "line" or (boundary == "blank_line" and blank)
        if not ends and size + len(line) > MAX_DOCUMENT_CHARACTERS and paragraphs:
            notes.add("documents over 16 million characters, cut at a line end", where)
            ends = True
        if ends and paragraphs:
            yield Document("\n".join(paragraphs), key)
            paragraphs, size = [], 0
        blank_before = blank
        text = "" if blank else _stripped(clean(line, where, notes), where, notes)
        if text:
            key = key if paragraphs else where
            paragraphs.append(text)
            size += len(text) + 1
    if paragraphs:
        yield Document("\n".join(paragraphs), key)


def _stripped(line: str, where: str, notes: Notes) -> str:
    """A line without the white space at its ends; what a model will not see of it is counted."""
    if _INDENTED.match(line):
        notes.add("indented lines, whose indentation is lost (every tokenizer reads white space as one space)", where)
    line = line.strip()
    if "\r" in line:
        notes.add("carriage returns inside lines, read as spaces (save the file with line feeds to end lines)", where)
    return line


def as_document(text: object, where: str, notes: Notes, line_break: str | None = None) -> Document | None:
    """Make a document of a record's text: strip lines and drop blank lines; None (counted) if no text is left.

    Args:
        text: the record's text; None counts as empty.
        where: ``file:line``.
        notes: counts irregularities.
        line_break: a mark for a line end in this source, such as ``<br />``.

    Raises:
        DataError: ``text`` is not a string.
    """
    if text is None:
        text = ""
    if not isinstance(text, str):
        raise DataError(f"{where}: the text is a {type(text).__name__}, not a string; set corpus.text_field")
    if line_break:
        text = text.replace(line_break, "\n")
    lines = (_stripped(line, where, notes) for line in clean(text, where, notes).split("\n"))
    text = "\n".join(line for line in lines if line)
    if not text:
        notes.add("empty documents skipped", where)
        return None
    return Document(text, where)


def _text_documents(
    path: Path,
    boundary: Literal["blank_line", "file", "line", "heading"],
    encoding_errors: EncodingErrors,
    notes: Notes,
    meter: Meter,
) -> Iterator[Document]:
    lines = read_lines(path, encoding_errors=encoding_errors, notes=notes, meter=meter)
    empty = True
    for document in join_lines(((f"{path}:{number}", line) for number, line in lines), boundary, notes):
        empty = False
        yield document
    if empty:
        notes.add("empty files skipped", str(path))


def _table_documents(
    path: Path,
    file_format: TableFormat,
    text_field: str,
    encoding_errors: EncodingErrors,
    line_break: str | None,
    notes: Notes,
    meter: Meter,
) -> Iterator[Document]:
    wanted = Column((text_field,), "corpus.text_field", otherwise="corpus.format=text to read its lines as text")
    layout = TableLayout(file_format, encoding_errors=encoding_errors)
    bad_rows = BadRows("refuse", notes, "or remove it")
    table = open_table(path, [wanted], layout=layout, bad_rows=bad_rows, meter=meter)
    if Path(plain_name(path)).suffix.lower() not in FORMATS:
        notes.add(f"table, of which {text_field!r} is read (corpus.format=text reads its lines)", str(path))
    for record in table.records:
        if text_field not in record.values:
            problem = f"{record.where}: {wanted.missing(list(record.values))}. {whole_table(record.values)}"
            raise DataError(problem.rstrip(". "))
        is_text = record.values[text_field] is None or isinstance(record.values[text_field], str)
        if record.number == 0 and not is_text and (hint := whole_table(record.values)):
            raise DataError(f"{record.where}: the text is a {type(record.values[text_field]).__name__}. {hint}")
        document = as_document(record.values[text_field], record.where, notes, line_break)
        if document is not None:
            yield document


def read_documents(
    path: Path,
    *,
    file_format: FileFormat,
    boundary: Literal["blank_line", "file", "line", "heading"],
    text_field: str,
    encoding_errors: EncodingErrors,
    line_break: str | None,
    notes: Notes,
    meter: Meter,
) -> Iterator[Document]:
    """Documents of one file, streamed.

    Args:
        path: the file, plain or compressed.
        file_format: the format of the file.
        boundary: what separates the documents of a text file (see ``join_lines``).
        text_field: the column of a table, or field of JSON, with the text.
        encoding_errors: what to do with bytes that are not UTF-8 (see ``lmtransfer.data.text_lines.decode``).
        line_break: a mark for a line end in the rows of a table.
        notes: counts irregularities.
        meter: counts the bytes read from disk.

    Raises:
        DataError: bytes, a line or a record cannot be read; the message has ``file:line``.
    """
    if file_format == "text":
        return _text_documents(path, boundary, encoding_errors, notes, meter)
    return _table_documents(path, file_format, text_field, encoding_errors, line_break, notes, meter)
