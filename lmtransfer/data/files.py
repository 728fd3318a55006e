"""Access to plain files, compressed files and ``datasets`` folders, with a measure of how much has been read."""

from __future__ import annotations

import gzip
import io
import lzma
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from lmtransfer.errors import DataError
from lmtransfer.system.machine import naming
from lmtransfer.system.optional import import_optional
from lmtransfer.system.safe_files import irregularity, read_json

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

COMPRESSIONS = (".gz", ".xz", ".zst")
#: The files that ``datasets.save_to_disk`` writes: the files of a set, and the splits of a folder of sets.
SAVED_SET, SAVED_SPLITS = "state.json", "dataset_dict.json"
_BUFFER_BYTES = 1 << 20
#: After this many decompressed bytes, the ratio of decompressed to compressed bytes may not exceed the second value.
_EXPANSION_FROM_BYTES, _MOST_EXPANSION = 1 << 26, 400
_ZSTD_PIECE = 1 << 12


class Meter:
    """A count of the bytes read from a set of files, before decompression.

    Attributes:
        total: number of bytes in all files.
        done: number of bytes read so far.
    """

    def __init__(self, total: int = 0) -> None:
        self.total = total
        self.done = 0


class _CountingFile(io.FileIO):
    """A file that adds the bytes read from it to a meter."""

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
    """The decompressed bytes of a file, with a limit on the ratio of decompressed to compressed bytes.

    Text compresses to a third of its size, or to a thirtieth if it is repetitive. A file that expands by a factor of
    1000 is an attack on memory and time.

    Args:
        unpacked: stream of decompressed bytes.
        packed: the compressed file, from which ``unpacked`` reads.
        path: path of the compressed file.
    """

    def __init__(self, unpacked: io.RawIOBase | BinaryIO, packed: _CountingFile, path: Path) -> None:
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
                f"{self._path}: expands to more than {_MOST_EXPANSION} times its size, which is unusual for text; "
                "if you trust the file, unpack it, and use the unpacked file"
            )
        return len(piece)


class _ZstdFile(io.RawIOBase):
    """The decompressed bytes of a zstd file with one or more frames; a damaged or incomplete frame raises EOFError."""

    def __init__(self, source: BinaryIO, path: Path) -> None:
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


def find_data(path: str | Path) -> Path | None:
    """Return the file at ``path``, its compressed form, or a folder of ``Dataset.save_to_disk``; None if missing."""
    folder = Path(path)
    return find_file(folder) or (folder if folder.is_dir() and saved_files(folder) else None)


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

    Raises:
        DataError: ``state.json`` is damaged, or names a file outside the folder.
    """
    state = folder / SAVED_SET
    if not state.is_file():
        return sorted(path for path in folder.glob("*.arrow") if not path.name.startswith("cache-"))
    content: Any = read_json(state, object, error=DataError)
    files = content.get("_data_files") if isinstance(content, dict) else None
    names = [file.get("filename") if isinstance(file, dict) else None for file in files or ()]
    for name in names:
        if not isinstance(name, str) or Path(name).name != name:
            raise DataError(f"{state}: _data_files names {str(name)[:60]!r}, which is not a file in {folder}")
    return [folder / str(name) for name in names]


def plain_name(path: Path) -> str:
    """Return the file's name without a compression suffix."""
    return path.stem if path.suffix in COMPRESSIONS else path.name


@contextmanager
def open_binary(path: Path, meter: Meter | None = None) -> Iterator[BinaryIO]:
    """Open a file for reading bytes, decompressed according to its suffix (.gz, .xz, .zst).

    Args:
        path: the file itself (see ``find_file``).
        meter: counts the bytes read from disk.

    Raises:
        DataError: the file cannot be read, is damaged or is truncated.
    """
    try:
        problem = irregularity(path)
        if problem is not None:
            raise DataError(f"{path}: {problem}")
        packed = _CountingFile(path, meter or Meter())
        raw = io.BufferedReader(packed, _BUFFER_BYTES)
    except OSError as error:
        raise DataError(f"{path}: cannot be opened ({error.strerror})") from None
    with raw:
        try:
            if path.suffix == ".gz":
                with gzip.GzipFile(fileobj=raw) as unzipped:
                    yield _limit_expansion(cast(BinaryIO, unzipped), packed, path)
            elif path.suffix == ".xz":
                with lzma.LZMAFile(raw) as unpacked:
                    yield _limit_expansion(cast(BinaryIO, unpacked), packed, path)
            elif path.suffix == ".zst":
                yield _limit_expansion(_ZstdFile(raw, path), packed, path)
            else:
                yield raw
        except (EOFError, lzma.LZMAError, zlib.error, gzip.BadGzipFile) as error:
            raise DataError(
                f"{path}: is damaged or incomplete ({error}); download or compress the file again"
            ) from None


def _limit_expansion(unpacked: io.RawIOBase | BinaryIO, packed: _CountingFile, path: Path) -> BinaryIO:
    return io.BufferedReader(_Expanding(unpacked, packed, path), _BUFFER_BYTES)
