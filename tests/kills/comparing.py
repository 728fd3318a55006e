"""Comparing the content of two folders, except for times."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

#: Keys of durations, times and memory, which differ from run to run.
_MEASURED = frozenset({"seconds", "tokens_per_second", "prepared", "peak_memory"})
#: Columns of tables that hold durations.
_TIMED_COLUMNS = ("tokens/s",)


def differences(expected: Path, found: Path) -> list[str]:
    """The differences of ``found`` from ``expected``: missing files, extra files, files with other content.

    Every file counts except locks, seals (digests of a whole ``config.yaml`` with a random key) and the logs of a
    study. Of JSON, CSV and Markdown everything except times is compared; of configurations everything except whether
    the run was resumed; of safetensors every bit of the tensors; of all other files every byte.
    """
    ours, theirs = _files(expected), _files(found)
    said = [f"{name} is missing" for name in sorted(ours - theirs)]
    said += [f"{name} is left over" for name in sorted(theirs - ours)]
    for name in sorted(ours & theirs):
        if (expected / name).read_bytes() == (found / name).read_bytes():
            continue
        if name.endswith(".safetensors"):
            said += _tensors(name, expected / name, found / name)
        elif _content(expected / name) != _content(found / name):
            said.append(f"{name} differs: {_first(_content(expected / name), _content(found / name))}")
    return said


def _files(folder: Path) -> set[str]:
    paths = (path.relative_to(folder) for path in folder.rglob("*") if not path.is_dir() or not any(path.iterdir()))
    return {
        path.as_posix()
        for path in paths
        if path.name not in (".lock", "made_here", "made_here.key")
        and path.suffix != ".lock"
        and "logs" not in path.parts
    }


def _tensors(name: str, expected: Path, found: Path) -> list[str]:
    """The tensors that are not equal bit for bit."""
    ours, theirs = load_file(expected), load_file(found)
    if ours.keys() != theirs.keys():
        return [f"{name}: other tensors: {sorted(ours.keys() ^ theirs.keys())[:3]}"]
    other = [
        key for key, tensor in ours.items()
        if (tensor.dtype, tensor.shape) != (theirs[key].dtype, theirs[key].shape)
        or tensor.numpy().tobytes() != theirs[key].numpy().tobytes()
    ]  # fmt: skip
    return [f"{name}: {len(other)} of {len(ours)} tensors differ, such as {other[0]}"] if other else []


def _content(path: Path) -> Any:
    """The content of a file, without times."""
    read: Callable[[str], Any] | None = _READ.get(path.suffix)
    if read is None:
        return path.read_bytes()
    try:
        content = read(path.read_text(encoding="utf-8"))
    except ValueError as error:
        return f"cannot be read: {error}"
    if path.name == "manifest.json" and isinstance(content, dict) and "state.json" in content.get("files", {}):
        del content["files"]["state.json"]  # it contains times
    return content


def _untimed(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _untimed(item) for key, item in value.items() if key not in _MEASURED}
    return [_untimed(item) for item in value] if isinstance(value, list) else value


def _lines(text: str) -> list[Any]:
    return [_untimed(json.loads(line)) for line in text.splitlines()]


def _table(text: str) -> list[Any]:
    return [_untimed(row) for row in csv.DictReader(io.StringIO(text))]


def _markdown(text: str) -> list[list[str]]:
    """The cells of each line, without columns of times."""
    rows = [[cell.strip() for cell in line.split("|")] for line in text.splitlines()]
    timed = {place for row in rows for place, cell in enumerate(row) if cell in _TIMED_COLUMNS}
    return [[cell for place, cell in enumerate(row) if place not in timed] for row in rows]


_READ: Mapping[str, Callable[[str], Any]] = {
    ".json": lambda text: _untimed(json.loads(text)),
    ".jsonl": _lines,
    ".csv": _table,
    ".md": _markdown,
    ".yaml": lambda text: [line for line in text.splitlines() if not line.startswith("resume: ")],
}


def _first(expected: Any, found: Any, where: str = "") -> str:
    """The first place where two contents differ."""
    if isinstance(expected, dict) and isinstance(found, dict):
        for key in expected | found:
            if expected.get(key) != found.get(key):
                return _first(expected.get(key), found.get(key), f"{where}.{key}".lstrip("."))
    if isinstance(expected, list) and isinstance(found, list):
        for place, (one, other) in enumerate(zip(expected, found, strict=False)):
            if one != other:
                return _first(one, other, f"{where}[{place}]")
        return f"{where} has {len(found)} entries in place of {len(expected)}"
    return f"{where}: {str(found)[:80]} in place of {str(expected)[:80]}".lstrip(": ")
