"""A tokenizer of whole words: frequent words have an id, and all words have characters.

Words are sequences of letters, digits, underscores and the marks on them (accents, vowel signs); any other visible
character is a separate word. Ids 0 to 3 are ``[UNK]``, ``[CLS]``, ``[SEP]`` and ``[MASK]``; text is never encoded as
one of the last three. The other ids are sorted by frequency.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, partial
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import numpy as np
from typing_extensions import override

from lmtransfer.errors import CheckpointError
from lmtransfer.tokenizers.base import SPECIALS, CharacterTokenizer, Encoding, padded_size, read_model, special_flags

MAX_CHARACTERS: Final = 50
_SENTENCE_BEGIN, _SENTENCE_END, _WORD_BEGIN, _WORD_END, _FILLING = 257, 258, 259, 260, 261


def character_ids(words: Sequence[str]) -> np.ndarray:
    """Return the character ids of words, int16, shape (n, 50)."""
    return _rows([byte + 1 for byte in word.encode("utf-8", "replace")] for word in words)


def boundary_character_ids() -> np.ndarray:
    """Return the character ids of the marks for the beginning and end of a sentence, int16, shape (2, 50)."""
    return _rows([[_SENTENCE_BEGIN], [_SENTENCE_END]])


def _rows(words: Iterable[Sequence[int]]) -> np.ndarray:
    rows = [[_WORD_BEGIN, *word[: MAX_CHARACTERS - 2], _WORD_END] for word in words]
    ids = np.full((len(rows), MAX_CHARACTERS), _FILLING, dtype=np.int16)
    for row, characters in zip(ids, rows, strict=True):
        row[: len(characters)] = characters
    return ids


_VERSION = 2  # increase it when the same words would give other ids or characters
_ASCII_WORD = re.compile(r"\w+|[^\w\s]")


class WordTokenizer(CharacterTokenizer):
    """A tokenizer with a vocabulary of whole words.

    In ``characters``, ``[CLS]`` and ``[SEP]`` are ELMo's marks for the beginning and end of a sentence. The other
    special tokens have the characters of their names.

    Args:
        words: the vocabulary without its special tokens, the most frequent word first.
    """

    kind = "words"
    model_file = "words.txt"

    def __init__(self, words: Sequence[str], *, lowercase: bool, training: Mapping[str, Any] | None = None) -> None:
        self.words, self.lowercase = tuple(words), lowercase
        self.training: dict[str, Any] = dict(training or {})
        self._ids = {word: i for i, word in enumerate(self.words, start=len(SPECIALS))}
        if len(self._ids) < len(self.words) or any(word.split() != [word] for word in self.words):
            raise CheckpointError(
                "the vocabulary of words is damaged: an entry is repeated or is not a single word; copy it again"
            )
        self.num_pieces = len(SPECIALS) + len(self.words)
        self.vocab_size = padded_size(self.num_pieces)
        self.is_special = special_flags(self.num_pieces, self.vocab_size)
        self.starts_word = np.ones(self.vocab_size, dtype=bool)
        described = b"%s %d %d " % (self.kind.encode(), _VERSION, lowercase)
        self.fingerprint: str = sha256(described + self.model_bytes()).hexdigest()
        unused = [self.piece(i) for i in range(self.num_pieces, self.vocab_size)]
        self.characters: np.ndarray = character_ids([*SPECIALS, *self.words, *unused])
        self.characters[[self.cls_id, self.sep_id]] = boundary_character_ids()

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), lowercase=self.lowercase, training=self.training), (self.words,)

    @classmethod
    def load(cls, folder: Path) -> WordTokenizer:
        """Load a tokenizer written by ``save``."""
        model, description = read_model(folder, cls.model_file)
        words = model.decode("utf-8", "replace").split("\n")[:-1]
        return cls(words, lowercase=bool(description.get("lowercase")), training=description.get("training"))

    def encode(self, text: str) -> Encoding:
        """Encode one text, with offsets and with the characters of all words, including unknown ones."""
        spans = [match.span() for match in _word(text).finditer(text)]
        words = [self._fold(text[start:end]) for start, end in spans]
        return Encoding(
            ids=self._ids_of(words),
            offsets=np.array(spans, dtype=np.int32).reshape(-1, 2),
            word_starts=np.ones(len(words), dtype=bool),
            characters=character_ids(words),
        )

    @override
    def encode_ids(self, texts: Sequence[str]) -> list[np.ndarray]:
        return [self._ids_of([self._fold(word) for word in _word(text).findall(text)]) for text in texts]

    @override
    def unknown_words(self, text: str) -> list[str]:
        return [word for part in _word(text).findall(text) if (word := self._fold(part)) not in self._ids]

    def decode(self, ids: Sequence[int]) -> str:
        """Decode ids to words with one space between them; special tokens are written in brackets."""
        return " ".join(self.piece(int(token_id)) for token_id in ids)

    @override
    def _piece(self, token_id: int) -> str:
        return SPECIALS[token_id] if token_id < len(SPECIALS) else self.words[token_id - len(SPECIALS)]

    @override
    def _details(self) -> dict[str, Any]:
        return {"lowercase": self.lowercase, **super()._details()}

    def _ids_of(self, words: Sequence[str]) -> np.ndarray:
        ids = self._ids
        return np.fromiter((ids.get(word, self.unk_id) for word in words), dtype=np.int32, count=len(words))

    def _fold(self, word: str) -> str:
        return word.lower() if self.lowercase else word

    @property
    @override
    def unknown_advice(self) -> str:
        return "increase tokenizer.vocab_size, decrease tokenizer.min_frequency, or use a tokenizer with subwords"

    @override
    def model_bytes(self) -> bytes:
        return "".join(f"{word}\n" for word in self.words).encode("utf-8", "replace")


def _word(text: str) -> re.Pattern[str]:
    """Return the pattern that matches the words of a text; the pattern for ASCII is much faster."""
    return _ASCII_WORD if text.isascii() else _marked_word()


@cache
def _marked_word() -> re.Pattern[str]:
    marks = "".join(filter(lambda mark: unicodedata.category(mark)[0] == "M", map(chr, range(0x300, 0x20000))))
    return re.compile(rf"\w[\w{marks}]*|[^\w\s]")


def split_words(text: str, *, lowercase: bool) -> list[str]:
    """Split a text into words as ``WordTokenizer`` does."""
    return [word.lower() if lowercase else word for word in _word(text).findall(text)]
