"""What parquet and arrow files declare to contain, read from their own headers before memory is taken for it.

A file of a few kilobytes may unpack to any size: by compression, or by a dictionary of which each row repeats an entry.
The libraries allocate what a file asks for, so these functions ask first. Formats: parquet-format (parquet.thrift, in
Thrift's compact protocol) and Arrow's columnar format (Message.fbs and File.fbs, in FlatBuffers).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

#: A file may unpack to this many bytes, or to this many times its own size if that is more.
EXPANSION_BYTES, MOST_EXPANSION = 1 << 26, 400
#: Bytes that a value takes at least once it is a Python object in a list.
_VALUE_BYTES = 8
_HEADER_BYTES = (1 << 12, 1 << 18, 1 << 26)
_DICTIONARY_PAGE, _DELTA_BYTE_ARRAY = 2, 7


class _Incomplete(ValueError):
    """Raised if a header continues after the bytes that were read."""


class TooLarge(ValueError):
    """Raised if a file would unpack to more than is allowed."""


def most_unpacked(num_bytes: int) -> int:
    """Return the number of bytes that a file of this size may unpack to."""
    return max(EXPANSION_BYTES, MOST_EXPANSION * num_bytes)


@dataclass(slots=True)
class _Chunk:
    """The pages of a column in a row group: unpacked size, number of values, and the longest entry they may repeat."""

    unpacked: int = 0
    values: int = 0
    longest: int = 0


def read_parquet(
    table: pq.ParquetFile,
    source: BinaryIO,
    size: int,
    names: Sequence[str] | None,
    *,
    rows: int,
    most: int | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a parquet file, a few at a time, and fewer if their values are large.

    Args:
        source: the file from which ``table`` was opened.
        size: the size of the file in bytes.
        names: the columns to read; None for all.
        rows: usual number of rows to read at once.
        most: number of bytes that the columns may unpack to, if not ``most_unpacked(size)``.

    Raises:
        TooLarge: the columns unpack to more.
        ValueError: the file is damaged.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = None if names is None else list(dict.fromkeys(names))
    most, unpacked = most_unpacked(size) if most is None else most, 0
    schema, types = table.metadata.schema, table.schema_arrow
    leaves = [
        number
        for number in range(table.metadata.num_columns)
        if columns is None or any(f"{schema.column(number).path}.".startswith(f"{name}.") for name in columns)
    ]
    for group in range(table.metadata.num_row_groups):
        fewer, repeating = _rows_at_once(source, table.metadata, group, leaves, most=most, usual=rows)
        reader = table
        if repeating:  # lists of texts that repeat: read which ones, and unpack them once their size is known
            reader = pq.ParquetFile(source, read_dictionary=[schema.column(number).path for number in repeating])
        for batch in reader.iter_batches(batch_size=fewer, row_groups=[group], columns=columns):
            unpacked += sum(map(unpacked_bytes, batch.columns))
            if unpacked > most:
                raise TooLarge
            if repeating:
                batch = batch.cast(pa.schema([types.field(name) for name in batch.schema.names]))
            yield batch


def _rows_at_once(
    source: BinaryIO, metadata: pq.FileMetaData, group: int, columns: Sequence[int], *, most: int, usual: int
) -> tuple[int, list[int]]:
    """Return how many rows of a row group may be unpacked at once, and the leaf columns to read as dictionaries."""
    rows, repeating = usual, []
    for column in columns:
        chunk = _read_pages(source, metadata.row_group(group).column(column))
        is_nested = metadata.schema.column(column).max_repetition_level > 0
        if chunk.unpacked > most or (is_nested and _VALUE_BYTES * chunk.values > most):
            raise TooLarge
        if is_nested and chunk.values * chunk.longest > most:
            repeating.append(column)
        elif chunk.longest:
            rows = max(1, min(rows, most // chunk.longest))
    return rows, repeating


def _read_pages(source: BinaryIO, column: pq.ColumnChunkMetaData) -> _Chunk:
    chunk, start = _Chunk(), column.data_page_offset
    if column.dictionary_page_offset is not None and 0 < column.dictionary_page_offset < start:
        start = column.dictionary_page_offset
    place, end = start, start + column.total_compressed_size
    while place < end:
        page, length = _read_header(source, place)
        unpacked, packed = page.get(2, 0), page.get(3, 0)
        if min(unpacked, packed) < 0:
            raise ValueError("a page has a negative size")
        described = page.get(5) or page.get(8) or {}
        chunk.unpacked += unpacked
        if page.get(1) == _DICTIONARY_PAGE:
            chunk.longest = max(chunk.longest, unpacked)
        else:
            chunk.values += max(described.get(1, 0), 0)
        encoding = described.get(4 if 8 in page else 2)
        if encoding == _DELTA_BYTE_ARRAY:  # each value may repeat the value before it
            chunk.longest = max(chunk.longest, unpacked)
        place += length + packed
    return chunk


def _read_header(source: BinaryIO, place: int) -> tuple[dict[int, Any], int]:
    """Read the header of a page, which may hold two values of any length: its fields by number, and its length."""
    for num_bytes in _HEADER_BYTES:
        source.seek(place)
        try:
            return _read_struct(source.read(num_bytes), 0, 0)
        except _Incomplete:
            continue
    raise _Incomplete("a page header is incomplete")


def _read_struct(raw: bytes, at: int, depth: int) -> tuple[dict[int, Any], int]:
    """Read a struct of Thrift's compact protocol: its fields by number, and the place after it."""
    if depth > 8:
        raise ValueError("a page header is nested too deeply")
    fields: dict[int, Any] = {}
    number = 0
    while True:
        kind = _byte(raw, at) & 0x0F
        delta, at = _byte(raw, at) >> 4, at + 1
        if kind == 0:
            return fields, at
        if delta:
            number += delta
        else:
            number, at = _read_number(raw, at)
        fields[number], at = _read_value(raw, at, kind, depth)


