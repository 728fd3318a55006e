"""Opening files as users have them: plain or compressed, UTF-8 with a complaint that names the line.

Every reader here streams: no more than one line (or one record) of a file is in memory.
"""

from __future__ import annotations

import gzip
import io
import lzma
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Literal, cast

from lmtransfer.data.documents import Notes
from lmtransfer.errors import DataError
from lmtransfer.system.machine import naming
from lmtransfer.system.optional import optional
from lmtransfer.untrusted.files import not_regular

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

EncodingErrors = Literal["strict", "replace"]
COMPRESSIONS = (".gz", ".xz", ".zst")
_BUFFER_BYTES = 1 << 20
#: Longest line of a text file, with its end: text8 is one line of a hundred million bytes.
LONGEST_LINE_BYTES = 1 << 28
#: Once so many bytes have come out of a compressed file, there may be no more of them for each byte that went in.
_EXPANSION_FROM_BYTES, _MOST_EXPANSION = 1 << 26, 400
_ZSTD_PIECE = 1 << 12
_BOM = b"\xef\xbb\xbf"
_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")
#: How files begin that hold no lines of text.
_NO_TEXT = {
    b"PK\x03\x04": "a ZIP archive, as .docx, .odt, .xlsx and .epub are: save it as plain text",
    b"\xd0\xcf\x11\xe0": "an Office document: save it as plain text",
    b"{\\rtf": "an RTF document: save it as plain text",
    b"%PDF-": "a PDF: extract its text",
    b"\x1f\x8b": "gzip data: name it .gz",
    b"\xfd7zXZ": "xz data: name it .xz",
    b"\x28\xb5\x2f\xfd": "zstd data: name it .zst",
    b"BZh9": "bzip2 data: unpack it",
    b"PAR1": "a parquet file: name it .parquet",
    b"\x7fELF": "a program",
    b"\x89PNG": "an image",
    b"\xff\xd8\xff": "an image",
    b"SQLite format": "a database",
}


class Meter:
    """How many bytes of a set of files have been read, compressed as they are.

    Attributes:
        total: bytes of all files.
        done: bytes read so far.
    """

    def __init__(self, total: int = 0) -> None:
        self.total = total
        self.done = 0


class _MeteredFile(io.FileIO):
    """A file that adds what is read from it to a meter."""

    def __init__(self, path: Path, meter: Meter) -> None:
        super().__init__(path, "rb")
        self._meter = meter
        self.num_read = 0

    def readinto(self, buffer: WriteableBuffer, /) -> int | None:
        with naming(str(self.name)):
            count = super().readinto(buffer)
        self._meter.done += count or 0
        self.num_read += count or 0
        return count


class _Expanding(io.RawIOBase):
    """Decompressed bytes of a file, as long as they are in proportion to what was read of it.

    Text shrinks to a third, or to a thirtieth where it repeats itself; a file that grows a thousandfold was made to
    fill memory and time.

    Args:
        unpacked: gives the bytes.
        packed: the compressed file, from which ``unpacked`` reads.
        path: of it.
    """

    def __init__(self, unpacked: io.RawIOBase | BinaryIO, packed: _MeteredFile, path: Path) -> None:
        self._unpacked, self._packed, self._path = unpacked, packed, path
        self._num_bytes = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        view = memoryview(buffer).cast("B")
        piece = self._unpacked.read(len(view)) or b""
        view[: len(piece)] = piece
        self._num_bytes += len(piece)
        if self._num_bytes > max(_EXPANSION_FROM_BYTES, _MOST_EXPANSION * self._packed.num_read):
            raise DataError(
                f"{self._path}: more than {_MOST_EXPANSION} bytes come out of each byte of it, which no text does: if "
                "you know what it is, unpack it, and name the unpacked file"
            )
        return len(piece)


class _ZstdFile(io.RawIOBase):
    """Decompressed bytes of a zstd file of one or several frames; damage, or an end inside a frame, is an EOFError."""

    def __init__(self, source: BinaryIO, path: Path) -> None:
        zstandard = optional("zstandard", work=f"{path}", error=DataError)
        self._source = source
        self._error = zstandard.ZstdError
        self._new = zstandard.ZstdDecompressor().decompressobj
        self._frame = self._new()
        self._fresh = True
        self._pending: bytes | memoryview = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        view = memoryview(buffer).cast("B")
        while not self._pending:
            rest = self._frame.unused_data
            if self._frame.eof:
                self._frame, self._fresh = self._new(), True
            piece = rest or self._source.read(_ZSTD_PIECE)  # of which each byte may be many
            if not piece:
                if not self._fresh:
                    raise EOFError("the last frame is incomplete")
                return 0
            self._fresh = False
            try:
                self._pending = memoryview(self._frame.decompress(piece))
            except self._error as error:
                raise EOFError(str(error)) from None
        count = min(len(view), len(self._pending))
        view[:count] = self._pending[:count]
        self._pending = self._pending[count:]
        return count

    def close(self) -> None:
        if not self.closed:
            self._source.close()
        super().close()


def find_file(path: str | Path) -> Path | None:
    """The file at ``path``, or the compressed one beside it (``train.txt.xz`` for ``train.txt``), or None."""
    path = Path(path)
    candidates = [path, *(path.with_name(path.name + suffix) for suffix in COMPRESSIONS)]
    return next((candidate for candidate in candidates if candidate.is_file()), None)


def plain_name(path: Path) -> str:
    """The file's name without the suffix of its compression."""
    return path.stem if path.suffix in COMPRESSIONS else path.name


