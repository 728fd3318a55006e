"""Examples as token ids: [CLS] text [SEP], or [CLS] a [SEP] b [SEP], in flat arrays.

Shape legend: N examples, T tokens of all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lmtransfer.tokenizers.base import CharacterTokenizer, Tokenizer
from lmtransfer.tokenizers.characters import spell

#: The label of an example whose gold label is hidden.
NO_LABEL = -1


@dataclass(frozen=True, slots=True)
class Spelling:
    """How the words of examples are spelt, words outside the vocabulary included; four bytes a token.

    Attributes:
        table: character ids, those of the vocabulary first and then each other word's once, int16, shape (W, 50).
        rows_T: row of the table of each token, int32.
    """

    table: np.ndarray
    rows_T: np.ndarray


@dataclass(frozen=True, slots=True)
class EncodedExamples:
    """Examples ready to be packed; five bytes a token, nine where words are spelt.

    Attributes:
        ids: the examples' names, N of them.
        tokens_T: token ids of all examples end to end, int32.
        segments_T: segment ids, int8.
        offsets: example i is ``tokens_T[offsets[i]:offsets[i + 1]]``, int64, shape (N + 1,).
        labels: label indices, int64, shape (N,); -1 where hidden.
        num_truncated: how many examples lost tokens to ``max_length``.
        spelling: of the same tokens, where the tokenizer spells words.
    """

    ids: tuple[str, ...]
    tokens_T: np.ndarray
    segments_T: np.ndarray
    offsets: np.ndarray
    labels: np.ndarray
    num_truncated: int
    spelling: Spelling | None = None

    def __len__(self) -> int:
        """N."""
        return len(self.ids)

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each example, specials included, int64, shape (N,)."""
        return np.diff(self.offsets)

    def select(self, indices: np.ndarray) -> EncodedExamples:
        """The examples at ``indices``, in that order (``num_truncated`` stays that of the whole).

        Args:
            indices: example numbers, int64.
        """
        lengths = self.lengths[indices]
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        where = np.repeat(self.offsets[indices] - offsets[:-1], lengths) + np.arange(offsets[-1])
        return EncodedExamples(
            ids=tuple(self.ids[i] for i in indices),
            tokens_T=self.tokens_T[where],
            segments_T=self.segments_T[where],
            offsets=offsets,
            labels=self.labels[indices],
            num_truncated=self.num_truncated,
            spelling=None if self.spelling is None else Spelling(self.spelling.table, self.spelling.rows_T[where]),
        )


def encode_texts(
    ids: Sequence[str],
    texts: Sequence[str],
    text_pairs: Sequence[str] | None,
    labels: Sequence[int | None],
    tokenizer: Tokenizer,
    *,
    max_length: int,
    num_segments: int,
) -> EncodedExamples:
    """Encode single texts or pairs as BERT does (Devlin et al. 2019, section 3).

    Too long a pair loses tokens from the end of whichever text is longer at the time, the second on a tie; an
    encoder that tells no segments apart gets 0 for both texts.

    Args:
        ids: N names.
        texts: N texts, the first of each pair.
        text_pairs: N second texts, or None for single texts.
        labels: N label indices, None where hidden.
        tokenizer: gives the ids.
        max_length: longest input in tokens, specials included.
        num_segments: how many segment ids the encoder tells apart.

    Raises:
        ValueError: ``max_length`` leaves no room for text.
    """
    num_specials = 2 if text_pairs is None else 3
    if max_length <= num_specials:
        raise ValueError(f"max_length={max_length} leaves no room beside {num_specials} special tokens")
    room = max_length - num_specials
    firsts = tokenizer.encode_ids(texts)
    seconds = [None] * len(firsts) if text_pairs is None else tokenizer.encode_ids(text_pairs)
    cls, sep = np.array([tokenizer.cls_id], np.int32), np.array([tokenizer.sep_id], np.int32)
    pieces: list[np.ndarray] = []
    segments: list[np.ndarray] = []
    lengths = np.zeros(len(firsts), dtype=np.int64)
    num_truncated = 0
    for i, (first, second) in enumerate(zip(firsts, seconds, strict=True)):
        keep_first, keep_second = longest_first(len(first), 0 if second is None else len(second), room)
        num_truncated += keep_first < len(first) or (second is not None and keep_second < len(second))
        pieces += [cls, first[:keep_first], sep]
        lengths[i] = keep_first + 2
        segments.append(np.zeros(keep_first + 2, dtype=np.int8))
        if second is not None:
            pieces += [second[:keep_second], sep]
            lengths[i] += keep_second + 1
            segments.append(np.full(keep_second + 1, min(1, num_segments - 1), dtype=np.int8))
    tokens_T = np.concatenate(pieces).astype(np.int32, copy=False) if pieces else np.zeros(0, np.int32)
    spelling = None
    if isinstance(tokenizer, CharacterTokenizer):
        sides = [texts] if text_pairs is None else [texts, text_pairs]
        spelling = _spelling(tokenizer, tokens_T, [text for example in zip(*sides, strict=True) for text in example])
    return EncodedExamples(
        ids=tuple(ids),
        tokens_T=tokens_T,
        segments_T=np.concatenate(segments) if segments else np.zeros(0, np.int8),
        offsets=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        labels=np.array([NO_LABEL if label is None else label for label in labels], dtype=np.int64),
        num_truncated=num_truncated,
        spelling=spelling,
    )


def _spelling(tokenizer: CharacterTokenizer, tokens_T: np.ndarray, texts: Sequence[str]) -> Spelling:
    """The spelling of the tokens of ``texts``, of each of which there is a beginning and then [SEP]."""
    rows_T = tokens_T.copy()
    added: dict[str, int] = {}
    edges = np.append(0, np.flatnonzero(tokens_T == tokenizer.sep_id) + 1)
    for text, start, stop in zip(texts, edges[:-1], edges[1:], strict=True):
        unknown = start + np.flatnonzero(tokens_T[start:stop] == tokenizer.unk_id)
        if len(unknown):
            words = tokenizer.unknown_words(text)[: len(unknown)]
            rows_T[unknown] = [added.setdefault(word, tokenizer.vocab_size + len(added)) for word in words]
    return Spelling(np.concatenate([tokenizer.characters, spell(list(added))]), rows_T)


def longest_first(first: int, second: int, room: int) -> tuple[int, int]:
    """How many tokens two texts keep when one token at a time is cut from the longer (the second on a tie).

    Args:
        first: tokens of the first text.
        second: tokens of the second text.
        room: tokens that fit in all.
    """
    if first + second <= room:
        return first, second
    half = (room + 1) // 2
    if second <= room - half:
        return room - second, second
    if first <= half:
        return first, room - first
    return half, room - half
