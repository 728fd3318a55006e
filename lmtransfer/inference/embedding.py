"""The vectors of all texts in an input, written in order with one window of rows in memory at a time."""

from __future__ import annotations

import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from typing_extensions import override

from lmtransfer.data.documents import Notes
from lmtransfer.errors import ConfigError, DataError
from lmtransfer.inference.embedding_input import TextRows
from lmtransfer.system.durable import clear_abandoned, staged_file
from lmtransfer.system.machine import naming
from lmtransfer.transfer.embedder import Embedder, scale_vectors
from lmtransfer.transfer.standardizer import Standardizer


class VectorWriter(ABC):
    """Writes rows and their vectors to an open file, a few at a time."""

    @abstractmethod
    def write(self, rows: pa.Table, vectors_NE: np.ndarray) -> None:
        """Add rows.

        Args:
            rows: the columns of the input, N rows.
            vectors_NE: their vectors, float32.
        """

    @abstractmethod
    def close(self) -> None:
        """Complete the file."""


class NpyWriter(VectorWriter):
    """Writes the vectors alone as a float32 array (N, E) for ``numpy.load``, which can also memory-map the file.

    The header contains the number of rows, so it is rewritten at the end; numpy reserves space for that number.

    Args:
        file: an empty file.
        dim: E.
    """

    def __init__(self, file: BinaryIO, *, dim: int) -> None:
        self._file, self._dim, self._num_rows = file, dim, 0
        self._write_header()

    @override
    def write(self, rows: pa.Table, vectors_NE: np.ndarray) -> None:
        self._file.write(np.ascontiguousarray(vectors_NE, dtype="<f4").data)
        self._num_rows += len(vectors_NE)

    @override
    def close(self) -> None:
        self._file.seek(0)
        self._write_header()

    def _write_header(self) -> None:
        header = {"descr": "<f4", "fortran_order": False, "shape": (self._num_rows, self._dim)}
        np.lib.format.write_array_header_1_0(self._file, header)


class ParquetWriter(VectorWriter):
    """Writes the input's columns and a column of vectors (lists of E float32); each call writes one row group.

    Args:
        file: an empty file.
        dim: E.
        schema: the columns of the input.
        vector_column: name of the column of vectors.

    Raises:
        ConfigError: the input has a column of that name.
    """

    def __init__(self, file: BinaryIO, *, dim: int, schema: pa.Schema, vector_column: str) -> None:
        if vector_column in schema.names:
            raise ConfigError(
                f"vector_column={vector_column}: the input already has a column of this name; choose another name"
            )
        self._kind = pa.list_(pa.float32(), dim)
        self._schema = schema.append(pa.field(vector_column, self._kind))
        self._writer = pq.ParquetWriter(file, self._schema)

    @override
    def write(self, rows: pa.Table, vectors_NE: np.ndarray) -> None:
        flat = pa.array(np.ascontiguousarray(vectors_NE, dtype=np.float32).reshape(-1))
        vectors = pa.FixedSizeListArray.from_arrays(flat, type=self._kind)
        self._writer.write_table(pa.Table.from_arrays([*rows.columns, vectors], schema=self._schema))

    @override
    def close(self) -> None:
        self._writer.close()


class Spool(VectorWriter):
    """Keeps rows and vectors in a temporary file without a name, which the system deletes when the process ends.

    Args:
        folder: folder of the file.
        dim: E.
        schema: the columns of the input.
    """

    def __init__(self, folder: Path, *, dim: int, schema: pa.Schema) -> None:
        self._folder = folder
        with naming(folder):
            self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - stays open until the process ends
        column = next(name for name in map("vector{}".format, range(len(schema) + 1)) if name not in schema.names)
        self._writer = ParquetWriter(self._file, dim=dim, schema=schema, vector_column=column)

    @override
    def write(self, rows: pa.Table, vectors_NE: np.ndarray) -> None:
        with naming(self._folder):
            self._writer.write(rows, vectors_NE)

    @override
    def close(self) -> None:
        self._writer.close()

    def parts(self) -> Iterator[tuple[pa.Table, np.ndarray]]:
        """Yield the rows and their vectors (N, E) in the parts in which they were written."""
        file = pq.ParquetFile(self._file)
        for number in range(file.num_row_groups):
            table = file.read_row_group(number)
            vectors = table.column(table.num_columns - 1).combine_chunks()
            dim = vectors.type.list_size
            yield table.select(range(table.num_columns - 1)), vectors.values.to_numpy().reshape(-1, dim).copy()


#: Creates the writer for each file ending from the open file, E, the input's columns and the name of the vectors.
_WRITERS: dict[str, Callable[[BinaryIO, int, pa.Schema, str], VectorWriter]] = {
    ".npy": lambda file, dim, schema, name: NpyWriter(file, dim=dim),
    ".parquet": lambda file, dim, schema, name: ParquetWriter(file, dim=dim, schema=schema, vector_column=name),
}


def check_ending(output: str) -> None:
    """Raise an error unless a format has the output's file ending.

    Raises:
        ConfigError: the ending is unknown; the message lists the endings.
    """
    if Path(output).suffix.lower() not in _WRITERS:
        raise ConfigError(f"output={output}: the file name must end in {' or '.join(_WRITERS)}")


@contextmanager
def open_vectors(path: Path, *, dim: int, schema: pa.Schema, vector_column: str) -> Iterator[VectorWriter]:
    """Provide a writer whose file becomes ``path`` if the block ends without an error, and is removed otherwise.

    Args:
        path: the output, whose ending determines the format.
        dim: E.
        schema: the columns of the input.
        vector_column: name of the column of vectors in parquet.

    Raises:
        ConfigError: the input has a column of that name.
        OSError: the output cannot be written.
    """
    clear_abandoned(path.parent)
    with staged_file(path) as file:
        writer = _WRITERS[path.suffix.lower()](file, dim, schema, vector_column)
        yield writer
        writer.close()


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
    """Write one vector per row; the output appears once it is complete.

    Vectors are standardized with the mean and deviation from the run's training, if the run has them. Otherwise the
    mean and deviation over all input texts are needed, so the vectors are first written to a temporary file.

    Args:
        output: the output file, whose ending determines the format.
        notes: counts truncated texts and empty texts.
        standardise: whether each feature is scaled to mean 0 and deviation 1.
        normalise: whether each vector is scaled to length 1.
        vector_column: name of the column of vectors in parquet.
        progress: called with the number of vectors so far.

    Returns:
        The number of vectors.
    """
    scale = embedder.standardizer if standardise else None
    with open_vectors(output, dim=embedder.dim, schema=source.schema, vector_column=vector_column) as writer:
        if not standardise or scale is not None:
            return _embed(source, embedder, writer, notes, scale, normalise, progress)
        spool = Spool(output.parent, dim=embedder.dim, schema=source.schema)
        count = _embed(source, embedder, spool, notes, None, False, progress)
        spool.close()
        scale = Standardizer(dim=embedder.dim)
        scale.fit(torch.from_numpy(vectors) for _, vectors in spool.parts())
        for rows, vectors in spool.parts():
            writer.write(rows, scale_vectors(vectors, standardizer=scale, normalise=normalise))
        return count


def _embed(
    source: TextRows,
    embedder: Embedder,
    writer: VectorWriter,
    notes: Notes,
    standardizer: Standardizer | None,
    normalise: bool,
    progress: Callable[[int], None],
) -> int:
    count = 0
    for window in source.windows:
        embedded = embedder.embed(window.texts)
        writer.write(window.rows, scale_vectors(embedded.vectors, standardizer=standardizer, normalise=normalise))
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
