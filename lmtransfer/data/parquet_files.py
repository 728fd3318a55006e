"""Parquet and arrow files, plain or compressed, and ``datasets.save_to_disk`` folders, read a few rows at a time."""

from __future__ import annotations

import io
import json
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from lmtransfer.data.declared_sizes import TooLarge, check_arrow, most_unpacked, read_parquet, unpacked_bytes
from lmtransfer.data.documents import Notes
from lmtransfer.data.files import (
    EncodingErrors,
    Meter,
    compression,
    decode,
    open_binary,
    plain_name,
    saved_files,
    too_large,
)
from lmtransfer.data.remote_files import SourceFile
from lmtransfer.errors import DataError
from lmtransfer.system.machine import naming
from lmtransfer.system.printable import first_line

if TYPE_CHECKING:
    import pyarrow as pa

_ROWS = 256


@dataclass(frozen=True, slots=True)
class Columns:
    """An open table with typed columns; a ``save_to_disk`` folder may have several files."""

    files: tuple[SourceFile, ...]
    schema: pa.Schema
    meter: Meter | None

    def batches(self, names: Sequence[str] | None = None) -> Iterator[tuple[SourceFile, int, pa.RecordBatch]]:
        """Yield the rows in order, a few at a time, each time with the file and the number of the first row, from 1."""
        import pyarrow as pa

        for file in self.files:
            row = 1
            try:
                with _open(file, self.meter, names) as (_, batches):
                    for batch in batches:
                        for start in range(0, batch.num_rows, _ROWS):
                            yield file, row + start, batch.slice(start, _ROWS)
                        row += batch.num_rows
            except TooLarge:
                raise too_large(file, "write it again as JSON lines") from None
            except (pa.ArrowException, OSError, ValueError) as error:
                raise DataError(
                    f"{file}:row {row}: the file is damaged ({first_line(error)}); write or download it again"
                ) from None

    def records(
        self, names: Sequence[str], encoding_errors: EncodingErrors, notes: Notes, *, whole_rows: bool = False
    ) -> Iterator[tuple[str, dict[str, Any], frozenset[str], pa.RecordBatch | None]]:
        """Yield each row's ``file:row``, its values, the columns whose label ids were replaced by names, and the row.

        The names are those that ``datasets`` writes into the file. The label id -1, which marks a hidden label, becomes
        None. Without ``whole_rows``, only the columns ``names`` are read, and None stands for the row.
        """
        label_names = _label_names(self.schema)
        columns = [name for name in dict.fromkeys(names) if self.schema.names.count(name) == 1]
        renamed = frozenset(label_names) & frozenset(columns)
        for file, first, batch in self.batches(None if whole_rows else columns):
            values = [
                _values(batch.column(name), label_names.get(name), file, first, encoding_errors, notes)
                for name in columns
            ]
            for row in range(batch.num_rows):
                cells = {name: column[row] for name, column in zip(columns, values, strict=True)}
                yield f"{file}:row {first + row}", cells, renamed, batch.slice(row, 1) if whole_rows else None


def open_columns(path: SourceFile, meter: Meter | None = None) -> Columns:
    """Open a parquet file, an arrow file or stream (plain or compressed), or a ``save_to_disk`` folder."""
    files: list[SourceFile] = [path]
    if isinstance(path, Path) and path.is_dir():
        files = [*saved_files(path)]
    if not files:
        raise DataError(f"{path}: the folder has no .arrow files (datasets.save_to_disk writes them)")
    with _open(files[0], None, None) as (schema, _):
        return Columns(tuple(files), schema, meter)


