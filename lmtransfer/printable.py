"""Text of others as it may be shown: nothing in it moves a cursor, changes a colour or turns a line around."""

from __future__ import annotations

import unicodedata
from typing import Any

_KEPT = frozenset("\n\t")


def printable(text: str) -> str:
    """The text with its control and formatting characters written out; line ends and tabs stay."""
    if text.isprintable():
        return text
    return "".join(
        character.encode("unicode_escape").decode()
        if unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp") and character not in _KEPT
        else character
        for character in text
    )


def printable_values(value: Any) -> Any:
    """Plain data with every text in it as ``printable`` gives it, keys too."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {printable_values(key): printable_values(item) for key, item in value.items()}
    if isinstance(value, list):
        return [printable_values(item) for item in value]
    return value
