"""Builds the entries of a report: one per run, with its seeds, its control and its pretraining."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Any

from lmtransfer.reporting.runs.collect import COMMANDS, Run
from lmtransfer.reporting.runs.details import RunCost, cost_of
from lmtransfer.reporting.runs.lineage import (
    differences_text,
    differing_keys,
    is_pretraining,
    pretraining_budget,
    pretraining_run,
    pretraining_text,
    starting_point,
    task_settings,
)
from lmtransfer.reporting.runs.scores import (
    control_part,
    higher_is_better,
    is_worse,
    majority,
    number,
    other_metrics,
    read_answers,
    read_condition,
)
from lmtransfer.runs.labels import model_label, node_label, objective_label
from lmtransfer.system.printable import in_unit
from lmtransfer.tasks.metrics.scored_examples import Predictions
from lmtransfer.verdicts.conditions import Condition
from lmtransfer.verdicts.difference import Difference
from lmtransfer.verdicts.spread import Spread
from lmtransfer.verdicts.verdict import compare_conditions, judge_column

_METHODS = {"frozen": "frozen", "full": "finetuned"}


@dataclass(frozen=True, slots=True)
class Entry:
    """One run and its scores.

    Attributes:
        run: the run; if it has several seeds, the parent run.
        seeds: the runs of the seeds; empty for a single seed.
        controls: the runs of the control inside the run's directory.
        source: the pretraining run that the weights come from.
        corpus: the names of all texts that the encoder was pretrained on, in order.
        task: the name of the downstream task, with a distinguishing detail if the report has several tasks of this
            name; empty for pretraining.
        transfer: "frozen", "finetuned", another method of freezing, "zero-shot", or "control"; empty for pretraining.
        num_train: the size of the training subset; None for the whole training set.
        metric: the name of the main metric; None if nothing was scored.
        condition: the main metric for each seed, as a side of a comparison.
        control_condition: the same for the control.
        baseline_conditions: the same for each baseline, keyed by name.
        majority: the main metric of always predicting the most common label.
        difference: the score minus the control's; the verdict is corrected over all entries of the report.
        baseline_difference: the score minus the better baseline's, corrected in the same way.
        pretraining_tokens: the number of real tokens seen in pretraining, over all stages.
        pretraining_seconds: the duration of pretraining, over all stages.
        settings: see ``lineage.task_settings``; empty for pretraining.
        without_control: the reason why a run that resembles a control is not used as the control.
        metrics: the names of the task's metrics, the main one first; empty if the task offers no choice.
        task_fingerprint: the identity of the task, regardless of its name; see ``RunResult``.
        margin: the size below which a difference does not matter, in the metric's unit.
        has_verdicts: whether the report judges the run; see ``without_verdicts``.
    """

    run: Run
    seeds: tuple[Run, ...]
    controls: tuple[Run, ...]
    source: Run | None
    model: str
    objective: str
    corpus: str
    task: str
    split: str
    transfer: str
    num_train: int | None
    metric: str | None
    condition: Condition | None
    control_condition: Condition | None
    baseline_conditions: Mapping[str, Condition]
    better_baseline: str
    majority: float | None
    pretraining_tokens: float | None
    pretraining_seconds: float | None
    num_parameters: float | None
    tokens_per_second: float | None
    cost: RunCost
    settings: Mapping[str, Any]
    metrics: tuple[str, ...]
    task_fingerprint: str | None
    margin: float | None
    difference: Difference | None = None
    baseline_difference: Difference | None = None
    without_control: str = ""
    has_verdicts: bool = True

    @property
    def score(self) -> Spread | None:
        """The main metric over the seeds."""
        return None if self.condition is None else self.condition.spread

    @property
    def control(self) -> Spread | None:
        """The main metric of the control."""
        return None if self.control_condition is None else self.control_condition.spread

    @property
    def baselines(self) -> dict[str, Spread]:
        """The main metric of each word-count baseline, keyed by the baseline's name."""
        return {name: condition.spread for name, condition in self.baseline_conditions.items()}

    @property
    def baseline(self) -> Spread | None:
        """The main metric of the better word-count baseline."""
        return self.baselines.get(self.better_baseline)

    @property
    def other_metrics(self) -> dict[str, Spread]:
        """The scores by the task's metrics other than the main one."""
        return other_metrics(self.run.result, self.metrics, [seed.result for seed in self.seeds if seed.result])

    @property
    def is_pretraining(self) -> bool:
        """Whether this is a pretraining run, or the evaluation of one on held-out text."""
        return is_pretraining(self.run)

    @property
    def is_control(self) -> bool:
        """Whether this run is a control, which was trained on the task from random weights."""
        return self.transfer == "control"

    @property
    def higher_is_better(self) -> bool:
        """Whether higher values of the main metric are better."""
        return higher_is_better(self.metric or "", self.run.result)

    @property
    def order(self) -> float:
        """A sort key that puts the best score first."""
        assert self.score is not None
        return -self.score.mean if self.higher_is_better else self.score.mean

    def without_verdicts(self) -> Entry:
        """Return the entry without any verdict, for a demonstration whose runs are too short for one."""
        return replace(self, difference=None, baseline_difference=None, without_control="", has_verdicts=False)

    def is_worse(self, score: float, other: float) -> bool:
        """Whether a value of the main metric is worse than another."""
        return is_worse(score, other, self.metric or "", self.run.result)

    def compare(self, other: Condition | None) -> Difference | None:
        """Return the score minus that of ``other``; None if either is unknown."""
        if self.condition is None or other is None:
            return None
        return compare_conditions(
            self.condition,
            other,
            higher_is_better=self.higher_is_better,
            majority=self.majority,
            baseline=None if self.baseline is None else self.baseline.mean,
        )

    @property
    def name(self) -> str:
        """The run's name without the folder of its command."""
        command, _, rest = self.run.key.partition("/")
        return rest if rest and command in COMMANDS else self.run.key

    @property
    def group(self) -> str:
        """The group of comparable runs: ``sst2, test, 1,000 labels``, or ``pretraining``."""
        if self.is_pretraining:
            return "pretraining"
        labels = f"{self.num_train:,} labels" if self.num_train else ""
        return ", ".join(filter(None, (self.task or "unknown task", self.split, labels)))


