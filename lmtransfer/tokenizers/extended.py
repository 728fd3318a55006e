"""A tokenizer of any kind, extended with the user's words, each of which is a single token.

Added words are matched as whole words. Case and accents must match, unless the tokenizer ignores them. The text between
added words is encoded by the base tokenizer, so that text without added words keeps its ids. White space before an
added word belongs to it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import numpy as np
from typing_extensions import override

from lmtransfer.errors import CheckpointError
from lmtransfer.tokenizers.added_tokens import finder_of
from lmtransfer.tokenizers.base import CharacterTokenizer, Encoding, Tokenizer
from lmtransfer.tokenizers.model_files import padded_size, read_model

BASE_FOLDER: Final = "base"

_VERSION = 1  # increase it when the same words would give other ids or word starts
_VERSION_WITH_CHINESE = 2  # the same for a base that treats each Chinese character as a word


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of a text: an added word, or, if ``place`` is None, text that the base encodes."""

    start: int
    end: int
    place: int | None = None


class ExtendedTokenizer(Tokenizer):
    """A tokenizer with added words, as a ``Tokenizer``.

    The first added word has the id ``base.num_pieces``, so unused rows of the base's embedding are used first. If they
    are not enough, ``vocab_size`` grows: by the exact number for a published base, otherwise to a multiple of 64.

    Args:
        base: the tokenizer without the added words.
        words: the added words, in the order of their ids.

    Raises:
        CheckpointError: a word is repeated or empty, contains white space, or is the name of a special token; or the
            base is a vocabulary of whole words, whose model reads every word by its characters.
    """

    kind = "extended"
    model_file = "added_words.txt"

    def __init__(self, base: Tokenizer, words: Sequence[str]) -> None:
        self.base, self.words = base, tuple(words)
        if isinstance(base, CharacterTokenizer):
            raise CheckpointError(
                "words cannot be added to a vocabulary of whole words, because its model reads every word by its "
                "characters; remove tokenizer.add"
            )
        self._finder = finder_of(base, self.words)
        folded = [self._finder.fold(word) for word in self.words]
        specials = {base.piece(int(i)) for i in np.flatnonzero(base.is_special)}
        wrong = [word for word in self.words if word.split() != [word] or word in specials]
        wrong += _repeated(folded)
        if wrong:
            raise CheckpointError(
                "each added word must be a single word, must occur once and must not be a special token: "
                f"{', '.join(map(repr, wrong[:5]))}"
            )
        self.num_pieces = base.num_pieces + len(self.words)
        self.vocab_size = max(base.vocab_size, self.num_pieces if base.is_exact else padded_size(self.num_pieces))
        self.cls_id, self.sep_id, self.mask_id, self.unk_id = base.cls_id, base.sep_id, base.mask_id, base.unk_id
        self.pad_id, self.missing_roles, self.training = base.pad_id, base.missing_roles, base.training
        old, new = base.num_pieces, slice(base.num_pieces, self.num_pieces)
        self.is_special = np.ones(self.vocab_size, dtype=bool)
        self.starts_word = np.zeros(self.vocab_size, dtype=bool)
        self.is_special[:old], self.starts_word[:old] = base.is_special[:old], base.starts_word[:old]
        self.is_special[new], self.starts_word[new] = False, True
        self.splits_chinese, self.keeps_marks = base.splits_chinese, base.keeps_marks
        version = _VERSION_WITH_CHINESE if base.splits_chinese else _VERSION
        described = b"%s %d %s " % (self.kind.encode(), version, base.fingerprint.encode())
        self.fingerprint: str = sha256(described + self.model_bytes()).hexdigest()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.base, self.words)

    @classmethod
    def load(cls, folder: Path, *, load_base: Callable[[Path], Tokenizer]) -> ExtendedTokenizer:
        """Load a tokenizer written by ``save``.

        Args:
            folder: folder with the added words and, in a subfolder, the base.
            load_base: reads a tokenizer of any kind.

        Raises:
            CheckpointError: a file is missing or unreadable, or has a wrong checksum, or the base is another tokenizer.
        """
        model, description = read_model(folder, cls.model_file)
        base = load_base(Path(folder) / BASE_FOLDER)
        if base.fingerprint != description.get("base"):
            raise CheckpointError(
                f"{Path(folder) / BASE_FOLDER}: is not the tokenizer that {cls.model_file} extends; copy both folders "
                "again"
            )
        return cls(base, model.decode("utf-8", "replace").split("\n")[:-1])

    def save(self, folder: Path) -> None:
        """Write ``added_words.txt``, ``tokenizer.json`` and ``base/`` to ``folder`` (created if missing)."""
        super().save(folder)
        self.base.save(Path(folder) / BASE_FOLDER)

    def pieces_of(self, word: str) -> np.ndarray:
        """Return the base tokenizer's ids for a word in the middle of a text, int32."""
        return self.base.encode_ids([" " + word])[0]

    @override
    def encode(self, text: str) -> Encoding:
        parts = list(self._parts(text))
        if not any(part.place is not None for part in parts):
            return self.base.encode(text)
        encodings = [self._encode_part(text, part) for part in parts]
        return Encoding(
            np.concatenate([encoding.ids for encoding in encodings]),
            np.concatenate([encoding.offsets for encoding in encodings]),
            np.concatenate([encoding.word_starts for encoding in encodings]),
        )

    @override
    def encode_ids(self, texts: Sequence[str]) -> list[np.ndarray]:
        parts = [list(self._parts(text)) if self._finder.has_any(text) else [_Part(0, len(text))] for text in texts]
        plain = [
            text[part.start : part.end]
            for text, its in zip(texts, parts, strict=True)
            for part in its
            if part.place is None
        ]
        encoded = iter(self.base.encode_ids(plain))
        return [self._join([next(encoded) if part.place is None else self._id(part) for part in its]) for its in parts]

    def decode(self, ids: Sequence[int]) -> str:
        """Decode ids: added words have one space around them, and the base decodes the other ids."""
        parts: list[str] = []
        run: list[int] = []
        for token_id in map(int, ids):
            if token_id < self.base.num_pieces:
                run.append(token_id)
                continue
            parts += [self.base.decode(run)] if run else []
            parts.append(self.piece(token_id))
            run = []
        parts += [self.base.decode(run)] if run else []
        return " ".join(parts)

    @override
    def _piece(self, token_id: int) -> str:
        first = self.base.num_pieces
        return self.base.piece(token_id) if token_id < first else self.words[token_id - first]

    @override
    def _details(self) -> dict[str, Any]:
        return {"base": self.base.fingerprint}

    @property
    def is_exact(self) -> bool:
        """The value of the base tokenizer."""
        return self.base.is_exact

    def _parts(self, text: str) -> Iterator[_Part]:
        """Yield the added words and the text between them; white space before an added word belongs to the word."""
        done = 0
        for match in self._finder.find(text):
            before = text[done : match.start].rstrip()
            if before:
                yield _Part(done, done + len(before))
            yield _Part(match.start, match.end, match.place)
            done = match.end
        if done < len(text) or not done:
            yield _Part(done, len(text))

    def _encode_part(self, text: str, part: _Part) -> Encoding:
        if part.place is not None:
            span = np.array([[part.start, part.end]], dtype=np.int32)
            return Encoding(self._id(part), span, np.ones(1, dtype=bool))
        encoding = self.base.encode(text[part.start : part.end])
        word_starts = encoding.word_starts
        if part.start and not text[part.start].isspace():
            word_starts = self.base.starts_word[encoding.ids]
        return Encoding(encoding.ids, encoding.offsets + np.int32(part.start), word_starts)

    def _id(self, part: _Part) -> np.ndarray:
        assert part.place is not None
        return np.array([self.base.num_pieces + part.place], dtype=np.int32)

    @staticmethod
    def _join(parts: Sequence[np.ndarray]) -> np.ndarray:
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    @property
    @override
    def unknown_advice(self) -> str:
        return self.base.unknown_advice

    @override
    def model_bytes(self) -> bytes:
        return "".join(f"{word}\n" for word in self.words).encode("utf-8", "replace")


def _repeated(folded: Sequence[str]) -> list[str]:
    return [word for word, count in Counter(folded).items() if count > 1]
