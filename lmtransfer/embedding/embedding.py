"""Write the vectors of all texts of an input, in order, with one window of rows in memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from lmtransfer.data.documents import Notes
from lmtransfer.embedding.input import TextRows
from lmtransfer.embedding.output import Spool, VectorWriter, open_vectors
from lmtransfer.errors import DataError
from lmtransfer.transfer.embedder import Embedder, finished
from lmtransfer.transfer.standardising import Standardising


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
    """Write one vector for each row; the output appears when it is complete.

    Vectors are standardised by mean and deviation from the training of the run if it has them. Otherwise mean and
    deviation of all texts of the input are needed, so that the vectors go to a file without a name first.

    Args:
        source: the rows.
        embedder: makes the vectors.
        output: the file; its ending decides the format.
        notes: counts texts that were cut, and empty texts.
        standardise: whether each feature gets mean 0 and deviation 1.
        normalise: whether each vector gets the length 1.
        vector_column: name of the column of vectors in parquet.
        progress: is told the number of vectors so far.

    Returns:
        The number of vectors.

    Raises:
        DataError: a row is malformed, or there are no rows.
    """
    known = embedder.standardising if standardise else None
    with open_vectors(output, dim=embedder.dim, schema=source.schema, vector_column=vector_column) as writer:
        if not standardise or known is not None:
            return _embed(source, embedder, writer, notes, known, normalise, progress)
        spool = Spool(output.parent, dim=embedder.dim, schema=source.schema)
        count = _embed(source, embedder, spool, notes, None, False, progress)
        spool.close()
        scale = Standardising(dim=embedder.dim)
        scale.fit(torch.from_numpy(vectors) for _, vectors in spool.parts())
        for rows, vectors in spool.parts():
            writer.write(rows, finished(vectors, standardising=scale, normalise=normalise))
        return count


def _embed(
    source: TextRows,
    embedder: Embedder,
    writer: VectorWriter,
    notes: Notes,
    standardising: Standardising | None,
    normalise: bool,
    progress: Callable[[int], None],
) -> int:
    count = 0
    for window in source.windows:
        found = embedder.embed(window.texts)
        writer.write(window.rows, finished(found.vectors, standardising=standardising, normalise=normalise))
        where = f"in rows {count + 1:,} to {count + len(window.texts):,}"
        empty = sum(not text.strip() for text in window.texts)
        for kind, num in ((f"texts cut to {embedder.max_length} tokens", found.num_cut), ("empty texts", empty)):
            if num:
                notes.add(kind, where, num)
        count += len(window.texts)
        progress(count)
    if not count:
        raise DataError(f"{source.name}: contains no texts")
    return count
