"""Readers, with size limits, for files that other programs or people may have written.

``check_folder`` checks someone else's folder (a run, a published model, a local data set) once, when it is opened: it
may hold only regular files and folders, and no link may lead out of it. Each file is then read by one of the functions
below. These functions check again that the file is regular, and check its size before they read it. They either return
plain values of the given type or raise a single error that names the file and the field. They reject damaged text, deep
nesting, YAML aliases (which can expand to any size), YAML's base-60 numbers, and numbers that are not finite or need
more than 64 bits. No message shows the content of a file that could not be parsed.
"""

from __future__ import annotations

import json
import math
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

import yaml

from lmtransfer.errors import LmtransferError
from lmtransfer.system import door
from lmtransfer.system.printable import first_line
from lmtransfer.system.validation import LARGEST_INTEGER, Misfit, check, describe_value, join

if TYPE_CHECKING:
    from torch import Tensor

T = TypeVar("T")

#: Maximum size in bytes of a document: a configuration, a state, a result.
DOCUMENT_BYTES = 1 << 26
#: Maximum size in bytes of a file that is read line by line, or of a tokenizer's model.
LARGEST_BYTES = 1 << 31
#: Maximum size in bytes of a YAML file: a configuration usually has a few kilobytes, and reading YAML is slow.
YAML_BYTES = 1 << 22
#: Maximum nesting depth of mappings and lists.
DEEPEST = 100

_REPLACE = "replace it with the file itself"
_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
#: 190:20:30 is 685230 in YAML 1.1; PyYAML takes quadratic time to parse it.
_BASE_60 = re.compile(r"[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?")


def irregularity(path: Path) -> str | None:
    """Return the problem with a file that is not regular (reading it might never end); None if it is regular.

    Raises:
        Refused: someone else's run may not cause this file to be read.
    """
    door.check(path)
    try:
        return _not_regular(path.stat().st_mode)
    except (OSError, ValueError) as fault:
        return f"cannot read the file ({_reason(fault)})"


def is_file_name(text: str) -> bool:
    """Whether a text is the plain name of a file, which leads to no other folder."""
    return text.strip() not in ("", ".", "..") and text.isprintable() and not set(text) & set("/\\")


def check_folder(folder: Path, *, error: type[LmtransferError]) -> None:
    """Check that everything in a folder is a regular file or a folder, and that its links stay inside it.

    In a copy in the hub's cache, links may also lead to that cache's ``blobs``. Two kinds of folders are never read, so
    their links may lead anywhere: hidden ones (``.git``) and ``trackers``, where W&B keeps links to its logs.
    """
    real = Path(os.path.realpath(folder))
    blobs = door.blobs_of(real)
    for entry in _entries(real):
        path = folder / Path(entry.path).relative_to(real)
        with suppress(OSError):  # a link to a missing file
            problem = None if entry.is_dir() else _not_regular(entry.stat().st_mode)
            if problem is not None:
                raise error(f"{path}: {problem}")
        if entry.is_symlink():
            target = Path(os.path.realpath(entry.path))
            if not any(map(target.is_relative_to, (real, *blobs))):
                raise error(f"{path} is a link to {target}, which is outside the folder: {_REPLACE}")


def _entries(folder: Path, *, at_top: bool = True) -> Iterator[os.DirEntry[str]]:
    """Yield everything in a folder, except what is below links or in folders that are unreadable or never read."""
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            yield entry
            is_read = entry.name != "trackers" and not (at_top and entry.name.startswith("."))
            if is_read and entry.is_dir(follow_symlinks=False):
                yield from _entries(Path(entry.path), at_top=False)


@contextmanager
def open_regular(path: Path, *, error: type[LmtransferError]) -> Iterator[tuple[BinaryIO, int]]:
    """Open a regular file for reading, and yield the file and its size in bytes."""
    problem = irregularity(path)
    if problem is not None:
        raise error(f"{path}: {problem}")
    try:
        # It may have become a pipe; do not wait for its writer.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            status = os.fstat(file.fileno())
            problem = _not_regular(status.st_mode)
            if problem is not None:
                raise error(f"{path}: {problem}")
            yield file, status.st_size
    except OSError as fault:
        raise error(f"{path}: cannot read the file ({_reason(fault)})") from None


