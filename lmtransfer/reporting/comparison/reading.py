"""The sides of ``lmtransfer compare``, read from two paths, each of which is a run or a group of runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from lmtransfer.errors import ConfigError, RunDirectoryError
from lmtransfer.reporting.comparison.sides import Member, Side
from lmtransfer.reporting.runs import scores
from lmtransfer.reporting.runs.collect import Run, collect
from lmtransfer.reporting.runs.entries import make_entries
from lmtransfer.reporting.runs.entry import Entry
from lmtransfer.reporting.runs.kept_answers import read_answers, select_predictions
from lmtransfer.reporting.runs.lineage import starting_point


def read_sides(paths: Sequence[str]) -> tuple[Side, Side]:
    """Read the two sides that the user named.

    Raises:
        ConfigError: there are not exactly two paths, or both are the same.
        RunDirectoryError: a folder does not exist, contains no scored run, or contains runs of several kinds; or the
            sides have different kinds of runs.
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
            f"({task.scored_on}); compare two runs of the same kind, such as a run on that task from each pretraining"
        )
    return one, other


def read_side(folder: Path, name: str) -> Side:
    """Read a side: a run with its seeds, or all scored runs in a folder (pretraining runs only if there are no others).

    Args:
        folder: folder of the run, or of the group.
    """
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
    """Return the individual training runs of a run, with their answers."""
    metric = entry.metric or ""
    results = [seed.result for seed in entry.seeds if seed.result]
    values = scores.seed_values(entry.run.result, metric, results)
    problems += entry.run.problems
    predictions = select_predictions(
        read_answers(entry.run.path, problems),
        [(value.seed, value.pretraining_seed) for value in values],
        split=entry.split,
        is_control=False,
    ) or select_predictions(  # if the user named a control's folder as a run
        read_answers(entry.run.path),
        [(value.seed, value.pretraining_seed) for value in values],
        split=entry.split,
        is_control=True,
    )
    weights = None if entry.is_control else _weights(entry)
    has_seeds = weights is not None and entry.source is not None and isinstance(entry.source.result.get("seeds"), list)
    return [
        Member(
            value=value.value,
            seed=value.seed,
            pretraining=f"{weights}/seed-{value.pretraining_seed}" if has_seeds else weights,
            kept=None if predictions is None else predictions[place],
        )
        for place, value in enumerate(values)
    ]


def pretrained_values(entry: Entry, metric: str) -> list[Member]:
    """Return the values of a metric for the seeds of a pretraining run, or of its evaluation."""
    results = [seed.result for seed in entry.seeds if seed.result]
    source = entry.run if entry.source is None else entry.source
    seed = source.config.get("seed")
    values = scores.seed_values(entry.run.result, metric, results)
    return [
        Member(
            value=value.value,
            seed=seed if value.seed is None and len(values) == 1 and isinstance(seed, int) else value.seed,
            pretraining=source.weights if len(values) == 1 else f"{source.weights}/seed-{place}",
            kept=None,
        )
        for place, value in enumerate(values)
    ]


def _with_source(entry: Entry, runs: Sequence[Run]) -> Entry:
    """Set the source of a pretraining entry to the run that its losses are from: itself, or the evaluated run."""
    return replace(entry, source=starting_point(entry.run, runs) if entry.run.command == "evaluate" else entry.run)


def _weights(entry: Entry) -> str:
    """Return the starting weights of a run."""
    source = entry.source
    return str(entry.run.config.get("init") or entry.run.key) if source is None else source.weights


def _names(folders: Sequence[Path]) -> list[str]:
    """Return the shortest distinct ends of two paths."""
    parts = [folder.resolve().parts for folder in folders]
    size = 1
    while parts[0][-size:] == parts[1][-size:]:
        size += 1
    return ["/".join(part[-size:]) for part in parts]
