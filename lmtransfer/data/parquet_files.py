"""Read parquet files, plain or compressed, some rows at a time."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

from lmtransfer.data.files import COMPRESSIONS, Meter, open_binary
from lmtransfer.errors import DataError
from lmtransfer.system.machine import naming
from lmtransfer.untrusted.documents import first_line

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
