"""Plain and compressed files, ``datasets`` folders, and the lines of UTF-8 text, with errors that name the line."""

from __future__ import annotations

import gzip
import io
import lzma
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, cast

from lmtransfer.data.declared_sizes import MOST_EXPANSION, most_unpacked
from lmtransfer.data.documents import Notes
from lmtransfer.data.remote_files import RemoteFile, SourceFile, reaching
from lmtransfer.errors import DataError
from lmtransfer.system.machine import naming
from lmtransfer.system.optional import import_optional
from lmtransfer.system.safe_files import LFS_ADVICE, LFS_POINTER, irregularity, is_file_name, read_json

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

EncodingErrors = Literal["strict", "replace"]

COMPRESSIONS = (".gz", ".xz", ".zst")
#: The files that ``datasets.save_to_disk`` writes: the files of a set, and the splits of a folder of sets.
SAVED_SET, SAVED_SPLITS = "state.json", "dataset_dict.json"
_BUFFER_BYTES = 1 << 20
_ZSTD_PIECE = 1 << 12
#: Maximum length of a text file's line, including its end; text8 is one line of a hundred million bytes.
LONGEST_LINE_BYTES = 1 << 28
_BOM = b"\xef\xbb\xbf"
#: The kind of a note on files that begin with a byte order mark.
BYTE_ORDER_MARKS = "byte order marks dropped"
_CONVERT = "convert the file to UTF-8 (iconv -f {} -t UTF-8 old > new)"
#: First bytes of compressed files, by suffix.
_MAGIC = {".gz": b"\x1f\x8b", ".xz": b"\xfd7zXZ", ".zst": b"\x28\xb5\x2f\xfd"}
#: First bytes of formats that are not UTF-8 text.
_NO_TEXT = {
    LFS_POINTER: LFS_ADVICE,
    b"\xff\xfe\x00\x00": f"UTF-32: {_CONVERT.format('UTF-32')}",
    b"\xff\xfe": f"UTF-16: {_CONVERT.format('UTF-16')}",
    b"\xfe\xff": f"UTF-16: {_CONVERT.format('UTF-16')}",
    b"PK\x03\x04": "a ZIP archive (.docx, .odt, .xlsx and .epub are ZIP archives too): save it as plain text",
    b"\xd0\xcf\x11\xe0": "an Office document: save it as plain text",
    b"{\\rtf": "an RTF document: save it as plain text",
    b"%PDF-": "a PDF: extract its text",
    _MAGIC[".gz"]: "gzip data: give it the suffix .gz",
    _MAGIC[".xz"]: "xz data: give it the suffix .xz",
    _MAGIC[".zst"]: "zstd data: give it the suffix .zst",
    b"BZh9": "bzip2 data: unpack it",
    b"PAR1": "a parquet file: give it the suffix .parquet, or set its format to parquet",
    b"ARROW1": "an arrow file: give it the suffix .arrow, or set its format to parquet",
    b"\x7fELF": "a program",
    b"\x89PNG": "an image",
    b"\xff\xd8\xff": "an image",
    b"SQLite format": "a database",
}


@dataclass(slots=True)
class Meter:
    """A count of the bytes read from a set of files, before decompression."""

    total: int = 0
    done: int = 0


class _CountingFile(io.RawIOBase):
    def __init__(self, path: SourceFile, meter: Meter) -> None:
        self._file: Any = path.open() if isinstance(path, RemoteFile) else path.open("rb", buffering=0)
        self._naming = partial(reaching if isinstance(path, RemoteFile) else naming, str(path))
        self._meter = meter
        self.num_read = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return bool(self._file.seekable())

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        return int(self._file.seek(offset, whence))

    def readinto(self, buffer: WriteableBuffer, /) -> int | None:
        with self._naming():
            count: int | None = self._file.readinto(buffer)
        self._meter.done += count or 0
        self.num_read += count or 0
        return count

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()


class _Expanding(io.RawIOBase):
    """The decompressed bytes of a file, with a limit on the ratio of decompressed to compressed bytes.

    Text compresses to a third of its size, or to a thirtieth if it is repetitive. A file that expands by a factor of
    1000 is an attack on memory and time.
    """

    def __init__(self, unpacked: io.RawIOBase | BinaryIO, packed: _CountingFile, path: SourceFile) -> None:
        self._unpacked, self._packed, self._path = unpacked, packed, path
        self._num_bytes = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        view = memoryview(buffer).cast("B")
        piece = self._unpacked.read(len(view)) or b""
        view[: len(piece)] = piece
        self._num_bytes += len(piece)
        if self._num_bytes > most_unpacked(self._packed.num_read):
            raise too_large(self._path, "unpack it, and use the unpacked file")
        return len(piece)