def _not_regular(mode: int) -> str | None:
    kind = next((what for is_kind, what in _KINDS if is_kind(mode)), None)
    return None if kind is None else f"this is {kind}, but must be a regular file: {_REPLACE}"


def _reason(fault: OSError | ValueError) -> str:
    return getattr(fault, "strerror", None) or str(fault)  # a ValueError: the name contains a NUL


def read_bytes(path: Path, *, error: type[LmtransferError], most: int = DOCUMENT_BYTES) -> bytes:
    """Read a whole file."""
    with open_regular(path, error=error) as (file, size):
        content = file.read(size + 1) if size <= most else b""
    if max(size, len(content)) > most:
        raise error(f"{path}: the file has more than {most:,} bytes, the maximum for a file of its kind")
    return content


def read_json(
    path: Path,
    annotation: type[T],
    *,
    error: type[LmtransferError],
    finite: bool = True,
    most: int = DOCUMENT_BYTES,
) -> T:
    """Read a JSON file and check it.

    Args:
        annotation: the type of the content; a TypedDict allows and keeps additional keys.
        finite: whether every number must be finite and fit into 64 bits; otherwise the type decides.
    """
    raw = read_bytes(path, error=error, most=most)
    return parse_json(raw, annotation, source=str(path), error=error, finite=finite)


def parse_json(raw: bytes, annotation: type[T], *, source: str, error: type[LmtransferError], finite: bool = True) -> T:
    """Parse JSON from part of a file; see ``read_json``."""
    try:
        return _check_document(_json(raw), annotation, finite)
    except _Rejected as rejected:
        raise error(f"{source}: {rejected}") from None


def read_json_lines(
    path: Path, annotation: type[T], *, error: type[LmtransferError], finite: bool = True
) -> Iterator[tuple[int, bytes, T | None, str | None]]:
    """Read a file of JSON lines and check each line; blank lines are skipped.

    Yields:
        The line number, from 1; the unchanged line, with its line end; its value; its problem. Either the value or the
        problem is None, except that a valid line may hold null.
    """
    for number, line in enumerate(read_bytes(path, error=error, most=LARGEST_BYTES).splitlines(keepends=True), start=1):
        if not line.strip():
            continue
        try:
            yield number, line, _check_document(_json(line), annotation, finite), None
        except _Rejected as rejected:
            yield number, line, None, str(rejected)


def read_yaml(path: Path, annotation: type[T], *, error: type[LmtransferError]) -> T:
    """Read a YAML file and check it; see ``read_json``."""
    return parse_yaml(read_bytes(path, error=error, most=YAML_BYTES), annotation, source=str(path), error=error)


def parse_yaml(raw: bytes, annotation: type[T], *, source: str, error: type[LmtransferError]) -> T:
    """Parse YAML from part of a file, such as a card's front matter; see ``parse_json``."""
    try:
        if len(raw) > YAML_BYTES:
            raise _Rejected(f"the YAML has more than {YAML_BYTES:,} bytes")
        return _check_document(_yaml(raw), annotation, finite=True)
    except _Rejected as rejected:
        raise error(f"{source}: {rejected}") from None


class _Rejected(Exception):
    """Raised if a document is rejected; the caller puts the file name before the message."""


def _json(raw: bytes) -> Any:
    try:
        return json.loads(raw.decode("utf-8-sig"))
    except RecursionError:
        raise _Rejected(f"the content is nested more than {DEEPEST} levels deep") from None
    except ValueError as error:
        raise _Rejected(f"the file is damaged or is not JSON ({first_line(error)})") from None


