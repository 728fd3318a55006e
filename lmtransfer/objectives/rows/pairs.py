"""What rows of two texts have in common: how they are framed, and cut to a length."""

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
    """Refuse a number that is no probability.

    Raises:
        ConfigError: naming ``objective.rows.<name>``.
    """
    if not 0 <= value <= 1:
        raise ConfigError(f"objective.rows.{name}={value} is no probability: use a number from 0 to 1")


def paired_row(
    store: TokenStore, first: np.ndarray, second: np.ndarray, labels: Mapping[str, int], *, tokenizer: Tokenizer
) -> Row:
    """``[CLS] A [SEP] B [SEP]``, in segments 0 and 1.

    Args:
        store: holds both texts.
        first: token range [start, stop) of A in the store, int64, shape (2,).
        second: the same of B.
        labels: of the row.
        tokenizer: names the special tokens.
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
        pairs: (N, 5) int64: A's start and stop, B's start and stop (in tokens), and the label.
        label: name of the label.
        room: most tokens of both texts.
        rng: decides where what is too long is cut.
        tokenizer: names the special tokens.

    Attributes:
        lengths: tokens of each row.
        first: token range [start, stop) of each row's A in the store, int64, shape (N, 2).
        second: the same of its B.
        is_positive: whether each row's label is 1, bool, shape (N,).
    """

    def __init__(
        self,
        store: TokenStore,
        pairs: np.ndarray,
        *,
        label: str,
        room: int,
        rng: np.random.Generator,
        tokenizer: Tokenizer,
    ) -> None:
        self._store, self._label, self._tokenizer = store, label, tokenizer
        self.first, self.second = pairs[:, 0:2].copy(), pairs[:, 2:4].copy()
        self.is_positive = pairs[:, 4].astype(bool)
        truncate(self.first, self.second, room, rng)
        sizes = (self.first[:, 1] - self.first[:, 0]) + (self.second[:, 1] - self.second[:, 0])
        self.lengths = (sizes + NUM_SPECIAL).astype(np.int32)

    def row(self, index: int) -> Row:
        """Pair ``index``, with its label."""
        labels = {self._label: int(self.is_positive[index])}
        return paired_row(self._store, self.first[index], self.second[index], labels, tokenizer=self._tokenizer)


def uniforms(rng: np.random.Generator) -> Iterator[float]:
    """Numbers from [0, 1), without end."""
    while True:
        yield from rng.random(4096).tolist()


def truncate(first: np.ndarray, second: np.ndarray, room: int, rng: np.random.Generator) -> None:
    """Cut both sides to ``room`` tokens together, token by token off the longer one, each at a random end.

    Args:
        first: token ranges of each row's A, int64, shape (N, 2); changed in place.
        second: the same of its B.
        room: most tokens of both.
        rng: decides the ends.
    """
    a, b = first[:, 1] - first[:, 0], second[:, 1] - second[:, 0]
    excess = np.maximum(a + b - room, 0)
    # While one side is longer it loses; once they are equal they lose in turn, B first.
    half = -(-room // 2)
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
    """Sentences [first, stop) of another document, from a random one on, until they have ``num_tokens``.

    Args:
        store: of two documents or more.
        document: the one that they are not from.
        num_tokens: wanted; at least one sentence is taken, and none beyond the document's end.
        uniform: decides.
    """
    starts, documents = store.sentence_starts.data, store.document_starts.data
    other = int(next(uniform) * (store.num_documents - 1))
    other += other >= document
    begin, end = documents[other], documents[other + 1]
    first = begin + int(next(uniform) * (end - begin))
    return first, bisect_left(starts, starts[first] + num_tokens, lo=first + 1, hi=end)