@contextmanager
def _open(
    path: SourceFile, meter: Meter | None, names: Sequence[str] | None
) -> Iterator[tuple[pa.Schema, Iterator[pa.RecordBatch]]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    with open_binary(path, meter) as stream, tempfile.TemporaryFile() as spool:
        start, source = cast(io.BufferedReader, stream).peek(8), stream
        is_file, is_parquet = start.startswith(b"ARROW1"), start.startswith(b"PAR1")
        is_stream = plain_name(path).lower().endswith(".arrow") and not is_file and not is_parquet
        if compression(path) is not None:  # needs random access: decompress to disk rather than memory
            with naming(tempfile.gettempdir()):
                shutil.copyfileobj(stream, spool, 1 << 20)
            source = cast(BinaryIO, spool)
        size = source.seek(0, io.SEEK_END)
        source.seek(0)
        try:
            if is_stream:
                reader = pa.ipc.open_stream(source)
                schema, batches = reader.schema, _read_arrow(source, size, iter(reader), names)
            elif is_file:
                file = pa.ipc.open_file(source)
                every = map(file.get_batch, range(file.num_record_batches))
                schema, batches = file.schema, _read_arrow(source, size, every, names)
            else:
                table = pq.ParquetFile(source)
                schema, batches = table.schema_arrow, read_parquet(table, source, size, names, rows=_ROWS)
        except (pa.ArrowException, OSError) as error:
            kind = "an arrow" if is_stream or is_file else "a parquet"
            raise DataError(
                f"{path}: the file is damaged or is not {kind} file ({first_line(error)}); write or download it again"
            ) from None
        yield schema, batches


def _read_arrow(
    source: BinaryIO, size: int, batches: Iterator[pa.RecordBatch], names: Sequence[str] | None
) -> Iterator[pa.RecordBatch]:
    """Yield the columns of each batch, checking that no offset leads out of a buffer; strings may hold any bytes."""
    most = most_unpacked(size)
    check_arrow(source, size, most=most)
    unpacked = 0
    for batch in batches:
        for column in batch.columns:
            _as_bytes(column).validate(full=True)
        chosen = batch if names is None else batch.select(list(names))
        for start in range(0, chosen.num_rows, _ROWS):
            rows = chosen.slice(start, _ROWS)
            unpacked += sum(map(unpacked_bytes, rows.columns))
            if unpacked > most:
                raise TooLarge
            yield rows


def _as_bytes(column: pa.Array) -> pa.Array:
    """Return a string column as bytes, because arrow does not check that strings are UTF-8."""
    import pyarrow as pa

    if pa.types.is_string(column.type):
        return column.view(pa.binary())
    return column.view(pa.large_binary()) if pa.types.is_large_string(column.type) else column


def check_strings(schema: pa.Schema, name: str, *, place: str) -> None:
    """Check that the column of texts holds strings; ``place`` is the file, for messages."""
    import pyarrow as pa

    kind = schema.field(name).type
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_null(kind)):
        raise DataError(
            f"{place}: column `{name}` holds {kind} values, not strings; set text_column to a column of strings"
        )


def texts_of(
    column: pa.Array, path: SourceFile, first: int, encoding_errors: EncodingErrors, notes: Notes
) -> list[str | None]:
    """Return the strings in a column; ``first`` is the number of its first row in the file, for messages."""
    return [
        None if raw is None else decode(raw, f"{path}:row {row}", encoding_errors, notes)
        for row, raw in enumerate(_as_bytes(column).to_pylist(), start=first)
    ]


def _label_names(schema: pa.Schema) -> dict[str, list[str]]:
    """Return the label names of each column, from the features that ``datasets`` writes into a file."""
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        names = {}
        for column, feature in features.items():
            inner = feature[0] if isinstance(feature, list) else feature.get("feature", feature)
            if isinstance(inner, dict) and inner.get("_type") == "ClassLabel":
                names[str(column)] = [str(name) for name in inner["names"]]
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, RecursionError):
        return {}
    return names


def label_name(value: Any, names: Sequence[str]) -> Any:
    """Replace a label id, or each in a list, with its name (None if hidden); raises IndexError if unknown."""
    if isinstance(value, list):
        return [label_name(item, names) for item in value]
    return names[value] if isinstance(value, int) and value >= 0 else None


def _values(
    column: pa.Array,
    names: Sequence[str] | None,
    path: SourceFile,
    first: int,
    encoding_errors: EncodingErrors,
    notes: Notes,
) -> list[Any]:
    import pyarrow as pa

    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        return list(texts_of(column, path, first, encoding_errors, notes))
    try:
        values = column.to_pylist()
        if names is not None:
            values = [label_name(value, names) for value in values]
    except (UnicodeDecodeError, IndexError, pa.ArrowException) as error:
        raise DataError(f"{path}:row {first} and later: cannot be read ({first_line(error)})") from None
    return [None if isinstance(value, float) and value != value else value for value in values]
