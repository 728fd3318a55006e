"""Rows of two texts, for next sentence prediction (BERT) and sentence order prediction (ALBERT)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import ClassVar, Self

import numpy as np
from typing_extensions import override

from lmtransfer.config.types import Count, Prob
from lmtransfer.data.token_shards import TokenStore
from lmtransfer.errors import DataError
from lmtransfer.objectives.rows.base import Row, RowPlan, Rows, check_not_empty, text_capacity
from lmtransfer.randomness import Uniforms, generator
from lmtransfer.tokenizers.base import Tokenizer

#: First token of a text in the store, and the token after its last token.
Range = tuple[int, int]

#: [CLS] A [SEP] B [SEP].
NUM_SPECIAL = 3

#: Maximum number of sentences in a part: longer documents are read in equal parts, and a row ends with its part.
_MOST_SENTENCES = 1024
#: Number of sentences that are examined together to find the end of a text, before a binary search.
_NEAR = 12
#: Number of parts that are read at the same time, so that their arrays fit in a core's cache.
_PARTS_AT_ONCE = 1 << 16


@dataclass(frozen=True, slots=True)
class Pairs:
    """Texts A and B of each row, as ranges of tokens in the store, and the label."""

    a_start: np.ndarray
    a_size: np.ndarray
    b_start: np.ndarray
    b_size: np.ndarray
    is_positive: np.ndarray

    @classmethod
    def of(
        cls, starts: np.ndarray, a: tuple[np.ndarray, np.ndarray], b: tuple[np.ndarray, np.ndarray], label: np.ndarray
    ) -> Self:
        """Convert ranges of sentences, given by the first sentence and the sentence after the last, to rows."""
        (a_start, a_stop), (b_start, b_stop) = ((starts[first], starts[stop]) for first, stop in (a, b))
        a_size, b_size = (a_stop - a_start).astype(np.int32), (b_stop - b_start).astype(np.int32)
        return cls(a_start, a_size, b_start, b_size, label)


#: The dtypes of the arrays of ``Pairs``.
_DTYPES = (np.int64, np.int32, np.int64, np.int32, np.bool_)

#: A function that draws one row from each document, given its next sentence, its end and its index. It returns the
#: rows, and the sentences at which the next rows begin.
DrawRows = Callable[[np.ndarray, np.ndarray, np.ndarray], tuple[Pairs, np.ndarray]]


def draw_pairs(store: TokenStore, draw: DrawRows, *, least: int) -> Pairs:
    """Draw the rows of all documents in rounds, each of which draws one row from every unfinished document."""
    begins, ends, documents = _parts(store)
    blocks: list[Pairs] = []
    for first in range(0, len(begins), _PARTS_AT_ONCE):
        block = slice(first, first + _PARTS_AT_ONCE)
        blocks += _draw_block(begins[block], ends[block], documents[block], draw, least=least)
    if not blocks:
        return Pairs(*(np.empty(0, dtype=dtype) for dtype in _DTYPES))
    return Pairs(*(np.concatenate([getattr(block, name) for block in blocks]) for name in Pairs.__slots__))


def _draw_block(
    at: np.ndarray, ends: np.ndarray, documents: np.ndarray, draw: DrawRows, *, least: int
) -> Iterator[Pairs]:
    """Yield the rows of some parts in order; ``at`` is changed in place."""
    reading = np.flatnonzero(ends - at >= least)
    num_rows = np.zeros(len(at), dtype=np.int64)
    rounds: list[tuple[np.ndarray, Pairs]] = []
    while len(reading):
        rows, following = draw(at[reading], ends[reading], documents[reading])
        rounds.append((reading, rows))
        num_rows[reading] += 1
        at[reading] = following
        reading = reading[ends[reading] - following >= least]
    if not rounds:
        return
    before = np.cumsum(num_rows) - num_rows
    arrays = [np.empty(int(num_rows.sum()), dtype=dtype) for dtype in _DTYPES]
    for index, (read, rows) in enumerate(rounds):
        places = before[read] + index
        for array, name in zip(arrays, Pairs.__slots__, strict=True):
            array[places] = getattr(rows, name)
    yield Pairs(*arrays)


def _parts(store: TokenStore) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the first sentence, the end and the document of each part; short documents are a single part."""
    edges = np.asarray(store.document_starts)
    sizes = np.diff(edges)
    pieces = np.maximum(-(-sizes // _MOST_SENTENCES), 1)
    documents = np.repeat(np.arange(len(sizes)), pieces)
    index = np.arange(len(documents)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    begins, ends = (edges[documents] + sizes[documents] * (index + more) // pieces[documents] for more in (0, 1))
    return begins, ends, documents


class PairsPlan(RowPlan):
    """One epoch of ``TextPairs``; see ``RowPlan``."""

    def __init__(self, rows: TextPairs, store: TokenStore, pairs: Pairs, rng: np.random.Generator) -> None:
        self.text, self.label, self.special_ids = store, rows.label, rows.special_ids
        self.pairs = pairs
        truncate(pairs, rows.capacity, rng)
        self.lengths = pairs.a_size + pairs.b_size + np.int32(NUM_SPECIAL)

    @override
    def row(self, index: int) -> Row:
        pairs, (cls_id, sep_id) = self.pairs, self.special_ids
        a_start, b_start = int(pairs.a_start[index]), int(pairs.b_start[index])
        a_stop, b_stop = a_start + int(pairs.a_size[index]), b_start + int(pairs.b_size[index])
        middle = a_stop - a_start + 1
        tokens = np.empty(middle + b_stop - b_start + 2, dtype=np.int32)
        tokens[0] = cls_id
        tokens[1:middle] = self.text.tokens(a_start, a_stop)
        tokens[middle] = tokens[-1] = sep_id
        tokens[middle + 1 : -1] = self.text.tokens(b_start, b_stop)
        segments = np.zeros(len(tokens), dtype=np.int8)
        segments[middle + 1 :] = 1
        key = f"tokens {a_start}:{a_stop} + {b_start}:{b_stop}"
        return Row(tokens, segments, key, {self.label: int(pairs.is_positive[index])})

    @override
    def take(self, rows: np.ndarray) -> Self:
        pairs = Pairs(*(getattr(self.pairs, name)[rows] for name in Pairs.__slots__))
        return self.copy_without_text(lengths=self.lengths[rows], pairs=pairs)


def truncate(pairs: Pairs, capacity: int, rng: np.random.Generator) -> None:
    """Truncate A and B to ``capacity`` tokens in total: remove tokens from the longer text, each at a random end."""
    long = np.flatnonzero(pairs.a_size + pairs.b_size > capacity)
    a, b = pairs.a_size[long], pairs.b_size[long]
    excess = a + b - capacity
    # The longer text loses tokens; once both have the same length, they lose tokens in turn, B first.
    half = -(-capacity // 2)
    a_kept = np.where(a > b, np.maximum(a - excess, half), np.minimum(a, half))
    for starts, sizes, new_sizes in (
        (pairs.a_start, pairs.a_size, a_kept),
        (pairs.b_start, pairs.b_size, capacity - a_kept),
    ):
        starts[long] += rng.binomial(sizes[long] - new_sizes, 0.5)
        sizes[long] = new_sizes


@dataclass(frozen=True, slots=True)
class Texts:
    """The texts of an epoch and the random numbers of its rows.

    Attributes:
        starts: first token of each sentence.
        targets: number of tokens up to which the sentences of each document are collected, int64.
        uniform: random numbers by sentence; a row uses those of its first sentence.
    """

    store: TokenStore
    starts: np.ndarray
    targets: np.ndarray
    uniform: Uniforms

    def reach(self, first: np.ndarray, num_tokens: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
        """Return the first sentence that starts at least ``num_tokens`` after ``first``, within ``low`` to ``high``."""
        starts = self.starts
        goals = starts[first] + num_tokens
        near = np.minimum(low[:, None] + np.arange(_NEAR), high[:, None])
        enough = starts[near] >= goals[:, None]
        enough |= near == high[:, None]
        ends = low + enough.argmax(axis=1)
        far = np.flatnonzero(~enough[:, -1] & ~enough.any(axis=1))
        ends[far] = np.searchsorted(starts, goals[far])
        return np.minimum(np.maximum(ends, low), high)

    def from_other_documents(
        self, sentence: np.ndarray, stop: np.ndarray, document: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return sentences from another document to complete the rows that begin with ``sentence`` to ``stop``.

        They begin at a random sentence, and end at the end of the other document or when the row's target is reached.
        """
        missing = self.targets[document] - (self.starts[stop] - self.starts[sentence])
        other = (self.uniform.at(sentence, 2) * (self.store.num_documents - 1)).astype(np.int64)
        other += other >= document
        begins, ends = self.store.document_starts[other], self.store.document_starts[other + 1]
        first = begins + (self.uniform.at(sentence, 3) * (ends - begins)).astype(np.int64)
        return first, self.reach(first, missing, first + 1, ends)


class TextPairs(Rows):
    """``[CLS] A [SEP] B [SEP]``: two texts, which a subclass draws.

    Attributes:
        purpose: the purpose of the random numbers, from which their seed is derived.
        least: minimum number of sentences in a row.
    """

    num_segments = 2
    label: ClassVar[str]
    purpose: ClassVar[str]
    least: int = 1

    def __init__(self, *, max_length: Count, short_seq_prob: Prob, tokenizer: Tokenizer) -> None:
        self.max_length, self.short_seq_prob = max_length, short_seq_prob
        self.capacity = text_capacity(max_length, num_special=NUM_SPECIAL)
        self.special_ids = tokenizer.cls_id, tokenizer.sep_id

    def check(self, store: TokenStore) -> None:
        """Reject a store that has too few documents or sentences for such rows."""
        raise NotImplementedError

    def draw(
        self, texts: Texts, sentence: np.ndarray, end: np.ndarray, document: np.ndarray
    ) -> tuple[Pairs, np.ndarray]:
        """Draw one row from each document; see ``DrawRows``."""
        raise NotImplementedError

    @override
    def plan(self, store: TokenStore, *, seed: int, epoch: int) -> PairsPlan:
        check_not_empty(store)
        self.check(store)
        documents, uniform = np.arange(store.num_documents), Uniforms(seed, "targets", epoch)
        shorter = 2 + (uniform.at(documents, 1) * (self.capacity - 1)).astype(np.int64)
        targets = np.where(uniform.at(documents, 0) < self.short_seq_prob, shorter, self.capacity)
        texts = Texts(store, np.asarray(store.sentence_starts), targets, Uniforms(seed, self.purpose, epoch))
        pairs = draw_pairs(store, partial(self.draw, texts), least=self.least)
        return PairsPlan(self, store, pairs, generator(seed, "truncation", epoch))


class OrderedPairs(TextPairs):
    """``[CLS] A [SEP] B [SEP]``: two consecutive texts of one document, swapped with probability ``swap_prob``.

    The rows follow ``create_pretraining_data.py`` of google-research/albert (Lan et al. 2020, section 3.1). Sentences
    of one document are collected up to a target length. A random number of them are the first text, and the rest are
    the second text. A row that is too long loses tokens from the longer text, each at a random end.

    Where we differ: at least two sentences are collected, and a single sentence left over at the end of a document is
    added to the sentences before it. Both texts therefore always come from the same document, and a document with one
    sentence yields no row. Rows are sampled anew in each epoch. Documents of more than 1,024 sentences are read in
    equal parts.

    Args:
        lone_with_other_document: whether a single collected sentence is paired with sentences from another document and
            labeled as swapped, as in the published code.
    """

    label, purpose = "sop", "ordered pairs"
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
        super().__init__(max_length=max_length, short_seq_prob=short_seq_prob, tokenizer=tokenizer)
        self.swap_prob, self.lone_with_other_document = swap_prob, lone_with_other_document
        self.least = 1 if lone_with_other_document else 2

    @override
    def check(self, store: TokenStore) -> None:
        if self.lone_with_other_document and store.num_documents < 2:
            raise DataError(
                "objective.rows.lone_with_other_document=true needs at least 2 documents, but the training or "
                "validation part of the corpus contains 1: set it to false, separate documents by a blank line, or "
                "change corpus.validation_fraction"
            )
        if not self.lone_with_other_document and np.diff(store.document_starts).max() < 2:
            raise DataError(
                "sentence order prediction needs documents of at least 2 sentences, but each document in the training "
                "or validation part of the corpus contains 1: keep the sentences of a text in one document, change "
                "corpus.validation_fraction, or use objective=mlm"
            )

    @override
    def draw(
        self, texts: Texts, sentence: np.ndarray, end: np.ndarray, document: np.ndarray
    ) -> tuple[Pairs, np.ndarray]:
        stop = texts.reach(sentence, texts.targets[document], sentence + self.least, end)
        stop = np.where(end - stop < self.least, end, stop)
        num_sentences = stop - sentence
        middle = sentence + 1 + (texts.uniform.at(sentence, 0) * (num_sentences - 1)).astype(np.int64)
        middle = np.where(num_sentences == 1, stop, middle)
        is_swapped = texts.uniform.at(sentence, 1) < self.swap_prob
        a_start, a_stop, b_start, b_stop = sentence.copy(), middle, middle.copy(), stop.copy()
        lone = np.flatnonzero(num_sentences == 1)
        if len(lone):
            b_start[lone], b_stop[lone] = texts.from_other_documents(sentence[lone], stop[lone], document[lone])
        swapped = is_swapped & (num_sentences > 1)
        first = np.where(swapped, b_start, a_start), np.where(swapped, b_stop, a_stop)
        second = np.where(swapped, a_start, b_start), np.where(swapped, a_stop, b_stop)
        return Pairs.of(texts.starts, first, second, swapped | (num_sentences == 1)), stop


class SentencePairs(TextPairs):
    """``[CLS] A [SEP] B [SEP]``: B follows A or is from another document.

    The rows follow ``create_pretraining_data.py`` of google-research/bert (Devlin et al. 2019, appendix A.2). Sentences
    of one document are collected up to a target length. A consists of a random number of these sentences, and B of the
    rest. With probability ``random_prob``, and always if only one sentence was collected, B consists of sentences from
    another document instead. This happens for more than half of the rows. The unused collected sentences then start the
    next row. A row that is too long loses tokens from the longer text, each at a random end.

    Where we differ: the other document is never the same document (the original gives up after ten attempts), rows are
    sampled anew in each epoch (the original samples ten times and repeats these rows), and documents of more than 1,024
    sentences are read in equal parts.

    Args:
        random_prob: probability that B is from another document if more than one sentence was collected.
    """

    label, purpose = "nsp", "pairs"
    label_names = MappingProxyType({"nsp": ("B follows A", "B is from another document")})

    def __init__(
        self, *, max_length: Count, short_seq_prob: Prob = 0.1, random_prob: Prob = 0.5, tokenizer: Tokenizer
    ) -> None:
        super().__init__(max_length=max_length, short_seq_prob=short_seq_prob, tokenizer=tokenizer)
        self.random_prob = random_prob

    @override
    def check(self, store: TokenStore) -> None:
        if store.num_documents < 2:
            raise DataError(
                "next sentence prediction needs at least 2 documents, but the training or validation part of the "
                "corpus contains 1: separate documents by a blank line, use one file for each document, change "
                "corpus.validation_fraction, or use objective=mlm"
            )

    @override
    def draw(
        self, texts: Texts, sentence: np.ndarray, end: np.ndarray, document: np.ndarray
    ) -> tuple[Pairs, np.ndarray]:
        stop = texts.reach(sentence, texts.targets[document], sentence + 1, end)
        num_sentences = stop - sentence
        a_stop = sentence + 1 + (texts.uniform.at(sentence, 0) * (num_sentences - 1)).astype(np.int64)
        is_random = (num_sentences == 1) | (texts.uniform.at(sentence, 1) < self.random_prob)
        b_start, b_stop = a_stop.copy(), stop.copy()
        chosen = np.flatnonzero(is_random)
        others = texts.from_other_documents(sentence[chosen], a_stop[chosen], document[chosen])
        b_start[chosen], b_stop[chosen] = others
        return Pairs.of(texts.starts, (sentence, a_stop), (b_start, b_stop), is_random), np.where(
            is_random, a_stop, stop
        )