def distinct_names(entries: Sequence[Entry]) -> dict[str, str]:
    """Return a name for each run, by key; it includes the transfer method if comparable runs share their name."""
    shared = Counter((entry.group, entry.name) for entry in entries)
    return {
        entry.run.key: f"{entry.name} {entry.transfer}".strip() if shared[entry.group, entry.name] > 1 else entry.name
        for entry in entries
    }


def make_entries(runs: Sequence[Run], *, margin: float | None = None) -> list[Entry]:
    """Build an entry for each run, in the order of ``runs``; seeds and controls become part of their parent's entry.

    Args:
        margin: the size below which a difference does not matter, as displayed (points of accuracy).
    """
    by_key = {run.key: run for run in runs}
    members_of: dict[str, list[Run]] = {}
    for run in runs:
        members_of.setdefault(_owner(run, by_key), []).append(run)
    entries = []
    for key, members in members_of.items():
        parent = by_key.get(key) or _unfinished_parent(key, members[0])
        seeds = tuple(run for run in members if run.key != key and run.is_seed and "control" not in _below(run, key))
        controls = tuple(run for run in members if run.key != key and run not in seeds)
        entries.append(_entry(parent, seeds, controls, runs, margin))
    return _add_comparisons(_rename_tasks(entries))


def _owner(run: Run, by_key: Mapping[str, Run]) -> str:
    """Return the key of the parent of a seed or a control; for any other run, the run's own key."""
    folders = run.key.split("/")
    while len(folders) > 1 and (
        re.fullmatch(r"seed-\d+|control", folders[-1])
        # The folder of a pretraining seed contains runs but is not a run itself.
        or (re.fullmatch(r"pretraining-\d+", folders[-1]) and "/".join(folders) not in by_key)
    ):
        folders.pop()
    key = "/".join(folders)
    return key if run.is_seed or key in by_key else run.key


def _below(run: Run, key: str) -> list[str]:
    """Return the names of the folders below the parent run, down to the folder of a seed or control."""
    return run.key.removeprefix(f"{key}/").split("/")


