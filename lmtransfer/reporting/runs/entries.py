"""From run directories to entries: one a run, its seeds together, with its pretraining and its control beside it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from lmtransfer.kept_predictions.scored import Kept
from lmtransfer.reporting.runs import scores
from lmtransfer.reporting.runs.arms import Scored, scored
from lmtransfer.reporting.runs.collect import Run
from lmtransfer.reporting.runs.kept import examples_behind, kept_answers
from lmtransfer.reporting.runs.labels import model_label, node_label, objective_label
from lmtransfer.reporting.runs.lineage import (
    PRETRAINED,
    pretraining_budget,
    pretraining_run,
    pretraining_text,
    starting_point,
)
from lmtransfer.reporting.runs.settings import differences_text, differing, task_settings
from lmtransfer.verdicts.arms import Arm
from lmtransfer.verdicts.difference import Difference, compare_arms
from lmtransfer.verdicts.holm import corrected
from lmtransfer.verdicts.spread import Spread

_WAYS = {"frozen": "frozen", "full": "finetuned"}


@dataclass(frozen=True, slots=True)
class Entry:
    """What one run did and scored.

    Attributes:
        run: the run (the parent, where it has several seeds).
        seeds: its seeds' own runs; empty where it has a single one.
        controls: runs of its control that lie inside its directory.
        source: the pretraining run that it began from, or None.
        model: family and size.
        objective: what was pretrained on, of this run or of ``source``.
        corpus: the text of it, and before it that of the runs it went on from.
        task: the downstream task; empty for pretraining.
        split: which part of the task's data was scored.
        transfer: "frozen", "finetuned", another way of freezing, or "control"; empty for pretraining.
        num_train: size of the training subset; None for all of it.
        metric: name of the metric that decides, or None where nothing was scored.
        score: that metric over the seeds.
        control: the same for the control.
        majority: the same for always answering the majority label.
        difference: ``score`` against ``control``, judged together with all others of the report.
        pretraining_tokens: real tokens seen in pretraining, all stages together.
        pretraining_seconds: training seconds of it.
        num_parameters: parameters of the encoder and its heads.
        tokens_per_second: real tokens a second of this run.
        settings: what a run of a task was trained with (see ``settings.task_settings``); empty for pretraining.
        without_control: why a run that looks like its control is none, in words; empty where there is nothing to say.
        arm: ``score`` as a side of a comparison, each with its seeds.
        control_arm: likewise of the control that was made with the run.
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
    score: Spread | None
    control: Spread | None
    majority: float | None
    difference: Difference | None
    pretraining_tokens: float | None
    pretraining_seconds: float | None
    num_parameters: float | None
    tokens_per_second: float | None
    settings: Mapping[str, Any] = field(default_factory=dict)
    without_control: str = ""
    arm: Arm | None = None
    control_arm: Arm | None = None

    @property
    def is_pretraining(self) -> bool:
        """Whether this is a pretraining run, or an evaluation of one on its held-out text."""
        return _is_pretraining(self.run)

    @property
    def is_control(self) -> bool:
        """Whether this run is itself a control: the same task learnt from random initialisation."""
        return self.transfer == "control"


def make_entries(runs: Sequence[Run]) -> list[Entry]:
    """One entry a run, in the order of ``runs``; seeds and controls are folded into the run that they belong to."""
    by_key = {run.key: run for run in runs}
    parts: dict[str, list[Run]] = {}
    for run in runs:
        parts.setdefault(_owner(run, by_key), []).append(run)
    made = []
    for key, members in parts.items():
        parent = by_key.get(key) or _unfinished_parent(key, members[0])
        seeds = tuple(run for run in members if run.key != key and run.is_seed and "control" not in _below(run, key))
        controls = tuple(run for run in members if run.key != key and run not in seeds)
        made.append(_entry(parent, seeds, controls, runs))
    return _judged_together([_compared(entry, made) for entry in made])


def _below(run: Run, key: str) -> list[str]:
    """The folders between a run and the one that it is a seed of, and its own."""
    return run.key.removeprefix(f"{key}/").split("/")


def _owner(run: Run, by_key: Mapping[str, Run]) -> str:
    """The key of the run that ``run`` is a seed or a control of, or its own."""
    folders = run.key.split("/")
    while len(folders) > 1 and (_is_member(folders[-1]) or _is_nested(folders, by_key)):
        folders.pop()
    key = "/".join(folders)
    return key if run.is_seed or key in by_key else run.key


def _is_member(folder: str) -> bool:
    return re.fullmatch(r"seed-\d+|control", folder) is not None


def _is_nested(folders: Sequence[str], by_key: Mapping[str, Run]) -> bool:
    """Whether a folder is one pretraining seed inside a run, and no run itself."""
    return re.fullmatch(r"pretraining-\d+", folders[-1]) is not None and "/".join(folders) not in by_key


