"""A WordPiece tokenizer, as in BERT and ELECTRA.

Devlin et al., "BERT", 2019, section 3.1, and tokenization.py of google-research/bert. Text is cleaned, and split at
white space and around each punctuation mark and each Chinese character. Each word is cut from the left into the longest
pieces in the vocabulary; a piece inside a word is written like ``##ing``. A word that cannot be cut, or is longer than
100 characters, becomes one ``[UNK]``.

Lower-casing also drops accents. Where we differ from BERT: only the accents of letters with case (and of symbols) are
dropped. Marks of other scripts, such as the vowel signs of Hindi and Thai, are letters of their words, and Hangul stays
composed.

The special tokens of a vocabulary may have any ids, as in published vocabularies; text is never encoded as them.
"""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Mapping, Sequence
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import numpy as np
import tokenizers
from tokenizers import Regex, models, normalizers, pre_tokenizers
from typing_extensions import override

from lmtransfer.errors import CheckpointError
from lmtransfer.tokenizers.base import (
    SPECIALS,
    Encoding,
    Tokenizer,
    padded_size,
    read_model,
    replace_surrogates,
    split_flat,
)
from lmtransfer.tokenizers.word_memo import WordMemo, part_memo

_VERSION = 2  # increase it when the same pieces would give other ids or word starts
#: Prefix of a piece inside a word.
INSIDE: Final = "##"
_LONGEST_WORD = 100
#: Accents in decomposed text, except those on letters of scripts without case.
_ACCENTS: Final = Regex(r"(?<![\p{Lo}\p{M}])\p{Mn}+")
#: White space in Python that BERT's cleaning drops without separating words.
_JOINING_SPACE = re.compile("[\x0b\x0c\x1c-\x1f\x85]")
#: What BERT's pre-tokenizer makes of printable ASCII characters.
_ASCII_PARTS = re.compile("[A-Za-z0-9]+|[^A-Za-z0-9]")
_RESERVED = re.compile(r"\[(?:PAD|UNK|CLS|SEP|MASK|unused\d+)\]")


