"""The interface of tokenizers, and the files of a saved tokenizer.

A tokenizer turns text into ids **with character offsets**, knows its special ids and where words start, and is saved in
every run, as a model file and a ``tokenizer.json`` that describes this file.
"""

from __future__ import annotations

import json
import re
import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import groupby
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Final, Required

import numpy as np
from typing_extensions import TypedDict

from lmtransfer.config.types import LargeCount
from lmtransfer.errors import CheckpointError
from lmtransfer.system.safe_files import LARGEST_BYTES, read_bytes, read_json

#: Ids 0 to 3 of every trained vocabulary.
SPECIALS: Final = ("[UNK]", "[CLS]", "[SEP]", "[MASK]")
DESCRIPTION_FILE: Final = "tokenizer.json"


@dataclass(frozen=True, slots=True)
class Encoding:
    """One text as tokens, without added special tokens.

    Attributes:
        offsets: character span [start, end) of each token in the original text, int32, shape (n, 2). The spans are
            monotone and together cover every character except white space. A span may be empty if normalization turned
            one character into several tokens.
        characters: character ids of each token, int16, shape (n, 50), if the tokenizer provides characters; otherwise
            None.
    """

    ids: np.ndarray  #: token ids, int32, shape (n,)
    offsets: np.ndarray
    word_starts: np.ndarray  #: True if a token begins a word, bool, shape (n,)
    characters: np.ndarray | None = None


class Tokenizer(ABC):
    """A converter of text to ids and back.

    A text with a leading space continues another text. This matters only for vocabularies in which the id of a word
    depends on whether a space precedes the word (GPT-2 and RoBERTa).

    Attributes:
        kind: name of the kind in ``tokenizer.json``.
        model_file: name of the model file next to ``tokenizer.json``.
        vocab_size: number of embedding rows: the number of pieces, rounded up to a multiple of 64 if trained here.
        num_pieces: number of pieces, including special tokens; ids from ``num_pieces`` to ``vocab_size`` are unused.
        cls_id, sep_id, mask_id, unk_id: ids of the special tokens; 0 to 3 in vocabularies trained here.
        pad_id: id of the padding token of a published vocabulary; None if there is none.
        missing_roles: the roles among cls, sep, mask and unk that have no token of their own.
        is_special: bool per id, shape (vocab_size,): special and unused ids; no corruption changes or samples them.
        starts_word: bool per id, shape (vocab_size,): whether the piece begins a word.
        fingerprint: hex digest of everything that determines how text becomes ids; part of cache keys.
        training: information on the training or origin of the vocabulary; not part of the fingerprint.
        splits_chinese: whether each Chinese character is a separate word, as in BERT.
        keeps_marks: whether a tokenizer that drops accents keeps the marks of scripts without case.
        is_exact: whether ``vocab_size`` is that of a published model, without rounding up.
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
    is_exact: bool = False

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
        """Decode each sequence of ordinary ids at once, and write every other id as a piece."""
        parts: list[str] = []
        for is_ordinary, group in groupby(map(int, ids), key=is_text):
            adjacent = list(group)
            parts += [decode(adjacent)] if is_ordinary else map(self.piece, adjacent)
        return " ".join(parts)

    def piece(self, token_id: int) -> str:
        """Return the piece of an id for display; for an unused id, return a name such as ``[unused9]``."""
        if not 0 <= token_id < self.vocab_size:
            raise ValueError(f"the token id {token_id} is outside the vocabulary, whose size is {self.vocab_size}")
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
        """Return the entries of ``tokenizer.json`` that only this kind of tokenizer has."""
        return {"training": dict(self.training)}

    @abstractmethod
    def model_bytes(self) -> bytes:
        """Return the content of ``model_file``."""

    @property
    def unknown_advice(self) -> str:
        """Advice for a text with many ``[UNK]`` tokens: which of the tokenizer's settings to change."""
        return "the text has characters that this vocabulary lacks: use another vocabulary"


class CharacterTokenizer(Tokenizer):
    """A tokenizer of whole words that provides the characters of each word, for models that read characters.

    Attributes:
        characters: character ids of each token id (see ``tokenizers.words``), int16, shape (vocab_size, 50).
    """

    characters: np.ndarray

    @abstractmethod
    def unknown_words(self, text: str) -> list[str]:
        """Return the words of a text that ``encode_ids`` replaces with ``[UNK]``, in order."""


def characters_of(tokenizer: Tokenizer) -> np.ndarray | None:
    """Return the character ids of each token id, int16, shape (vocab_size, 50); None if the tokenizer has none."""
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
    """Replace lone surrogates, which UTF-8 cannot represent, with U+FFFD; character offsets do not change."""
    return text if text.isascii() else _SURROGATES.sub("\ufffd", text)


def trim_spans(text: str, spans: Sequence[tuple[int, int]], *, is_blank: Callable[[str], bool]) -> np.ndarray:
    """Remove white space from the beginning and end of spans; the result is int32, shape (n, 2).

    A span that holds only white space becomes an empty span at its end, where the next word begins.
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
    """Make spans monotone, and extend them over visible characters that are in no span; int32, shape (n, 2).

    Normalization drops accents and merges characters, so characters between two tokens may be in no span. Such
    characters are added to the token before them or, if they follow white space, to the token after them.
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


_MULTIPLE = 64  # embedding rows: matrix products are faster if sizes are multiples of 64


class Description(TypedDict, total=False):
    """The content of ``tokenizer.json``."""

    kind: Required[str]
    sha256: str
    fingerprint: str
    base: str
    num_pieces: LargeCount
    vocab_size: LargeCount
    lowercase: bool
    specials: dict[str, str]
    training: dict[str, Any] | None


def padded_size(num_pieces: int) -> int:
    """Round a number of pieces up to a multiple of 64, the number of embedding rows."""
    return -(-num_pieces // _MULTIPLE) * _MULTIPLE


def write_model(folder: Path, file: str, model: bytes, description: Mapping[str, Any]) -> None:
    """Write ``file`` and ``tokenizer.json`` to ``folder`` (created if missing)."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / file).write_bytes(model)
    described = {"kind": description["kind"], "sha256": sha256(model).hexdigest(), **description}
    (folder / DESCRIPTION_FILE).write_text(json.dumps(described, indent=2) + "\n", encoding="utf-8")


def read_model(folder: Path, file: str) -> tuple[bytes, Description]:
    """Read the model file and the description written by ``write_model``."""
    description = read_description(folder)
    path = Path(folder) / file
    model = read_bytes(path, error=CheckpointError, most=LARGEST_BYTES)
    checksum = sha256(model).hexdigest()
    if checksum != description.get("sha256"):
        raise CheckpointError(
            f"{path}: the sha256 is {checksum}, but {DESCRIPTION_FILE} has {description.get('sha256')}; the file is "
            "damaged or belongs to another tokenizer: copy both files again"
        )
    return model, description


def read_description(folder: Path) -> Description:
    """Read ``tokenizer.json`` in ``folder``."""
    path = Path(folder) / DESCRIPTION_FILE
    if not path.exists():
        raise CheckpointError(
            f"{path}: the file is missing, so this folder holds no tokenizer; copy the whole folder again"
        )
    return read_json(path, Description, error=CheckpointError)