@contextmanager
def open_binary(path: Path, meter: Meter | None = None) -> Iterator[BinaryIO]:
    """Open a file for reading its bytes, decompressed by its suffix (.gz, .xz, .zst).

    Args:
        path: the file itself (see ``find_file``).
        meter: counts the bytes read from disk.

    Raises:
        DataError: the file cannot be read, is damaged or is cut short.
    """
    try:
        problem = not_regular(path)
        if problem is not None:
            raise DataError(f"{path}: {problem}")
        packed = _MeteredFile(path, meter or Meter())
        raw = io.BufferedReader(packed, _BUFFER_BYTES)
    except OSError as error:
        raise DataError(f"{path}: cannot be opened ({error.strerror})") from None
    with raw:
        try:
            if path.suffix == ".gz":
                with gzip.GzipFile(fileobj=raw) as unzipped:
                    yield _bounded(cast(BinaryIO, unzipped), packed, path)
            elif path.suffix == ".xz":
                with lzma.LZMAFile(raw) as unpacked:
                    yield _bounded(cast(BinaryIO, unpacked), packed, path)
            elif path.suffix == ".zst":
                yield _bounded(_ZstdFile(raw, path), packed, path)
            else:
                yield raw
        except (EOFError, lzma.LZMAError, zlib.error, gzip.BadGzipFile) as error:
            raise DataError(f"{path}: damaged or cut short ({error}); fetch or compress the file again") from None


def _bounded(unpacked: io.RawIOBase | BinaryIO, packed: _MeteredFile, path: Path) -> BinaryIO:
    return io.BufferedReader(_Expanding(unpacked, packed, path), _BUFFER_BYTES)


def decode(raw: bytes, where: str, encoding_errors: EncodingErrors, notes: Notes) -> str:
    """UTF-8 bytes as text.

    Args:
        raw: the bytes.
        where: ``file:line``, for messages.
        encoding_errors: ``strict`` raises at bytes that are not UTF-8; ``replace`` puts U+FFFD there and counts them.
        notes: where they are counted.

    Raises:
        DataError: the bytes are not UTF-8 and ``encoding_errors`` is ``strict``.
    """
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        if encoding_errors == "replace":
            notes.add("lines with bytes that are not UTF-8, replaced", where)
            return raw.decode("utf-8", "replace")
        found = " ".join(f"{byte:02x}" for byte in raw[error.start : error.start + 4])
        hint = " (this looks like UTF-16)" if raw[:2] in _UTF16_MARKS else ""
        raise DataError(
            f"{where}: not UTF-8 at byte {error.start} of the line: {found}{hint}. Convert the file (iconv -f LATIN1 "
            "-t UTF-8, or whatever it is), or set encoding_errors=replace (corpus.encoding_errors, task.encoding_errors"
            ") to put U+FFFD there and count it"
        ) from None


def _refuse_binary(path: Path, start: bytes) -> None:
    """Refuse what is no text.

    Args:
        path: the file.
        start: its first line, or a part of it.

    Raises:
        DataError: it begins as a file of another kind does, or is full of NUL bytes.
    """
    for mark, what in _NO_TEXT.items():
        if start.startswith(mark):
            raise DataError(f"{path}: is not text but {what}")
    if len(start) >= 16 and start.count(0) > len(start) // 10 and not start.startswith(_UTF16_MARKS):
        raise DataError(
            f"{path}: is not text but binary data, or UTF-16: convert it to UTF-8 (iconv -f UTF-16 -t UTF-8)"
        )


def _raw_lines(stream: BinaryIO, path: Path) -> Iterator[bytes]:
    """The lines of a file of text, with their ends.

    Raises:
        DataError: it is no text, or a line is too long to be one.
    """
    start = stream.readline(4096)
    _refuse_binary(path, start)
    line = start if start.endswith(b"\n") else start + stream.readline(LONGEST_LINE_BYTES + 1)
    number = 1
    while line:
        if len(line) > LONGEST_LINE_BYTES:
            raise DataError(
                f"{path}:{number}: a line of more than {LONGEST_LINE_BYTES:,} bytes, which are the most: break it into "
                "shorter ones (fold -s -w 100000 does)"
            )
        yield line
        line, number = stream.readline(LONGEST_LINE_BYTES + 1), number + 1


def read_lines(
    path: Path, *, encoding_errors: EncodingErrors = "strict", notes: Notes | None = None, meter: Meter | None = None
) -> Iterator[tuple[int, str]]:
    """Lines of a text file with their numbers, from 1, without line ends.

    A line ends at a line feed only, never at the other characters that ``str.splitlines`` knows. A byte order mark
    at the start of the file is dropped and counted.

    Args:
        path: the file, plain or compressed.
        encoding_errors: see ``decode``.
        notes: where odd things are counted.
        meter: counts the bytes read from disk.

    Raises:
        DataError: bytes that are not UTF-8 (with ``file:line``), a damaged file, or one that unpacks beyond measure.
    """
    notes = Notes() if notes is None else notes
    with open_binary(path, meter) as stream:
        for number, raw in enumerate(_raw_lines(stream, path), start=1):
            if number == 1 and raw.startswith(_BOM):
                notes.add("byte order marks dropped", f"{path}:1")
                raw = raw[len(_BOM) :]
            raw = raw.rstrip(b"\r\n")
            try:
                text = raw.decode("utf-8")
            except UnicodeDecodeError:
                text = decode(raw, f"{path}:{number}", encoding_errors, notes)
            yield number, text
