"""A tokenizer of any kind, extended by the user's words, each of which is a single token.

Added words are matched as whole words. Case and accents must match, unless the tokenizer ignores them. The base
tokenizer encodes the text between added words, so text without added words has the same ids as before. White space
before an added word belongs to that word.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from typing_extensions import override

from lmtransfer.errors import CheckpointError, DataError
from lmtransfer.tokenizers.base import CharacterTokenizer, Encoding, Tokenizer, padded_size, read_model

_SHOWN = 5
_UNIT = re.compile(r"\w+|[^\w\s]")
#: The Chinese characters that BERT treats as separate words, as in the tokenizers library.
CHINESE = (
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002a6df\U0002a700-\U0002b81f\U0002b920-\U0002ceaf"
    "\U0002f800-\U0002fa1f"
)
_CHINESE = re.compile(f"[{CHINESE}]")
_UNIT_WITH_CHINESE = re.compile(rf"[{CHINESE}]|[^\W{CHINESE}]+|[^\w\s]")
_JOINERS = "\u200c\u200d"


class _Part(NamedTuple):
    """A part of a text: an added word, by its index ``place``, or, if ``place`` is None, text that the base encodes."""

    start: int
    end: int
    place: int | None = None


class WordFinder:
    """Finds listed words in a text: the longest match at each position, but never inside another word.

    A match is inside another word if a neighboring character is a letter, a digit, an underscore or an accent: "cat" is
    found in "(cat-like)", but not in "cats", and "C++" is not found in "C++11".

    Chinese characters are letters, unless the tokenizer treats each of them as a word. In that case they do not belong
    to the words next to them, and a word that begins and ends with Chinese characters is found next to any characters.
    Case or accents are ignored if the tokenizer ignores them.
    """

    def __init__(self, base: Tokenizer, words: Iterable[str]) -> None:
        def is_same(pairs: Iterable[tuple[str, str]]) -> bool:
            encoded = [(base.encode(first).ids, base.encode(second).ids) for first, second in pairs]
            known = [(first, second) for first, second in encoded if len(first) and base.unk_id not in first]
            return bool(known) and all(np.array_equal(first, second) for first, second in known)

        self.folds_case = is_same((letter, letter.upper()) for letter in "aeimnorst")
        self.drops_accents = is_same(("e", "e" + accent) for accent in "\u0301\u0308")
        self.splits_chinese, self.keeps_marks = base.splits_chinese, base.keeps_marks
        self._unit = _UNIT_WITH_CHINESE if self.splits_chinese else _UNIT
        places: dict[str, int] = {}
        for place, word in enumerate(words):
            places.setdefault(self.fold(word), place)
        self._by_first: dict[str, list[tuple[str, int, bool]]] = {}
        for word, place in sorted(places.items(), key=lambda item: -len(item[0])):
            first = self._unit.match(word)
            if first is not None:
                is_apart = self.splits_chinese and is_between_chinese(word)
                self._by_first.setdefault(first[0], []).append((word, place, is_apart))

    def fold(self, text: str) -> str:
        """Remove case and accents from a text, as far as the finder ignores them."""
        return self._fold(text)[0]

    def has_any(self, text: str) -> bool:
        """Whether the text may contain a listed word; a fast check, False only if there is none."""
        return not self._by_first.keys().isdisjoint(self._unit.findall(self.fold(text)))

    def find(self, text: str) -> list[_Part]:
        """Return the listed words in a text, in order."""
        folded, positions = self._fold(text)
        return [
            match if positions is None else _Part(positions[match.start], positions[match.end], match.place)
            for match in self._find(folded)
        ]

    def _find(self, folded: str) -> Iterator[_Part]:
        done = 0
        for unit in self._unit.finditer(folded):
            start = unit.start()
            if start < done:
                continue
            follows = start > 0 and self._joins(folded[start - 1])
            for word, place, is_apart in self._by_first.get(unit[0], ()):
                end = start + len(word)
                is_inside = follows or (end < len(folded) and self._joins(folded[end]))
                if folded.startswith(word, start) and (is_apart or not is_inside):
                    yield _Part(start, end, place)
                    done = end
                    break

    def _joins(self, character: str) -> bool:
        """Whether a character next to a match would make the match part of a longer word."""
        return _joins(character) and not (self.splits_chinese and _CHINESE.match(character))

    def _fold(self, text: str) -> tuple[str, Sequence[int] | None]:
        """Return the folded text, and the original position of each character and of the end (None if unchanged)."""
        if text.isascii():
            return (text.lower() if self.folds_case else text), None
        if not (self.folds_case or self.drops_accents):
            return text, None
        characters: list[str] = []
        positions: list[int] = []
        after_caseless = False  # whether the last character other than a mark belongs to a script without case
        for position, character in enumerate(text):
            if self.keeps_marks and unicodedata.category(character)[0] != "M":
                after_caseless = unicodedata.category(unicodedata.normalize("NFD", character)[0]) == "Lo"
            if (folded := character if after_caseless else self._fold_one(character)) is not None:
                characters.append(folded)
                positions.append(position)
        return "".join(characters), [*positions, len(text)]

    def _fold_one(self, character: str) -> str | None:
        """Return the folded form of a character, or None for a dropped accent."""
        if self.drops_accents and not character.isascii():
            bare = "".join(c for c in unicodedata.normalize("NFD", character) if unicodedata.category(c) != "Mn")
            if not bare:
                return None
            character = bare if len(bare) == 1 else character
        lower = character.lower() if self.folds_case else character
        return lower if len(lower) == 1 else character


def is_between_chinese(word: str) -> bool:
    """Whether a word begins and ends with Chinese characters."""
    return bool(_CHINESE.match(word[0]) and _CHINESE.match(word[-1]))


def _joins(character: str) -> bool:
    """Whether a character joins its neighbors into one word."""
    return character.isalnum() or character in _JOINERS or unicodedata.category(character) in ("Mn", "Mc", "Me", "Pc")


def read_words(path: Path, base: Tokenizer) -> tuple[list[str], list[str]]:
    """Read words from a UTF-8 file, one per line; blank lines are ignored.

    Words that the tokenizer does not distinguish count as one word, such as "Covid" and "covid" if it lower-cases text.

    Returns:
        The words, without duplicates and without words that are already single tokens, and notes for the user.
    """
    lines = _lines(Path(path))
    specials = {base.piece(int(i)) for i in np.flatnonzero(base.is_special)}
    finder = WordFinder(base, ())
    wrong = [
        f"{path}:{number}: {line!r} {reason}"
        for number, line in lines
        if (reason := _reason_against(line, specials, base, finder)) is not None
    ]
    if wrong:
        more = f"\n(and {len(wrong) - _SHOWN} more)" if len(wrong) > _SHOWN else ""
        raise DataError("\n".join(wrong[:_SHOWN]) + more)
    words: dict[str, str] = {}
    repeated: list[str] = []
    single_tokens: list[str] = []
    for _, line in lines:
        if finder.fold(line) in words:
            repeated.append(line)
        else:
            words[finder.fold(line)] = line
    new_words: list[str] = []
    for word, ids in zip(words.values(), base.encode_ids([" " + word for word in words.values()]), strict=True):
        (single_tokens if len(ids) == 1 and ids[0] != base.unk_id else new_words).append(word)
    if not new_words:
        raise DataError(
            f"{path}: there is no word to add: {_count(single_tokens, 'already one token') or 'the file is empty'}; "
            "list other words, or leave out tokenizer.add"
        )
    notes = (_count(repeated, "repeated in the file"), _count(single_tokens, "already one token"))
    return new_words, [f"{path}: left out: {note}" for note in notes if note]


def _lines(path: Path) -> list[tuple[int, str]]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise DataError(f"{path}: the file cannot be read ({error.strerror})") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: the file is not UTF-8 ({error}): save it as UTF-8") from None
    return [(number, line.strip()) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]


def _reason_against(line: str, specials: set[str], base: Tokenizer, finder: WordFinder) -> str | None:
    if line.split() != [line]:
        return "contains white space: write one word per line"
    if any(unicodedata.category(character) == "Cc" for character in line):
        return "contains a control character: write one word per line"
    if line in specials:
        return "is the name of a special token, which text cannot contain: remove it"
    if not len(base.encode_ids([" " + line])[0]):
        return "consists of characters that this tokenizer drops: remove it"
    plain = unicodedata.normalize("NFKC", line)
    if finder.fold(plain) != finder.fold(line):
        ids, same = base.encode_ids([" " + line, " " + plain])
        if np.array_equal(ids, same):
            return f"becomes {plain!r} in this tokenizer, which replaces such characters: write {plain!r} instead"
    return None


def _count(words: Sequence[str], what: str) -> str:
    if not words:
        return ""
    listing = ", ".join(words[:_SHOWN]) + (", ..." if len(words) > _SHOWN else "")
    return f"{len(words)} word{'s' if len(words) > 1 else ''} ({listing}), {what}"


BASE_FOLDER: Final = "base"

_VERSION = 1  # increase it when the same words would give other ids or word starts
_VERSION_WITH_CHINESE = 2  # likewise, for a base that treats each Chinese character as a word


class ExtendedTokenizer(Tokenizer):
    """A tokenizer with added words.

    The first added word has the id ``base.num_pieces``, so that the unused rows of the base's embedding are used first.
    If these do not suffice, ``vocab_size`` grows: by the exact number for a published base, otherwise to a multiple of
    64.
    """

    kind = "extended"
    model_file = "added_words.txt"

    def __init__(self, base: Tokenizer, words: Sequence[str]) -> None:
        self.base, self.words = base, tuple(words)
        if isinstance(base, CharacterTokenizer):
            raise CheckpointError(
                "words cannot be added to a tokenizer of whole words, because its models read the characters of every "
                "word; leave out tokenizer.add"
            )
        self._finder = WordFinder(base, self.words)
        folded = [self._finder.fold(word) for word in self.words]
        specials = {base.piece(int(i)) for i in np.flatnonzero(base.is_special)}
        wrong = [word for word in self.words if word.split() != [word] or word in specials]
        wrong += [word for word, count in Counter(folded).items() if count > 1]
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
        self.splits_chinese, self.keeps_marks, self.is_exact = base.splits_chinese, base.keeps_marks, base.is_exact
        version = _VERSION_WITH_CHINESE if base.splits_chinese else _VERSION
        described = b"%s %d %s " % (self.kind.encode(), version, base.fingerprint.encode())
        self.fingerprint: str = sha256(described + self.model_bytes()).hexdigest()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.base, self.words)

    @classmethod
    def load(cls, folder: Path, *, load_base: Callable[[Path], Tokenizer]) -> ExtendedTokenizer:
        """Load a tokenizer written by ``save``."""
        model, description = read_model(folder, cls.model_file)
        base = load_base(Path(folder) / BASE_FOLDER)
        if base.fingerprint != description.get("base"):
            raise CheckpointError(
                f"{Path(folder) / BASE_FOLDER}: this is not the tokenizer that {cls.model_file} extends; copy the "
                "whole folder again"
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
        return [np.concatenate([next(encoded) if p.place is None else self._id(p) for p in its]) for its in parts]

    def decode(self, ids: Sequence[int]) -> str:
        """Decode ids; added words get one space before and after them, and the base decodes the other ids."""
        return self._decode_runs(ids, is_text=lambda i: i < self.base.num_pieces, decode=self.base.decode)

    @override
    def _piece(self, token_id: int) -> str:
        first = self.base.num_pieces
        return self.base.piece(token_id) if token_id < first else self.words[token_id - first]

    @override
    def _details(self) -> dict[str, Any]:
        return {"base": self.base.fingerprint}

    def _parts(self, text: str) -> Iterator[_Part]:
        """Yield the added words and the text between them, without the white space before added words."""
        done = 0
        for match in self._finder.find(text):
            before = text[done : match.start].rstrip()
            if before:
                yield _Part(done, done + len(before))
            yield match
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

    @property
    @override
    def unknown_advice(self) -> str:
        return self.base.unknown_advice

    @override
    def model_bytes(self) -> bytes:
        return "".join(f"{word}\n" for word in self.words).encode("utf-8", "replace")
