"""Rows as contiguous windows of the whole corpus, or as full sentences (RoBERTa)."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from typing import Self

import numpy as np
from typing_extensions import override

from lmtransfer.config.types import Count
from lmtransfer.data.token_shards import TokenStore
from lmtransfer.errors import ConfigError
from lmtransfer.objectives.rows.base import (
    NUM_SPECIAL,
    Frame,
    JoinedDocuments,
    Row,
    RowPlan,
    Rows,
    check_not_empty,
    text_capacity,
    with_specials,
)
from lmtransfer.randomness import generator
from lmtransfer.tokenizers.base import Tokenizer


class LanguageStream(Rows):
    """Contiguous windows of ``max_length`` tokens, across sentences and documents ([SEP] after each document).

    All rows except the last have the same length, which is the fastest case on a CPU. The documents form a ring, which
    is cut at a random place in each epoch. The windows therefore differ between epochs, and each epoch contains each
    token once. The last row may be shorter.

    Args:
        max_length: number of tokens in a row, including special tokens.
        frame: special tokens around a window: "both" ([CLS] and [SEP]), "start" ([CLS]), or "none". With "none", the
            encoder never reads [CLS] in pretraining, and in transfer [CLS] starts as a copy of [SEP].
        contiguous: whether batches consist of parallel contiguous streams in the order of the text, so that an encoder
            can carry over its memory (Dai et al. 2019, section 3.2); this requires ``frame="none"``.
    """

    def __init__(
        self, *, max_length: Count, frame: Frame = "both", contiguous: bool = False, tokenizer: Tokenizer
    ) -> None:
        if contiguous and frame != "none":
            raise ConfigError(
                f"objective.rows.frame={frame} is not possible with objective.rows.contiguous=true, because "
                f"contiguous windows have no special tokens between them: use objective.rows.frame=none"
            )
        self.max_length, self.frame, self.contiguous = max_length, frame, contiguous
        self.capacity = text_capacity(max_length, num_special=NUM_SPECIAL[frame])
        self.cls_id, self.sep_id = tokenizer.cls_id, tokenizer.sep_id

    @override
    def plan(self, store: TokenStore, *, seed: int, epoch: int) -> LanguageStreamPlan:
        check_not_empty(store)
        return LanguageStreamPlan(self, store, seed=seed, epoch=epoch)

    @override
    def text(self, store: TokenStore) -> JoinedDocuments:
        return JoinedDocuments(store, separator_id=self.sep_id)


class LanguageStreamPlan(RowPlan):
    """One epoch of ``LanguageStream``; see ``RowPlan``."""

    def __init__(self, rows: LanguageStream, store: TokenStore, *, seed: int, epoch: int) -> None:
        self.capacity, self.frame, self.contiguous = rows.capacity, rows.frame, rows.contiguous
        self.special_ids = rows.cls_id, rows.sep_id
        self.text = rows.text(store)
        self.offset = int(generator(seed, "stream", epoch).integers(self.text.size))
        count = -(-self.text.size // rows.capacity)
        self.windows = np.arange(count)
        self.lengths = np.full(count, rows.max_length, dtype=np.int32)
        self.lengths[-1] -= count * rows.capacity - self.text.size

    def row(self, index: int) -> Row:
        """Read window ``index``, counted from the place where the ring is cut in this epoch."""
        text, (cls_id, sep_id) = self.text, self.special_ids
        start = int(self.windows[index]) * self.capacity
        size = min(self.capacity, text.size - start)
        start = (self.offset + start) % text.size
        tokens = with_specials(text.read(start, start + size), frame=self.frame, cls_id=cls_id, sep_id=sep_id)
        around = {}
        if self.contiguous:
            around = {"next_token": text.at(start + size), "previous_token": text.at(start - 1)}
        return Row(tokens, np.zeros(len(tokens), dtype=np.int8), text.token_range(start, start + size), around)

    @override
    def take(self, rows: np.ndarray) -> Self:
        return self.copy_without_text(lengths=self.lengths[rows], windows=self.windows[rows])


#: Number of sentences that are planned together, so that memory does not grow with the corpus; a row ends at the end of
#: such a block.
_BLOCK_SENTENCES = 1 << 20


class FullSentences(Rows):
    """``[CLS] sentences [SEP]``: as many complete sentences as fit (Liu et al. 2019, section 4.2).

    A sentence longer than a row is cut into pieces of the length of a row; other sentences follow the last piece. The
    rows are the same in every epoch.

    Args:
        cross_documents: whether a row continues into the next document, with a [SEP] between the documents (the paper's
            FULL-SENTENCES), or ends with its document (DOC-SENTENCES).
    """

    def __init__(self, *, max_length: Count, cross_documents: bool = True, tokenizer: Tokenizer) -> None:
        self.max_length, self.cross_documents = max_length, cross_documents
        self.capacity = text_capacity(max_length, num_special=2)
        self.cls_id, self.sep_id = tokenizer.cls_id, tokenizer.sep_id

    @override
    def plan(self, store: TokenStore, *, seed: int, epoch: int) -> FullSentencesPlan:
        """Plan the rows; they do not depend on ``seed`` and ``epoch``."""
        check_not_empty(store)
        return FullSentencesPlan(self, store)

    @override
    def text(self, store: TokenStore) -> JoinedDocuments:
        return JoinedDocuments(store, separator_id=self.sep_id)


class FullSentencesPlan(RowPlan):
    """One epoch of ``FullSentences``; see ``RowPlan``."""

    def __init__(self, rows: FullSentences, store: TokenStore) -> None:
        self.special_ids = rows.cls_id, rows.sep_id
        self.text = rows.text(store)
        starts, sizes = array("q"), array("i")
        blocks = np.arange(0, store.num_sentences, _BLOCK_SENTENCES)
        edges = np.unique(np.append(store.document_starts.searchsorted(blocks), store.num_documents))
        for first, last in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
            _plan_block(store, first, last, rows.capacity, rows.cross_documents, starts, sizes)
        self.starts = np.frombuffer(starts, dtype=np.int64)
        self.sizes = np.frombuffer(sizes, dtype=np.int32)
        self.lengths = self.sizes + np.int32(2)

    @override
    def row(self, index: int) -> Row:
        start, (cls_id, sep_id) = int(self.starts[index]), self.special_ids
        stop = start + int(self.sizes[index])
        tokens = with_specials(self.text.read(start, stop), frame="both", cls_id=cls_id, sep_id=sep_id)
        return Row(tokens, np.zeros(len(tokens), dtype=np.int8), self.text.token_range(start, stop))

    @override
    def take(self, rows: np.ndarray) -> Self:
        return self.copy_without_text(lengths=self.lengths[rows], starts=self.starts[rows], sizes=self.sizes[rows])


def _plan_block(
    store: TokenStore, first: int, last: int, capacity: int, cross_documents: bool, starts: array, sizes: array
) -> None:
    """Append the rows of the documents [first, last): their starts in ``JoinedDocuments``, and their token counts."""
    documents = store.document_starts[first : last + 1]
    sentences = store.sentence_starts[documents[0] : documents[-1] + 1]
    before = np.repeat(np.arange(first, last), np.diff(documents))  # number of separators before each sentence
    unit_starts, unit_sizes = sentences[:-1] + before, np.diff(sentences)
    pieces = -(-unit_sizes // capacity)
    first_pieces = np.append(0, np.cumsum(pieces))
    if len(unit_starts) < first_pieces[-1]:
        within = (np.arange(first_pieces[-1]) - np.repeat(first_pieces[:-1], pieces)) * capacity
        unit_starts = np.repeat(unit_starts, pieces) + within
        unit_sizes = np.minimum(np.repeat(unit_sizes, pieces) - within, capacity)
    begins, ends = unit_starts.data, (unit_starts + unit_sizes).data
    bounds = first_pieces[documents[1:] - documents[0]].tolist()
    unit = 0
    for bound in bounds[-1:] if cross_documents else bounds:
        while unit < bound:
            start = begins[unit]
            unit = bisect_right(ends, start + capacity, lo=unit, hi=bound)
            starts.append(start)
            sizes.append(ends[unit - 1] - start)
