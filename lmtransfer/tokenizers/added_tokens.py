"""Words that the user adds to a tokenizer as single tokens, read from a file and matched in texts."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lmtransfer.errors import DataError
from lmtransfer.tokenizers.base import Tokenizer

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


@dataclass(frozen=True, slots=True)
class Match:
    """A word in a text.

    Attributes:
        start: index of its first character.
        end: index after its last character.
        place: index of the word in the list.
    """

    start: int
    end: int
    place: int


class WordFinder:
    """A finder of listed words in a text: the longest match at each position, never inside another word.

    A match is inside a word if the character next to it is a letter, a digit, an underscore or an accent: "cat" is
    found in "(cat-like)", but not in "cats", and "C++" is not found in "C++11".

    Chinese characters are letters, unless the tokenizer treats each of them as a word. They then do not belong to the
    words next to them, and a word that begins and ends with them is found between any characters.

    Args:
        words: the words, without white space.
        folds_case: whether to ignore case.
        drops_accents: whether to ignore accents.
        splits_chinese: whether each Chinese character is a word.
        keeps_marks: whether ``drops_accents`` concerns only accents of letters with case.
    """

    def __init__(
        self,
        words: Iterable[str],
        *,
        folds_case: bool,
        drops_accents: bool,
        splits_chinese: bool = False,
        keeps_marks: bool = False,
    ) -> None:
        self.folds_case, self.drops_accents, self.keeps_marks = folds_case, drops_accents, keeps_marks
        self.splits_chinese = splits_chinese
        self._unit = _UNIT_WITH_CHINESE if splits_chinese else _UNIT
        places: dict[str, int] = {}
        for place, word in enumerate(words):
            places.setdefault(self.fold(word), place)
        self._by_first: dict[str, list[tuple[str, int, bool]]] = {}
        for word, place in sorted(places.items(), key=lambda item: -len(item[0])):
            first = self._unit.match(word)
            if first is not None:
                is_apart = splits_chinese and is_between_chinese(word)
                self._by_first.setdefault(first[0], []).append((word, place, is_apart))

    def fold(self, text: str) -> str:
        """Return the text in the form for comparison: without case or accents, if the finder ignores them."""
        return self._fold(text)[0]

    def has_any(self, text: str) -> bool:
        """Whether the text may contain a word; fast, and False only if there is none."""
        return not self._by_first.keys().isdisjoint(self._unit.findall(self.fold(text)))

    def find(self, text: str) -> list[Match]:
        """Return the words in ``text``, in order."""
        folded, positions = self._fold(text)
        return [
            match if positions is None else Match(positions[match.start], positions[match.end], match.place)
            for match in self._find(folded)
        ]

    def _find(self, folded: str) -> Iterator[Match]:
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
                    yield Match(start, end, place)
                    done = end
                    break

    def _joins(self, character: str) -> bool:
        """Whether a character next to a match belongs to the same word."""
        return _joins(character) and not (self.splits_chinese and _CHINESE.match(character))

    def _fold(self, text: str) -> tuple[str, Sequence[int] | None]:
        """Return the folded text, and the original position of each character and of the end (None if unchanged)."""
        if text.isascii():
            return (text.lower() if self.folds_case else text), None
        if not (self.folds_case or self.drops_accents):
            return text, None
        characters: list[str] = []
        positions: list[int] = []
        after_caseless = False  # whether the last character that is not a mark belongs to a script without case
        for position, character in enumerate(text):
            if self.keeps_marks and unicodedata.category(character)[0] != "M":
                after_caseless = unicodedata.category(unicodedata.normalize("NFD", character)[0]) == "Lo"
            if (folded := character if after_caseless else self._fold_one(character)) is not None:
                characters.append(folded)
                positions.append(position)
        return "".join(characters), [*positions, len(text)]

    def _fold_one(self, character: str) -> str | None:
        """Return one character for each character, or None for a dropped accent."""
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


def finder_of(base: Tokenizer, words: Iterable[str]) -> WordFinder:
    """Build a finder that ignores case or accents if the tokenizer ignores them."""

    def is_same(pairs: Iterable[tuple[str, str]]) -> bool:
        encoded = [(base.encode(first).ids, base.encode(second).ids) for first, second in pairs]
        pairs_of_ids = [(first, second) for first, second in encoded if len(first) and base.unk_id not in first]
        return bool(pairs_of_ids) and all(np.array_equal(first, second) for first, second in pairs_of_ids)

    return WordFinder(
        words,
        folds_case=is_same((letter, letter.upper()) for letter in "aeimnorst"),
        drops_accents=is_same(("e", "e" + accent) for accent in "\u0301\u0308"),
        splits_chinese=base.splits_chinese,
        keeps_marks=base.keeps_marks,
    )


def _joins(character: str) -> bool:
    """Whether a character joins its neighbors into one word."""
    return character.isalnum() or character in _JOINERS or unicodedata.category(character) in ("Mn", "Mc", "Me", "Pc")


@dataclass(frozen=True, slots=True)
class WordList:
    """Words to add to a tokenizer.

    Attributes:
        words: the words, without duplicates and without words that are single tokens already.
        notes: messages on skipped words in the file, with the reason.
    """

    words: tuple[str, ...]
    notes: tuple[str, ...]


def read_words(path: Path, base: Tokenizer) -> WordList:
    """Read words from a UTF-8 file, one per line; blank lines are ignored.

    Words that are equal for the tokenizer count as one word, for example "Covid" and "covid" if it lower-cases.

    Args:
        base: the tokenizer to extend.

    Raises:
        DataError: the file cannot be read, a line is not a single word, or no word is left.
    """
    lines = _lines(Path(path))
    specials = {base.piece(int(i)) for i in np.flatnonzero(base.is_special)}
    finder = finder_of(base, ())
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
            f"{path}: there is no word to add: {_count(single_tokens, 'already one token') or 'the file is empty'}"
        )
    notes = (_count(repeated, "repeated in the file"), _count(single_tokens, "already one token"))
    return WordList(tuple(new_words), tuple(f"{path}: left out: {note}" for note in notes if note))


def _lines(path: Path) -> list[tuple[int, str]]:
    """Return the line numbers and stripped text of the lines that are not blank."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: is not UTF-8 ({error}): save it as UTF-8") from None
    return [(number, line.strip()) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]


def _reason_against(line: str, specials: set[str], base: Tokenizer, finder: WordFinder) -> str | None:
    if line.split() != [line]:
        return "contains white space: write one word per line"
    if any(unicodedata.category(character) == "Cc" for character in line):
        return "contains a control character: write one word per line"
    if line in specials:
        return "is the name of a special token, which text cannot contain: remove it"
    if not len(base.encode_ids([" " + line])[0]):
        return "is empty for this tokenizer, which drops such characters: remove it"
    plain = unicodedata.normalize("NFKC", line)
    if finder.fold(plain) != finder.fold(line):
        ids, same = base.encode_ids([" " + line, " " + plain])
        if np.array_equal(ids, same):
            return f"is {plain!r} for this tokenizer, which replaces such characters: write {plain!r} instead"
    return None


def _count(words: Sequence[str], what: str) -> str:
    if not words:
        return ""
    listing = ", ".join(words[:_SHOWN]) + (", ..." if len(words) > _SHOWN else "")
    return f"{len(words)} word{'s' if len(words) > 1 else ''} ({listing}), {what}"
