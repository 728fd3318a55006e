"""Documents (JSON, YAML, JSON lines) that another person may have written; they are checked against a schema.

Reading always ends soon, either with plain values that fit the schema or with one message that names file and field.
These are refused: irregular or too large files (see ``files``), damaged text, too deep nesting, YAML aliases (which
can expand to any size), YAML's numbers in base 60, and numbers that are not finite or too large for 64 bits.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from lmtransfer.errors import LmtransferError
from lmtransfer.untrusted.files import DOCUMENT_BYTES, LARGEST_BYTES, read_bytes
from lmtransfer.untrusted.schema import LARGEST_WHOLE, Anything, Kind, join, shown

#: Highest nesting depth of mappings and lists.
LOWEST = 100
#: Highest size of a YAML file: a configuration usually has a few kilobytes, and reading YAML is slow.
YAML_BYTES = 1 << 22

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_ANY = Anything()
#: 190:20:30 is 685230 in YAML 1.1; PyYAML's time for it is the square of its length.
_BASE_60 = re.compile(r"[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?")


class _Refused(Exception):
    """A document that is refused; the message is appended to the file name."""


def read_json(
    path: Path,
    schema: Kind = _ANY,
    *,
    error: type[LmtransferError],
    finite: bool = True,
    most: int = DOCUMENT_BYTES,
) -> Any:
    """Read a JSON file and check it.

    Args:
        path: path of the file.
        schema: the schema of its content.
        error: class of the error to raise.
        finite: whether every number must be finite and fit into 64 bits; otherwise the schema decides.
        most: maximum size in bytes.

    Raises:
        LmtransferError: of the class ``error``, with file and field.
    """
    raw = read_bytes(path, error=error, most=most)
    try:
        return _checked(_json(raw), schema, finite)
    except _Refused as refused:
        raise error(f"{path}: {refused}") from None


def read_yaml(path: Path, schema: Kind = _ANY, *, error: type[LmtransferError]) -> Any:
    """Read a YAML file and check it; see ``read_json``."""
    raw = read_bytes(path, error=error, most=YAML_BYTES)
    try:
        return _checked(_yaml(raw), schema, finite=True)
    except _Refused as refused:
        raise error(f"{path}: {refused}") from None


def read_json_lines(
    path: Path, schema: Kind = _ANY, *, error: type[LmtransferError], finite: bool = True
) -> Iterator[tuple[int, bytes, Any, str | None]]:
    """Read a file of JSON lines and check each line; blank lines are skipped.

    Args:
        path: path of the file.
        schema: the schema of a line.
        error: class of the error to raise if the file itself cannot be read.
        finite: whether every number must be finite.

    Yields:
        The number of the line, from 1; the line as it is, with its line end; its value; its problem. Either the value
        or the problem is None, except that a valid line may hold null.
    """
    for number, line in enumerate(read_bytes(path, error=error, most=LARGEST_BYTES).splitlines(keepends=True), start=1):
        if not line.strip():
            continue
        try:
            yield number, line, _checked(_json(line), schema, finite), None
        except _Refused as refused:
            yield number, line, None, str(refused)


def parse_json(raw: bytes, *, path: Path, what: str, error: type[LmtransferError]) -> Any:
    """Parse JSON that is a part of a file.

    Args:
        raw: bytes of the JSON.
        path: path of the file.
        what: name of the part, for messages.
        error: class of the error to raise.

    Raises:
        LmtransferError: of the class ``error``, with file and field.
    """
    try:
        return _checked(_json(raw), _ANY, finite=True)
    except _Refused as refused:
        raise error(f"{path}: {what}: {refused}") from None


def parse_yaml(raw: bytes, *, path: Path, error: type[LmtransferError]) -> Any:
    """Parse YAML that is a part of a file, such as the front matter of a card; see ``parse_json``."""
    try:
        if len(raw) > YAML_BYTES:
            raise _Refused(f"has more than {YAML_BYTES:,} bytes of YAML")
        return _checked(_yaml(raw), _ANY, finite=True)
    except _Refused as refused:
        raise error(f"{path}: {refused}") from None


def leaves(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted key and value of every text, number, truth value and null inside plain data, such as ``corpus.path[0]``.

    Args:
        value: plain values.
        key: key of ``value`` itself.
    """
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from leaves(item, f"{key}.{name}".removeprefix("."))
    elif isinstance(value, list):
        for place, item in enumerate(value):
            yield from leaves(item, f"{key}[{place}]")
    else:
        yield key, value


