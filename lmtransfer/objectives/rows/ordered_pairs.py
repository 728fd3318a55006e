"""Rows as pairs of consecutive texts, in order or swapped, for sentence order prediction (ALBERT)."""

from __future__ import annotations

from types import MappingProxyType

import numpy as np
from typing_extensions import override

from lmtransfer.config.types import Count, Prob
from lmtransfer.data.store.store import TokenStore
from lmtransfer.errors import DataError
from lmtransfer.objectives.rows.base import Rows, check_not_empty, text_capacity
from lmtransfer.objectives.rows.pairs import (
    NUM_SPECIAL,
    Pairs,
    PairsPlan,
    check_probability,
    draw_pairs,
    from_other_documents,
    reach,
    targets,
)
from lmtransfer.randomness import Uniforms, generator
from lmtransfer.tokenizers.base import Tokenizer


class OrderedPairs(Rows):
    """``[CLS] A [SEP] B [SEP]``: two consecutive texts of one document, swapped with probability ``swap_prob``.

    The rows follow ``create_pretraining_data.py`` of google-research/albert (Lan et al. 2020, section 3.1). Sentences
    of one document are collected up to a target length. The first text is a random number of them, and the second text
    is the rest. A row that is too long loses tokens from its longer side, at a random end.

    Where we differ: at least two sentences are collected, and a single sentence left over at the end of a document is
    added to the sentences before it. There are therefore always two texts of the same document, and a document with one
    sentence gives no row. Rows are sampled again in each epoch. Documents of more than 1,024 sentences are read in
    equal parts.

    Args:
        max_length: maximum row length in tokens, including special tokens.
        short_seq_prob: share of documents cut to a random shorter target length.
        swap_prob: probability that the two texts are swapped.
        lone_with_other_document: whether a single collected sentence is paired with sentences of another document and
            labeled as swapped, as in the published code.
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
        self.capacity = text_capacity(max_length, num_special=NUM_SPECIAL)
        check_probability("short_seq_prob", short_seq_prob)
        check_probability("swap_prob", swap_prob)
        self.short_seq_prob, self.swap_prob = short_seq_prob, swap_prob
        self.lone_with_other_document = lone_with_other_document
        self.tokenizer = tokenizer

    @override
    def plan(self, store: TokenStore, *, seed: int, epoch: int) -> PairsPlan:
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
            _draw_pairs(self, store, seed=seed, epoch=epoch),
            label="sop",
            capacity=self.capacity,
            rng=generator(seed, "truncation", epoch),
            tokenizer=self.tokenizer,
        )


def _draw_pairs(rows: OrderedPairs, store: TokenStore, *, seed: int, epoch: int) -> Pairs:
    """Sample the rows; the random numbers of a row belong to the sentence with which it begins."""
    starts, uniform = np.asarray(store.sentence_starts), Uniforms(seed, "ordered pairs", epoch)
    target = targets(
        store.num_documents, capacity=rows.capacity, short_seq_prob=rows.short_seq_prob, seed=seed, epoch=epoch
    )
    least = 1 if rows.lone_with_other_document else 2

    def draw(sentence: np.ndarray, end: np.ndarray, document: np.ndarray) -> tuple[Pairs, np.ndarray]:
        sizes = target[document]
        stop = reach(starts, sentence, sizes, sentence + least, end)
        stop = np.where(end - stop < least, end, stop)
        num_sentences = stop - sentence
        middle = sentence + 1 + (uniform.at(sentence, 0) * (num_sentences - 1)).astype(np.int64)
        middle = np.where(num_sentences == 1, stop, middle)
        is_swapped = uniform.at(sentence, 1) < rows.swap_prob
        a_start, a_stop, b_start, b_stop = sentence.copy(), middle, middle.copy(), stop.copy()
        lone = np.flatnonzero(num_sentences == 1)
        if len(lone):
            missing = sizes[lone] - (starts[stop[lone]] - starts[sentence[lone]])
            numbers = tuple(uniform.at(sentence[lone], number) for number in (2, 3))
            b_start[lone], b_stop[lone] = from_other_documents(store, starts, document[lone], missing, numbers)
        swapped = is_swapped & (num_sentences > 1)
        first = np.where(swapped, b_start, a_start), np.where(swapped, b_stop, a_stop)
        second = np.where(swapped, a_start, b_start), np.where(swapped, a_stop, b_stop)
        return Pairs.of(starts, first, second, swapped | (num_sentences == 1)), stop

    return draw_pairs(store, draw, least=least)
