"""The report's entries, built from run directories: one per run, with its seeds, its control and its pretraining."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import Any

from lmtransfer.reporting.runs import scores
from lmtransfer.reporting.runs.collect import Run
from lmtransfer.reporting.runs.details import RunCost, cost_of
from lmtransfer.reporting.runs.entry import Entry
from lmtransfer.reporting.runs.kept_answers import examples_of_score, read_answers
from lmtransfer.reporting.runs.lineage import (
    is_pretraining,
    pretraining_budget,
    pretraining_run,
    pretraining_text,
    starting_point,
)
from lmtransfer.reporting.runs.scores import ScoreSummary, read_scores
from lmtransfer.reporting.runs.sweeps import differences_text, differing_keys, task_settings
from lmtransfer.runs.labels import model_label, node_label, objective_label
from lmtransfer.system.printable import in_unit
from lmtransfer.tasks.metrics.scored_examples import Predictions
from lmtransfer.verdicts.compare import compare_conditions
from lmtransfer.verdicts.conditions import Condition
from lmtransfer.verdicts.difference import Difference
from lmtransfer.verdicts.holm import correct_column
from lmtransfer.verdicts.spread import Spread

_METHODS = {"frozen": "frozen", "full": "finetuned"}


def add_comparisons(entries: Sequence[Entry]) -> list[Entry]:
    """Add controls and differences to the entries; the verdicts in a column are corrected together."""
    entries = [_add_baseline_difference(_add_control(entry, entries)) for entry in entries]
    differences = _correct_verdicts([(entry.difference, entry.margin) for entry in entries])
    baseline_differences = _correct_verdicts([(entry.baseline_difference, entry.margin) for entry in entries])
    return [
        replace(entry, difference=difference, baseline_difference=to_baseline)
        for entry, difference, to_baseline in zip(entries, differences, baseline_differences, strict=True)
    ]


def _correct_verdicts(column: Sequence[tuple[Difference | None, float | None]]) -> list[Difference | None]:
    """Correct the verdicts of the differences in a column, with their margins."""
    pairs = [(difference, margin) for difference, margin in column if difference is not None]
    corrected = iter(correct_column([difference for difference, _ in pairs], margins=[margin for _, margin in pairs]))
    return [None if difference is None else next(corrected) for difference, _ in column]


def find_control(
    run: Run, controls: Sequence[Run], metric: str, predictions: Sequence[Predictions], split: str
) -> ScoreSummary | None:
    """Return the scores of the run's own control: from its result, else from the runs in its directory."""
    node = run.result.get("control")
    score_examples = examples_of_score(predictions, node, metric, split=split, is_control=True)
    control_scores = read_scores(node, metric, examples=score_examples)
    if control_scores is not None:
        return control_scores
    seeds = [control.result for control in controls if control.is_seed and control.result]
    parents = [control.result for control in controls if not control.is_seed and control.result]
    node = parents[0] if parents else {}
    score_examples = examples_of_score(predictions, node, metric, seeds, split=split, is_control=True)
    return read_scores(node, metric, seeds, examples=score_examples)


def find_baselines(run: Run, metric: str, predictions: Sequence[Predictions], split: str) -> dict[str, ScoreSummary]:
    """Return the word-count baselines that were scored together with the run, by name."""
    nodes = run.result.get("baselines")
    baselines = {}
    for name, node in nodes.items() if isinstance(nodes, Mapping) else ():
        score_examples = examples_of_score(predictions, node, metric, split=split, baseline=name)
        baseline = read_scores(node, metric, examples=score_examples)
        if baseline is not None:
            baselines[name] = baseline
    return baselines


def _add_baseline_difference(entry: Entry) -> Entry:
    """Add the difference from the better baseline to the entry."""
    if entry.condition is None or entry.baseline_condition is None or entry.metric is None:
        return entry
    difference = compare_conditions(
        entry.condition,
        entry.baseline_condition,
        higher_is_better=scores.higher_is_better(entry.metric, entry.run.result),
        majority=entry.majority,
    )
    return replace(entry, baseline_difference=difference)