def _yaml(raw: bytes) -> Any:
    try:
        problem = yaml_problem(raw, most_repeated=0)
        if problem is not None:
            raise _Rejected(f"line {problem[0]}: {problem[1]}")
        return yaml.load(raw, Loader=_Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = "" if mark is None else f"line {mark.line + 1}: "
        reason = getattr(error, "problem", None) or first_line(error)
        raise _Rejected(f"the file is damaged or is not YAML ({place}{reason})") from None
    except (ValueError, TypeError, OverflowError, RecursionError) as error:  # invalid dates and keys
        raise _Rejected(f"the file is damaged or is not YAML with plain values only ({first_line(error)})") from None


def yaml_problem(raw: bytes | str, *, most_repeated: int, loader: Any = _Loader) -> tuple[int, str] | None:
    """Find the part of a YAML document that would take too long to read, before reading it; None if there is none.

    Args:
        most_repeated: maximum number of values that aliases may repeat; 0 forbids aliases.

    Returns:
        The line number and the problem.

    Raises:
        yaml.YAMLError: the document is not YAML.
    """
    anchors: dict[str | None, int | None] = {}  # number of values below an anchor; None while the anchor is open
    above: list[tuple[str | None, int]] = []
    values = repeated = 0
    for event in yaml.parse(raw, Loader=loader):
        line = 1 if event.start_mark is None else event.start_mark.line + 1
        if isinstance(event, yaml.AliasEvent):
            inside = anchors.get(event.anchor)
            if event.anchor in anchors and inside is None:
                return line, f"the YAML alias *{str(event.anchor)[:40]} contains itself"
            repeated += inside or 1
            if repeated > most_repeated:
                return line, "YAML aliases are not allowed" if not most_repeated else (
                    f"YAML aliases repeat more than {most_repeated:,} values: write the values out"
                )
            values += inside or 1
        elif isinstance(event, yaml.CollectionStartEvent):
            if len(above) == DEEPEST:
                return line, f"the content is nested more than {DEEPEST} levels deep"
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
                return (
                    line,
                    f"YAML reads {describe_value(event.value)} as a number in base 60: write it in quotes",
                )
    return None


def _check_document(document: Any, annotation: type[T], finite: bool) -> T:
    """Check that a document consists of plain values and matches the type; return the document itself."""
    misfit = _not_plain(document, finite, 0)
    try:
        if misfit is None:
            check(document, annotation)
            return document
    except Misfit as error:
        misfit = error
    if not misfit.where:  # probably another file, whose content must not be shown
        raise _Rejected(f"the content must be {misfit.expected}")
    where = join("", *(name if isinstance(name, int) else name[:40] for name in misfit.where))
    raise _Rejected(f"{where}: {misfit}")


def _not_plain(value: Any, finite: bool, depth: int) -> Misfit | None:
    """Return the first value in a document that is not plain; raise an error if it is nested too deeply."""
    if isinstance(value, dict | list):
        if depth == DEEPEST:
            raise _Rejected(f"the content is nested more than {DEEPEST} levels deep")
        for name, item in value.items() if isinstance(value, dict) else enumerate(value):
            if not isinstance(name, str | int):
                return Misfit((), value, "a mapping whose keys are text")
            misfit = _not_plain(item, finite, depth + 1)
            if misfit is not None:
                misfit.where = (name, *misfit.where)
                return misfit
    elif isinstance(value, float):
        if finite and not math.isfinite(value):
            return Misfit((), value, "a finite number")
    elif isinstance(value, int):
        if finite and abs(value) > LARGEST_INTEGER:
            return Misfit((), value, "a number of 64 bits")
    elif value is not None and not isinstance(value, str):  # YAML also has dates, sets and bytes
        expected = "text, a number, a list or a mapping"
        return Misfit((), value, expected, f"a {type(value).__name__} is not {expected}")
    return None


def read_tensors(path: Path, *, error: type[LmtransferError]) -> dict[str, Tensor]:
    """Read the tensors of a safetensors file into CPU memory; the library checks the header against the file."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    problem = irregularity(path)
    if problem is not None:
        raise error(f"{path}: {problem}")
    try:
        return load_file(path)
    except (SafetensorError, OSError, ValueError) as fault:
        raise error(
            f"{path}: the file is damaged or incomplete, or is not a safetensors file ({first_line(fault)}); download "
            "or copy it again"
        ) from None
