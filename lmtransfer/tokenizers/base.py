"""The interface of tokenizers.

A tokenizer turns text into ids **with character offsets**, knows its special ids and where words start, and is saved in
every run.
"""

from __future__ import annotations

import re
import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np

from lmtransfer.tokenizers.model_files import SPECIALS, write_model


@dataclass(frozen=True, slots=True)
class Encoding:
    """One text as tokens, without added special tokens.

    Attributes:
        offsets: character span [start, end) of each token in the original text, int32, shape (n, 2). The spans are
            monotone and together cover every character except white space. A span may be empty if normalization turned
            one character into several tokens.
        characters: character ids of each token, int16, shape (n, 50), if tokens are whole words and the tokenizer
            provides characters; else None.
    """

    ids: np.ndarray  #: token ids, int32, shape (n,)
    offsets: np.ndarray
    word_starts: np.ndarray  #: True if a token begins a word, bool, shape (n,)
    characters: np.ndarray | None = None


class Tokenizer(ABC):
    """A converter of text to ids and back.

    A text with a leading space is the continuation of another text. This matters only for vocabularies in which the
    first word of a text has other ids (GPT-2 and RoBERTa).

    Attributes:
        kind: name of the kind in ``tokenizer.json``.
        model_file: name of the model file next to ``tokenizer.json``.
        vocab_size: rows of the embedding: the number of pieces, rounded up to a multiple of 64 if trained here.
        num_pieces: number of pieces, including special tokens; ids from here to ``vocab_size`` are unused padding.
        cls_id, sep_id, mask_id, unk_id: ids of the special tokens; 0 to 3 in vocabularies trained here.
        pad_id: id of the pad token of a published vocabulary; None if it has none.
        missing_roles: the roles among cls, sep, mask and unk without a separate token.
        is_special: bool per id, shape (vocab_size,): special and unused ids; no corruption changes or samples them.
        starts_word: bool per id, shape (vocab_size,): whether the piece begins a word.
        fingerprint: hex digest of everything that determines how text becomes ids; part of cache keys.
        training: information on its training or origin; not part of the fingerprint.
        splits_chinese: whether each Chinese character is a separate word, as in BERT.
        keeps_marks: whether a tokenizer that drops accents keeps the marks of scripts without case.
    """

    kind: ClassVar[str]
    model_file: ClassVar[str]

    vocab_size: int
    num_pieces: int
    unk_id: int = 0
    cls_id: int = 1
    sep_id: int = 2
    mask_id: int = 3
    pad_id: int | None = None
    missing_roles: tuple[str, ...] = ()
    is_special: np.ndarray
    starts_word: np.ndarray
    fingerprint: str
    training: Mapping[str, Any] = MappingProxyType({})
    splits_chinese: bool = False
    keeps_marks: bool = False

    @abstractmethod
    def encode(self, text: str) -> Encoding:
        """Encode one text, with offsets."""

    @abstractmethod
    def encode_ids(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Encode many texts, ids only (int32)."""

    def encode_flat(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Encode many texts; return all ids as one int32 array, and the number of ids of each text, int64.

        This is the fastest way to encode a corpus.
        """
        encoded = self.encode_ids(texts)
        lengths = np.fromiter(map(len, encoded), np.int64, len(encoded))
        return np.concatenate([np.zeros(0, np.int32), *encoded]), lengths

    @abstractmethod
    def decode(self, ids: Sequence[int]) -> str:
        """Decode ids to text; special tokens are written in brackets."""

    def _decode_runs(
        self, ids: Sequence[int], *, is_text: Callable[[int], bool], decode: Callable[[list[int]], str]
    ) -> str:
        """Decode each run of ids of ordinary text at once, and write every other id as its piece."""
        parts: list[str] = []
        for is_run, group in groupby(map(int, ids), key=is_text):
            run = list(group)
            parts += [decode(run)] if is_run else map(self.piece, run)
        return " ".join(parts)

    def piece(self, token_id: int) -> str:
        """Return the piece of an id for display, ``[unused9]`` for padding of the vocabulary."""
        if not 0 <= token_id < self.vocab_size:
            raise ValueError(f"token id {token_id} is outside a vocabulary of {self.vocab_size}")
        return self._piece(int(token_id)) if token_id < self.num_pieces else f"[unused{token_id}]"

    @abstractmethod
    def _piece(self, token_id: int) -> str:
        """Return the piece of an id below ``num_pieces``."""

    def save(self, folder: Path) -> None:
        """Write ``model_file`` and ``tokenizer.json`` to ``folder`` (created if missing)."""
        description = {
            "kind": self.kind,
            "fingerprint": self.fingerprint,
            "num_pieces": self.num_pieces,
            "vocab_size": self.vocab_size,
            **self._details(),
        }
        write_model(folder, self.model_file, self.model_bytes(), description)

    def _details(self) -> dict[str, Any]:
        """Return the entries of ``tokenizer.json`` that are specific to the kind."""
        return {"training": dict(self.training)}

    @abstractmethod
    def model_bytes(self) -> bytes:
        """Return the content of ``model_file``."""

    @property
    def unknown_advice(self) -> str:
        """Advice for a text with many ``[UNK]`` tokens, in terms of this kind of tokenizer's settings."""
        return "the text has characters that this vocabulary lacks: use another vocabulary"

    @property
    def is_exact(self) -> bool:
        """Whether the number of embedding rows is that of a published model, without rounding up."""
        return False


class CharacterTokenizer(Tokenizer):
    """A tokenizer of whole words that provides the characters of each word, for models that read characters.

    Attributes:
        characters: character ids of each id (see ``tokenizers.words``), int16, shape (vocab_size, 50).
    """

    characters: np.ndarray

    @abstractmethod
    def unknown_words(self, text: str) -> list[str]:
        """Return the words of a text that are ``[UNK]`` in ``encode_ids``, in order."""


def characters_of(tokenizer: Tokenizer) -> np.ndarray | None:
    """Return the character ids of each id, int16, shape (vocab_size, 50), or None if the tokenizer provides none."""
    return tokenizer.characters if isinstance(tokenizer, CharacterTokenizer) else None


def split_flat(ids: np.ndarray, lengths: np.ndarray) -> list[np.ndarray]:
    """Split the ids of ``encode_flat`` into those of each text; the arrays are views."""
    ends = np.cumsum(lengths).tolist()
    return [ids[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def special_flags(num_pieces: int, vocab_size: int) -> np.ndarray:
    """Return ``Tokenizer.is_special`` for a vocabulary that begins with the four special tokens."""
    flags = np.ones(vocab_size, dtype=bool)
    flags[len(SPECIALS) : num_pieces] = False
    return flags


_SURROGATES = re.compile("[\ud800-\udfff]")


def replace_surrogates(text: str) -> str:
    """Replace lone surrogates, which have no UTF-8 form, with U+FFFD; character offsets do not change."""
    return text if text.isascii() else _SURROGATES.sub("\ufffd", text)


def trim_spans(text: str, spans: Sequence[tuple[int, int]], *, is_blank: Callable[[str], bool]) -> np.ndarray:
    """Remove white space from the beginning and end of spans; int32, shape (n, 2).

    A span with only white space becomes empty, at its end: the position where the next word begins.
    """
    trimmed = []
    for start, end in spans:
        while start < end and is_blank(text[start]):
            start += 1
        while start < end and is_blank(text[end - 1]):
            end -= 1
        trimmed.append((start, end))
    return np.array(trimmed, dtype=np.int32).reshape(-1, 2)


def extend_spans(text: str, spans: np.ndarray, *, is_blank: Callable[[str], bool]) -> np.ndarray:
    """Make spans monotone and extend them over visible characters next to a token; int32, shape (n, 2).

    Normalization drops accents and merges characters, so some characters between two tokens may be in no span. They
    are added to the token before them, or, if they follow white space, to the token after them.
    """
    spans = np.maximum.accumulate(spans, axis=0)
    covered_to = 0
    for i in range(len(spans)):
        start = int(spans[i, 0])
        if covered_to < start:
            stop = covered_to
            while i and stop < start and _is_visible(text[stop], is_blank):
                stop += 1
            while start > stop and _is_visible(text[start - 1], is_blank):
                start -= 1
            if i:
                spans[i - 1, 1] = max(spans[i - 1, 1], stop)
            if spans[i, 0] < spans[i, 1]:
                spans[i, 0] = start
        covered_to = max(covered_to, int(spans[i, 1]))
    while len(spans) and covered_to < len(text) and _is_visible(text[covered_to], is_blank):
        covered_to += 1
        spans[-1, 1] = covered_to
    return np.maximum.accumulate(spans, axis=0)


def _is_visible(character: str, is_blank: Callable[[str], bool]) -> bool:
    if character.isalnum():
        return True
    category = unicodedata.category(character)
    return category == "Mn" or (category[0] not in "CZ" and not is_blank(character))
