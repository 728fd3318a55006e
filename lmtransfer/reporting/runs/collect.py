"""Reads finished, unfinished and damaged run directories, without importing torch or trusting their content.

A run is a folder with ``config.yaml``, ``metrics.jsonl`` or ``result.json``. Runs may be nested: ``<name>/seed-0``
for a seed, ``<name>/control`` for the control, and ``<name>/<overrides>`` for a point of a sweep.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from typing_extensions import TypedDict

from lmtransfer.config.revisions import with_revision
from lmtransfer.errors import RunDirectoryError
from lmtransfer.runs.result import read_values
from lmtransfer.system.printable import printable, printable_values
from lmtransfer.system.safe_files import check_folder, read_json, read_json_lines, read_yaml
from lmtransfer.system.validation import leaves

#: Files of a run; a folder with at least one of them is a run.
RUN_FILES = ("config.yaml", "metrics.jsonl", "result.json")
#: The commands that produce runs.
COMMANDS = ("import", "pretrain", "probe", "finetune", "evaluate")
#: Folders inside a run that contain no runs and are skipped for speed.
_NO_RUNS = frozenset({"checkpoints", "tokenizer", "published", "report", "figures", "tensorboard", "features",
                      "predictions", "trackers", "folds", "final"})  # fmt: skip
#: Maximum depth at which runs are searched for, which allows for command / sweep / point / seed / control.
MAX_DEPTH = 8

#: Maximum size in bytes of ``metrics.jsonl``, and maximum numbers of its lines, and of lines that are no JSON objects.
_METRICS_BYTES, _MOST_LINES, _MOST_BAD_LINES = 1 << 28, 500_000, 1000
#: Larger numbers cannot be measurements; squares and sums of numbers up to this are finite.
_LARGEST = 1e100


class _Config(TypedDict, total=False):
    init: str | None
    run: str | None
    task: dict[str, Any] | None
    transfer: dict[str, Any] | None
    optimizer: dict[str, Any] | None
    objective: dict[str, Any] | None
    train: dict[str, Any] | None
    learning_rates: list[float] | None


class _Versions(TypedDict, total=False):
    data: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Run:
    """One run directory on disk.

    Attributes:
        key: the path relative to the collected folder, with ``/`` as separator (``finetune/imdb-ft/seed-0``).
        state: "finished" with a readable ``result.json``, "unfinished" without one, "torn" if a file is damaged.
        problems: a message for each file that could not be read.
        revision: the number of tokens after which key, result and metrics describe the run; None for the whole run.
    """

    path: Path
    key: str
    state: Literal["finished", "unfinished", "torn"]
    config: Mapping[str, Any]
    result: Mapping[str, Any]
    versions: Mapping[str, Any]
    metrics: tuple[Mapping[str, Any], ...]
    problems: tuple[str, ...]
    revision: int | None = None

    @property
    def weights(self) -> str:
        """A name for this run's weights: the path, followed by the revision, if any."""
        return with_revision(self.path, self.revision)

    @property
    def name(self) -> str:
        """The last part of the key."""
        return self.key.rsplit("/", 1)[-1]

    @property
    def command(self) -> str:
        """The command that produced the run, according to the result or to the run's path; "" if unknown."""
        if command := self.result.get("command"):
            return str(command)
        folders = [*self.key.split("/"), *(parent.name for parent in self.path.parents)]
        return next((folder for folder in folders if folder in COMMANDS), "")

    @property
    def is_seed(self) -> bool:
        """Whether this is a seed of a parent run."""
        return is_seed(self.name)


def is_seed(name: str) -> bool:
    """Whether a folder with this name is a seed of the run that contains it."""
    return re.fullmatch(r"seed-\d+", name) is not None


def collect(*roots: Path) -> list[Run]:
    """Read each run in some folders once, at any depth, in path order (seed-2 before seed-10)."""
    for root in roots:
        _check_root(root)
    tops = [root.resolve() for root in roots]
    visited: set[str] = set()
    folders = [folder for top in tops for folder in _run_folders(top, 0, visited)]
    if not folders:
        raise RunDirectoryError(
            f"runs={', '.join(map(str, roots))}: there is no run here (a folder with one of {', '.join(RUN_FILES)}); "
            "create one with lmtransfer pretrain, or set the folder that contains your runs"
        )
    base = Path(os.path.commonpath(tops))
    if base in folders:
        base = base.parent
    return [read_run(folder, key=folder.relative_to(base).as_posix()) for folder in folders]


def _check_root(root: Path) -> None:
    try:
        if not root.is_dir():
            raise RunDirectoryError(
                f"runs={root}: this folder does not exist; set the folder that contains your runs, such as runs/"
            )
        os.scandir(root).close()
        os.stat(os.path.join(root, "."))  # noqa: PTH118 - a Path drops the dot, which tests the right to enter
    except PermissionError as error:
        raise RunDirectoryError(
            f"runs={root}: this folder cannot be read (permission denied); change its permissions (chmod u+rx), or "
            "choose another folder"
        ) from error


