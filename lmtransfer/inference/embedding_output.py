"""Writes one vector for each text of an input, in order, with one window of rows in memory at a time."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from typing_extensions import override

from lmtransfer.data.documents import Notes, clean
from lmtransfer.data.files import EncodingErrors
from lmtransfer.data.parquet_files import check_strings
from lmtransfer.data.table_rows import Row, TableColumns, arrow_schema, as_arrow
from lmtransfer.data.tables import (
    TABLE_FORMATS,
    TEXT_COLUMNS,
    BadRows,
    ColumnSpec,
    IncomingRows,
    OpenTable,
    TableLayout,
    open_table,
)
from lmtransfer.errors import ConfigError, DataError
from lmtransfer.inference.prediction_input import InputSource, read_input
from lmtransfer.system.durable import clear_abandoned, staged_file
from lmtransfer.system.machine import naming
from lmtransfer.transfer.embedder import Embedder, scale_vectors
from lmtransfer.transfer.standardizer import Standardizer

#: A window is closed at this many characters, even if it has few rows.
_WINDOW_CHARACTERS = 1 << 23


@dataclass(frozen=True, slots=True)
class Window:
    """Consecutive rows.

    Attributes:
        texts: the text of each row; "" if it is missing.
    """

    texts: list[str]
    rows: pa.Table


@dataclass(frozen=True, slots=True)
class TextRows:
    """An input that is open for reading.

    Attributes:
        schema: the columns; those of Parquet files keep their types, and all others are strings.
    """

    name: str
    schema: pa.Schema
    windows: Iterator[Window]


def open_rows(
    source: InputSource,
    file_format: str,
    notes: Notes,
    *,
    text_column: str | None,
    delimiter: str | None = None,
    encoding_errors: EncodingErrors,
    group: int,
) -> TextRows:
    """Open an input and read its first rows to find the columns.

    Args:
        text_column: the column with the texts; ``text`` or ``sentence`` if None.
        group: maximum number of rows in a window.
    """
    lines = read_input(source, notes, encoding_errors=encoding_errors, keep_returns=file_format in TABLE_FORMATS)
    if file_format == "text":
        for key, value in (("text_column", text_column), ("delimiter", delimiter)):
            if value is not None:
                raise ConfigError(f"{key}={value}: an input with format=text has no columns; leave {key} out")
        columns = TableColumns((TEXT_COLUMNS[0],))
        rows = ((f"{source.name}:{number}", line, {TEXT_COLUMNS[0]: line}) for number, line in lines)
        return TextRows(source.name, arrow_schema(columns), _windows(rows, columns, notes, group))
    text_columns = ColumnSpec(
        TEXT_COLUMNS if text_column is None else (text_column,),
        "text_column",
        advice="format=text if each line is a text",
        is_text=True,
    )
    layout = TableLayout(
        next(name for name in TABLE_FORMATS if name == file_format),
        encoding_errors=encoding_errors,
        delimiter=delimiter,
    )
    bad_rows = BadRows("refuse", notes, "or remove it: each row gets a vector")
    rows_or_path = IncomingRows(source.name, lines) if source.path is None or source.is_stream else source.path
    table = open_table(rows_or_path, [text_columns], layout=layout, bad_rows=bad_rows, whole_rows=True)
    return _rows_of_table(source.name, table, text_columns, notes, group)


def _rows_of_table(name: str, table: OpenTable, text_columns: ColumnSpec, notes: Notes, group: int) -> TextRows:
    """Read a table whose columns come from the header line, the first object, or the schema of a Parquet file."""
    first = next(table.records, None)
    names, shared = table.columns.names, table.columns.shared_names
    if names is None:
        names = () if first is None else tuple(first.values)
    if not names:
        raise DataError(f"{name}: the input is empty; it must begin with a line of column names or a JSON object")
    if table.columns.schema is not None:
        check_strings(table.columns.schema, next(text for text in text_columns.names if text in names), place=name)
    else:
        others = [column for column in names if not column or column in shared]
        if others:
            kind = f"columns without a name of their own ({', '.join(map(repr, dict.fromkeys(others)))}), left out"
            notes.add(kind, name, len(others))
        names = tuple(column for column in names if column not in others)
    columns, known = replace(table.columns, names=names), {"", *names, *shared}

    def rows() -> Iterator[tuple[str, str | None, Mapping[str, Any] | pa.RecordBatch]]:
        for record in [] if first is None else chain([first], table.records):
            if columns.schema is None and record.values.keys() - known:
                notes.add("rows with fields that the first row does not have; these fields are left out", record.where)
            row = record.row if isinstance(record.row, pa.RecordBatch) else record.values
            yield record.where, record.text(text_columns), row

    if first is not None:
        first.text(text_columns)
    return TextRows(name, arrow_schema(columns), _windows(rows(), columns, notes, group))


def _windows(
    rows: Iterable[tuple[str, str | None, Mapping[str, Any] | pa.RecordBatch]],
    columns: TableColumns,
    notes: Notes,
    group: int,
) -> Iterator[Window]:
    """Yield windows of rows, each given as its place, its text and the whole row."""
    pending: list[tuple[str, Row]] = []
    texts: list[str] = []
    size = 0
    for where, text, row in rows:
        pending.append((where, row))
        is_parquet = columns.schema is not None
        texts.append(clean(text or "", where, notes if is_parquet else Notes()))  # ``as_arrow`` notes the other formats
        size += row.nbytes if isinstance(row, pa.RecordBatch) else sum(len(str(value)) for value in row.values())
        if len(texts) >= group or size >= _WINDOW_CHARACTERS:
            yield Window(texts, as_arrow(pending, columns, notes))
            pending, texts, size = [], [], 0
    if texts:
        yield Window(texts, as_arrow(pending, columns, notes))


class _NpyWriter:
    """Writes only the vectors, as a float32 array (N, E) for ``numpy.load``, which can also memory-map the file.

    The header contains the number of rows, so it is rewritten at the end; numpy reserves space for that number.
    """

    def __init__(self, file: BinaryIO, *, dim: int) -> None:
        self._file, self._dim, self._num_rows = file, dim, 0
        self._write_header()

    def write(self, rows: pa.Table, vectors_NE: np.ndarray) -> None:
        self._file.write(np.ascontiguousarray(vectors_NE, dtype="<f4").data)
        self._num_rows += len(vectors_NE)

    def close(self) -> None:
        self._file.seek(0)
        self._write_header()

    def _write_header(self) -> None:
        header = {"descr": "<f4", "fortran_order": False, "shape": (self._num_rows, self._dim)}
        np.lib.format.write_array_header_1_0(self._file, header)


class _ParquetWriter:
    """Writes the input's columns and a column of vectors (lists of E float32); each call writes one row group."""

    def __init__(self, file: BinaryIO, *, dim: int, schema: pa.Schema, vector_column: str) -> None:
        if vector_column in schema.names:
            raise ConfigError(
                f"vector_column={vector_column}: the input already has a column of this name; choose another name"
            )
        self._kind = pa.list_(pa.float32(), dim)
        self._schema = schema.append(pa.field(vector_column, self._kind))
        self._writer = pq.ParquetWriter(file, self._schema)

    def write(self, rows: pa.Table, vectors_NE: np.ndarray) -> None:
        flat = pa.array(np.ascontiguousarray(vectors_NE, dtype=np.float32).reshape(-1))
        vectors = pa.FixedSizeListArray.from_arrays(flat, type=self._kind)
        self._writer.write_table(pa.Table.from_arrays([*rows.columns, vectors], schema=self._schema))

    def close(self) -> None:
        self._writer.close()