def _add_control(entry: Entry, others: Sequence[Entry]) -> Entry:
    """Add the control, which may be a separate run on the same task, and the difference to the entry.

    A control differs from the entry only in its weights. If a run of the same task with random weights differs in more,
    or if several runs qualify, there is no difference, and the entry gives the reason.
    """
    if entry.metric is None or entry.score is None or entry.is_pretraining or entry.is_control:
        return entry
    if entry.control is not None:
        return _with_control(entry, entry.control, entry.control_condition)
    if entry.transfer == "zero-shot":
        return entry
    candidates = [other for other in others if other.is_control and _is_scored_alike(entry, other)]
    keys = [differing_keys(other.settings, entry.settings) for other in candidates]
    same = [other for other, differs in zip(candidates, keys, strict=True) if not differs]
    if len(same) == 1:
        assert same[0].score is not None
        return _with_control(entry, same[0].score, same[0].condition)
    if same:
        names = " and ".join(other.run.name for other in same)
        return replace(entry, without_control=f"{names} could each be the control, so no control is used")
    if not candidates:
        return entry
    nearest, differs = min(zip(candidates, keys, strict=True), key=lambda pair: len(pair[1]))
    differences = differences_text(nearest.settings, entry.settings, differs)
    reason = f"{nearest.run.name} is not its control, because they differ in {differences}"
    return replace(entry, without_control=reason)


def _is_scored_alike(entry: Entry, other: Entry) -> bool:
    """Whether two runs are scored in the same way: command, task, split, number of labels and metric."""
    return other.score is not None and (
        (other.run.command, other.task, other.split, other.num_train, other.metric)
        == (entry.run.command, entry.task, entry.split, entry.num_train, entry.metric)
    )


def _with_control(entry: Entry, control: Spread | None, control_condition: Condition | None) -> Entry:
    assert entry.condition is not None
    assert control_condition is not None
    assert entry.metric is not None
    difference = compare_conditions(
        entry.condition,
        control_condition,
        higher_is_better=scores.higher_is_better(entry.metric, entry.run.result),
        majority=entry.majority,
        baseline=entry.baseline_mean,
    )
    return replace(entry, control=control, difference=difference)


def make_entries(runs: Sequence[Run], *, margin: float | None = None) -> list[Entry]:
    """Build one entry per run, in the order of ``runs``; seeds and controls become part of their run.

    Args:
        margin: the size below which a difference does not matter, as displayed (points of accuracy); None if not set.
    """
    by_key = {run.key: run for run in runs}
    parts: dict[str, list[Run]] = {}
    for run in runs:
        parts.setdefault(_owner(run, by_key), []).append(run)
    with_margins = []
    for key, members in parts.items():
        parent = by_key.get(key) or _unfinished_parent(key, members[0])
        seeds = tuple(run for run in members if run.key != key and run.is_seed and "control" not in _below(run, key))
        controls = tuple(run for run in members if run.key != key and run not in seeds)
        entry = _entry(parent, seeds, controls, runs)
        with_margins.append(replace(entry, margin=in_unit(margin, entry.metric or "")))
    return add_comparisons(_rename_tasks(with_margins))


def _rename_tasks(entries: Sequence[Entry]) -> list[Entry]:
    """Rename tasks so that runs of the same task share a name and different tasks have different names.

    A task consists of its examples, labels and metric. Runs of the same task get the task name of the first run. If
    several tasks share a name, a distinguishing detail is added: the file, else the number of classes, and so on.
    """
    tasks: dict[tuple[str, str], Entry] = {}
    for entry in entries:
        if entry.metric is not None and not entry.is_pretraining:
            tasks.setdefault(_identity(entry), entry)
    same_names: dict[tuple[str, str], list[Entry]] = {}
    for first in tasks.values():
        same_names.setdefault((first.task, first.split), []).append(first)
    names = {}
    for (name, _), firsts in same_names.items():
        for first, details in zip(firsts, _distinguishing_details([_details(first) for first in firsts]), strict=True):
            names[_identity(first)] = f"{name} ({', '.join(details)})" if details else name
    return [replace(entry, task=names.get(_identity(entry), entry.task)) for entry in entries]


