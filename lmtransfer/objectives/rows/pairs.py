"""Rows of two texts: their special tokens, and how they are cut to a length."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping

import numpy as np

from lmtransfer.data.store.store import TokenStore
from lmtransfer.errors import ConfigError
from lmtransfer.objectives.rows.base import Row
from lmtransfer.tokenizers.base import Tokenizer

#: [CLS] A [SEP] B [SEP].
NUM_SPECIAL = 3


def check_probability(name: str, value: float) -> None:
    """Refuse a number that is not a probability.

    Raises:
        ConfigError: the number is outside [0, 1]; the message names ``objective.rows.<name>``.
    """
    if not 0 <= value <= 1:
        raise ConfigError(f"objective.rows.{name}={value} is not a probability: use a number from 0 to 1")


def paired_row(
    store: TokenStore, first: np.ndarray, second: np.ndarray, labels: Mapping[str, int], *, tokenizer: Tokenizer
) -> Row:
    """The row ``[CLS] A [SEP] B [SEP]``, in segments 0 and 1.

    Args:
        store: holds both texts.
        first: token range [start, stop) of A in the store, int64, shape (2,).
        second: token range of B.
        labels: labels of the row.
        tokenizer: defines the special tokens.
    """
    (a_start, a_stop), (b_start, b_stop) = first.tolist(), second.tolist()
    middle = a_stop - a_start + 1
    size = middle + b_stop - b_start + 2
    tokens = np.empty(size, dtype=np.int32)
    tokens[0] = tokenizer.cls_id
    tokens[1:middle] = store.tokens(a_start, a_stop)
    tokens[middle] = tokens[-1] = tokenizer.sep_id
    tokens[middle + 1 : -1] = store.tokens(b_start, b_stop)
    segments = np.zeros(size, dtype=np.int8)
    segments[middle + 1 :] = 1
    return Row(tokens, segments, f"tokens {a_start}:{a_stop} + {b_start}:{b_stop}", labels)


class PairsPlan:
    """One epoch of rows of two texts; see ``RowPlan``.

    Args:
        store: holds the texts.
        pairs: (N, 5) int64: start and stop of A, start and stop of B (in tokens), and the label.
        label: name of the label.
        capacity: largest number of tokens of both texts together.
        rng: source of random numbers for truncation.
        tokenizer: defines the special tokens.

    Attributes:
        lengths: number of tokens of each row.
        first: token range [start, stop) of A of each row in the store, int64, shape (N, 2).
        second: token range of B of each row.
        is_positive: whether the label of each row is 1, bool, shape (N,).
    """

    def __init__(
        self,
        store: TokenStore,
        pairs: np.ndarray,
        *,
        label: str,
        capacity: int,
        rng: np.random.Generator,
        tokenizer: Tokenizer,
    ) -> None:
        self._store, self._label, self._tokenizer = store, label, tokenizer
        self.first, self.second = pairs[:, 0:2].copy(), pairs[:, 2:4].copy()
        self.is_positive = pairs[:, 4].astype(bool)
        truncate(self.first, self.second, capacity, rng)
        sizes = (self.first[:, 1] - self.first[:, 0]) + (self.second[:, 1] - self.second[:, 0])
        self.lengths = (sizes + NUM_SPECIAL).astype(np.int32)

    def row(self, index: int) -> Row:
        """Pair ``index``, with its label."""
        labels = {self._label: int(self.is_positive[index])}
        return paired_row(self._store, self.first[index], self.second[index], labels, tokenizer=self._tokenizer)


def uniforms(rng: np.random.Generator) -> Iterator[float]:
    """An endless iterator over random numbers from [0, 1)."""
    while True:
        yield from rng.random(4096).tolist()


def truncate(first: np.ndarray, second: np.ndarray, capacity: int, rng: np.random.Generator) -> None:
    """Cut A and B to ``capacity`` tokens together: remove tokens from the longer side, each at a random end.

    Args:
        first: token ranges of A of each row, int64, shape (N, 2); changed in place.
        second: token ranges of B of each row; changed in place.
        capacity: largest number of tokens of both.
        rng: source of random numbers that choose the ends.
    """
    a, b = first[:, 1] - first[:, 0], second[:, 1] - second[:, 0]
    excess = np.maximum(a + b - capacity, 0)
    # While one side is longer, it loses tokens; once both have the same length, they lose tokens in turn, B first.
    half = -(-capacity // 2)
    a_kept = np.where(a > b, np.maximum(a - excess, half), np.minimum(a, half))
    a_kept = np.where(excess == 0, a, a_kept)
    b_kept = a + b - excess - a_kept
    for side, size, kept in ((first, a, a_kept), (second, b, b_kept)):
        cut = size - kept
        front = rng.binomial(cut, 0.5)
        side[:, 0] += front
        side[:, 1] -= cut - front


def from_another_document(
    store: TokenStore, document: int, num_tokens: int, uniform: Iterator[float]
) -> tuple[int, int]:
    """Sentences [first, stop) of another document, from a random first sentence on, with ``num_tokens`` or more.

    Args:
        store: a store of at least two documents.
        document: the document that is excluded.
        num_tokens: wanted number of tokens; the result has at least one sentence and ends with its document.
        uniform: random numbers from [0, 1).
    """
    starts, documents = store.sentence_starts.data, store.document_starts.data
    other = int(next(uniform) * (store.num_documents - 1))
    other += other >= document
    begin, end = documents[other], documents[other + 1]
    first = begin + int(next(uniform) * (end - begin))
    return first, bisect_left(starts, starts[first] + num_tokens, lo=first + 1, hi=end)