def _read_value(raw: bytes, at: int, kind: int, depth: int) -> tuple[Any, int]:
    if kind in (1, 2):
        return kind == 1, at
    if kind == 3:
        return _byte(raw, at), at + 1
    if kind in (4, 5, 6):
        return _read_number(raw, at)
    if kind == 7:
        return None, at + 8
    if kind == 8:
        size, at = _read_varint(raw, at)
        return None, at + size
    if kind == 12:
        return _read_struct(raw, at, depth + 1)
    raise ValueError("a page header has an unknown field")  # headers of pages have no lists


def _read_number(raw: bytes, at: int) -> tuple[int, int]:
    value, at = _read_varint(raw, at)
    return value >> 1 ^ -(value & 1), at


def _read_varint(raw: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 70:
        byte, at = _byte(raw, at), at + 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise ValueError("a page header has a number that is too long")


def _byte(raw: bytes, at: int) -> int:
    if at >= len(raw):
        raise _Incomplete("a page header is incomplete")
    return raw[at]


def check_arrow(source: BinaryIO, size: int, *, most: int) -> None:
    """Check the compressed buffers of an arrow file or stream; leaves the place in ``source`` as it was.

    Args:
        size: the size of the file in bytes.
        most: number of bytes that a batch may declare for its compressed buffers.

    Raises:
        TooLarge: a batch declares more.
        ValueError: the file is damaged.
    """
    before = source.tell()
    for place, metadata, body in _messages(source, size):
        source.seek(place)
        raw = source.read(metadata)
        declared = 0
        for offset, length in _compressed_buffers(raw[8:] if raw[:4] == b"\xff" * 4 else raw[4:]):
            if length < 8 or offset < 0 or offset + length > body:
                continue  # empty, or refused by the library
            source.seek(place + metadata + offset)
            declared += max(_unpack("<q", source.read(8), 0), 0)  # -1: this buffer is not compressed
        if declared > most:
            raise TooLarge
    source.seek(before)


def _messages(source: BinaryIO, size: int) -> Iterator[tuple[int, int, int]]:
    """Yield the place of each message, and the sizes of its metadata and of its body."""
    source.seek(0)
    if source.read(6) == b"ARROW1":
        source.seek(size - 10)
        length = _unpack("<i", source.read(4), 0)
        source.seek(max(size - 10 - length, 0))
        footer = _Table(source.read(min(max(length, 0), size)))
        for field in (2, 3):  # dictionaries, and batches: structs of 24 bytes
            start, count = footer.vector(field)
            for number in range(min(count, size)):
                place, metadata, body = struct.unpack_from("<qi4xq", footer.slice(start + 24 * number, 24))
                if min(place, metadata, body) < 0 or place + metadata + body > size:
                    raise ValueError("a batch lies outside the file")
                yield place, metadata, body
        return
    place = 0
    while place + 4 <= size:
        source.seek(place)
        beginning = source.read(8)
        prefix = 8 if beginning[:4] == b"\xff" * 4 else 4
        length = _unpack("<i", beginning, prefix - 4) if len(beginning) >= prefix else 0
        if length <= 0:
            return
        if place + prefix + length > size:
            raise ValueError("a message lies outside the file")
        source.seek(place + prefix)
        body = _Table(source.read(length)).number(3, "<q")
        if body < 0 or place + prefix + length + body > size:
            raise ValueError("a batch lies outside the file")
        yield place, prefix + length, body
        place += prefix + length + body


def _compressed_buffers(message: bytes) -> list[tuple[int, int]]:
    """Return the offset and length of each buffer of a record batch or dictionary; none if it is not compressed."""
    table = _Table(message)
    kind, header = table.number(1, "<b"), table.table(2)
    batch = header if kind == 3 else header.table(1) if kind == 2 and header is not None else None
    if batch is None or batch.table(3) is None:
        return []
    start, count = batch.vector(2)
    return [struct.unpack_from("<qq", batch.slice(start + 16 * number, 16)) for number in range(count)]


class _Table:
    """A table of a FlatBuffers document, whose places are checked."""

    def __init__(self, raw: bytes, at: int | None = None) -> None:
        self.raw = raw
        self.at = _unpack("<I", raw, 0) if at is None else at
        self._fields = self.at - _unpack("<i", raw, self.at)

    def _place(self, field: int) -> int | None:
        if self._fields < 0 or 6 + 2 * field > _unpack("<H", self.raw, self._fields):
            return None
        offset = _unpack("<H", self.raw, self._fields + 4 + 2 * field)
        return self.at + offset if offset else None

    def number(self, field: int, form: str) -> int:
        place = self._place(field)
        return 0 if place is None else _unpack(form, self.raw, place)

    def table(self, field: int) -> _Table | None:
        place = self._place(field)
        return None if place is None else _Table(self.raw, place + _unpack("<I", self.raw, place))

    def vector(self, field: int) -> tuple[int, int]:
        """Return the place of a vector's first entry, and the number of entries."""
        place = self._place(field)
        if place is None:
            return 0, 0
        place += _unpack("<I", self.raw, place)
        return place + 4, _unpack("<I", self.raw, place)

    def slice(self, start: int, size: int) -> bytes:
        if start + size > len(self.raw):
            raise ValueError("the file is incomplete")
        return self.raw[start : start + size]


def _unpack(form: str, raw: bytes, at: int) -> int:
    if at < 0 or at + struct.calcsize(form) > len(raw):
        raise ValueError("the file is incomplete")
    (value,) = struct.unpack_from(form, raw, at)
    return int(value)


def unpacked_bytes(column: pa.Array) -> int:
    """Return a lower bound of the memory that a column takes as Python values, without making them."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = column.type
    least = _VALUE_BYTES * len(column)
    if pa.types.is_dictionary(kind):
        entries = column.dictionary
        if _is_text(entries.type):
            repeated = pc.take(pc.binary_length(entries), column.indices)
            return least + int(pc.sum(repeated).as_py() or 0)
        if pa.types.is_nested(entries.type):
            raise TooLarge  # no program writes such a column
        return least
    if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):
        return least + sum(len(text) for text in column.cast(pa.large_binary()).to_pylist() if text is not None)
    if pa.types.is_run_end_encoded(kind) or pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind):
        raise TooLarge  # rows may share their content, and no program writes such a column
    if pa.types.is_struct(kind):
        return least + sum(map(unpacked_bytes, column.flatten()))
    if pa.types.is_nested(kind) and not pa.types.is_union(kind):
        values = [column.keys, column.items] if pa.types.is_map(kind) else [column.flatten()]
        return least + sum(map(unpacked_bytes, values))
    return max(least, int(column.nbytes))


def _is_text(kind: pa.DataType) -> bool:
    import pyarrow as pa

    tests = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
    return any(test(kind) for test in tests)
