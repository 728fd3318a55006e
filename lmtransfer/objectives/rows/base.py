"""The interface for cutting training rows from documents, and a view of the documents as one text."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, Self

import numpy as np

from lmtransfer.data.token_shards import TokenStore
from lmtransfer.errors import ConfigError, DataError

#: The special tokens around the text of a row: ``[CLS] text [SEP]``, ``[CLS] text``, or text only.
Frame = Literal["both", "start", "none"]

NUM_SPECIAL: dict[Frame, int] = {"both": 2, "start": 1, "none": 0}


@dataclass(frozen=True, slots=True)
class Row:
    """One sequence as an encoder reads it, including special tokens.

    Attributes:
        tokens: token ids, int32, shape (n,).
        segments: 0 for the first text, 1 for the second, int8, shape (n,).
        key: the tokens of the corpus in the row, for error messages, such as ``tokens 128:190``.
        labels: labels of the whole row by objective, such as ``{"nsp": 1}``.
    """

    tokens: np.ndarray
    segments: np.ndarray
    key: str
    labels: Mapping[str, int] = field(default_factory=dict)


class RowPlan(ABC):
    """The positions in the corpus of all rows of one epoch; the rows themselves are read on request.

    Attributes:
        lengths: number of tokens in each row.
        text: the source from which rows are read, as returned by ``Rows.text``; None in a plan from ``take``.
    """

    lengths: np.ndarray
    text: Any

    @abstractmethod
    def row(self, index: int) -> Row:
        """Read the row with index ``index``."""

    @abstractmethod
    def take(self, rows: np.ndarray) -> Self:
        """Return a plan of only these rows, indexed from 0; without the text, it can be sent to another process."""

    def copy_without_text(self, **changes: Any) -> Self:
        """Return a copy without the text and with changed attributes."""
        other = copy(self)
        for name, value in {"text": None, **changes}.items():
            setattr(other, name, value)
        return other


class Rows(ABC):
    """Cuts rows from documents.

    Attributes:
        max_length: maximum row length in tokens, including special tokens.
        label_names: the labels of each row, and the meaning of their values 0, 1, ...
        contiguous: whether row k + 1 continues row k. Batches then keep this order, so that an encoder can carry over
            its recurrent state, and rows have the labels "next_token" and "previous_token": the ids just outside the
            row.
    """

    max_length: int
    frame: Frame = "both"
    num_segments: int = 1
    label_names: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    contiguous: bool = False

    def text(self, store: TokenStore) -> Any:
        """Return the source from which plans read rows: the store itself, or a view of the store."""
        return store

    @abstractmethod
    def plan(self, store: TokenStore, *, seed: int, epoch: int) -> RowPlan:
        """Plan the rows of one epoch, as a pure function of the settings, the store, ``seed`` and ``epoch``."""


def text_capacity(max_length: int, *, num_special: int) -> int:
    """Return the maximum number of text tokens in a row with ``num_special`` special tokens."""
    least = 2 * max(num_special, 1)
    if max_length < least:
        raise ConfigError(
            f"objective.max_length={max_length} is too short, because each row has {num_special} special tokens: use "
            f"{least} or more"
        )
    return max_length - num_special


def with_specials(text: np.ndarray, *, frame: Frame, cls_id: int, sep_id: int) -> np.ndarray:
    """Add the special tokens of a frame to ``text``, int32, shape (len(text) + NUM_SPECIAL[frame],)."""
    if frame == "none":
        return text
    row = np.empty(len(text) + NUM_SPECIAL[frame], dtype=np.int32)
    row[0] = cls_id
    row[1 : 1 + len(text)] = text
    if frame == "both":
        row[-1] = sep_id
    return row


def check_not_empty(store: TokenStore) -> None:
    """Reject a store without text."""
    if store.num_tokens == 0:
        raise DataError(
            "the training or validation part of the corpus contains no text: check corpus.* and "
            "corpus.validation_fraction"
        )


class JoinedDocuments:
    """All documents, each followed by a separator, as a ring: the first document follows the last separator.

    A place is the index of a token or a separator in the ring. The text itself stays on disk.

    Attributes:
        size: number of places in the ring: tokens and separators.
        ends: place after the separator of each document, int64, shape (num_documents,).
    """

    def __init__(self, store: TokenStore, *, separator_id: int) -> None:
        self._store, self._separator_id = store, separator_id
        token_ends = store.sentence_starts[store.document_starts[1:]]
        self.ends = token_ends + np.arange(1, store.num_documents + 1, dtype=np.int64)
        self.size = store.num_tokens + store.num_documents

    def read(self, start: int, stop: int) -> np.ndarray:
        """Return the token ids at the places [start, stop), int32; the places may continue past the end of the ring."""
        if stop > self.size:
            return np.concatenate([self.read(start, self.size), self.read(0, stop - self.size)])
        first, last = self.ends.searchsorted((start, stop), side="right").tolist()
        text = self._store.tokens(start - first, stop - last)
        if first == last:
            return text
        separators = self.ends[first:last] - 1 - start
        is_text = np.ones(stop - start, dtype=bool)
        is_text[separators] = False
        row = np.full(stop - start, self._separator_id, dtype=np.int32)
        row[is_text] = text
        return row

    def at(self, place: int) -> int:
        """Return the token id at a place, modulo the size of the ring."""
        place %= self.size
        return int(self.read(place, place + 1)[0])

    def token_range(self, start: int, stop: int) -> str:
        """Describe the places [start, stop) by their range of tokens in the store, for messages."""
        stop = stop if stop <= self.size else stop - self.size
        first, last = self.ends.searchsorted((start, stop), side="right").tolist()
        return f"tokens {start - first}:{stop - last}"