def _identity(entry: Entry) -> tuple[str, str]:
    return entry.task_fingerprint or f"{entry.task} {entry.metric}", entry.split


def _details(entry: Entry) -> tuple[str, ...]:
    """Return details that may distinguish a task from others of the same name, most informative first."""
    task, result = entry.run.config.get("task"), entry.run.result
    node = task if isinstance(task, Mapping) else {}
    files = node.get("files")
    file = node.get(entry.split) or (files.get(entry.split) if isinstance(files, Mapping) else None)
    labels, num = result.get("labels"), scores.number(result.get("num_scored"))
    return (
        PurePath(file).name if isinstance(file, str) else "",
        f"{len(labels)} classes" if isinstance(labels, list) else "",
        entry.metric or "",
        "" if num is None else f"{num:,.0f} examples",
        (entry.task_fingerprint or "unknown")[:6],
    )


def _distinguishing_details(rows: Sequence[tuple[str, ...]]) -> list[list[str]]:
    """Find the shortest prefixes of details that make all rows distinct; empty for a single row."""
    prefixes: list[list[str]] = [[] for _ in rows]
    for column in zip(*rows, strict=True):
        if len({tuple(row) for row in prefixes}) < len(rows) and len(set(column)) > 1:
            prefixes = [[*row, *filter(None, [value])] for row, value in zip(prefixes, column, strict=True)]
    return prefixes


def _below(run: Run, key: str) -> list[str]:
    """Return the names of the folders from the parent run of a seed or control down to its own folder."""
    return run.key.removeprefix(f"{key}/").split("/")


def _owner(run: Run, by_key: Mapping[str, Run]) -> str:
    """Return the key of the run of which ``run`` is a seed or a control; otherwise its own key."""
    folders = run.key.split("/")
    while len(folders) > 1 and (_is_member(folders[-1]) or _is_nested(folders, by_key)):
        folders.pop()
    key = "/".join(folders)
    return key if run.is_seed or key in by_key else run.key


def _is_member(folder: str) -> bool:
    return re.fullmatch(r"seed-\d+|control", folder) is not None


def _is_nested(folders: Sequence[str], by_key: Mapping[str, Run]) -> bool:
    """Whether a folder groups the runs of one pretraining seed but is not a run itself."""
    return re.fullmatch(r"pretraining-\d+", folders[-1]) is not None and "/".join(folders) not in by_key


def _unfinished_parent(key: str, seed: Run) -> Run:
    """Build a stand-in for a run with several seeds that has not yet written any file of its own."""
    depth = seed.key.count("/") - key.count("/")
    return replace(seed, path=seed.path.parents[depth - 1], key=key, state="unfinished", metrics=(), result={})


