"""A parser for JSON lines or an array of any size, with line numbers and only one value in memory."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import chain
from typing import Any, Final

from lmtransfer.data.documents import Notes
from lmtransfer.errors import DataError

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{}]')
_SPACE = re.compile(r"[ \t\r\n]*")
#: How pandas writes one object per line.
AS_LINES = "df.to_json(path, orient='records', lines=True)"


def json_values(lines: Iterator[tuple[int, str]], origin: str, notes: Notes) -> Iterator[tuple[str, Any]]:
    """Parse JSON with one value per line, or one array over any number of lines, with one item in memory at a time.

    Args:
        lines: numbers and lines, as from ``read_lines``.
        origin: name of the source in messages.
        notes: counts blank lines.

    Yields:
        ``file:line`` of a value (in an array also the item number), and the value; a ValueError in place of a line that
        cannot be parsed.

    Raises:
        DataError: an array cannot be parsed or is truncated, or the lines hold a single object.
    """
    is_first = True
    for number, line in lines:
        where = f"{origin}:{number}"
        if not line.strip():
            notes.add("blank lines", where)
            continue
        if is_first and line.lstrip().startswith("["):
            for item, (start, value) in enumerate(_array_items(chain([(number, line)], lines), origin), start=1):
                yield f"{origin}:{start}, item {item}", value
            return
        try:
            parsed = json.loads(line)
        except (ValueError, RecursionError) as error:
            parsed = ValueError(f"not a JSON object ({error})")
            if is_first and line.strip() == "{":
                raise DataError(
                    f"{where}: a single JSON object over several lines is not a table; write an array of objects, or "
                    f"one object per line ({AS_LINES})"
                ) from None
        yield where, parsed
        is_first = False


#: What may come next in an array besides an item, by what came last.
_NEXT: Final = {"start": "[", "[": "]", ",": "", "item": ",]", "]": ""}


def _array_items(lines: Iterator[tuple[int, str]], origin: str) -> Iterator[tuple[int, Any]]:
    """Yield the items of an array, each with the number of its first line."""
    decoder, depth, last = json.JSONDecoder(), 0, "start"
    waiting: list[str] = []  # lines of an incomplete last item
    start: int | None = None  # number of the line where the item starts
    number = 0
    for number, line in lines:
        lowest = depth
        for token in _TOKEN.finditer(line):
            depth += (token[0] in "[{") - (token[0] in "]}")
            lowest = min(lowest, depth)
        waiting.append(line)
        if lowest > 1:
            continue
        text, place = "\n".join(waiting), 0
        while (place := _after_space(text, place)) < len(text):
            if text[place] in _NEXT[last]:
                last = text[place]
                place += 1
                continue
            if last not in ("[", ","):
                raise _no_array(origin, number, f"{text[place : place + 40]!r} is not expected here")
            try:
                value, place = decoder.raw_decode(text, place)
            except (ValueError, RecursionError) as error:
                if depth <= 1:
                    raise _no_array(origin, number, str(error)) from None
                start = number if start is None else start
                break
            yield (number if start is None else start), value
            last, start = "item", None
        waiting = [text[place:]] if place < len(text) else []
    if last != "]":
        raise _no_array(origin, number, "it does not end: the file is cut short")


def _after_space(text: str, place: int) -> int:
    space = _SPACE.match(text, place)
    return place if space is None else space.end()


def _no_array(origin: str, number: int, problem: str) -> DataError:
    return DataError(f"{origin}:{number}: not a JSON array ({problem}); write the file again")
