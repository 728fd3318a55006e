"""The rows of a batch for display, and statistics of rows.

Shape legend: T tokens of a packed batch, M prediction positions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from lmtransfer.objectives.batch import PretrainingBatch
from lmtransfer.tokenizers.base import Tokenizer


@dataclass(frozen=True, slots=True)
class RowView:
    """One row of a batch."""

    key: str
    original: np.ndarray
    inputs: np.ndarray
    segments: np.ndarray
    is_hidden: np.ndarray
    labels: Mapping[str, int]


def row_views(batch: PretrainingBatch) -> Iterator[RowView]:
    """Yield the rows of a batch on the host, without filler."""
    edges = batch.inputs.cu_seqlens.numpy()
    is_hidden_T = np.zeros(len(batch.inputs.tokens_T), dtype=bool)
    is_hidden_T[batch.positions_M.numpy()[: batch.num_targets]] = True
    for i, key in enumerate(batch.keys):
        part = slice(edges[i], edges[i + 1])
        yield RowView(
            key=key,
            original=batch.original.tokens_T.numpy()[part],
            inputs=batch.inputs.tokens_T.numpy()[part],
            segments=batch.inputs.segments_T.numpy()[part],
            is_hidden=is_hidden_T[part],
            labels={name: int(values[i]) for name, values in batch.labels.items()},
        )


@dataclass(slots=True)
class RowCounts:
    """Counts of rows, tokens and labels; hidden tokens are the tokens to predict."""

    rows: int = 0
    tokens: int = 0
    num_special: int = 0
    num_hidden: int = 0
    num_masked: int = 0
    num_unchanged: int = 0
    num_special_hidden: int = 0
    labels: dict[str, Counter[int]] = field(default_factory=dict)

    @property
    def num_replaced(self) -> int:
        """The number of tokens to predict that were replaced by a token other than [MASK]."""
        return self.num_hidden - self.num_masked - self.num_unchanged


def count_rows(views: Iterable[RowView], tokenizer: Tokenizer) -> RowCounts:
    """Count tokens and labels in rows."""
    counts = RowCounts()
    for view in views:
        is_special = tokenizer.is_special[view.original]
        was, became = view.original[view.is_hidden], view.inputs[view.is_hidden]
        counts.rows += 1
        counts.tokens += len(view.original)
        counts.num_special += int(is_special.sum())
        counts.num_hidden += len(was)
        counts.num_masked += int((became == tokenizer.mask_id).sum())
        counts.num_unchanged += int((became == was).sum())
        counts.num_special_hidden += int((is_special & view.is_hidden).sum())
        for name, value in view.labels.items():
            counts.labels.setdefault(name, Counter())[value] += 1
    return counts