def _unfinished_parent(key: str, seed: Run) -> Run:
    """Build a parent for seeds if the parent run has not yet written a file."""
    depth = seed.key.count("/") - key.count("/")
    return replace(seed, path=seed.path.parents[depth - 1], key=key, state="unfinished", metrics=(), result={})


def _entry(
    run: Run, seeds: tuple[Run, ...], controls: tuple[Run, ...], runs: Sequence[Run], margin: float | None
) -> Entry:
    config = run.config or next((seed.config for seed in seeds), {})
    run = replace(run, config=config)
    source = pretraining_run(run, runs)
    pretrained = config if source is None else source.config
    adapted = starting_point(run, runs) if run.command == "evaluate" else None
    own = config if adapted is None else adapted.config
    own_task: Mapping[str, Any] = own.get("task") or {}
    results = [run.result, *(seed.result for seed in seeds if seed.result)]
    metric = _first(results, "main_metric")
    tokens, seconds = pretraining_budget(source, runs)
    of_pretraining = is_pretraining(run)
    transfer = "" if of_pretraining or (run.command == "evaluate" and adapted is None) else _transfer(run, own)
    weights = None if transfer == "control" else str(own.get("init") if source is None else source.weights)
    condition = control = None
    baselines: dict[str, Condition] = {}
    if metric is not None:
        problems: list[str] = []
        predictions = [] if of_pretraining else read_answers(run.path, problems)
        run = replace(run, problems=(*run.problems, *(text.removeprefix(f"{run.path}/") for text in problems)))
        split = str(_first(results, "split") or "")
        condition = read_condition(
            run.result, metric, results[1:], pretraining=weights, predictions=predictions, split=split
        )
        control = _control(run, controls, metric, predictions, split)
        for name, node in (run.result.get("baselines") or {}).items():
            baseline = read_condition(node, metric, predictions=predictions, split=split, baseline=name)
            baselines |= {} if baseline is None else {name: baseline}
    best = max if higher_is_better(metric or "", run.result) else min
    return Entry(
        run=run,
        seeds=seeds,
        controls=controls,
        source=None if of_pretraining else source,
        model=model_label(pretrained.get("model") or own.get("model")),
        objective="" if source is None else objective_label(pretrained.get("objective"), pretrained.get("phases")),
        corpus=(node_label(config.get("corpus")) if run.command == "evaluate" else "")
        or ("" if source is None else pretraining_text(source, runs)),
        task="" if of_pretraining else node_label(run.result.get("task") or config.get("task")),
        split="" if of_pretraining else run.result.get("split") or "",
        transfer=transfer,
        num_train=own_task.get("num_train"),
        metric=metric,
        condition=condition,
        control_condition=control,
        baseline_conditions=baselines,
        better_baseline=best(baselines, key=lambda name: baselines[name].spread.mean, default=""),
        majority=None if metric is None else majority(run.result, metric),
        pretraining_tokens=tokens,
        pretraining_seconds=seconds,
        num_parameters=number(_first(results, "num_parameters")),
        tokens_per_second=number(_first(results, "tokens_per_second")),
        cost=RunCost() if of_pretraining else cost_of(results),
        settings={} if of_pretraining else task_settings(adapted or run, None if adapted is None else run),
        metrics=tuple((config.get("task") or {}).get("metrics") or ()),
        task_fingerprint=_first(results, "task_fingerprint"),
        margin=in_unit(margin, metric or ""),
    )


def _first(results: Sequence[Mapping[str, Any]], name: str) -> Any:
    return next((value for result in results if (value := result.get(name)) is not None), None)


def _transfer(run: Run, config: Mapping[str, Any]) -> str:
    """Return the transfer method: a method of freezing, "control" for random weights, or "zero-shot"."""
    if run.result.get("zero_shot"):
        return "zero-shot"
    if run.result.get("control") is True or not config.get("init"):
        return "control"
    freeze = str((config.get("transfer") or {}).get("freeze") or ("frozen" if run.command == "probe" else "full"))
    return _METHODS.get(freeze, freeze)


