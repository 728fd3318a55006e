"""The lines of UTF-8 text files, read one at a time, with errors that name the line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Literal

from lmtransfer.data.documents import Notes
from lmtransfer.data.files import Meter, open_binary
from lmtransfer.errors import DataError

EncodingErrors = Literal["strict", "replace"]
#: Maximum length of a text file's line, including its end; text8 is one line of a hundred million bytes.
LONGEST_LINE_BYTES = 1 << 28
_BOM = b"\xef\xbb\xbf"
_CONVERT = "convert the file to UTF-8 (iconv -f {} -t UTF-8 old > new)"
#: First bytes of formats that are not UTF-8 text.
_NO_TEXT = {
    b"\xff\xfe\x00\x00": f"UTF-32: {_CONVERT.format('UTF-32')}",
    b"\xff\xfe": f"UTF-16: {_CONVERT.format('UTF-16')}",
    b"\xfe\xff": f"UTF-16: {_CONVERT.format('UTF-16')}",
    b"PK\x03\x04": "a ZIP archive (.docx, .odt, .xlsx and .epub are ZIP archives too): save it as plain text",
    b"\xd0\xcf\x11\xe0": "an Office document: save it as plain text",
    b"{\\rtf": "an RTF document: save it as plain text",
    b"%PDF-": "a PDF: extract its text",
    b"\x1f\x8b": "gzip data: give it the suffix .gz",
    b"\xfd7zXZ": "xz data: give it the suffix .xz",
    b"\x28\xb5\x2f\xfd": "zstd data: give it the suffix .zst",
    b"BZh9": "bzip2 data: unpack it",
    b"PAR1": "a parquet file: give it the suffix .parquet, or set its format to parquet",
    b"ARROW1": "an arrow file: give it the suffix .arrow, or set its format to parquet",
    b"\x7fELF": "a program",
    b"\x89PNG": "an image",
    b"\xff\xd8\xff": "an image",
    b"SQLite format": "a database",
}


def decode(raw: bytes, where: str, encoding_errors: EncodingErrors, notes: Notes) -> str:
    """Decode UTF-8 bytes.

    Args:
        where: ``file:line``, for messages.
        encoding_errors: ``strict`` raises on bytes that are not UTF-8; ``replace`` replaces and counts them (U+FFFD).

    Raises:
        DataError: the bytes are not UTF-8 and ``encoding_errors`` is ``strict``.
    """
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        if encoding_errors == "replace":
            notes.add("lines with bytes that are not UTF-8, replaced", where)
            return raw.decode("utf-8", "replace")
        if b"\0" in raw or raw.startswith((b"\xff\xfe", b"\xfe\xff")):
            raise DataError(f"{where}: seems to be UTF-16, not UTF-8: {_CONVERT.format('UTF-16')}") from None
        raise not_utf8(
            where,
            raw[error.start :],
            error.start,
            alternative=", or set encoding_errors=replace (corpus.encoding_errors, task.encoding_errors) to replace "
            "these bytes with U+FFFD and count them",
        ) from None


def not_utf8(where: str, rest: bytes, position: int, *, alternative: str = "") -> DataError:
    """Build the error for text that is not UTF-8.

    Args:
        where: ``file:line``.
        rest: the text from its first invalid byte on.
        position: position of that byte in the line.
        alternative: what a user can do other than convert the file.
    """
    octets = " ".join(f"{byte:02x}" for byte in rest[:4])
    return DataError(
        f"{where}: not UTF-8 at byte {position} of the line: {octets}. Convert the file to UTF-8 (iconv -f LATIN1 -t "
        f"UTF-8, or with an encoding other than LATIN1){alternative}"
    )


def check_text(path: Path, start: bytes) -> None:
    """Raise an error if a file is not text, or is text in UTF-16 or UTF-32.

    Args:
        start: the file's first line, or a part of it.

    Raises:
        DataError: the file starts with the first bytes of another file format, or has many NUL bytes.
    """
    for mark, what in _NO_TEXT.items():
        if start.startswith(mark):
            raise DataError(f"{path}: is not text {'in UTF-8 ' * what.startswith('UTF')}but {what}")
    if len(start) >= 16 and start.count(0) > len(start) // 10:
        raise DataError(f"{path}: is not text but binary data, or UTF-16: {_CONVERT.format('UTF-16')}")


def _raw_lines(stream: BinaryIO, path: Path) -> Iterator[bytes]:
    """Yield the lines of a text file, with their line ends."""
    start = stream.readline(4096)
    check_text(path, start)
    line = start if start.endswith(b"\n") else start + stream.readline(LONGEST_LINE_BYTES + 1)
    number = 1
    while line:
        if len(line) > LONGEST_LINE_BYTES:
            raise DataError(
                f"{path}:{number}: the line has more than {LONGEST_LINE_BYTES:,} bytes, which is the maximum; split it "
                "into shorter lines (for example with fold -s -w 100000)"
            )
        yield line
        line, number = stream.readline(LONGEST_LINE_BYTES + 1), number + 1


def read_lines(
    path: Path, *, encoding_errors: EncodingErrors = "strict", notes: Notes | None = None, meter: Meter | None = None
) -> Iterator[tuple[int, str]]:
    """Yield the lines of a text file with their numbers, from 1, without line ends.

    A line ends at a line feed only, never at the other characters where ``str.splitlines`` splits. A byte order mark at
    the start of the file is dropped and counted.

    Args:
        path: the file, plain or compressed.
        encoding_errors: see ``decode``.
        meter: counts the bytes read from disk.
    """
    with open_binary(path, meter) as stream:
        yield from decode_lines(
            _raw_lines(stream, path), str(path), encoding_errors, Notes() if notes is None else notes
        )


def decode_lines(
    lines: Iterator[bytes], name: str, encoding_errors: EncodingErrors, notes: Notes
) -> Iterator[tuple[int, str]]:
    """Decode and number lines from 1, without line ends or a byte order mark; see ``read_lines``.

    Args:
        name: name of the file or stream, for messages.
        encoding_errors: see ``decode``.
    """
    for number, raw in enumerate(lines, start=1):
        if number == 1 and raw.startswith(_BOM):
            notes.add("byte order marks dropped", f"{name}:1")
            raw = raw[len(_BOM) :]
        raw = raw.rstrip(b"\r\n")
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError:
            text = decode(raw, f"{name}:{number}", encoding_errors, notes)
        yield number, text
