"""Rows of complete sentences (RoBERTa)."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from typing import Self

import numpy as np
from typing_extensions import override

from lmtransfer.config.types import Count
from lmtransfer.data.store.store import TokenStore
from lmtransfer.objectives.rows.base import (
    JoinedDocuments,
    Row,
    RowPlan,
    Rows,
    check_not_empty,
    text_capacity,
    with_specials,
)
from lmtransfer.tokenizers.base import Tokenizer

#: Number of sentences planned at a time, so that memory does not grow with the corpus; a row ends at the end of such a
#: block.
_BLOCK_SENTENCES = 1 << 20


class FullSentences(Rows):
    """``[CLS] sentences [SEP]``: as many complete sentences as fit (Liu et al. 2019, section 4.2).

    With ``cross_documents``, these are the paper's FULL-SENTENCES: a row continues into the next document, with a [SEP]
    between the documents. Without it, they are DOC-SENTENCES: a row ends at the end of its document. A sentence longer
    than a row is cut into pieces of the row's length; other sentences follow the last piece. The rows are the same in
    every epoch.

    Args:
        max_length: maximum row length in tokens, including special tokens.
        cross_documents: whether a row may contain text from several documents.
        tokenizer: defines the special tokens.

    Raises:
        ConfigError: ``max_length`` leaves less text than special tokens.
    """

    def __init__(self, *, max_length: Count, cross_documents: bool = True, tokenizer: Tokenizer) -> None:
        self.max_length, self.cross_documents = max_length, cross_documents
        self.capacity = text_capacity(max_length, num_special=2)
        self.cls_id, self.sep_id = tokenizer.cls_id, tokenizer.sep_id

    @override
    def plan(self, store: TokenStore, *, seed: int, epoch: int) -> FullSentencesPlan:
        """Plan the rows, which do not depend on ``seed`` and ``epoch``."""
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
    """Append the rows of documents [first, last): their starts in ``JoinedDocuments`` and their token counts."""
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