def too_large(path: SourceFile, remedy: str) -> DataError:
    """Build the error for a file that would unpack to an unusual size."""
    return DataError(
        f"{path}: expands to more than {MOST_EXPANSION} times its size, which is unusual for text; if you trust the "
        f"file, {remedy}"
    )


class _ZstdFile(io.RawIOBase):
    """The decompressed bytes of a zstd file with one or more frames; a damaged or incomplete frame raises EOFError."""

    def __init__(self, source: BinaryIO, path: SourceFile) -> None:
        zstandard = import_optional("zstandard", work=f"{path}", error=DataError)
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
            piece = rest or self._source.read(_ZSTD_PIECE)  # small, because each byte may expand to many bytes
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
    """Return the file at ``path``, or its compressed form (``train.txt.xz`` for ``train.txt``), or None."""
    path = Path(path)
    candidates = [path, *(path.with_name(path.name + suffix) for suffix in COMPRESSIONS)]
    return next((candidate for candidate in candidates if candidate.is_file()), None)


def compression(path: SourceFile) -> str | None:
    """Return the compression suffix of a file's name in lower case; None if it has none."""
    suffix = path.suffix.lower()
    return suffix if suffix in COMPRESSIONS else None


def find_data(path: str | Path) -> Path | None:
    """Return the file at ``path``, its compressed form, or the folder that ``save_to_disk`` wrote; None if missing."""
    folder = Path(path)
    return find_file(folder) or (folder if folder.is_dir() and saved_files(folder) else None)


def explain_irregular(paths: Iterable[Path]) -> str | None:
    """Return the problem with the first path that is a pipe or a device, which can be read only once; else None."""
    for path in paths:
        if path.exists() and not path.is_file() and not path.is_dir():
            return f"{path}: {irregularity(path)}: save its content to a file"
    return None


def describe_splits(folder: Path) -> str:
    """Return a message that names the splits of a ``DatasetDict.save_to_disk`` folder; empty for other folders."""
    inside = sorted(path for path in folder.iterdir() if path.is_dir() and saved_files(path)) if folder.is_dir() else []
    names = [path.name for path in inside]
    if not names:
        return ""
    example = folder / ("train" if "train" in names else names[0])
    return f"is a folder with several splits ({', '.join(names)}); choose one of them, such as {example}"


def saved_files(folder: Path) -> list[Path]:
    """Return the files of a ``Dataset.save_to_disk`` folder, in order; empty if the folder is something else.

    The folder may also have files of other sets, cached there by ``datasets``, which ``state.json`` does not name.
    """
    state = folder / SAVED_SET
    if not state.is_file():
        return sorted(path for path in folder.glob("*.arrow") if not path.name.startswith("cache-"))
    content: Any = read_json(state, object, error=DataError)
    files = content.get("_data_files") if isinstance(content, dict) else None
    names = [file.get("filename") if isinstance(file, dict) else None for file in files or ()]
    for name in names:
        if not isinstance(name, str) or not is_file_name(name):
            raise DataError(f"{state}: _data_files names {str(name)[:60]!r}, which is not a file in {folder}")
    return [folder / str(name) for name in names]


def plain_name(path: SourceFile) -> str:
    """Return the file's name without a compression suffix."""
    return path.name if compression(path) is None else path.stem


@contextmanager
def open_binary(path: SourceFile, meter: Meter | None = None) -> Iterator[BinaryIO]:
    """Open a file for reading bytes, decompressed according to its suffix (.gz, .xz, .zst)."""
    problem = None if isinstance(path, RemoteFile) else irregularity(path)
    if problem is not None:
        raise DataError(f"{path}: {problem}")
    try:
        packed = _CountingFile(path, meter or Meter())
        raw = io.BufferedReader(packed, _BUFFER_BYTES)
    except OSError as error:
        raise DataError(f"{path}: the file cannot be opened ({error.strerror})") from None
    with raw:
        suffix = compression(path)
        _check_compressed(path, suffix, raw.peek(16))
        try:
            if suffix == ".gz":
                with gzip.GzipFile(fileobj=raw) as unzipped:
                    yield _limit_expansion(cast(BinaryIO, unzipped), packed, path)
            elif suffix == ".xz":
                with lzma.LZMAFile(raw) as unpacked:
                    yield _limit_expansion(cast(BinaryIO, unpacked), packed, path)
            elif suffix == ".zst":
                yield _limit_expansion(_ZstdFile(raw, path), packed, path)
            else:
                yield raw
        except (EOFError, lzma.LZMAError, zlib.error, gzip.BadGzipFile) as error:
            raise DataError(
                f"{path}: the file is damaged or incomplete ({error}); download or compress the file again"
            ) from None


