"""Reads the two sides of a comparison; each is a run or a group of runs, with scores and seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lmtransfer.errors import ConfigError, RunDirectoryError
from lmtransfer.reporting.runs.collect import Run, collect
from lmtransfer.reporting.runs.entries import Entry, make_entries
from lmtransfer.reporting.runs.lineage import starting_point
from lmtransfer.reporting.runs.scores import make_condition, read_answers, seed_values, select_predictions
from lmtransfer.runs.labels import flatten, node_label
from lmtransfer.tasks.metrics.scored_examples import Predictions
from lmtransfer.verdicts.conditions import Condition, Examples

#: Pretraining settings that do not affect what a model learns.
_IGNORED_KEYS = ("name", "resume", "output_root", "cache_dir", "data_root", "seeds", "hardware", "tracker", "run")


@dataclass(frozen=True, slots=True)
class Member:
    """One training run of a side.

    Attributes:
        value: the main metric.
        seed: the seed of finetuning or of the probe; None if unknown.
        pretraining: the pretraining run that this run started from; None for random weights.
        predictions: the predictions of the run; None if they were not kept.
    """

    value: float
    seed: int | None
    pretraining: str | None
    predictions: Predictions | None


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a comparison.

    Attributes:
        members: the training runs: each seed of each entry.
        problems: a message for each file that could not be read.
    """

    name: str
    entries: tuple[Entry, ...]
    members: tuple[Member, ...]
    problems: tuple[str, ...]

    @property
    def first(self) -> Entry:
        """The first run; all runs of a side have the same task, split and metric."""
        return self.entries[0]

    @property
    def metric(self) -> str:
        """The name of the main metric."""
        assert self.first.metric is not None
        return self.first.metric

    @property
    def num_scored(self) -> float | None:
        """The number of scored examples; None if the result does not contain it."""
        num: float | None = self.first.run.result.get("num_scored")
        return num

    @property
    def num_collapsed(self) -> int:
        """The number of training runs that predict the same label for every example."""
        return sum(int(entry.run.result.get("collapsed") or 0) for entry in self.entries)

    @property
    def scored_on(self) -> str:
        """The data on which the side was scored: ``sst2, dev``, or ``held-out text of python_docs``."""
        first = self.first
        if not first.is_pretraining:
            return ", ".join(filter(None, (first.task, first.split)))
        source = first.run if first.source is None else first.source
        text = node_label(first.run.config.get("corpus") or source.config.get("corpus"))
        return f"held-out text of {text}" if text else "held-out text"

    @staticmethod
    def pretraining_settings(entry: Entry) -> dict[str, Any]:
        """Return the settings of a run's pretraining, by dotted key; empty for random weights."""
        source = entry.source
        config: Mapping[str, Any] = {} if source is None or entry.is_control else source.config
        flat = flatten({key: value for key, value in config.items() if key not in _IGNORED_KEYS})
        flat["revision"] = None if source is None or entry.is_control else source.revision
        return {key: value for key, value in flat.items() if value not in (None, {})}

    def condition(self, values: Sequence[float], examples: Examples | None = None, *, collapsed: int = 0) -> Condition:
        """Build a side of a statistical comparison from a score for each member."""
        is_random = any(entry.is_control or entry.run.result.get("deterministic") is not True for entry in self.entries)
        scores = [(value, member.seed, member.pretraining) for member, value in zip(self.members, values, strict=True)]
        return make_condition(scores, examples, collapsed=collapsed, constant=not is_random)


def read_sides(paths: Sequence[str]) -> tuple[Side, Side]:
    """Read the two sides that the user names.

    Raises:
        ConfigError: there are not exactly two paths, or both are the same.
        RunDirectoryError: a folder does not exist, has no scored run, or has runs of several kinds; or the two sides
            are of different kinds.
    """
    if len(paths) != 2:
        raise ConfigError(
            f"runs: {len(paths)} {'path was' if len(paths) == 1 else 'paths were'} given, but there must be two: "
            "lmtransfer compare runs/finetune/a runs/finetune/b"
        )
    folders = [Path(path).expanduser() for path in paths]
    if folders[0].resolve() == folders[1].resolve():
        raise ConfigError(f"runs: {paths[0]} and {paths[1]} are the same folder; choose two different runs")
    names = _names(folders)
    one, other = (read_side(folder, name) for folder, name in zip(folders, names, strict=True))
    if one.first.is_pretraining != other.first.is_pretraining:
        pretraining, task = (one, other) if one.first.is_pretraining else (other, one)
        raise RunDirectoryError(
            f"runs: {pretraining.name} has pretraining losses, but {task.name} has scores on a task "
            f"({task.scored_on}); compare two runs of the same kind, such as runs on that task from each "
            "pretraining run"
        )
    return one, other


