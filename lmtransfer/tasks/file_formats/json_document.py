"""JSON documents read from files, with error messages that give the position in the document.

Published question sets are documents of 10 to 100 MB, each of which is read into memory. A position is the path from
the top, such as ``dev.json: data[3].paragraphs[0].qas[2].answers[0] (question 56be4db0)``.
"""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

from lmtransfer.data.files import check_text, not_utf8, open_binary
from lmtransfer.errors import DataError

_SURROGATES = re.compile("[\ud800-\udfff]")
_MOST_SHOWN = 40


class JsonNode:
    """A value in a document.

    Args:
        parent: the enclosing value; None for the whole document.
        step: key or index in the parent; the file for the whole document.

    Attributes:
        question: id of the question that this value represents, shown in messages about the value and what it contains.
    """

    __slots__ = ("_parent", "_step", "question", "value")

    def __init__(self, value: Any, parent: JsonNode | None, step: str | int) -> None:
        self.value = value
        self.question: str | None = None
        self._parent = parent
        self._step = step

    @property
    def where(self) -> str:
        """The file and the position of this value, for messages."""
        steps: list[str] = []
        question = None
        node = self
        while node._parent is not None:
            steps.append(f"[{node._step}]" if isinstance(node._step, int) else f".{node._step}")
            question = question or node.question
            node = node._parent
        question = question or node.question
        path = f": {''.join(reversed(steps)).removeprefix('.')}" if steps else ""
        return f"{node._step}{path}" + (f" (question {question})" if question is not None else "")

    def field(self, key: str) -> JsonNode:
        """Return the value of a required key."""
        node = self.get(key)
        if node is None:
            keys = ", ".join(list(self.value)[:_MOST_SHOWN]) or "none"
            raise DataError(f"{self.where}: no key {key!r}; the keys are {keys}")
        return node

    def get(self, key: str) -> JsonNode | None:
        """Return the value of a key, or None if the key is missing."""
        if not isinstance(self.value, dict):
            raise self._wrong_type("an object")
        return JsonNode(self.value[key], self, key) if key in self.value else None

    def fields(self) -> list[tuple[str, JsonNode]]:
        """Return the keys and values of an object, in order."""
        if not isinstance(self.value, dict):
            raise self._wrong_type("an object")
        return [(key, JsonNode(value, self, key)) for key, value in self.value.items()]

    def items(self) -> list[JsonNode]:
        """Return the values of a list."""
        if not isinstance(self.value, list):
            raise self._wrong_type("a list")
        return [JsonNode(value, self, place) for place, value in enumerate(self.value)]

    def text(self) -> str:
        """Return the value, which must be a text but may be empty."""
        if not isinstance(self.value, str):
            raise self._wrong_type("text")
        if not self.value.isascii() and (half := _SURROGATES.search(self.value)):
            raise DataError(
                f"{self.where}: character {half.start()} is half of a surrogate pair (\\u{ord(half.group()):04x}), "
                "which is not a valid character; write the whole pair, or replace it with \\ufffd (this does not "
                "change offsets)"
            )
        return self.value

    def nonblank_text(self) -> str:
        """Return the value, which must be a text that is not blank."""
        text = self.text()
        if not text.strip():
            raise DataError(
                f"{self.where}: the text is empty ({text[:_MOST_SHOWN]!r}); add the text, or remove its entry"
            )
        return text

    def name(self) -> str:
        """Return an id: a non-empty text, or a whole number as text."""
        if isinstance(self.value, int) and not isinstance(self.value, bool):
            return str(self.value)
        return self.nonblank_text()

    def number(self) -> int:
        """Return a whole number."""
        if not isinstance(self.value, int) or isinstance(self.value, bool):
            raise self._wrong_type("a whole number")
        return self.value

    def finite(self) -> float:
        """Return a finite number."""
        if isinstance(self.value, bool) or not isinstance(self.value, int | float) or not math.isfinite(self.value):
            raise self._wrong_type("a finite number")
        return float(self.value)

    def boolean(self) -> bool:
        """Return a boolean."""
        if not isinstance(self.value, bool):
            raise self._wrong_type("true or false")
        return self.value

    def _wrong_type(self, expected: str) -> DataError:
        content = json.dumps(self.value)
        content = content if len(content) <= _MOST_SHOWN else content[: _MOST_SHOWN - 3] + "..."
        return DataError(f"{self.where}: the value must be {expected}; it is {content}")


def load_json(path: Path) -> JsonNode:
    """Parse the document in a file.

    Raises:
        DataError: the file cannot be read, is not UTF-8, or is not JSON (the message has ``file:line:column``); or an
            object has a duplicate key, which ``json`` would drop.
    """
    with open_binary(path) as stream:
        raw = stream.read()
    check_text(path, raw[:4096])
    try:
        text = raw.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        column = error.start - raw.rfind(b"\n", 0, error.start)
        raise not_utf8(f"{path}:{line}", raw[error.start :], column) from None
    if not text.strip():
        raise DataError(f"{path}: the file is empty; one JSON object is expected")

    def check_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        record = dict(pairs)
        if len(record) < len(pairs):
            keys = [key for key, _ in pairs]
            twice = next(key for place, key in enumerate(keys) if key in keys[:place])
            raise DataError(
                f"{path}: an object has the key {twice!r} twice (its keys: {', '.join(keys[:_MOST_SHOWN])})"
            )
        return record

    try:
        value = json.loads(text, object_pairs_hook=check_keys)
    except json.JSONDecodeError as error:
        hint = "; a file with one object per line has another format (.jsonl)" if error.msg == "Extra data" else ""
        raise DataError(f"{path}:{error.lineno}:{error.colno}: not JSON ({error.msg}){hint}") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: the JSON cannot be parsed ({error})") from None
    return JsonNode(value, None, str(path))
