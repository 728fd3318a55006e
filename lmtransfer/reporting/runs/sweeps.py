"""Finds sweeps, which are runs in one folder that differ in the swept keys."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lmtransfer.reporting.runs.collect import COMMANDS, Run
from lmtransfer.reporting.runs.entries import Entry
from lmtransfer.runs.labels import flatten
from lmtransfer.verdicts.spread import Spread, spread

#: Keys that may differ between points but are not swept.
_IGNORED_KEYS = frozenset({"name", "seed", "resume", "output_root", "run"})
#: The name of the key in a sweep over the revisions of one run, in place of ``init``.
PRETRAINING_TOKENS = "tokens of pretraining"


@dataclass(frozen=True, slots=True)
class SweepPoint:
    """One combination of swept values.

    Attributes:
        entries: the run, or several runs that differ only in the seed.
        score: the spread over these runs, or over the seeds of a single run; None if no run is finished.
    """

    values: tuple[Any, ...]
    entries: tuple[Entry, ...]
    score: Spread | None


@dataclass(frozen=True, slots=True)
class Sweep:
    """A sweep: its points and the swept keys."""

    name: str
    keys: tuple[str, ...]
    points: tuple[SweepPoint, ...]
    metric: str | None

    @property
    def best(self) -> SweepPoint | None:
        """The point with the best mean."""
        scored = [point for point in self.points if point.score is not None]
        if not scored or self.metric is None:
            return None
        sign = 1.0 if scored[0].entries[0].higher_is_better else -1.0
        return max(scored, key=lambda point: sign * (point.score.mean if point.score else 0.0))


def find_sweeps(entries: Sequence[Entry]) -> list[Sweep]:
    """Find the sweeps: two or more runs in a folder that is neither a run nor the folder of a command.

    Runs on several tasks form a sweep per task, since their scores are not comparable.
    """
    folders: dict[str, dict[str, list[Entry]]] = {}
    keys = {entry.run.key for entry in entries}
    for entry in entries:
        folder = entry.run.key.rpartition("/")[0]
        holds_separate_runs = folder.rpartition("/")[2] in ("", *COMMANDS)
        is_point = "=" in entry.run.name if holds_separate_runs else folder not in keys
        if is_point:
            folders.setdefault(folder, {}).setdefault(entry.task, []).append(entry)
    sweeps = (
        make_sweep(folder if len(tasks) == 1 else f"{folder}, {task}", members)
        for folder, tasks in folders.items()
        for task, members in tasks.items()
        if len(members) > 1
    )
    return [sweep for sweep in sweeps if sweep is not None]


def entries_outside(entries: Sequence[Entry], sweeps: Sequence[Sweep]) -> list[Entry]:
    """Return the entries that are not points of a sweep."""
    inside = {entry.run.key for sweep in sweeps for point in sweep.points for entry in point.entries}
    return [entry for entry in entries if entry.run.key not in inside]


def make_sweep(name: str, entries: Sequence[Entry]) -> Sweep | None:
    """Build a sweep whose points are the runs of ``entries``; None if they differ only in the seed."""
    keys, table = values_of_sweep([entry.run for entry in entries])
    if keys == ("init",) and all(entry.source is not None for entry in entries):
        sources = [entry.source for entry in entries if entry.source is not None]
        source_keys, source_table = values_of_sweep(sources)
        if source_keys:
            keys, table = source_keys, source_table
        elif any(source.revision is not None for source in sources) and len({source.path for source in sources}) == 1:
            keys, table = (PRETRAINING_TOKENS,), [(round(entry.pretraining_tokens or 0),) for entry in entries]
    if not keys:
        return None
    groups: dict[tuple[Any, ...], list[Entry]] = {}
    for entry, values in zip(entries, table, strict=True):
        groups.setdefault(values, []).append(entry)
    metric = next((entry.metric for entry in entries if entry.metric is not None), None)
    points = [
        SweepPoint(values=values, entries=tuple(members), score=_score(members, metric))
        for values, members in sorted(groups.items(), key=lambda item: [_order(value) for value in item[0]])
    ]
    return Sweep(name=name or "sweep", keys=keys, points=tuple(points), metric=metric)


def values_of_sweep(runs: Sequence[Run]) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
    """Return the keys in which the runs differ, and each run's values of these keys.

    If all folder names list overrides (``optimizer.lr=0.01,model=bert_tiny``), the keys come from these names, so that
    the choice of a config group is a single key. Otherwise the configurations are compared.
    """
    flat = [flatten(run.config) for run in runs]
    folder_values = [parse_values(run.name) for run in runs]
    if all(folder_values):
        keys = _varying_keys(folder_values)
        if keys:
            rows = zip(flat, folder_values, strict=True)
            return keys, [tuple(_plain(config.get(key, names.get(key))) for key in keys) for config, names in rows]
    keys = _distinct_keys(_varying_keys(flat), flat)
    return keys, [tuple(_plain(config.get(key)) for key in keys) for config in flat]


def value_text(value: Any) -> str:
    """Format a swept value: ``0.15``, ``1000`` rather than ``1000.0``."""
    if value is None:
        return "null"
    return f"{value:g}" if isinstance(value, float) and abs(value) < 1e6 else str(value)


def parse_values(name: str) -> dict[str, str]:
    """Parse a list of overrides, ``a=1,b.c=x``, to a mapping; empty for any other name."""
    parts = [part.partition("=") for part in re.split(r",(?=[\w./@+~-]+=)", name)]
    if not all(equals for _, equals, _ in parts):
        return {}
    return {key.lstrip("+"): value for key, _, value in parts}


def _varying_keys(rows: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    keys = list(dict.fromkeys(key for row in rows for key in row))
    return tuple(
        key for key in keys if key not in _IGNORED_KEYS and len({repr(_plain(row.get(key))) for row in rows}) > 1
    )


def _distinct_keys(keys: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Keep the shortest of several keys with the same values in every run, because the others usually refer to it."""
    columns: dict[str, list[str]] = {}
    for key in keys:
        columns.setdefault(repr([_plain(row.get(key)) for row in rows]), []).append(key)
    shortest = {min(same, key=len) for same in columns.values()}
    return tuple(key for key in keys if key in shortest)


def _plain(value: Any) -> Any:
    """Make a value comparable and hashable: text that is a number becomes a number, and nested values become text."""
    if isinstance(value, str):
        try:
            return float(value) if re.search(r"\d", value) else value
        except ValueError:
            return value
    return value if isinstance(value, int | float | None) else str(value)


def _order(value: Any) -> tuple[int, float, str]:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return (0, float(value), "")
    return (1, 0.0, str(value))


def _score(members: Sequence[Entry], metric: str | None) -> Spread | None:
    scored = [entry.score for entry in members if entry.score is not None and entry.metric == metric]
    if len(scored) < 2:
        return scored[0] if scored else None
    return spread([score.mean for score in scored])
