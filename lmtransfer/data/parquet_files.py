"""Read parquet and arrow files, plain or compressed, some rows at a time."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from lmtransfer.data.documents import Notes
from lmtransfer.data.files import COMPRESSIONS, Meter, open_binary
from lmtransfer.data.text_lines import EncodingErrors, decode
from lmtransfer.errors import DataError
from lmtransfer.system.machine import naming
from lmtransfer.system.printable import first_line

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

_ROWS = 256


@contextmanager
def open_parquet(path: Path, meter: Meter | None = None) -> Iterator[pq.ParquetFile]:
    """Open a parquet file.

    Args:
        path: the file, plain or as .gz, .xz or .zst.
        meter: counts the bytes read from disk.

    Raises:
        DataError: the file cannot be read, or is not a parquet file.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    with open_binary(path, meter) as stream, tempfile.TemporaryFile() as spool:
        source: BinaryIO = stream
        if path.suffix in COMPRESSIONS:  # parquet needs random access: decompress to disk, not to memory
            with naming(tempfile.gettempdir()):
                shutil.copyfileobj(stream, spool, 1 << 20)
            source = cast(BinaryIO, spool)
        try:
            file = pq.ParquetFile(source)
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"{path}: is damaged or is not a parquet file ({first_line(error)})") from None
        yield file


def check_text_column(file: pq.ParquetFile, path: Path, column: str, *, key: str) -> None:
    """Raise unless a column holds texts.

    Args:
        file: the file.
        path: its path, for messages.
        column: name of the column.
        key: the setting that names the column, for messages.

    Raises:
        DataError: there is no such column, or it holds something else.
    """
    import pyarrow as pa

    if column not in file.schema_arrow.names:
        names = ", ".join(file.schema_arrow.names)
        raise DataError(f"{path}: no column `{column}` here (found: {names}); set {key}")
    kind = file.schema_arrow.field(column).type
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_null(kind)):
        raise DataError(f"{path}: column `{column}` has {kind}, not strings; set {key}")


def parquet_batches(
    file: pq.ParquetFile, path: Path, columns: Sequence[str] | None = None
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The rows of a file in their order, a few at a time, each time with the number of the first, from 1.

    Args:
        file: the file.
        path: its path, for messages.
        columns: the columns to read; None: all.

    Raises:
        DataError: the file is damaged; the message has ``file:row``.
    """
    import pyarrow as pa

    row, batches = 1, file.iter_batches(batch_size=_ROWS, columns=None if columns is None else list(columns))
    while True:
        try:
            batch = next(batches, None)
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"{path}:row {row}: the file is damaged ({first_line(error)})") from None
        if batch is None:
            return
        yield row, batch
        row += batch.num_rows


def raw_texts(column: pa.Array) -> list[bytes | None]:
    """The texts of a column as bytes, because arrow does not check that a string column holds UTF-8."""
    import pyarrow as pa

    found: list[bytes | None] = column.cast(pa.large_binary()).to_pylist()
    return found


def columnar_records(
    path: Path, wanted: Sequence[str], encoding_errors: EncodingErrors, notes: Notes, meter: Meter | None = None
) -> tuple[list[str], Iterator[tuple[str, dict[str, Any], frozenset[str]]]]:
    """Open parquet, an arrow stream, or a folder of ``datasets.save_to_disk``.

    Label numbers are replaced by the label names that ``datasets`` writes into the file; -1, with which it marks a
    hidden label, is replaced by None.

    Args:
        path: the file, plain or compressed, or the folder.
        wanted: the columns to read, as far as there are such columns.
        encoding_errors: what to do with texts that are not UTF-8.
        notes: counts irregularities.
        meter: counts the bytes read from disk.

    Returns:
        The names of all columns; and for each row ``file:row``, from 1, its values, and which columns were label
        numbers.

    Raises:
        DataError: the file cannot be read, is not of its format, or is damaged.
    """
    files = sorted(path.glob("*.arrow")) if path.is_dir() else [path]
    if not files:
        raise DataError(f"{path}: the folder has no .arrow files (datasets.save_to_disk writes them)")
    with _open_columns(files[0], None) as (schema, _):
        names = list(schema.names)
        label_names = _label_names(schema)
    columns = [name for name in dict.fromkeys(wanted) if names.count(name) == 1]

    def records() -> Iterator[tuple[str, dict[str, Any], frozenset[str]]]:
        renamed = frozenset(label_names) & frozenset(columns)
        for file in files:
            with _open_columns(file, meter) as (_, batches_of):
                for first, batch in batches_of(columns):
                    values = [
                        _values(batch.column(name), label_names.get(name), file, first, encoding_errors, notes)
                        for name in columns
                    ]
                    for row, cells in enumerate(zip(*values, strict=True), start=first):
                        yield f"{file}:row {row}", dict(zip(columns, cells, strict=True)), renamed

    return names, records()


BatchesOf = Callable[[Sequence[str]], Iterator[tuple[int, "pa.RecordBatch"]]]


@contextmanager
def _open_columns(path: Path, meter: Meter | None) -> Iterator[tuple[pa.Schema, BatchesOf]]:
    """Open one file; gives its schema, and what reads some of its columns."""
    import pyarrow as pa

    if path.suffix != ".arrow":
        with open_parquet(path, meter) as file:
            yield file.schema_arrow, lambda columns: parquet_batches(file, path, columns)
        return
    with open_binary(path, meter) as stream:
        try:
            reader = pa.ipc.open_stream(stream)
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"{path}: is damaged or is not an arrow stream ({first_line(error)})") from None

        def batches(columns: Sequence[str]) -> Iterator[tuple[int, pa.RecordBatch]]:
            row = 1
            try:
                for batch in reader:
                    batch.validate(full=True)
                    yield row, batch.select(list(columns))
                    row += batch.num_rows
            except (pa.ArrowException, OSError) as error:
                raise DataError(f"{path}:row {row}: the file is damaged ({first_line(error)})") from None

        yield reader.schema, batches


def _label_names(schema: pa.Schema) -> dict[str, list[str]]:
    """The names of label numbers by column, from the features that ``datasets`` writes into a file."""
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        found = {}
        for column, feature in features.items():
            inner = feature[0] if isinstance(feature, list) else feature.get("feature", feature)
            if isinstance(inner, dict) and inner.get("_type") == "ClassLabel":
                found[str(column)] = [str(name) for name in inner["names"]]
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, RecursionError):
        return {}
    return found


def named_label(value: Any, names: Sequence[str]) -> Any:
    """Replace a label number, or each number of a list, by its name; None if it is hidden.

    Raises:
        IndexError: a number has no name.
    """
    if isinstance(value, list):
        return [named_label(item, names) for item in value]
    return names[value] if isinstance(value, int) and value >= 0 else None


def _values(
    column: pa.Array,
    names: Sequence[str] | None,
    path: Path,
    first: int,
    encoding_errors: EncodingErrors,
    notes: Notes,
) -> list[Any]:
    import pyarrow as pa

    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        return [
            None if raw is None else decode(raw, f"{path}:row {row}", encoding_errors, notes)
            for row, raw in enumerate(raw_texts(column), start=first)
        ]
    try:
        values = column.to_pylist()
        if names is not None:
            values = [named_label(value, names) for value in values]
    except (UnicodeDecodeError, IndexError, pa.ArrowException) as error:
        raise DataError(f"{path}:row {first} and later: cannot be read ({first_line(error)})") from None
    return [None if isinstance(value, float) and value != value else value for value in values]
