"""The comments of YAML files, which are where the settings are explained."""

from __future__ import annotations

import re
from collections.abc import Iterator

_LINE = re.compile(r"^(?P<indent> *)(?P<key>[A-Za-z_][\w.-]*):(?:\s(?P<rest>.*))?$")
_COMMENT = re.compile(r"(?:^|\s)#\s?(?P<text>.*)$")
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")


def leading_comment(text: str) -> list[str]:
    """The lines of the comment that a file starts with, ``# @package`` lines left out."""
    lines = []
    for line in text.splitlines():
        if not line.startswith("#"):
            break
        if not line.startswith("# @package"):
            lines.append(line.lstrip("#").removeprefix(" ").rstrip())
    return lines


def summary(text: str) -> str:
    """The first line of the leading comment: what, source, cost."""
    return next(iter(leading_comment(text)), "")


def keys(text: str) -> Iterator[tuple[str, str]]:
    """The full key of each line of block-style YAML, with the line itself ("" where a line has no key)."""
    parents: list[tuple[int, str]] = []
    for line in text.splitlines():
        match = _LINE.match(line)
        if not match:
            yield "", line
            continue
        indent = len(match["indent"])
        while parents and parents[-1][0] >= indent:
            parents.pop()
        parents.append((indent, match["key"]))
        yield ".".join(name for _, name in parents), line


def key_comments(text: str) -> dict[str, str]:
    """What the comments say about each key: the one at the end of its line, else the lines just above it."""
    found: dict[str, str] = {}
    above: list[str] = []
    first = True
    for key, line in keys(text):
        stripped = line.strip()
        if stripped.startswith("#"):
            above.append(stripped.lstrip("#").strip())
            continue
        if key:
            match = _COMMENT.search(_QUOTED.sub(lambda quoted: "_" * len(quoted[0]), line))
            if match:
                found[key] = line[match.start("text") :].strip()
            elif above and not first:
                found[key] = " ".join(above)
            first = False
        above = []
    return found
