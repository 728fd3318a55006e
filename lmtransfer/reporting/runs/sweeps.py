"""Sweeps: runs side by side in one folder, told apart by the keys that were swept."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lmtransfer.reporting.runs.collect import COMMANDS, Run
from lmtransfer.reporting.runs.entry import Entry
from lmtransfer.reporting.runs.labels import flatten
from lmtransfer.reporting.runs.scores import higher_is_better
from lmtransfer.verdicts.spread import Spread, spread

#: Keys that differ between points without being what was studied.
_NOT_STUDIED = frozenset({"name", "seed", "resume", "output_root", "run"})


@dataclass(frozen=True, slots=True)
class Point:
    """One combination of swept values.

    Attributes:
        values: the value of each swept key.
        entries: its runs: one, or several that differ in their seed only.
        score: over those runs, or over the seeds inside the one run; None while nothing is finished.
    """

    values: tuple[Any, ...]
    entries: tuple[Entry, ...]
    score: Spread | None


@dataclass(frozen=True, slots=True)
class Sweep:
    """A sweep.

    Attributes:
        name: the folder, relative to what was collected.
        keys: what was swept, dotted keys.
        points: in ascending order of their values.
        metric: the metric of all points, or None while nothing is finished.
    """

    name: str
    keys: tuple[str, ...]
    points: tuple[Point, ...]
    metric: str | None

    @property
    def best(self) -> Point | None:
        """The point with the best mean."""
        scored = [point for point in self.points if point.score is not None]
        if not scored or self.metric is None:
            return None
        sign = 1.0 if higher_is_better(self.metric, scored[0].entries[0].run.result) else -1.0
        return max(scored, key=lambda point: sign * (point.score.mean if point.score else 0.0))


def find_sweeps(entries: Sequence[Entry]) -> list[Sweep]:
    """The sweeps among some entries: two runs or more in one folder that is neither a run nor a command's."""
    folders: dict[str, list[Entry]] = {}
    keys = {entry.run.key for entry in entries}
    for entry in entries:
        folder = entry.run.key.rpartition("/")[0]
        plain = folder.rpartition("/")[2] in ("", *COMMANDS)  # where single runs lie side by side
        is_point = "=" in entry.run.name if plain else folder not in keys
        if is_point:
            folders.setdefault(folder, []).append(entry)
    sweeps = (make_sweep(folder, members) for folder, members in folders.items() if len(members) > 1)
    return [sweep for sweep in sweeps if sweep is not None]


def outside(entries: Sequence[Entry], sweeps: Sequence[Sweep]) -> list[Entry]:
    """The entries that are no points of a sweep."""
    inside = {entry.run.key for sweep in sweeps for point in sweep.points for entry in point.entries}
    return [entry for entry in entries if entry.run.key not in inside]


def make_sweep(name: str, entries: Sequence[Entry]) -> Sweep | None:
    """The sweep that some runs are the points of; None where they differ in nothing but their seed."""
    keys, table = swept_values([entry.run for entry in entries])
    if keys == ("init",) and all(entry.source is not None for entry in entries):
        sources = [entry.source for entry in entries if entry.source is not None]
        source_keys, source_table = swept_values(sources)
        if source_keys:
            keys, table = source_keys, source_table
    if not keys:
        return None
    grouped: dict[tuple[Any, ...], list[Entry]] = {}
    for entry, values in zip(entries, table, strict=True):
        grouped.setdefault(values, []).append(entry)
    metric = next((entry.metric for entry in entries if entry.metric is not None), None)
    points = [
        Point(values=values, entries=tuple(members), score=_score(members, metric))
        for values, members in sorted(grouped.items(), key=lambda item: [_order(value) for value in item[0]])
    ]
    return Sweep(name=name or "sweep", keys=keys, points=tuple(points), metric=metric)


def swept_values(runs: Sequence[Run]) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
    """The keys in which some runs differ, and each run's values of them.

    The names of a sweep's folders say which keys were swept (``optimizer.lr=0.01,model=bert_tiny``), where a choice
    of a group is one key though it changes many; where they do not, the configurations are compared.
    """
    flat = [flatten(run.config) for run in runs]
    named = [_overrides(run.name) for run in runs]
    if all(named):
        keys = _varying(named)
        if keys:
            rows = zip(flat, named, strict=True)
            return keys, [tuple(_plain(config.get(key, names.get(key))) for key in keys) for config, names in rows]
    keys = _distinct(_varying(flat), flat)
    return keys, [tuple(_plain(config.get(key)) for key in keys) for config in flat]


def value_text(value: Any) -> str:
    """A swept value: ``0.15``, ``1000`` rather than ``1000.0``."""
    if value is None:
        return "null"
    return f"{value:g}" if isinstance(value, float) and abs(value) < 1e6 else str(value)


def _overrides(name: str) -> dict[str, str]:
    """``a=1,b.c=x`` as a mapping; empty where the name is no list of overrides."""
    parts = [part.partition("=") for part in re.split(r",(?=[\w./@+~-]+=)", name)]
    if not all(equals for _, equals, _ in parts):
        return {}
    return {key.lstrip("+"): value for key, _, value in parts}


def _varying(rows: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    keys = list(dict.fromkeys(key for row in rows for key in row))
    return tuple(
        key for key in keys if key not in _NOT_STUDIED and len({repr(_plain(row.get(key))) for row in rows}) > 1
    )


def _distinct(keys: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Of keys that have the same values everywhere, one refers to the other: the shortest is what was set."""
    columns: dict[str, list[str]] = {}
    for key in keys:
        columns.setdefault(repr([_plain(row.get(key)) for row in rows]), []).append(key)
    kept = {min(same, key=len) for same in columns.values()}
    return tuple(key for key in keys if key in kept)


def _plain(value: Any) -> Any:
    """A value that can be compared and hashed: numbers as numbers, anything nested as text."""
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
