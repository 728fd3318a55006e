"""Read documents from files: text, JSON lines and parquet, one document in memory at a time."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from lmtransfer.data.documents import Document, Notes, clean
from lmtransfer.data.files import Meter, plain_name
from lmtransfer.data.parquet_files import check_text_column, open_parquet, parquet_batches, raw_texts
from lmtransfer.data.text_lines import EncodingErrors, decode, read_lines
from lmtransfer.errors import DataError

Format = Literal["auto", "text", "jsonl", "parquet"]
Boundary = Literal["auto", "blank_line", "file", "line", "heading"]

FORMATS: dict[str, Literal["text", "jsonl", "parquet"]] = {
    ".txt": "text",
    ".text": "text",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
}
MAX_DOCUMENT_CHARACTERS = 1 << 24
_INDENTED = re.compile(r"(?:\t| {2})\s*\S")
_HEADING = re.compile(r"\s*= [^=].*[^=] =\s*$")


def format_of(path: Path, default: Literal["text"] | None = None) -> Literal["text", "jsonl", "parquet"] | None:
    """The format of a file by its suffix (ignoring a compression suffix), or ``default``."""
    return FORMATS.get(Path(plain_name(path)).suffix.lower(), default)


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


def _jsonl_documents(
    path: Path, text_field: str, encoding_errors: EncodingErrors, line_break: str | None, notes: Notes, meter: Meter
) -> Iterator[Document]:
    for number, line in read_lines(path, encoding_errors=encoding_errors, notes=notes, meter=meter):
        where = f"{path}:{number}"
        if not line or line.isspace():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{where}: not JSON ({error}); a .jsonl file has one JSON object per line") from None
        if not isinstance(record, dict) or text_field not in record:
            fields = (
                ", ".join(sorted(record)) if isinstance(record, dict) else f"a {type(record).__name__}, not an object"
            )
            raise DataError(f"{where}: no field `{text_field}` (found: {fields}); set corpus.text_field")
        document = as_document(record[text_field], where, notes, line_break)
        if document is not None:
            yield document


def _parquet_documents(
    path: Path, text_field: str, encoding_errors: EncodingErrors, line_break: str | None, notes: Notes, meter: Meter
) -> Iterator[Document]:
    with open_parquet(path, meter) as file:
        check_text_column(file, path, text_field, key="corpus.text_field")
        for first, batch in parquet_batches(file, path, [text_field]):
            for row, raw in enumerate(raw_texts(batch.column(0)), start=first):
                where = f"{path}:row {row}"
                text = None if raw is None else decode(raw, where, encoding_errors, notes)
                document = as_document(text, where, notes, line_break)
                if document is not None:
                    yield document


def read_documents(
    path: Path,
    *,
    file_format: Literal["text", "jsonl", "parquet"],
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
        text_field: the field or column of JSON lines and parquet with the text.
        encoding_errors: what to do with bytes that are not UTF-8 (see ``lmtransfer.data.text_lines.decode``).
        line_break: a mark for a line end in the records of JSON lines and parquet.
        notes: counts irregularities.
        meter: counts the bytes read from disk.

    Raises:
        DataError: bytes, a line or a record cannot be read; the message has ``file:line``.
    """
    if file_format == "text":
        return _text_documents(path, boundary, encoding_errors, notes, meter)
    if file_format == "jsonl":
        return _jsonl_documents(path, text_field, encoding_errors, line_break, notes, meter)
    return _parquet_documents(path, text_field, encoding_errors, line_break, notes, meter)
