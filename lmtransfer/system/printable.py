"""Text from other people, escaped so that it cannot move the cursor, change colors or reverse a line."""

from __future__ import annotations

import codecs
import unicodedata
from pathlib import Path
from typing import Any

_UNESCAPED = frozenset("\n\t")

#: Error handler for encoding that replaces a missing character with a similar ASCII sign, or its number.
IN_ASCII = "lmtransfer.in_ascii"
_LIKE = {0xB1: "+-", 0xD7: "x", 0x2013: "-", 0x2014: "-", 0x2022: "*", 0x2026: "~", 0x2581: "_"}
#: Frames, blocks and spinner dots.
_REPLACEMENTS = ((0x2500, 0x257F, "-"), (0x2580, 0x259F, "#"), (0x2800, 0x28FF, "*"))


def printable(text: str) -> str:
    """Escape control and formatting characters in a text, except line ends and tabs."""
    if text.isprintable():
        return text
    return "".join(
        character.encode("unicode_escape").decode()
        if unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp") and character not in _UNESCAPED
        else character
        for character in text
    )


def printable_values(value: Any) -> Any:
    """Return plain data with ``printable`` applied to every string in it, including keys."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {printable_values(key): printable_values(item) for key, item in value.items()}
    if isinstance(value, list):
        return [printable_values(item) for item in value]
    return value


def first_line(error: BaseException) -> str:
    """Return the message of a library's error on one line."""
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


def short_path(path: Path) -> str:
    """Return the path relative to the current folder if it is inside that folder, otherwise the whole path."""
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def _in_ascii(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(map(_like, error.object[error.start : error.end])), error.end


def _like(character: str) -> str:
    number = ord(character)
    replacement = next((sign for first, last, sign in _REPLACEMENTS if first <= number <= last), None)
    return _LIKE.get(number) or replacement or character.encode("ascii", "backslashreplace").decode()


codecs.register_error(IN_ASCII, _in_ascii)