def read_side(folder: Path, name: str) -> Side:
    """Read a run with its seeds, or all scored runs in a folder; pretraining runs count only if there are no others."""
    runs = collect(folder)
    scored = [entry for entry in make_entries(runs) if entry.score is not None]
    entries = [entry for entry in scored if not entry.is_pretraining] or [_with_source(entry, runs) for entry in scored]
    if not entries:
        raise RunDirectoryError(
            f"runs: {folder} has no run with a score; choose a finished run of pretrain, probe, finetune or "
            "evaluate, or a folder of such runs"
        )
    kinds = {
        ", ".join(filter(None, (entry.task, entry.split, entry.metric or "", entry.run.command, entry.transfer))): entry
        for entry in entries
    }
    if len(kinds) > 1:
        examples = "; ".join(f"{kind} ({entry.run.key})" for kind, entry in list(kinds.items())[:4])
        raise RunDirectoryError(
            f"runs: {folder} has runs of {len(kinds)} kinds without a common score: {examples}; choose one of these "
            "runs, or a folder with runs of one kind"
        )
    problems: list[str] = []
    members = [
        member
        for entry in entries
        for member in (
            pretrained_values(entry, entry.metric or "") if entry.is_pretraining else _members(entry, problems)
        )
    ]
    problems += [problem for entry in entries if entry.is_pretraining for problem in entry.run.problems]
    return Side(name, tuple(entries), tuple(members), tuple(problems))


def _members(entry: Entry, problems: list[str]) -> list[Member]:
    metric = entry.metric or ""
    results = [seed.result for seed in entry.seeds if seed.result]
    values = seed_values(entry.run.result, metric, results)
    problems += entry.run.problems
    answers = read_answers(entry.run.path, problems)
    predictions = select_predictions(answers, values, split=entry.split)
    if predictions is None:  # the user may have named a control's folder as a run
        predictions = select_predictions(answers, values, split=entry.split, is_control=True)
    weights = None if entry.is_control else _weights(entry)
    has_seeds = weights is not None and entry.source is not None and "seeds" in entry.source.result
    return [
        Member(
            value=value.value,
            seed=value.seed,
            pretraining=f"{weights}/seed-{value.pretraining_seed}" if has_seeds else weights,
            predictions=None if predictions is None else predictions[place],
        )
        for place, value in enumerate(values)
    ]


def pretrained_values(entry: Entry, metric: str) -> list[Member]:
    """Return the value of a metric for each seed of a pretraining run or of its evaluation."""
    results = [seed.result for seed in entry.seeds if seed.result]
    source = entry.run if entry.source is None else entry.source
    seed = source.config.get("seed")
    values = seed_values(entry.run.result, metric, results)
    return [
        Member(
            value=value.value,
            seed=seed if value.seed is None and len(values) == 1 else value.seed,
            pretraining=source.weights if len(values) == 1 else f"{source.weights}/seed-{place}",
            predictions=None,
        )
        for place, value in enumerate(values)
    ]


def _with_source(entry: Entry, runs: Sequence[Run]) -> Entry:
    """Set the source of a pretraining entry to the measured run: the evaluated run, or otherwise the entry's run."""
    return replace(entry, source=starting_point(entry.run, runs) if entry.run.command == "evaluate" else entry.run)


def _weights(entry: Entry) -> str:
    source = entry.source
    return str(entry.run.config.get("init") or entry.run.key) if source is None else source.weights


def _names(folders: Sequence[Path]) -> list[str]:
    parts = [folder.resolve().parts for folder in folders]
    size = 1
    while parts[0][-size:] == parts[1][-size:]:
        size += 1
    return ["/".join(part[-size:]) for part in parts]
