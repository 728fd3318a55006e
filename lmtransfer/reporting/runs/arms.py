"""The arms of a comparison from what results say: each score with its seeds, as far as they are known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lmtransfer.reporting.runs import scores
from lmtransfer.verdicts.arms import Arm, Examples, Score, arm_of_summary
from lmtransfer.verdicts.difference import Difference, compare_arms
from lmtransfer.verdicts.spread import Spread, spread


@dataclass(frozen=True, slots=True)
class Scored:
    """What a run, or its control, scored.

    Attributes:
        spread: the metric over its seeds.
        arm: the same as a side of a comparison.
    """

    spread: Spread
    arm: Arm


def scored(
    node: Any,
    metric: str,
    seeds: Sequence[Mapping[str, Any]] = (),
    *,
    pretraining: str | None = None,
    examples: Examples | None = None,
) -> Scored | None:
    """A metric over seeds, from the single values where they are there, else from the stated statistics.

    Args:
        node: a ``result.json``, or the part of one that describes a control (see ``scores.seed_values``).
        metric: which metric.
        seeds: the ``result.json`` of the seeds' own run directories.
        pretraining: the run that the weights are of; None for random initialisation.
        examples: what each example contributed to each score, in the order of the scores.

    Returns:
        None where there is no such number.
    """
    collapsed = scores.num_collapsed(node)
    found = scores.seed_values(node, metric, seeds)
    if found:
        return Scored(spread([one.value for one in found]), _arm(found, pretraining, collapsed, examples))
    stated = scores.stated(node, metric)
    if stated is None:
        return None
    return Scored(stated, arm_of_summary(stated, pretraining=pretraining, collapsed=collapsed))


def difference_in(result: Mapping[str, Any]) -> Difference | None:
    """The difference to the control that a result states; worked out anew where an earlier version wrote it."""
    stated = Difference.from_values(result.get("difference"))
    metric = scores.main_metric(result)
    if stated is not None or metric is None:
        return stated
    own, control = scored(result, metric, pretraining="its weights"), scored(result.get("control"), metric)
    if own is None or control is None:
        return None
    return compare_arms(
        own.arm,
        control.arm,
        higher_is_better=scores.higher_is_better(metric, result),
        majority=scores.majority(result, metric),
    )


def _arm(found: Sequence[scores.SeedValue], pretraining: str | None, collapsed: int, examples: Examples | None) -> Arm:
    """An arm of single values; where a seed is not stated, or stated twice, it is paired with nothing."""
    known = [
        Score(
            one.value,
            one.seed if one.seed is not None else f"unknown {place}",
            pretraining
            if pretraining is None or one.pretraining_seed is None
            else f"{pretraining}/{one.pretraining_seed}",
        )
        for place, one in enumerate(found)
    ]
    certain = all(one.seed is not None for one in found)
    if len({(score.pretraining, score.seed) for score in known}) < len(known):
        known = [Score(one.value, f"unknown {place}", pretraining) for place, one in enumerate(found)]
        certain = False
    return Arm(tuple(known), examples, collapsed, "" if certain else None)
