"""A file of words that a tokenizer is to have as one token each."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lmtransfer.errors import DataError
from lmtransfer.tokenizers.base import Tokenizer
from lmtransfer.tokenizers.word_finder import finder_of

_SHOWN = 5


@dataclass(frozen=True, slots=True)
class WordList:
    """Words to add to a tokenizer.

    Attributes:
        words: each once, none of which it has as one token already.
        notes: which words of the file are left out, and why.
    """

    words: tuple[str, ...]
    notes: tuple[str, ...]


def read_words(path: Path, base: Tokenizer) -> WordList:
    """Read words, one a line, UTF-8; blank lines are nothing.

    Two that are the same to the tokenizer, as "Covid" and "covid" to one that lower-cases, are one word.

    Args:
        path: the file.
        base: the tokenizer that they are for.

    Raises:
        DataError: the file cannot be read, a line is no word, or no word is left.
    """
    lines = _lines(Path(path))
    specials = {base.piece(int(i)) for i in np.flatnonzero(base.is_special)}
    wrong = [
        f"{path}:{number}: {line!r} {reason}"
        for number, line in lines
        if (reason := _reason_against(line, specials, base)) is not None
    ]
    if wrong:
        more = f"\n(and {len(wrong) - _SHOWN} more)" if len(wrong) > _SHOWN else ""
        raise DataError("\n".join(wrong[:_SHOWN]) + more)
    finder = finder_of(base, ())
    words: dict[str, str] = {}
    repeated: list[str] = []
    known: list[str] = []
    for _, line in lines:
        if finder.folded(line) in words:
            repeated.append(line)
        else:
            words[finder.folded(line)] = line
    kept: list[str] = []
    for word, ids in zip(words.values(), base.encode_ids([" " + word for word in words.values()]), strict=True):
        (known if len(ids) == 1 and ids[0] != base.unk_id else kept).append(word)
    if not kept:
        raise DataError(f"{path}: no word to add: {_counted(known, 'is one token already') or 'the file is empty'}")
    notes = (_counted(repeated, "is there more than once"), _counted(known, "is one token already"))
    return WordList(tuple(kept), tuple(f"{path}: left out: {note}" for note in notes if note))


def _lines(path: Path) -> list[tuple[int, str]]:
    """The lines that are not blank, without white space around them, and their numbers."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: is not UTF-8 ({error}): save it as UTF-8") from None
    return [(number, line.strip()) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]


def _reason_against(line: str, specials: set[str], base: Tokenizer) -> str | None:
    if line.split() != [line]:
        return "holds white space: write one word a line"
    if any(unicodedata.category(character) == "Cc" for character in line):
        return "holds a control character: write one word a line"
    if line in specials:
        return "is the name of a special token, which no text can spell: leave it out"
    if not len(base.encode_ids([" " + line])[0]):
        return "is nothing to this tokenizer, which drops such characters: leave it out"
    return None


def _counted(words: Sequence[str], what: str) -> str:
    if not words:
        return ""
    shown = ", ".join(words[:_SHOWN]) + (", ..." if len(words) > _SHOWN else "")
    return f"{len(words)} word{'s' if len(words) > 1 else ''} of which each {what} ({shown})"