def texts(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Dotted key and value of every string inside plain data; see ``leaves``."""
    return ((where, leaf) for where, leaf in leaves(value, key) if isinstance(leaf, str))


def interpolations(value: Any) -> Iterator[tuple[str, str]]:
    """Key and value of every string in which OmegaConf would resolve an interpolation."""
    return ((key, text) for key, text in texts(value) if "${" in text)


def _json(raw: bytes) -> Any:
    try:
        return json.loads(raw.decode("utf-8-sig"))
    except RecursionError:
        raise _Refused(f"is nested more than {LOWEST} deep") from None
    except ValueError as error:
        raise _Refused(f"is damaged or is not JSON ({first_line(error)})") from None


def _yaml(raw: bytes) -> Any:
    try:
        problem = yaml_problem(raw, most_repeated=0)
        if problem is not None:
            raise _Refused(f"line {problem[0]} {problem[1]}")
        return yaml.load(raw, Loader=_Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = "" if mark is None else f"line {mark.line + 1}: "
        raise _Refused(f"is damaged or is not YAML ({place}{getattr(error, 'problem', None) or first_line(error)})"
                       ) from None  # fmt: skip
    except (ValueError, TypeError, OverflowError, RecursionError) as error:  # invalid dates and keys
        raise _Refused(f"is damaged or is not YAML with plain values only ({first_line(error)})") from None


def yaml_problem(raw: bytes | str, *, most_repeated: int, loader: Any = _Loader) -> tuple[int, str] | None:
    """What makes reading a YAML document take for ever, found before it is read; None if nothing does.

    Args:
        raw: the document.
        most_repeated: how many values its aliases may repeat; 0: it may have no alias.
        loader: PyYAML's loader.

    Returns:
        The line and the problem, in words that follow the line.

    Raises:
        yaml.YAMLError: it is not YAML.
    """
    anchors: dict[str | None, int | None] = {}  # values below an anchor; None while the anchor is still open
    above: list[tuple[str | None, int]] = []
    values = repeated = 0
    for event in yaml.parse(raw, Loader=loader):
        line = 1 if event.start_mark is None else event.start_mark.line + 1
        if isinstance(event, yaml.AliasEvent):
            inside = anchors.get(event.anchor)
            if event.anchor in anchors and inside is None:
                return line, f"has the YAML alias *{str(event.anchor)[:40]}, which contains itself"
            repeated += inside or 1
            if repeated > most_repeated:
                return line, "has a YAML alias, which is not allowed" if not most_repeated else (
                    f"has YAML aliases that repeat more than {most_repeated:,} values: write the values out"
                )
            values += inside or 1
        elif isinstance(event, yaml.CollectionStartEvent):
            if len(above) == LOWEST:
                return line, f"is nested more than {LOWEST} deep"
            above.append((event.anchor, values))
            values += 1
            if event.anchor is not None:
                anchors[event.anchor] = None
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = above.pop()
            if anchor is not None:
                anchors[anchor] = values - before
        elif isinstance(event, yaml.ScalarEvent):
            values += 1
            if event.anchor is not None:
                anchors[event.anchor] = 1
            is_tagged = event.tag is not None and event.tag.endswith((":int", ":float")) and ":" in event.value
            if is_tagged or (event.implicit[0] and _BASE_60.fullmatch(event.value)):
                return line, f"has {shown(event.value)}, which YAML takes for a number in base 60: write it in quotes"
    return None


def _checked(document: Any, schema: Kind, finite: bool) -> Any:
    """Check that a document consists of plain values and fits the schema; return it."""
    if not _is_plain(document, finite):
        raise _Refused(_what_is_not_plain(document, finite))
    problem = schema.problem(document, "")
    if problem is not None:
        raise _Refused(problem)
    return document


def first_line(error: BaseException) -> str:
    """The message of a library's error, as one line."""
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


def _is_plain(document: Any, finite: bool) -> bool:
    """Whether a document holds only plain values within the nesting limit, checked level by level."""
    level = [document]
    for _ in range(LOWEST + 1):
        below: list[Any] = []
        for value in level:
            kind = type(value)
            if kind is dict:
                if not all(isinstance(name, str | int) for name in value):
                    return False
                below.extend(value.values())
            elif kind is list:
                below.extend(value)
            elif _what_is_wrong(value, finite) is not None:
                return False
        if not below:
            return True
        level = below
    return False


def _what_is_not_plain(document: Any, finite: bool) -> str:
    """The first problem that makes a document not plain, with its field."""
    level = [(document, "")]
    for _ in range(LOWEST + 1):
        below: list[tuple[Any, str]] = []
        for value, where in level:
            if isinstance(value, dict):
                for name in value:
                    if not isinstance(name, str | int):
                        return f"{where or 'its content'} has the key {shown(name)}, but keys must be text"
                below.extend((item, join(where, name)) for name, item in value.items())
            elif isinstance(value, list):
                below.extend((item, f"{where}[{place}]") for place, item in enumerate(value))
            elif (wrong := _what_is_wrong(value, finite)) is not None:
                return f"{where or 'its content'} {wrong}"
        level = below
    return f"is nested more than {LOWEST} deep"


def _what_is_wrong(value: Any, finite: bool) -> str | None:
    """The problem of a single value; None if there is none."""
    if value is None or isinstance(value, str | bool):
        return None
    if isinstance(value, float):
        return f"is {value}; it must be a finite number" if finite and not math.isfinite(value) else None
    if isinstance(value, int):
        return f"is {shown(value)}, which does not fit into 64 bits" if finite and abs(value) > LARGEST_WHOLE else None
    return f"is a {type(value).__name__}; only texts, numbers, lists and mappings are allowed"
