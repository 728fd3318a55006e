"""Continued pretraining, judged on a task: the same transfer from the run before and from the run after."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from lmtransfer.reporting.runs.entry import Entry
from lmtransfer.reporting.runs.lineage import PRETRAINED, lineage
from lmtransfer.reporting.runs.scores import higher_is_better
from lmtransfer.reporting.runs.settings import TOKENIZER, differing
from lmtransfer.verdicts.compare import compare_conditions
from lmtransfer.verdicts.difference import Difference
from lmtransfer.verdicts.holm import corrected


@dataclass(frozen=True, slots=True)
class BeforeAfter:
    """Two transfers to the same task, made in the same way.

    Attributes:
        before: transfer from a pretrained run.
        after: transfer from a run that continued the pretraining of that run.
        difference: ``after`` minus ``before``, judged together with the others of this kind.
    """

    before: Entry
    after: Entry
    difference: Difference


def before_and_after(entries: Sequence[Entry]) -> list[BeforeAfter]:
    """Pair each transfer from a continued run with that from the earlier run, if there is exactly one."""
    found = []
    runs = [entry.run for entry in entries]
    for after in entries:
        if not _is_scored(after) or after.source is None:
            continue
        for earlier in (run for run in lineage(after.source, runs)[1:] if run.command in PRETRAINED):
            candidates = [
                entry
                for entry in entries
                if entry.source is not None
                and entry.source.weights == earlier.weights
                and _has_same_settings(entry, after)
            ]
            if len(candidates) == 1:
                found.append(BeforeAfter(candidates[0], after, _difference(candidates[0], after)))
            if candidates:
                break  # the nearest earlier run with transfers; if it has several, none is used
    together = corrected([pair.difference for pair in found], margins=[pair.after.margin for pair in found])
    return [replace(pair, difference=difference) for pair, difference in zip(found, together, strict=True)]


def _is_scored(entry: Entry) -> bool:
    return entry.score is not None and not entry.is_pretraining and not entry.is_control


def _has_same_settings(entry: Entry, other: Entry) -> bool:
    """Whether two transfers differ in nothing known except their starting point."""

    def scored(one: Entry) -> tuple[object, ...]:
        return (one.run.command, one.task, one.split, one.metric, one.transfer)

    # Continued pretraining may add words to a tokenizer.
    return (
        _is_scored(entry)
        and scored(entry) == scored(other)
        and not differing(entry.settings, other.settings, but=[TOKENIZER])
    )


def _difference(before: Entry, after: Entry) -> Difference:
    assert before.condition is not None
    assert after.condition is not None
    return compare_conditions(
        after.condition,
        before.condition,
        higher_is_better=higher_is_better(after.metric or "", after.run.result),
        majority=after.majority,
        baseline=after.baseline_mean,
    )