def _unfinished_parent(key: str, seed: Run) -> Run:
    """A run of several seeds that has not written anything of its own yet."""
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
    is_pretraining = _is_pretraining(run)
    transfer = "" if is_pretraining or (run.command == "evaluate" and adapted is None) else _transfer(run, own)
    weights = None if transfer == "control" else str(own.get("init") if source is None else source.path)
    own_score = control = None
    if metric is not None:
        kept = [] if is_pretraining else kept_answers(run.path)
        split = next((str(result["split"]) for result in [run.result, *results] if result.get("split")), "")
        behind = examples_behind(kept, run.result, metric, results, split=split)
        own_score = scored(run.result, metric, results, pretraining=weights, examples=behind)
        control = _inside_control(run, controls, metric, kept, split)
    return Entry(
        run=run,
        seeds=seeds,
        controls=controls,
        source=None if is_pretraining else source,
        model=model_label(pretrained.get("model") or own.get("model")),
        objective="" if source is None else objective_label(pretrained.get("objective")),
        corpus=_text(run, source, runs),
        task="" if is_pretraining else node_label(run.result.get("task") or config.get("task")),
        split="" if is_pretraining else node_label(run.result.get("split")),
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
        settings={} if is_pretraining else task_settings(adapted or run, None if adapted is None else run),
        arm=None if own_score is None else own_score.arm,
        control_arm=None if control is None else control.arm,
    )


def _text(run: Run, source: Run | None, runs: Sequence[Run]) -> str:
    """The text of the pretraining behind a run, or that an evaluation was asked to measure on."""
    given = node_label(run.config.get("corpus")) if run.command == "evaluate" else ""
    return given or ("" if source is None else pretraining_text(source, runs))


def _is_pretraining(run: Run) -> bool:
    """Whether the run trained on text without labels, or was imported, or measured one that did."""
    measures_text = run.command == "evaluate" and bool(run.result) and run.result.get("task") is None
    return run.command in PRETRAINED or measures_text


def _transfer(run: Run, config: Mapping[str, Any]) -> str:
    """How the encoder was transferred: the name of the freezing, "control" from random weights, or "zero-shot"."""
    if run.result.get("zero_shot"):
        return "zero-shot"
    if run.result.get("control") is True or not config.get("init"):
        return "control"
    method = config.get("transfer")
    freeze = method.get("freeze") if isinstance(method, Mapping) else None
    default = "frozen" if run.command == "probe" else "full"
    return _WAYS.get(str(freeze or default), str(freeze))


def _num_train(config: Mapping[str, Any]) -> int | None:
    task = config.get("task")
    size = scores.number(task.get("num_train")) if isinstance(task, Mapping) else None
    return None if size is None else int(size)


def _first(results: Sequence[Mapping[str, Any]], name: str) -> float | None:
    return next((value for result in results if (value := scores.number(result.get(name))) is not None), None)


def _inside_control(run: Run, controls: Sequence[Run], metric: str, kept: Sequence[Kept], split: str) -> Scored | None:
    """The control that was made with the run: in its result, else in the runs inside its directory."""
    node = run.result.get("control")
    behind = examples_behind(kept, node, metric, split=split, is_control=True)
    stated = scored(node, metric, examples=behind)
    if stated is not None:
        return stated
    seeds = [control.result for control in controls if control.is_seed and control.result]
    parents = [control.result for control in controls if not control.is_seed and control.result]
    node = parents[0] if parents else {}
    behind = examples_behind(kept, node, metric, seeds, split=split, is_control=True)
    return scored(node, metric, seeds, examples=behind)


def _compared(entry: Entry, others: Sequence[Entry]) -> Entry:
    """The entry with its control, if need be a run of its own on the same task, and the difference to it.

    A control is the same in everything but the weights. Where a run of the same task from random initialisation is
    not, or where it is one of several, there is no difference, and the entry says why.
    """
    if entry.metric is None or entry.score is None or entry.is_pretraining or entry.is_control:
        return entry
    if entry.control is not None:
        return _judged(entry, entry.control, entry.control_arm)
    if entry.transfer == "zero-shot":
        return entry
    candidates = [other for other in others if other.is_control and _scores_the_same(entry, other)]
    keys = [differing(other.settings, entry.settings) for other in candidates]
    alike = [other for other, differs in zip(candidates, keys, strict=True) if not differs]
    if len(alike) == 1:
        assert alike[0].score is not None
        return _judged(entry, alike[0].score, alike[0].arm)
    if alike:
        names = " and ".join(other.run.name for other in alike)
        return replace(entry, without_control=f"{names} could each be its control: none is taken")
    if not candidates:
        return entry
    nearest, differs = min(zip(candidates, keys, strict=True), key=lambda pair: len(pair[1]))
    named = differences_text(nearest.settings, entry.settings, differs)
    return replace(entry, without_control=f"{nearest.run.name} is no control of it, differing in {named}")


def _scores_the_same(entry: Entry, other: Entry) -> bool:
    """Whether two runs are scored alike: command, task, split, number of labels and metric."""
    return other.score is not None and (
        (other.run.command, other.task, other.split, other.num_train, other.metric)
        == (entry.run.command, entry.task, entry.split, entry.num_train, entry.metric)
    )


def _judged(entry: Entry, control: Spread | None, control_arm: Arm | None) -> Entry:
    assert entry.arm is not None
    assert control_arm is not None
    assert entry.metric is not None
    found = compare_arms(
        entry.arm,
        control_arm,
        higher_is_better=scores.higher_is_better(entry.metric, entry.run.result),
        majority=entry.majority,
    )
    return replace(entry, control=control, difference=found)


def _judged_together(entries: Sequence[Entry]) -> list[Entry]:
    """The entries with verdicts that hold for the whole table."""
    compared = [entry.difference for entry in entries if entry.difference is not None]
    together = iter(corrected(compared))
    return [entry if entry.difference is None else replace(entry, difference=next(together)) for entry in entries]