class _Spool(_ParquetWriter):
    """Keeps rows and vectors in an unnamed temporary file, which the system deletes when the process ends."""

    def __init__(self, folder: Path, *, dim: int, schema: pa.Schema) -> None:
        self._folder = folder
        with naming(folder):
            self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - stays open until the process ends
        column = next(name for name in map("vector{}".format, range(len(schema) + 1)) if name not in schema.names)
        super().__init__(self._file, dim=dim, schema=schema, vector_column=column)

    @override
    def write(self, rows: pa.Table, vectors_NE: np.ndarray) -> None:
        with naming(self._folder):
            super().write(rows, vectors_NE)

    def parts(self) -> Iterator[tuple[pa.Table, np.ndarray]]:
        """Yield the rows and their vectors (N, E) in the parts in which they were written."""
        file = pq.ParquetFile(self._file)
        for group in range(file.num_row_groups):
            table = file.read_row_group(group)
            vectors = table.column(table.num_columns - 1).combine_chunks()
            dim = vectors.type.list_size
            yield table.select(range(table.num_columns - 1)), vectors.values.to_numpy().reshape(-1, dim).copy()


_ENDINGS = (".npy", ".parquet")


def check_ending(output: str) -> None:
    """Raise an error unless the output's file name ends in .npy or .parquet."""
    if Path(output).suffix.lower() not in _ENDINGS:
        raise ConfigError(f"output={output}: the file name must end in {' or '.join(_ENDINGS)}")


def embed_rows(
    source: TextRows,
    embedder: Embedder,
    output: Path,
    notes: Notes,
    *,
    standardise: bool,
    normalise: bool,
    vector_column: str,
    progress: Callable[[int], None],
) -> int:
    """Write one vector per row, and return the number of rows; the output file appears once it is complete.

    Vectors are standardized with the mean and deviation from the run's training, if the run has them. Otherwise the
    mean and deviation over all input texts are needed, so the vectors are first written to a temporary file.
    """
    clear_abandoned(output.parent)
    with staged_file(output) as file:
        writer: _NpyWriter | _ParquetWriter
        if output.suffix.lower() == ".npy":
            writer = _NpyWriter(file, dim=embedder.dim)
        else:
            writer = _ParquetWriter(file, dim=embedder.dim, schema=source.schema, vector_column=vector_column)
        scale = embedder.standardizer if standardise else None

        def write(rows: pa.Table, vectors_NE: np.ndarray) -> None:
            writer.write(rows, scale_vectors(vectors_NE, standardizer=scale, normalise=normalise))

        if not standardise or scale is not None:
            count = _embed(source, embedder, notes, write, progress)
        else:
            spool = _Spool(output.parent, dim=embedder.dim, schema=source.schema)
            count = _embed(source, embedder, notes, spool.write, progress)
            spool.close()
            scale = Standardizer(dim=embedder.dim)
            scale.fit(torch.from_numpy(vectors) for _, vectors in spool.parts())
            for rows, vectors in spool.parts():
                write(rows, vectors)
        writer.close()
    return count


def _embed(
    source: TextRows,
    embedder: Embedder,
    notes: Notes,
    write: Callable[[pa.Table, np.ndarray], None],
    progress: Callable[[int], None],
) -> int:
    count = 0
    for window in source.windows:
        embedded = embedder.embed(window.texts)
        write(window.rows, embedded.vectors)
        where = f"in rows {count + 1:,} to {count + len(window.texts):,}"
        empty = sum(not text.strip() for text in window.texts)
        cut_texts = f"texts truncated to {embedder.max_length} tokens"
        for kind, num in ((cut_texts, embedded.num_cut), ("empty texts", empty)):
            if num:
                notes.add(kind, where, num)
        count += len(window.texts)
        progress(count)
    if not count:
        raise DataError(f"{source.name}: the input contains no texts")
    return count