def _control(
    run: Run, controls: Sequence[Run], metric: str, predictions: Sequence[Predictions], split: str
) -> Condition | None:
    """Return the scores of a run's own control, from the run's result or, failing that, the runs in its directory."""
    seeds = [control.result for control in controls if control.is_seed and control.result]
    parents = [control.result for control in controls if not control.is_seed and control.result]
    for part, of_seeds in ((control_part(run.result), ()), (parents[0] if parents else {}, seeds)):
        control = read_condition(part, metric, of_seeds, predictions=predictions, split=split, is_control=True)
        if control is not None:
            return control
    return None


def _rename_tasks(entries: Sequence[Entry]) -> list[Entry]:
    """Rename tasks so that runs of the same task have the same task name and different tasks have different names.

    Tasks are the same if they have the same examples, labels and main metric. Each gets the name that its first
    run uses. If several tasks share a name, a detail is added: the file or, if that is the same, the number of classes,
    and so on.
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
    """Return details that may distinguish a task from others that have the same name, most informative first."""
    task, result = entry.run.config.get("task") or {}, entry.run.result
    files = task.get("files")
    file = task.get(entry.split) or (files.get(entry.split) if isinstance(files, Mapping) else None)
    labels, num = result.get("labels"), result.get("num_scored")
    return (
        PurePath(file).name if isinstance(file, str) else "",
        "" if labels is None else f"{len(labels)} classes",
        entry.metric or "",
        "" if num is None else f"{num:,.0f} examples",
        (entry.task_fingerprint or "unknown")[:6],
    )


def _distinguishing_details(rows: Sequence[tuple[str, ...]]) -> list[list[str]]:
    """Return the first details of each row that together make all rows distinct; empty for a single row."""
    prefixes: list[list[str]] = [[] for _ in rows]
    for column in zip(*rows, strict=True):
        if len({tuple(row) for row in prefixes}) < len(rows) and len(set(column)) > 1:
            prefixes = [[*row, *filter(None, [value])] for row, value in zip(prefixes, column, strict=True)]
    return prefixes


def _add_comparisons(entries: Sequence[Entry]) -> list[Entry]:
    """Add controls and differences to the entries, and correct the verdicts in each column for their number."""
    entries = [_add_control(entry, entries) for entry in entries]
    differences = _correct_verdicts(
        entries,
        [
            None if entry.is_pretraining or entry.is_control else entry.compare(entry.control_condition)
            for entry in entries
        ],
    )
    to_baselines = _correct_verdicts(
        entries,
        [
            replace(entry, better_baseline="").compare(entry.baseline_conditions.get(entry.better_baseline))
            for entry in entries
        ],
    )
    return [
        replace(entry, difference=difference, baseline_difference=to_baseline)
        for entry, difference, to_baseline in zip(entries, differences, to_baselines, strict=True)
    ]


def _correct_verdicts(entries: Sequence[Entry], column: Sequence[Difference | None]) -> list[Difference | None]:
    pairs = [(difference, entry.margin) for entry, difference in zip(entries, column, strict=True) if difference]
    corrected = iter(judge_column([difference for difference, _ in pairs], margins=[margin for _, margin in pairs]))
    return [None if difference is None else next(corrected) for difference in column]


def _add_control(entry: Entry, others: Sequence[Entry]) -> Entry:
    """Add a control that is a separate run, or the reason why a similar run cannot be the control.

    A control is a run on the same task that differs only in its weights. If several runs qualify, none is used.
    """
    if entry.condition is None or entry.is_pretraining or entry.is_control:
        return entry
    if entry.control_condition is not None or entry.transfer == "zero-shot":
        return entry
    candidates = [other for other in others if other.is_control and _is_scored_alike(entry, other)]
    keys = [differing_keys(other.settings, entry.settings) for other in candidates]
    same = [other for other, differs in zip(candidates, keys, strict=True) if not differs]
    if len(same) == 1:
        return replace(entry, control_condition=same[0].condition)
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
    return other.condition is not None and (
        (other.run.command, other.task, other.split, other.num_train, other.metric)
        == (entry.run.command, entry.task, entry.split, entry.num_train, entry.metric)
    )