def read_run(path: Path, *, key: str | None = None) -> Run:
    """Read a run directory; damaged files raise no error but are reported in ``problems``."""
    problems: list[str] = []
    try:
        os.scandir(path).close()
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OSError as error:
        problems.append(f"the folder cannot be read: {(error.strerror or str(error)).lower()}")
    try:
        check_folder(path, error=RunDirectoryError)
    except RunDirectoryError as error:
        problems.append(_within(path, error))
        return Run(path, printable(key or path.name), "torn", {}, {}, {}, (), tuple(problems))
    config = _read_mapping(path / "config.yaml", _read_config, problems)
    result = _read_mapping(path / "result.json", read_values, problems)
    versions = _read_mapping(path / "versions.json", _read_versions, problems)
    is_torn = bool(problems)
    metrics, are_metrics_torn = read_metrics(path / "metrics.jsonl", problems)
    if is_torn or are_metrics_torn:
        state: Literal["finished", "unfinished", "torn"] = "torn"
    else:
        state = "finished" if result else "unfinished"
    return Run(
        path=path,
        key=printable(key or path.name),
        state=state,
        config=config,
        result=result,
        versions=versions,
        metrics=tuple(map(_measurements, metrics)),
        problems=tuple(problems),
    )


def read_metrics(path: Path, problems: list[str]) -> tuple[tuple[Mapping[str, Any], ...], bool]:
    """Read ``metrics.jsonl``.

    If the process was killed, the last line may be incomplete; this is only noted. Any other invalid line means that
    the file is damaged.

    Returns:
        The JSON objects in order, and whether the file is damaged.
    """
    if not os.path.lexists(path):
        return (), False
    objects: list[Mapping[str, Any]] = []
    bad_lines: list[int] = []
    try:
        limits = {"most": _METRICS_BYTES, "most_lines": _MOST_LINES}
        lines = read_json_lines(path, dict[str, Any], error=RunDirectoryError, finite=False, **limits)
        for number, line, value, _ in lines:
            if value is not None:
                objects.append(_clean_record(value))
            elif not line.endswith(b"\n"):
                problems.append(f"{path.name}:{number}: the last line is incomplete and was skipped")
            elif len(bad_lines) == _MOST_BAD_LINES:
                raise RunDirectoryError(
                    f"{path}: more than {_MOST_BAD_LINES:,} lines are not JSON objects, so the file was not read"
                )
            else:
                bad_lines.append(number)
    except RunDirectoryError as error:
        problems.append(_within(path.parent, error))
        return (), True
    if bad_lines:
        problems.append(
            f"{path.name}:{bad_lines[0]}: this line is not a JSON object and was skipped ({len(bad_lines)} such lines)"
        )
    return tuple(objects), bool(bad_lines)


def _run_folders(folder: Path, depth: int, visited: set[str]) -> Iterator[Path]:
    """Yield the runs in ``folder``, at any depth; no folder is visited twice, even through links."""
    real = os.path.realpath(folder)
    if real in visited:
        return
    visited.add(real)
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: _natural(entry.name))
    except FileNotFoundError:  # removed in the meantime
        return
    except OSError:
        if depth:
            yield folder  # so that the report says why it could not be read
        return
    is_run = any(entry.name in RUN_FILES for entry in entries)
    if is_run:
        yield folder
    if depth == MAX_DEPTH:
        return
    for entry in entries:
        is_skipped = entry.name.startswith(".") or (is_run and entry.name in _NO_RUNS)
        if not is_skipped and _is_below(entry, real):
            yield from _run_folders(Path(entry.path), depth + 1, visited)


def _is_below(entry: os.DirEntry[str], folder: str) -> bool:
    """Whether an entry of ``folder`` is a folder, but not a link to one of its parents."""
    try:
        if not entry.is_dir():
            return False
        return not entry.is_symlink() or os.path.commonpath([folder, os.path.realpath(entry.path)]) != os.path.realpath(
            entry.path
        )
    except OSError:  # a link to a folder that cannot be read
        return False


def _natural(name: str) -> list[tuple[int, int, str]]:
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in re.split(r"(\d+)", name) if part]


def _read_config(path: Path) -> Any:
    return read_yaml(path, _Config, error=RunDirectoryError)


def _read_versions(path: Path) -> Any:
    return read_json(path, _Versions, error=RunDirectoryError)


def _read_mapping(path: Path, read: Callable[[Path], Any], problems: list[str]) -> Mapping[str, Any]:
    if not os.path.lexists(path):
        return {}
    try:
        value = read(path)
        for where, number in leaves(value):
            if isinstance(number, float) and abs(number) > _LARGEST:
                raise RunDirectoryError(f"{path}: {where} is {number:g}, but must be at most {_LARGEST:g}")
    except RunDirectoryError as error:
        problems.append(_within(path.parent, error))
        return {}
    mapping: Mapping[str, Any] = printable_values(value)
    return mapping


def _within(run: Path, error: RunDirectoryError) -> str:
    """Return an error's message without the run's path."""
    return printable(str(error).removeprefix(str(run)).lstrip("/"))


def _measurements(record: Mapping[str, Any]) -> dict[str, Any]:
    """Keep the numbers in a line of ``metrics.jsonl``, as floats, and the name of the phase."""
    numbers = {name: float(value) for name, value in record.items() if type(value) in (int, float)}
    return numbers | ({"phase": record["phase"]} if isinstance(record.get("phase"), str) else {})


def _clean_record(record: Mapping[str, Any]) -> dict[str, Any]:
    """Replace the numbers in a line of ``metrics.jsonl`` that cannot be measurements with None."""
    return {
        printable(name): None
        if isinstance(value, int | float) and not abs(value) <= _LARGEST
        else printable_values(value)
        for name, value in record.items()
    }
