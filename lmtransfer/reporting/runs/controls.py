"""Finding the control of each run: it must be the same in everything but the weights, otherwise there is no verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from lmtransfer.reporting.runs import scores
from lmtransfer.reporting.runs.collect import Run
from lmtransfer.reporting.runs.entry import Entry
from lmtransfer.reporting.runs.kept_answers import examples_of_score
from lmtransfer.reporting.runs.scores import Scored, scored
from lmtransfer.reporting.runs.settings import differences_text, differing
from lmtransfer.tasks.metrics.scored_examples import Kept
from lmtransfer.verdicts.compare import compare_conditions
from lmtransfer.verdicts.conditions import Condition
from lmtransfer.verdicts.difference import Difference
from lmtransfer.verdicts.holm import corrected
from lmtransfer.verdicts.spread import Spread


def compared(entries: Sequence[Entry]) -> list[Entry]:
    """The entries with their controls and differences; the verdicts of a column are corrected together."""
    found = [_against_baseline(_compared(entry, entries)) for entry in entries]
    differences = _corrected([(entry.difference, entry.margin) for entry in found])
    counted = _corrected([(entry.baseline_difference, entry.margin) for entry in found])
    return [
        replace(entry, difference=difference, baseline_difference=to_baseline)
        for entry, difference, to_baseline in zip(found, differences, counted, strict=True)
    ]


def _corrected(column: Sequence[tuple[Difference | None, float | None]]) -> list[Difference | None]:
    """The differences of a column with their margins, judged together."""
    judged = [(difference, margin) for difference, margin in column if difference is not None]
    together = iter(corrected([one for one, _ in judged], margins=[margin for _, margin in judged]))
    return [None if difference is None else next(together) for difference, _ in column]


def made_control(run: Run, controls: Sequence[Run], metric: str, kept: Sequence[Kept], split: str) -> Scored | None:
    """The control that was made together with the run: from its result, else from the runs inside its directory."""
    node = run.result.get("control")
    score_examples = examples_of_score(kept, node, metric, split=split, is_control=True)
    reported = scored(node, metric, examples=score_examples)
    if reported is not None:
        return reported
    seeds = [control.result for control in controls if control.is_seed and control.result]
    parents = [control.result for control in controls if not control.is_seed and control.result]
    node = parents[0] if parents else {}
    score_examples = examples_of_score(kept, node, metric, seeds, split=split, is_control=True)
    return scored(node, metric, seeds, examples=score_examples)


def made_baselines(run: Run, metric: str, kept: Sequence[Kept], split: str) -> dict[str, Scored]:
    """The baselines that count words, which were scored together with the run, by name."""
    nodes = run.result.get("baselines")
    found = {}
    for name, node in nodes.items() if isinstance(nodes, Mapping) else ():
        score_examples = examples_of_score(kept, node, metric, split=split, baseline=name)
        made = scored(node, metric, examples=score_examples)
        if made is not None:
            found[name] = made
    return found


def _against_baseline(entry: Entry) -> Entry:
    """The entry with its difference to the better baseline."""
    if entry.condition is None or entry.baseline_condition is None or entry.metric is None:
        return entry
    found = compare_conditions(
        entry.condition,
        entry.baseline_condition,
        higher_is_better=scores.higher_is_better(entry.metric, entry.run.result),
        majority=entry.majority,
    )
    return replace(entry, baseline_difference=found)


def _compared(entry: Entry, others: Sequence[Entry]) -> Entry:
    """The entry with its control, which may be a separate run on the same task, and its difference.

    A control is the same in everything but the weights. If a run of the same task from random initialisation differs in
    more, or if several runs qualify, there is no difference, and the entry gives the reason.
    """
    if entry.metric is None or entry.score is None or entry.is_pretraining or entry.is_control:
        return entry
    if entry.control is not None:
        return _judged(entry, entry.control, entry.control_condition)
    if entry.transfer == "zero-shot":
        return entry
    candidates = [other for other in others if other.is_control and _scores_the_same(entry, other)]
    keys = [differing(other.settings, entry.settings) for other in candidates]
    same = [other for other, differs in zip(candidates, keys, strict=True) if not differs]
    if len(same) == 1:
        assert same[0].score is not None
        return _judged(entry, same[0].score, same[0].condition)
    if same:
        names = " and ".join(other.run.name for other in same)
        return replace(entry, without_control=f"{names} could each be its control, so none is used")
    if not candidates:
        return entry
    nearest, differs = min(zip(candidates, keys, strict=True), key=lambda pair: len(pair[1]))
    named = differences_text(nearest.settings, entry.settings, differs)
    return replace(entry, without_control=f"{nearest.run.name} is not its control, because they differ in {named}")


def _scores_the_same(entry: Entry, other: Entry) -> bool:
    """Whether two runs are scored in the same way: command, task, split, number of labels and metric."""
    return other.score is not None and (
        (other.run.command, other.task, other.split, other.num_train, other.metric)
        == (entry.run.command, entry.task, entry.split, entry.num_train, entry.metric)
    )


def _judged(entry: Entry, control: Spread | None, control_condition: Condition | None) -> Entry:
    assert entry.condition is not None
    assert control_condition is not None
    assert entry.metric is not None
    found = compare_conditions(
        entry.condition,
        control_condition,
        higher_is_better=scores.higher_is_better(entry.metric, entry.run.result),
        majority=entry.majority,
        baseline=entry.baseline_mean,
    )
    return replace(entry, control=control, difference=found)
