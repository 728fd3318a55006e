"""Sequences as an encoder is to read them, with the places at which it is asked, packed within a token budget.

Shape legend: M places of a batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from lmtransfer.data.batch import PackedBatch, pack
from lmtransfer.errors import DataError
from lmtransfer.models.base import Encoder
from lmtransfer.objectives.rows.base import Rows
from lmtransfer.tokenizers.base import CharacterTokenizer, Encoding, Tokenizer

#: Batches are filled up to a multiple of this, as kernels are built anew for each shape that they meet.
_TOKENS_MULTIPLE = 32
_SHOWN_CHARACTERS = 60

#: What of a word is hidden with one of its tokens: nothing, or the tokens that follow it.
Hidden = Literal["token", "rest_of_word"]


@dataclass(frozen=True, slots=True)
class Query:
    """One sequence.

    Attributes:
        tokens: ids as the encoder reads them, marks included, int64, shape (n,).
        places: which of them are asked for, ascending, int64.
        ids: what stands there in the text, int64; empty where that is the question.
        owner: number of the text it is about.
        characters: character ids of each token, int16, shape (n, 50), where the tokenizer spells words.
    """

    tokens: np.ndarray
    places: np.ndarray
    ids: np.ndarray
    owner: int
    characters: np.ndarray | None = None


class Frame:
    """The marks that a model is used to seeing around a text, and how long a text may be.

    [SEP] comes after it, as after each document in training. Before it comes [CLS], or where training rows have none
    (``rows.frame=none``) the [SEP] of a document that has ended. Neither is asked for.

    Args:
        tokenizer: names the marks.
        encoder: says how much it reads.
        rows: how training rows were cut.
    """

    def __init__(self, *, tokenizer: Tokenizer, encoder: Encoder, rows: Rows) -> None:
        begins_bare = rows.frame == "none"
        self.begin_id = tokenizer.sep_id if begins_bare else tokenizer.cls_id
        self.end_id = tokenizer.sep_id
        self.max_length = encoder.max_length
        self._spelt = tokenizer.characters if isinstance(tokenizer, CharacterTokenizer) else None

    def around(self, ids: np.ndarray, *, text: str) -> np.ndarray:
        """The ids with their marks, int64, shape (n + 2,).

        Raises:
            DataError: they are more than the encoder reads; the text is named by its beginning.
        """
        if len(ids) + 2 > self.max_length:
            shown = text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "..."
            raise DataError(
                f"{shown!r}: {len(ids) + 2} tokens with its marks, and the model reads {self.max_length} "
                f"(model.max_length): shorten the text"
            )
        return np.concatenate([[self.begin_id], ids, [self.end_id]]).astype(np.int64)

    def spelling(self, encoding: Encoding) -> np.ndarray | None:
        """The characters of an encoded text with its marks, (n + 2, 50), where the tokenizer spells words."""
        if self._spelt is None or encoding.characters is None:
            return None
        return np.concatenate([self._spelt[[self.begin_id]], encoding.characters, self._spelt[[self.end_id]]])


def sentence_queries(
    tokens: np.ndarray, word_starts: np.ndarray, *, owner: int, mask_id: int, hidden: Hidden
) -> Iterator[Query]:
    """One query for each token between the marks, in which that token is hidden.

    Args:
        tokens: ids with marks, int64, shape (n + 2,).
        word_starts: where words begin, bool, shape (n,).
        owner: number of the text.
        mask_id: what hides a token.
        hidden: what else of its word is hidden.
    """
    ends = np.append(np.flatnonzero(word_starts), len(word_starts)) + 1
    for place in range(1, len(tokens) - 1):
        stop = place + 1 if hidden == "token" else int(ends[np.searchsorted(ends, place, side="right")])
        seen = tokens.copy()
        seen[place:stop] = mask_id
        yield Query(seen, np.array([place]), tokens[[place]], owner)


def in_batches(queries: Iterable[Query], *, batch_tokens: int) -> Iterator[list[Query]]:
    """Queries in order, as many together as have ``batch_tokens`` tokens, one at least."""
    batch: list[Query] = []
    size = 0
    for query in queries:
        if batch and size + len(query.tokens) > batch_tokens:
            yield batch
            batch, size = [], 0
        batch.append(query)
        size += len(query.tokens)
    if batch:
        yield batch


def pack_queries(queries: Sequence[Query]) -> tuple[PackedBatch, np.ndarray]:
    """The sequences end to end with filler behind them, and where in all of them the places are, int64 (M,)."""
    lengths = [len(query.tokens) for query in queries]
    size = sum(lengths)
    capacity = size + -size % _TOKENS_MULTIPLE
    packed = pack([query.tokens for query in queries], capacity=capacity, max_length=max(lengths))
    spelt = [query.characters for query in queries if query.characters is not None]
    if spelt:
        characters = np.concatenate([*spelt, np.repeat(spelt[0][:1], capacity - size, axis=0)])
        packed = packed.with_tokens(packed.tokens_T, torch.from_numpy(characters))
    starts = np.cumsum([0, *lengths[:-1]])
    places = [start + query.places for start, query in zip(starts, queries, strict=True)]
    return packed, np.concatenate(places)
