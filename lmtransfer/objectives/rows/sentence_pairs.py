"""Rows as pairs of texts for next sentence prediction (BERT)."""

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


class SentencePairs(Rows):
    """``[CLS] A [SEP] B [SEP]``: B follows A or is from another document.

    The rows follow ``create_pretraining_data.py`` of google-research/bert (Devlin et al. 2019, appendix A.2). Sentences
    of one document are collected up to a target length. A is a random number of these sentences, and B is the rest.
    With probability ``random_prob``, and always if only one sentence was collected, B consists of sentences from
    another document instead, which happens for more than half of the rows. The unused collected sentences then start
    the next row. A row that is too long loses tokens from its longer side, at a random end.

    Where we differ: the other document is never the same document (the original gives up after ten samples), rows are
    sampled again in each epoch (the original samples ten times and repeats these rows), and documents of more than
    1,024 sentences are read in equal parts.

    Args:
        max_length: maximum row length in tokens, including special tokens.
        short_seq_prob: share of documents cut to a random shorter target length.
        random_prob: probability of a B from another document if more than one sentence was collected.
        tokenizer: defines the special tokens.

    Raises:
        ConfigError: ``max_length`` leaves less text than special tokens, or a probability is outside [0, 1].
    """

    num_segments = 2
    label_names = MappingProxyType({"nsp": ("B follows A", "B is from another document")})

    def __init__(
        self, *, max_length: Count, short_seq_prob: Prob = 0.1, random_prob: Prob = 0.5, tokenizer: Tokenizer
    ) -> None:
        self.max_length = max_length
        self.capacity = text_capacity(max_length, num_special=NUM_SPECIAL)
        check_probability("short_seq_prob", short_seq_prob)
        check_probability("random_prob", random_prob)
        self.short_seq_prob, self.random_prob = short_seq_prob, random_prob
        self.tokenizer = tokenizer

    @override
    def plan(self, store: TokenStore, *, seed: int, epoch: int) -> PairsPlan:
        check_not_empty(store)
        if store.num_documents < 2:
            raise DataError(
                "next sentence prediction needs at least 2 documents, but this part of the corpus (training or "
                "validation) contains 1: separate documents by a blank line, use one file for each document, change "
                "corpus.validation_fraction, or use objective=mlm"
            )
        return PairsPlan(
            store,
            _draw_pairs(self, store, seed=seed, epoch=epoch),
            label="nsp",
            capacity=self.capacity,
            rng=generator(seed, "truncation", epoch),
            tokenizer=self.tokenizer,
        )


def _draw_pairs(rows: SentencePairs, store: TokenStore, *, seed: int, epoch: int) -> Pairs:
    """Sample the rows; the random numbers of a row belong to the sentence with which it begins."""
    starts, uniform = np.asarray(store.sentence_starts), Uniforms(seed, "pairs", epoch)
    target = targets(
        store.num_documents, capacity=rows.capacity, short_seq_prob=rows.short_seq_prob, seed=seed, epoch=epoch
    )

    def draw(sentence: np.ndarray, end: np.ndarray, document: np.ndarray) -> tuple[Pairs, np.ndarray]:
        sizes = target[document]
        stop = reach(starts, sentence, sizes, sentence + 1, end)
        num_sentences = stop - sentence
        a_stop = sentence + 1 + (uniform.at(sentence, 0) * (num_sentences - 1)).astype(np.int64)
        is_random = (num_sentences == 1) | (uniform.at(sentence, 1) < rows.random_prob)
        b_start, b_stop = a_stop.copy(), stop.copy()
        chosen_rows = np.flatnonzero(is_random)
        missing = sizes[chosen_rows] - (starts[a_stop[chosen_rows]] - starts[sentence[chosen_rows]])
        numbers = tuple(uniform.at(sentence[chosen_rows], number) for number in (2, 3))
        b_start[chosen_rows], b_stop[chosen_rows] = from_other_documents(
            store, starts, document[chosen_rows], missing, numbers
        )
        return Pairs.of(starts, (sentence, a_stop), (b_start, b_stop), is_random), np.where(is_random, a_stop, stop)

    return draw_pairs(store, draw, least=1)