def _entry(run: Run, seeds: tuple[Run, ...], controls: tuple[Run, ...], runs: Sequence[Run]) -> Entry:
    config = run.config or next((seed.config for seed in seeds), {})
    run = replace(run, config=config)
    source = pretraining_run(run, runs)
    pretrained = config if source is None else source.config
    adapted = starting_point(run, runs) if run.command == "evaluate" else None
    own = config if adapted is None else adapted.config
    results = [seed.result for seed in seeds if seed.result]
    metric = next(filter(None, map(scores.main_metric, [run.result, *results])), None)
    tokens, seconds = pretraining_budget(source, runs)
    of_pretraining = is_pretraining(run)
    transfer = "" if of_pretraining or (run.command == "evaluate" and adapted is None) else _transfer(run, own)
    weights = None if transfer == "control" else str(own.get("init") if source is None else source.weights)
    own_score = control = None
    baselines: dict[str, ScoreSummary] = {}
    if metric is not None:
        problems: list[str] = []
        predictions = [] if of_pretraining else read_answers(run.path, problems)
        run = replace(run, problems=(*run.problems, *(text.removeprefix(f"{run.path}/") for text in problems)))
        split = next((str(result["split"]) for result in [run.result, *results] if result.get("split")), "")
        score_examples = examples_of_score(predictions, run.result, metric, results, split=split)
        own_score = read_scores(run.result, metric, results, pretraining=weights, examples=score_examples)
        control = find_control(run, controls, metric, predictions, split)
        baselines = find_baselines(run, metric, predictions, split)
    higher = scores.higher_is_better(metric or "", run.result)
    better = (max if higher else min)(baselines, key=lambda name: baselines[name].spread.mean, default="")
    return Entry(
        run=run,
        seeds=seeds,
        controls=controls,
        source=None if of_pretraining else source,
        model=model_label(pretrained.get("model") or own.get("model")),
        objective="" if source is None else objective_label(pretrained.get("objective"), pretrained.get("phases")),
        corpus=_text(run, source, runs),
        task="" if of_pretraining else node_label(run.result.get("task") or config.get("task")),
        split="" if of_pretraining else node_label(run.result.get("split")),
        transfer=transfer,
        num_train=_num_train(own),
        metric=metric,
        score=None if own_score is None else own_score.spread,
        control=None if control is None else control.spread,
        majority=None if metric is None else scores.majority(run.result, metric),
        difference=None,
        pretraining_tokens=tokens,
        pretraining_seconds=seconds,
        num_parameters=_first([run.result, *results], "num_parameters"),
        tokens_per_second=_first([run.result, *results], "tokens_per_second"),
        cost=RunCost() if of_pretraining else cost_of([run.result, *results]),
        settings={} if of_pretraining else task_settings(adapted or run, None if adapted is None else run),
        metrics=_metrics(config),
        task_fingerprint=next(
            (value for result in [run.result, *results] if isinstance(value := result.get("task_fingerprint"), str)),
            None,
        ),
        condition=None if own_score is None else own_score.condition,
        control_condition=None if control is None else control.condition,
        baselines={name: baseline.spread for name, baseline in baselines.items()},
        better_baseline=better,
        baseline_condition=baselines[better].condition if better else None,
    )


def _text(run: Run, source: Run | None, runs: Sequence[Run]) -> str:
    """Return the pretraining text of a run, or the text requested for an evaluation."""
    corpus = node_label(run.config.get("corpus")) if run.command == "evaluate" else ""
    return corpus or ("" if source is None else pretraining_text(source, runs))


def _transfer(run: Run, config: Mapping[str, Any]) -> str:
    """Return the way of transfer: the name of the freezing method, "control" for random weights, or "zero-shot"."""
    if run.result.get("zero_shot"):
        return "zero-shot"
    if run.result.get("control") is True or not config.get("init"):
        return "control"
    method = config.get("transfer")
    freeze = method.get("freeze") if isinstance(method, Mapping) else None
    default = "frozen" if run.command == "probe" else "full"
    return _METHODS.get(str(freeze or default), str(freeze))


def _metrics(config: Mapping[str, Any]) -> tuple[str, ...]:
    task = config.get("task")
    names = task.get("metrics") if isinstance(task, Mapping) else None
    return tuple(map(str, names)) if isinstance(names, list) else ()


def _num_train(config: Mapping[str, Any]) -> int | None:
    task = config.get("task")
    size = scores.number(task.get("num_train")) if isinstance(task, Mapping) else None
    return None if size is None else int(size)


def _first(results: Sequence[Mapping[str, Any]], name: str) -> float | None:
    return next((value for result in results if (value := scores.number(result.get(name))) is not None), None)
