"""Going on with pretraining, judged on a task: the same transfer from the run before and from the one after."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from lmtransfer.reporting.render.rows import group_name, run_name
from lmtransfer.reporting.render.units import in_percent, shown, shown_difference
from lmtransfer.reporting.render.verdict_text import grounds
from lmtransfer.reporting.runs.entries import Entry
from lmtransfer.reporting.runs.labels import node_label
from lmtransfer.reporting.runs.lineage import PRETRAINED, lineage
from lmtransfer.reporting.runs.scores import higher_is_better
from lmtransfer.reporting.runs.settings import TOKENIZER, differing
from lmtransfer.verdicts.difference import Difference, compare_arms
from lmtransfer.verdicts.holm import corrected


@dataclass(frozen=True, slots=True)
class BeforeAfter:
    """Two transfers to the same task in the same way.

    Attributes:
        before: from a pretrained run.
        after: from a run that went on from it.
        difference: of ``after`` to ``before``, judged together with the others of its kind.
    """

    before: Entry
    after: Entry
    difference: Difference


def before_and_after(entries: Sequence[Entry]) -> list[BeforeAfter]:
    """For each transfer from a run that went on from another: the one transfer from that other, if it is just one."""
    found = []
    runs = [entry.run for entry in entries]
    for after in entries:
        if not _is_scored(after) or after.source is None:
            continue
        for earlier in (run for run in lineage(after.source, runs)[1:] if run.command in PRETRAINED):
            candidates = [
                entry
                for entry in entries
                if entry.source is not None and entry.source.path == earlier.path and _is_alike(entry, after)
            ]
            if len(candidates) == 1:
                found.append(BeforeAfter(candidates[0], after, _difference(candidates[0], after)))
            if candidates:
                break  # the nearest one that was transferred; of several ways none is its counterpart
    together = corrected([pair.difference for pair in found])
    return [replace(pair, difference=difference) for pair, difference in zip(found, together, strict=True)]


def going_on(pair: BeforeAfter) -> str:
    """One comparison in words."""
    before, after, found = pair.before, pair.after, pair.difference
    lead = {
        "better": "helped",
        "worse": "hurt",
        "no difference shown": "shows no difference",
        "one seed, no spread": "cannot be judged from a single seed",
        "seeds all alike": "cannot be judged from seeds that are all alike",
        "control collapsed": "cannot be judged, since the seeds of the run before answer one and the same label",
        "collapsed": "gives seeds that answer one and the same label",
        "settings differ": "cannot be judged, since more than the weights differs",
    }
    source, metric = after.source, after.metric or ""
    assert source is not None
    assert before.score is not None
    assert after.score is not None
    unit, points = (" %", " points") if in_percent(metric) else ("", "")
    text = node_label(source.config.get("corpus"))
    sentence = (
        f"Going on with pretraining{f' on {text}' if text else ''} {lead[found.verdict]}: on {group_name(after)}, "
        f"{run_name(after)} ({after.transfer}) reaches {shown(after.score.mean, metric)}{unit} {metric} against "
        f"{shown(before.score.mean, metric)}{unit} of {run_name(before)}, which began from the run before, a "
        f"difference of {shown_difference(found.delta, metric)}{points}"
    )
    if found.standard_error is None:
        return f"{sentence}. Train several with seeds=5."
    return f"{sentence} ({grounds(found, metric)}; of {found.scope})."


def _is_scored(entry: Entry) -> bool:
    return entry.score is not None and not entry.is_pretraining and not entry.is_control


def _is_alike(entry: Entry, other: Entry) -> bool:
    """Whether two transfers differ in nothing that we know of but where they began."""

    def scored(one: Entry) -> tuple[object, ...]:
        return (one.run.command, one.task, one.split, one.metric, one.transfer)

    # Going on may add words to a tokenizer.
    return (
        _is_scored(entry)
        and scored(entry) == scored(other)
        and not differing(entry.settings, other.settings, but=[TOKENIZER])
    )


def _difference(before: Entry, after: Entry) -> Difference:
    assert before.arm is not None
    assert after.arm is not None
    return compare_arms(
        after.arm,
        before.arm,
        higher_is_better=higher_is_better(after.metric or "", after.run.result),
        majority=after.majority,
    )
