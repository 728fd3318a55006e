"""A byte-level BPE tokenizer, as in GPT-2 and RoBERTa.

Radford et al., "Language models are unsupervised multitask learners", 2019, section 2.2. All 256 bytes are pieces, so
no text is unknown. Ids 0 to 3 are ``[UNK]``, ``[CLS]``, ``[SEP]`` and ``[MASK]``; text is never encoded as them.

Words are separated by white space; a word starts at a piece that begins with a space. Where we differ from GPT-2: the
first word of a text gets a space too, and any white space becomes one space, so that the id alone shows whether a token
begins a word.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import numpy as np
import tokenizers
from tokenizers import models, normalizers, pre_tokenizers
from typing_extensions import override

from lmtransfer.errors import CheckpointError
from lmtransfer.tokenizers.base import (
    SPECIALS,
    Encoding,
    Tokenizer,
    padded_size,
    read_model,
    replace_surrogates,
    special_flags,
    split_flat,
)
from lmtransfer.tokenizers.word_memo import WordMemo, part_memo

#: Displayed instead of the space at the beginning of a word.
META: Final = "\u2581"

_VERSION = 1  # increase it when the same model would give other ids or word starts
_SURROGATES = re.compile("[\ud800-\udfff]")
#: GPT-2's division of printable ASCII text into parts.
_ASCII_PARTS = re.compile(r"'s|'t|'re|'ve|'m|'ll|'d| ?[A-Za-z]+| ?[0-9]+| ?[^ A-Za-z0-9]+| +(?![^ ])| +")


class ByteBpeTokenizer(Tokenizer):
    """A byte-level tokenizer, which the ``tokenizers`` library runs."""

    kind = "byte_bpe"
    model_file = "byte_bpe.json"

    def __init__(self, model: bytes, training: Mapping[str, Any] | None = None) -> None:
        self._model = model
        self.training: dict[str, Any] = dict(training or {})
        # Otherwise the library starts one thread per core in each worker process that prepares corpora.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        try:
            described = json.loads(model)
            vocabulary: dict[str, int] = described["model"]["vocab"]
            if described["pre_tokenizer"]["type"] != "ByteLevel" or described["added_tokens"]:
                raise ValueError("it is not byte-level, or has added tokens")
            self._library = tokenizers.Tokenizer.from_buffer(model)
        except Exception as error:  # the library raises plain Exception
            raise CheckpointError(
                f"the byte-level tokenizer is damaged ({error}); copy it again, or train a new one"
            ) from None
        by_id = {token_id: piece for piece, token_id in vocabulary.items()}
        first = tuple(by_id.get(i, "") for i in range(len(SPECIALS)))
        if first != SPECIALS or sorted(by_id) != list(range(len(by_id))):
            raise CheckpointError(
                f"the tokenizer begins with the pieces {', '.join(first)}, but lmtransfer needs {', '.join(SPECIALS)} "
                "as ids 0 to 3: train a vocabulary with `lmtransfer prepare`"
            )
        self.num_pieces = len(by_id)
        self.vocab_size = padded_size(self.num_pieces)
        letters = byte_letters()
        self._bytes = [bytes(letters[letter] for letter in by_id[i]) for i in range(len(SPECIALS), self.num_pieces)]
        self.is_special = special_flags(self.num_pieces, self.vocab_size)
        self.starts_word = np.zeros(self.vocab_size, dtype=bool)
        self.starts_word[: len(SPECIALS)] = True
        self.starts_word[len(SPECIALS) : self.num_pieces] = [piece.startswith(b" ") for piece in self._bytes]
        self.fingerprint: str = sha256(b"%s %d " % (self.kind.encode(), _VERSION) + model).hexdigest()
        parts = byte_memo(self._library) or part_memo(self._library, None)
        self._memo = WordMemo(split=str.split, encode_words=lambda words: parts.encode([" " + word for word in words]))

    def __reduce__(self) -> tuple[type[ByteBpeTokenizer], tuple[bytes, dict[str, Any]]]:
        return type(self), (self._model, self.training)

    @classmethod
    def load(cls, folder: Path) -> ByteBpeTokenizer:
        """Load a tokenizer written by ``save``."""
        model, description = read_model(folder, cls.model_file)
        return cls(model, description.get("training"))

    def encode(self, text: str) -> Encoding:
        """Encode one text, with offsets.

        If the bytes of a character are in several tokens, each of these tokens has the span of the whole character. A
        token that is only a space has an empty span at the start of the next word.
        """
        clean = space_words(text)
        encoding = self._library.encode(clean)
        ids = np.array(encoding.ids, dtype=np.int32)
        spans = np.array(encoding.offsets, dtype=np.int32).reshape(-1, 2)
        # Both texts have the same visible characters in the same order, so counting them gives the original positions.
        is_letter = np.array([not character.isspace() for character in clean], dtype=bool)
        letters_before = np.append(0, np.cumsum(is_letter))
        letter_places = np.array([i for i, character in enumerate(text) if not character.isspace()], dtype=np.int32)
        first, last = letters_before[spans[:, 0]], letters_before[spans[:, 1]]
        starts = letter_places[first]
        ends = np.where(first < last, letter_places[last - 1] + 1, starts)
        return Encoding(ids, np.stack([starts, ends], axis=1).astype(np.int32), self.starts_word[ids])

    @override
    def encode_ids(self, texts: Sequence[str]) -> list[np.ndarray]:
        return split_flat(*self.encode_flat(texts))

    @override
    def encode_flat(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        return self._memo.encode(texts)

    def decode(self, ids: Sequence[int]) -> str:
        """Decode ids, with one space between words, special tokens in brackets, and U+FFFD for invalid bytes."""
        return self._decode_runs(ids, is_text=lambda i: len(SPECIALS) <= i < self.num_pieces, decode=self._text)

    def _text(self, ids: Sequence[int]) -> str:
        joined = b"".join(self._bytes[token_id - len(SPECIALS)] for token_id in ids)
        return joined.decode(errors="replace").removeprefix(" ")

    @override
    def _piece(self, token_id: int) -> str:
        if token_id < len(SPECIALS):
            return SPECIALS[token_id]
        return format_piece(self._bytes[token_id - len(SPECIALS)])

    @override
    def model_bytes(self) -> bytes:
        return self._model


def space_words(text: str) -> str:
    """Put one space before each word of a text, drop other white space, and replace lone surrogates."""
    return "".join(" " + word for word in _words(text))


def _words(text: str) -> list[str]:
    return replace_surrogates(text).split()


def byte_memo(library: tokenizers.Tokenizer) -> WordMemo | None:
    """Return a memo for a byte-level library tokenizer; None if it does not cut text as GPT-2 does."""
    normalizer, splitter, model = library.normalizer, library.pre_tokenizer, library.model
    lowercase = isinstance(normalizer, normalizers.Lowercase)
    is_gpt2 = (
        (normalizer is None or lowercase)
        and isinstance(splitter, pre_tokenizers.ByteLevel)
        and splitter.use_regex
        and not splitter.add_prefix_space
        and isinstance(model, models.BPE)
        and not model.dropout
    )
    if not is_gpt2:
        return None
    return part_memo(
        library,
        lambda text: _ASCII_PARTS.findall(text.lower() if lowercase else text),
        spell=lambda part: part.replace(" ", "\u0120"),
    )


def byte_letters() -> dict[str, int]:
    """Return the byte of each character in byte-level vocabularies: visible bytes stand for themselves.

    The other bytes are written as the characters from U+0100 on.
    """
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = sorted(set(range(256)) - set(visible))
    return {chr(byte): byte for byte in visible} | {chr(256 + place): byte for place, byte in enumerate(hidden)}


def format_piece(piece: bytes) -> str:
    """Format a piece for display, with U+2581 for a leading space and ``<0xE2>`` for bytes that form no character."""
    text = piece.decode(errors="surrogateescape")
    text = _SURROGATES.sub(lambda match: f"<0x{ord(match[0]) - 0xDC00:02X}>", text)
    return META + text[1:] if text.startswith(" ") else text