class WordPieceTokenizer(Tokenizer):
    """A tokenizer with a WordPiece vocabulary.

    ``starts_word`` follows BERT's definition of words: each punctuation mark is a separate word.

    Args:
        pieces: the vocabulary in the order of its ids, with ``[UNK]``, ``[CLS]``, ``[SEP]`` and ``[MASK]``. ``[PAD]``,
            ``[unused1]`` and other reserved pieces are allowed and never occur.
    """

    kind = "wordpiece"
    model_file = "vocab.txt"
    splits_chinese = True
    keeps_marks = True

    def __init__(self, pieces: Sequence[str], *, lowercase: bool, training: Mapping[str, Any] | None = None) -> None:
        self.pieces, self.lowercase = tuple(pieces), lowercase
        self.training: dict[str, Any] = dict(training or {})
        # Otherwise the library starts one thread per core in each worker process that prepares corpora.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        ids = {piece: i for i, piece in enumerate(self.pieces)}
        missing = [special for special in SPECIALS if special not in ids]
        if missing:
            raise CheckpointError(
                f"the WordPiece vocabulary has no {', '.join(missing)}; the file may be damaged: copy vocab.txt again"
            )
        if len(ids) < len(self.pieces) or any(piece.split() != [piece] for piece in self.pieces):
            raise CheckpointError(
                "the WordPiece vocabulary is damaged: a piece is repeated, is empty or contains white space; copy "
                "vocab.txt again"
            )
        self.unk_id, self.cls_id, self.sep_id, self.mask_id = (ids[special] for special in SPECIALS)
        self.num_pieces = len(self.pieces)
        self.vocab_size = padded_size(self.num_pieces)
        self.is_special = np.ones(self.vocab_size, dtype=bool)
        self.is_special[: self.num_pieces] = [_RESERVED.fullmatch(piece) is not None for piece in self.pieces]
        self.starts_word = np.zeros(self.vocab_size, dtype=bool)
        self.starts_word[: self.num_pieces] = [not piece.startswith(INSIDE) for piece in self.pieces]
        described = b"%s %d %d " % (self.kind.encode(), _VERSION, lowercase)
        self.fingerprint = sha256(described + self.model_bytes()).hexdigest()
        model = models.WordPiece(ids, unk_token=SPECIALS[0], max_input_chars_per_word=_LONGEST_WORD)
        self._library = library_of(model, lowercase=lowercase)
        self._memo = bert_memo(self._library, lowercase=lowercase)

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), lowercase=self.lowercase, training=self.training), (self.pieces,)

    @classmethod
    def load(cls, folder: Path) -> WordPieceTokenizer:
        """Load a tokenizer written by ``save``."""
        model, description = read_model(folder, cls.model_file)
        pieces = model.decode("utf-8", "replace").split("\n")[:-1]
        return cls(pieces, lowercase=bool(description.get("lowercase")), training=description.get("training"))

    def encode(self, text: str) -> Encoding:
        """Encode one text, with offsets.

        Characters that cleaning drops (control characters, zero-width spaces, U+FFFD) count as white space. A dropped
        accent that is a separate character belongs to the token before it.
        """
        encoding = self._library.encode(replace_surrogates(text))
        ids = np.array(encoding.ids, dtype=np.int32)
        spans = np.array(encoding.offsets, dtype=np.int32).reshape(-1, 2)
        if self.lowercase and not text.isascii():
            _take_accents(text, spans)
        return Encoding(ids, spans, self.starts_word[ids])

    @override
    def encode_ids(self, texts: Sequence[str]) -> list[np.ndarray]:
        return split_flat(*self.encode_flat(texts))

    @override
    def encode_flat(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        return self._memo.encode(texts)

    def decode(self, ids: Sequence[int]) -> str:
        """Decode ids to words with one space between them; special tokens are written in brackets."""
        words: list[str] = []
        for token_id in map(int, ids):
            piece = self.piece(token_id)
            if piece.startswith(INSIDE) and words:
                words[-1] += piece.removeprefix(INSIDE)
            else:
                words.append(piece)
        return " ".join(words)

    @override
    def _piece(self, token_id: int) -> str:
        return self.pieces[token_id]

    @override
    def _details(self) -> dict[str, Any]:
        return {"lowercase": self.lowercase, **super()._details()}

    @property
    def reads_as_bert(self) -> bool:
        """Whether BERT's own tokenizer gives the same ids, because its lower-casing changes none of the pieces."""
        bert = normalizers.BertNormalizer(handle_chinese_chars=False, strip_accents=True, lowercase=True)
        return not self.lowercase or all(
            bert.normalize_str(piece) == piece for piece in self.pieces if not _RESERVED.fullmatch(piece)
        )

    @property
    @override
    def unknown_advice(self) -> str:
        settings, characters = self.training.get("settings") or {}, self.training.get("num_characters")
        largest = settings.get("max_alphabet")
        if isinstance(largest, int) and isinstance(characters, int) and characters > largest:
            return (
                f"increase tokenizer.max_alphabet={largest}: the training text has {characters:,} different "
                "characters, and a word with a character outside the vocabulary is unknown"
            )
        return (
            f"a word is unknown if it has a character that is rare in the training text, or more than {_LONGEST_WORD} "
            "characters, as in scripts without spaces: train on more text, or use tokenizer=unigram"
        )

    @override
    def model_bytes(self) -> bytes:
        return "".join(f"{piece}\n" for piece in self.pieces).encode()


def library_of(model: models.WordPiece, *, lowercase: bool) -> tokenizers.Tokenizer:
    """Build a library tokenizer that cleans and splits text as BERT does, but keeps the marks of caseless scripts."""
    library = tokenizers.Tokenizer(model)
    cleaning = normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=True, strip_accents=False, lowercase=False
    )
    folding = [normalizers.NFD(), normalizers.Replace(_ACCENTS, ""), normalizers.Lowercase(), normalizers.NFC()]
    library.normalizer = normalizers.Sequence([cleaning, *folding]) if lowercase else cleaning
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return library


def bert_memo(library: tokenizers.Tokenizer, *, lowercase: bool) -> WordMemo:
    """Return a memo for a library tokenizer that cleans and splits text as BERT does."""
    parts = part_memo(library, partial(ascii_parts, lowercase=lowercase))
    return WordMemo(split=split_as_bert, encode_words=parts.encode)


def ascii_parts(word: str, *, lowercase: bool) -> list[str]:
    """Return what a library tokenizer of ``library_of`` makes of printable ASCII text, much faster than the library."""
    return _ASCII_PARTS.findall(word.lower() if lowercase else word)


def split_as_bert(text: str) -> list[str]:
    """Split a text at white space; BERT cuts the words further, but never looks across white space."""
    return [text] if _JOINING_SPACE.search(text) else text.split()


def _take_accents(text: str, spans: np.ndarray) -> None:
    """Extend each span, in place, over the accents after it that are in no span."""
    limits = [*spans[1:, 0].tolist(), len(text)]
    for span, limit in zip(spans, limits, strict=False):  # without spans, there is still one limit
        while span[1] < limit and unicodedata.category(text[span[1]]) == "Mn":
            span[1] += 1
