"""Rows as pairs of consecutive texts, in order or swapped, for sentence order prediction (ALBERT)."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from types import MappingProxyType

import numpy as np

from lmtransfer.config.types import Count, Prob
from lmtransfer.data.store.store import TokenStore
from lmtransfer.errors import DataError
from lmtransfer.objectives.rows.base import Rows, check_not_empty, checked_length
from lmtransfer.objectives.rows.pairs import (
    NUM_SPECIAL,
    PairsPlan,
    check_probability,
    from_another_document,
    uniforms,
)
from lmtransfer.randomness import generator
from lmtransfer.tokenizers.base import Tokenizer


class OrderedPairs(Rows):
    """``[CLS] A [SEP] B [SEP]``: two consecutive texts of one document, swapped with probability ``swap_prob``.

    The rows follow ``create_pretraining_data.py`` of google-research/albert (Lan et al. 2020, section 3.1). Sentences
    of one document are collected up to a target length. The first text is a random number of them, and the second text
    is the rest. A row that is too long loses tokens of its longer side, at a random end.

    Where we differ: at least two sentences are collected, and a single sentence that remains at the end of a document
    is added to the sentences before it. So there are always two texts of the same document, and a document of one
    sentence gives no row. Rows are sampled again in each epoch.

    Args:
        max_length: longest row in tokens, special tokens included.
        short_seq_prob: share of documents cut to a random shorter target length.
        swap_prob: probability that the two texts are swapped.
        lone_with_other_document: a single collected sentence is paired with sentences of another document and labelled
            as swapped, as in the published code.
        tokenizer: defines the special tokens.

    Raises:
        ConfigError: ``max_length`` leaves less text than special tokens, or a probability is outside [0, 1].
    """

    num_segments = 2
    label_names = MappingProxyType({"sop": ("in order", "swapped")})

    def __init__(
        self,
        *,
        max_length: Count,
        short_seq_prob: Prob = 0.1,
        swap_prob: Prob = 0.5,
        lone_with_other_document: bool = False,
        tokenizer: Tokenizer,
    ) -> None:
        self.max_length = max_length
        self.capacity = checked_length(max_length, num_special=NUM_SPECIAL)
        check_probability("short_seq_prob", short_seq_prob)
        check_probability("swap_prob", swap_prob)
        self.short_seq_prob, self.swap_prob = short_seq_prob, swap_prob
        self.lone_with_other_document = lone_with_other_document
        self.tokenizer = tokenizer

    def plan(self, store: TokenStore, *, seed: int, epoch: int) -> PairsPlan:
        """The pairs of one epoch.

        Raises:
            DataError: the store holds no text, or no document of two sentences.
        """
        check_not_empty(store)
        if self.lone_with_other_document and store.num_documents < 2:
            raise DataError(
                "objective.rows.lone_with_other_document=true needs at least 2 documents, but this part of the corpus "
                "(training or validation) contains 1: set it to false, separate documents by a blank line, or change "
                "corpus.validation_fraction"
            )
        if not self.lone_with_other_document and np.diff(store.document_starts).max() < 2:
            raise DataError(
                "sentence order prediction needs documents of at least 2 sentences, but each document of this part of "
                "the corpus (training or validation) contains 1: keep the sentences of a text in one document, "
                "change corpus.validation_fraction, or use objective=mlm"
            )
        return PairsPlan(
            store,
            _draw_pairs(self, store, generator(seed, "ordered pairs", epoch)),
            label="sop",
            capacity=self.capacity,
            rng=generator(seed, "truncation", epoch),
            tokenizer=self.tokenizer,
        )


def _draw_pairs(rows: OrderedPairs, store: TokenStore, rng: np.random.Generator) -> np.ndarray:
    """Sample the pairs: (N, 5) int64: start and stop of A, start and stop of B (in tokens), and the label."""
    starts, documents = store.sentence_starts.data, store.document_starts.data
    least = 1 if rows.lone_with_other_document else 2
    uniform = uniforms(rng)
    sampled = array("q")
    for document in range(store.num_documents):
        sentence, end = documents[document], documents[document + 1]
        target = rows.capacity
        if next(uniform) < rows.short_seq_prob:
            target = 2 + int(next(uniform) * (rows.capacity - 1))
        while end - sentence >= least:
            stop = bisect_left(starts, starts[sentence] + target, lo=sentence + least, hi=end)
            if end - stop < least:
                stop = end
            if stop - sentence == 1:
                b_start, b_stop = from_another_document(
                    store, document, target - (starts[stop] - starts[sentence]), uniform
                )
                sampled.extend((starts[sentence], starts[stop], starts[b_start], starts[b_stop], 1))
            else:
                middle = sentence + 1 + int(next(uniform) * (stop - sentence - 1))
                a, b = (starts[sentence], starts[middle]), (starts[middle], starts[stop])
                is_swapped = next(uniform) < rows.swap_prob
                sampled.extend((*b, *a, 1) if is_swapped else (*a, *b, 0))
            sentence = stop
    return np.frombuffer(sampled, dtype=np.int64).reshape(-1, 5)
