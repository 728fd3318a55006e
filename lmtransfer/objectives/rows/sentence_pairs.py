"""Rows as pairs of texts for next sentence prediction (BERT)."""

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


class SentencePairs(Rows):
    """``[CLS] A [SEP] B [SEP]``: B follows A or is from another document.

    The rows follow ``create_pretraining_data.py`` of google-research/bert (Devlin et al. 2019, appendix A.2). Sentences
    of one document are collected up to a target length. A is a random number of these sentences, and B is the rest.
    With probability ``random_prob``, and always if only one sentence was collected, B is sentences of another document
    instead, so this happens for more than half of the rows. The collected sentences that were not used then start the
    next row. A row that is too long loses tokens of its longer side, at a random end.

    Where we differ: the other document is never the same document (the original gives up after ten samples), and rows
    are sampled again in each epoch (the original samples ten times and repeats these rows).

    Args:
        max_length: longest row in tokens, special tokens included.
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
        self.capacity = checked_length(max_length, num_special=NUM_SPECIAL)
        check_probability("short_seq_prob", short_seq_prob)
        check_probability("random_prob", random_prob)
        self.short_seq_prob, self.random_prob = short_seq_prob, random_prob
        self.tokenizer = tokenizer

    def plan(self, store: TokenStore, *, seed: int, epoch: int) -> PairsPlan:
        """The pairs of one epoch.

        Raises:
            DataError: the store holds no text, or a single document.
        """
        check_not_empty(store)
        if store.num_documents < 2:
            raise DataError(
                "next sentence prediction needs at least 2 documents, but this part of the corpus (training or "
                "validation) contains 1: separate documents by a blank line, use one file for each document, change "
                "corpus.validation_fraction, or use objective=mlm"
            )
        return PairsPlan(
            store,
            _draw_pairs(self, store, generator(seed, "pairs", epoch)),
            label="nsp",
            capacity=self.capacity,
            rng=generator(seed, "truncation", epoch),
            tokenizer=self.tokenizer,
        )


def _draw_pairs(rows: SentencePairs, store: TokenStore, rng: np.random.Generator) -> np.ndarray:
    """Sample the pairs: (N, 5) int64: start and stop of A, start and stop of B (in tokens), and whether B is random."""
    starts, documents = store.sentence_starts.data, store.document_starts.data
    uniform = uniforms(rng)
    sampled = array("q")
    for document in range(store.num_documents):
        sentence, end = documents[document], documents[document + 1]
        target = rows.capacity
        if next(uniform) < rows.short_seq_prob:
            target = 2 + int(next(uniform) * (rows.capacity - 1))
        while sentence < end:
            stop = bisect_left(starts, starts[sentence] + target, lo=sentence + 1, hi=end)
            collected = stop - sentence
            a_stop = stop if collected == 1 else sentence + 1 + int(next(uniform) * (collected - 1))
            if collected == 1 or next(uniform) < rows.random_prob:
                missing = target - (starts[a_stop] - starts[sentence])
                b_start, b_stop = from_another_document(store, document, missing, uniform)
                sampled.extend((starts[sentence], starts[a_stop], starts[b_start], starts[b_stop], 1))
                sentence = a_stop
            else:
                sampled.extend((starts[sentence], starts[a_stop], starts[a_stop], starts[stop], 0))
                sentence = stop
    return np.frombuffer(sampled, dtype=np.int64).reshape(-1, 5)
