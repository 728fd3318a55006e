"""Rows as pairs of texts for next sentence prediction (BERT)."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from types import MappingProxyType

import numpy as np

from lmtransfer.data.store import TokenStore
from lmtransfer.errors import ConfigError, DataError
from lmtransfer.objectives.rows.base import Row, check_not_empty, checked_length
from lmtransfer.randomness import generator
from lmtransfer.tokenizers.base import Tokenizer


class SentencePairs:
    """``[CLS] A [SEP] B [SEP]``, B following A or taken from another document.

    As ``create_pretraining_data.py`` of google-research/bert (Devlin et al. 2019, appendix A.2): sentences of one
    document are collected up to a target length, A is a random number of them, B the rest or, with probability
    ``random_prob`` and always where only one sentence was collected (so for more than half of the rows), sentences
    of another document, and then the sentences that were collected and not used start the next row. What is too
    long loses tokens of its longer side, at a random end.

    Where we differ: the other document is never the same one (the original gives up after ten draws), and rows are
    drawn anew in each epoch (the original draws ten times and repeats them).

    Args:
        max_length: longest row in tokens, special tokens included.
        short_seq_prob: share of documents cut to a random shorter target length.
        random_prob: probability of a B from another document where there is a choice.
        tokenizer: names the special tokens.

    Raises:
        ConfigError: ``max_length`` leaves no room for text, or a probability outside [0, 1].
    """

    num_segments = 2
    contiguous = False
    label_names: Mapping[str, tuple[str, ...]] = MappingProxyType(
        {"nsp": ("B follows A", "B is from another document")}
    )

    def __init__(
        self, *, max_length: int, short_seq_prob: float = 0.1, random_prob: float = 0.5, tokenizer: Tokenizer
    ) -> None:
        self.max_length = max_length
        self.room = checked_length(max_length, num_special=3)
        for name, value in (("short_seq_prob", short_seq_prob), ("random_prob", random_prob)):
            if not 0 <= value <= 1:
                raise ConfigError(f"objective.rows.{name}={value} is no probability: use a number from 0 to 1")
        self.short_seq_prob, self.random_prob = short_seq_prob, random_prob
        self.cls_id, self.sep_id = tokenizer.cls_id, tokenizer.sep_id

    def plan(self, store: TokenStore, *, seed: int, epoch: int) -> SentencePairsPlan:
        """The pairs of one epoch.

        Raises:
            DataError: the store holds no text, or a single document.
        """
        check_not_empty(store)
        if store.num_documents < 2:
            raise DataError(
                "next sentence prediction needs at least 2 documents, and this part of the corpus (training or "
                "validation) holds 1: separate documents by a blank line, give one file a document, change "
                "corpus.validation_fraction, or use objective=mlm"
            )
        return SentencePairsPlan(self, store, seed=seed, epoch=epoch)


class SentencePairsPlan:
    """One epoch of ``SentencePairs``; see ``RowPlan``.

    Attributes:
        lengths: tokens of each row.
        first: token range [start, stop) of each row's A in the store, int64, shape (N, 2).
        second: the same of its B.
        is_random: whether B is from another document, bool, shape (N,).
    """

    def __init__(self, rows: SentencePairs, store: TokenStore, *, seed: int, epoch: int) -> None:
        self._rows, self._store = rows, store
        pairs = _draw_pairs(rows, store, generator(seed, "pairs", epoch))
        self.first, self.second = pairs[:, 0:2].copy(), pairs[:, 2:4].copy()
        self.is_random = pairs[:, 4].astype(bool)
        _truncate(self.first, self.second, rows.room, generator(seed, "truncation", epoch))
        sizes = (self.first[:, 1] - self.first[:, 0]) + (self.second[:, 1] - self.second[:, 0])
        self.lengths = (sizes + 3).astype(np.int32)

    def row(self, index: int) -> Row:
        """Pair ``index``; its label "nsp" is 1 where B is from another document."""
        a_start, a_stop = self.first[index].tolist()
        b_start, b_stop = self.second[index].tolist()
        middle, size = a_stop - a_start + 1, int(self.lengths[index])
        tokens = np.empty(size, dtype=np.int32)
        tokens[0] = self._rows.cls_id
        tokens[1:middle] = self._store.tokens(a_start, a_stop)
        tokens[middle] = tokens[-1] = self._rows.sep_id
        tokens[middle + 1 : -1] = self._store.tokens(b_start, b_stop)
        segments = np.zeros(size, dtype=np.int8)
        segments[middle + 1 :] = 1
        key = f"tokens {a_start}:{a_stop} + {b_start}:{b_stop}"
        return Row(tokens, segments, key, {"nsp": int(self.is_random[index])})


def _uniforms(rng: np.random.Generator) -> Iterator[float]:
    while True:
        yield from rng.random(4096).tolist()


def _draw_pairs(rows: SentencePairs, store: TokenStore, rng: np.random.Generator) -> np.ndarray:
    """Draw the pairs: (N, 5) int64 of A's start and stop, B's start and stop (in tokens), and whether B is random."""
    starts, documents = store.sentence_starts.data, store.document_starts.data
    num_documents = store.num_documents
    uniform = _uniforms(rng)
    drawn = array("q")
    for document in range(num_documents):
        sentence, end = documents[document], documents[document + 1]
        target = rows.room
        if next(uniform) < rows.short_seq_prob:
            target = 2 + int(next(uniform) * (rows.room - 1))
        while sentence < end:
            stop = bisect_left(starts, starts[sentence] + target, lo=sentence + 1, hi=end)
            collected = stop - sentence
            a_stop = stop if collected == 1 else sentence + 1 + int(next(uniform) * (collected - 1))
            if collected == 1 or next(uniform) < rows.random_prob:
                other = int(next(uniform) * (num_documents - 1))
                other += other >= document
                other_start, other_end = documents[other], documents[other + 1]
                b_start = other_start + int(next(uniform) * (other_end - other_start))
                missing = target - (starts[a_stop] - starts[sentence])
                b_stop = bisect_left(starts, starts[b_start] + missing, lo=b_start + 1, hi=other_end)
                drawn.extend((starts[sentence], starts[a_stop], starts[b_start], starts[b_stop], 1))
                sentence = a_stop
            else:
                drawn.extend((starts[sentence], starts[a_stop], starts[a_stop], starts[stop], 0))
                sentence = stop
    return np.frombuffer(drawn, dtype=np.int64).reshape(-1, 5)


def _truncate(first: np.ndarray, second: np.ndarray, room: int, rng: np.random.Generator) -> None:
    """Cut both sides to ``room`` tokens together, token by token off the longer one, each at a random end."""
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
