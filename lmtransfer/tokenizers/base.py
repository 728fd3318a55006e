"""What every tokenizer promises.

A tokenizer turns text into ids **with character offsets**, knows its special ids and where words start, and can be
saved inside every run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np


@dataclass(frozen=True, slots=True)
class Encoding:
    """One text as tokens, without any special token added.

    Attributes:
        ids: token ids, int32, shape (n,).
        offsets: character span [start, end) of each token in the original text, int32, shape (n, 2); monotone, and
            together they cover every character but white space. A span may be empty where normalisation made one
            character into several tokens.
        word_starts: True where a token begins a word, bool, shape (n,).
        characters: character ids of each token as it is spelt, int16, shape (n, 50), where tokens are whole words and
            the tokenizer spells them.
    """

    ids: np.ndarray
    offsets: np.ndarray
    word_starts: np.ndarray
    characters: np.ndarray | None = None


@runtime_checkable
class Tokenizer(Protocol):
    """Text to ids and back.

    A text that begins with a space goes on with another. Only vocabularies that tell a text's first word from others
    (GPT-2's and RoBERTa's) make a difference of it.

    Attributes:
        vocab_size: rows an embedding needs: the pieces, rounded up to a multiple of 64.
        num_pieces: pieces that occur, specials included; ids from here to ``vocab_size`` are unused padding.
        cls_id, sep_id, mask_id, unk_id: the special tokens.
        is_special: bool per id, shape (vocab_size,): specials and unused ids, which no corruption may touch or draw.
        starts_word: bool per id, shape (vocab_size,): whether the piece begins a word.
        fingerprint: hex digest of everything that decides how text becomes ids; part of cache keys.
    """

    vocab_size: int
    num_pieces: int
    cls_id: int
    sep_id: int
    mask_id: int
    unk_id: int
    is_special: np.ndarray
    starts_word: np.ndarray
    fingerprint: str

    def encode(self, text: str) -> Encoding:
        """One text, with offsets."""
        ...

    def encode_ids(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Many texts, ids only (int32): the fast path for corpora."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Text for ids (specials are written in brackets)."""
        ...

    def piece(self, token_id: int) -> str:
        """The piece of one id, as people read it."""
        ...

    def save(self, folder: Path) -> None:
        """Write everything needed to load it again into ``folder`` (made if missing)."""
        ...


@runtime_checkable
class CharacterTokenizer(Tokenizer, Protocol):
    """A tokenizer of whole words that spells them for models that read characters.

    Attributes:
        characters: character ids of each id (see ``tokenizers.characters``), int16, shape (vocab_size, 50).
    """

    characters: np.ndarray

    def unknown_words(self, text: str) -> list[str]:
        """The words of a text that are ``[UNK]`` in ``encode_ids``, in their order."""
        ...


def characters_of(tokenizer: Tokenizer) -> np.ndarray | None:
    """Character ids of each id, int16, shape (vocab_size, 50), or None where the tokenizer spells no words."""
    return tokenizer.characters if isinstance(tokenizer, CharacterTokenizer) else None