def _check_compressed(path: SourceFile, suffix: str | None, start: bytes) -> None:
    """Raise an error if the name of a file says that it is compressed, but the first bytes do not."""
    if suffix is None or not start or start.startswith(_MAGIC[suffix]):
        return
    kind = next((what for mark, what in _NO_TEXT.items() if start.startswith(mark)), "not compressed")
    raise DataError(
        f"{path}: the name ends in {path.suffix}, but the file is {kind.partition(':')[0]}; rename it"
        + f" to {plain_name(path)}" * (kind == "not compressed")
    )


def _limit_expansion(unpacked: io.RawIOBase | BinaryIO, packed: _CountingFile, path: SourceFile) -> BinaryIO:
    return io.BufferedReader(_Expanding(unpacked, packed, path), _BUFFER_BYTES)


def decode(raw: bytes, where: str, encoding_errors: EncodingErrors, notes: Notes) -> str:
    """Decode UTF-8; invalid bytes raise an error (``strict``), or become U+FFFD and are counted (``replace``)."""
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
    """Build the error for text whose first invalid byte starts ``rest``, at ``position`` of its line."""
    octets = " ".join(f"{byte:02x}" for byte in rest[:4])
    return DataError(
        f"{where}: the line is not UTF-8 at byte {position} ({octets}). Convert the file to UTF-8 (iconv -f LATIN1 -t "
        f"UTF-8, or with an encoding other than LATIN1){alternative}"
    )


def check_text(path: SourceFile, start: bytes) -> None:
    """Raise an error if a file is not text, or is UTF-16 or UTF-32 text, judging by the start of its first line."""
    for mark, what in _NO_TEXT.items():
        if start.startswith(mark):
            raise DataError(f"{path}: the file is not text {'in UTF-8 ' * what.startswith('UTF')}but {what}")
    if len(start) >= 16 and start.count(0) > len(start) // 10:
        raise DataError(f"{path}: the file is not text but binary data, or UTF-16: {_CONVERT.format('UTF-16')}")


def _raw_lines(stream: BinaryIO, path: SourceFile) -> Iterator[bytes]:
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
    path: SourceFile,
    *,
    encoding_errors: EncodingErrors = "strict",
    notes: Notes | None = None,
    meter: Meter | None = None,
    keep_returns: bool = False,
) -> Iterator[tuple[int, str]]:
    """Yield the lines of a text file with their numbers, from 1, without line ends.

    A line ends at a line feed only, never at the other characters where ``str.splitlines`` splits; in a file without
    line feeds, it ends at a carriage return (the line ends of old Macs, which Excel still offers). A byte order mark at
    the start of the file is dropped and counted.

    Args:
        keep_returns: whether to keep carriage returns before line feeds, which may be part of a quoted field.
    """
    with open_binary(path, meter) as stream:
        yield from decode_lines(
            _raw_lines(stream, path),
            str(path),
            encoding_errors,
            Notes() if notes is None else notes,
            keep_returns=keep_returns,
        )


def decode_lines(
    lines: Iterator[bytes], name: str, encoding_errors: EncodingErrors, notes: Notes, *, keep_returns: bool = False
) -> Iterator[tuple[int, str]]:
    """Decode and number lines from 1, without line ends or a byte order mark; see ``read_lines``."""
    line_end = b"\n" if keep_returns else b"\r\n"
    for number, raw in enumerate(_split_old_line_ends(lines, name, notes), start=1):
        if number == 1 and raw.startswith(_BOM):
            notes.add(BYTE_ORDER_MARKS, f"{name}:1")
            raw = raw[len(_BOM) :]
        raw = raw.rstrip(line_end)
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError:
            text = decode(raw, f"{name}:{number}", encoding_errors, notes)
        yield number, text


def _split_old_line_ends(lines: Iterator[bytes], name: str, notes: Notes) -> Iterator[bytes]:
    """Yield the lines; if the whole file is one line with carriage returns, split it there."""
    first = next(lines, None)
    if first is None:
        return
    following = next(lines, None) if b"\r" in first.rstrip(b"\r\n") else None
    if b"\r" not in first.rstrip(b"\r\n") or first.endswith(b"\n") or following is not None:
        yield first
        yield from () if following is None else (following,)
        yield from lines
        return
    notes.add("files whose lines end in carriage returns, as on old Macs", f"{name}:1")
    yield from first.rstrip(b"\r").split(b"\r")
