"""The numbers in a ``result.json``: the scores of a run and of its control over their seeds."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lmtransfer.verdicts.compare import compare_conditions
from lmtransfer.verdicts.conditions import Condition, Examples, Score, condition_from_summary
from lmtransfer.verdicts.difference import Difference
from lmtransfer.verdicts.spread import Spread, spread

#: Names, or their last parts, of metrics for which lower is better.
_LOWER = re.compile(r"(?:.*[/_ ])?(?:loss|perplexity|entropy|error|mlm|nsp|sop|lm|rtd)")


def number(value: Any) -> float | None:
    """Convert ``value`` to a finite float; None for anything else, since a damaged result may contain anything."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def main_metric(result: Mapping[str, Any]) -> str | None:
    """Return the name of the main metric in the result."""
    name = result.get("main_metric")
    return name if isinstance(name, str) and name else None


def higher_is_better(metric: str, result: Mapping[str, Any]) -> bool:
    """Whether higher is better: from the result, else from the metric's name (lower is better for losses)."""
    direction = result.get("higher_is_better")
    if isinstance(direction, bool):
        return direction
    return _LOWER.fullmatch(metric.lower()) is None


def is_worse(score: float, other: float, metric: str, result: Mapping[str, Any]) -> bool:
    """Whether a score is worse than another, given the direction of its metric."""
    return score < other if higher_is_better(metric, result) else score > other


@dataclass(frozen=True, slots=True)
class SeedValue:
    """One score of a run, with its seeds if they are known.

    Attributes:
        value: value of the metric.
        seed: seed of finetuning or of the probe; None if unknown.
        pretraining_seed: seed of the pretraining, if a run has several; else None.
    """

    value: float
    seed: int | None = None
    pretraining_seed: int | None = None


def seed_values(node: Any, metric: str, seeds: Sequence[Mapping[str, Any]] = ()) -> list[SeedValue]:
    """Return the metric of each seed, if individual values are known.

    Args:
        node: a ``result.json``, or its part about a control: a number, or a mapping with some of the keys ``seeds`` (a
            list of values, or of mappings with ``metrics``), ``mean``, ``median``, ``deviation``, ``n`` and
            ``metrics``. A statistic is a number for the main metric, or a mapping from metric to number.
        seeds: each ``result.json`` from the seeds' run directories.

    Returns:
        One entry per seed; empty if at most statistics are known.
    """
    single_value = number(node)
    if single_value is not None:
        return [SeedValue(single_value)]
    if not isinstance(node, Mapping):
        return []
    entries = node.get("seeds", node.get("values"))
    children: Sequence[Any] = entries if isinstance(entries, list) else list(seeds)
    values = [value for value in (_seed_value(child, metric) for child in children) if value is not None]
    if values or _statistic(node, "mean", metric) is not None:
        return values
    single = _seed_value(node, metric)
    return [] if single is None else [single]


def read_statistics(node: Any, metric: str) -> Spread | None:
    """Read the statistics of a metric in a node (see ``seed_values``); None if there are none."""
    mean = _statistic(node, "mean", metric) if isinstance(node, Mapping) else None
    if mean is None:
        return None
    n = number(node.get("n"))
    deviation = _statistic(node, "deviation", metric)
    median = _statistic(node, "median", metric)
    count = int(n) if n is not None and n >= 1 else 1
    return Spread(
        mean=mean,
        median=mean if median is None else median,
        deviation=deviation if count > 1 else None,
        n=count,
    )


def other_metrics(node: Any, metrics: Sequence[str], seeds: Sequence[Mapping[str, Any]] = ()) -> dict[str, Spread]:
    """Return the scores by the metrics other than the main one, as far as each seed's value is known.

    Args:
        node: see ``seed_values``.
        metrics: names of the task's metrics, the main one first.
        seeds: see ``seed_values``.
    """
    scores = {metric: [seed.value for seed in seed_values(node, metric, seeds)] for metric in metrics[1:]}
    return {metric: spread(values) for metric, values in scores.items() if values}


def num_collapsed(node: Any) -> int:
    """Return the number of seeds that give every example the same answer; for ``node``, see ``seed_values``."""
    count = node.get("collapsed") if isinstance(node, Mapping) else None
    return int(count) if isinstance(count, bool | int) else 0


def majority(result: Mapping[str, Any], metric: str) -> float | None:
    """Return the score of always predicting the most common label, if the result contains it."""
    value = _value({"metrics": result.get("majority")}, metric)
    return number(result.get("majority")) if value is None else value


@dataclass(frozen=True, slots=True)
class ScoreSummary:
    """The scores of a run or of its control.

    Attributes:
        spread: the metric over the seeds.
        condition: the scores as a side of a comparison.
    """

    spread: Spread
    condition: Condition


def read_scores(
    node: Any,
    metric: str,
    seeds: Sequence[Mapping[str, Any]] = (),
    *,
    pretraining: str | None = None,
    examples: Examples | None = None,
) -> ScoreSummary | None:
    """Read a metric over seeds, from individual values if known, else from the statistics.

    Args:
        node: a ``result.json``, or its part about a control (see ``seed_values``).
        seeds: each ``result.json`` from the seeds' run directories.
        pretraining: the run that the weights come from; None for random weights.
        examples: the contribution of each example to each score, in the order of ``seed_values``.

    Returns:
        The scores; None if the metric is not in the result.
    """
    collapsed = num_collapsed(node)
    values = seed_values(node, metric, seeds)
    if values:
        is_random = not (isinstance(node, Mapping) and node.get("deterministic") is True)
        condition = _condition(values, pretraining, collapsed, examples, is_random=is_random)
        return ScoreSummary(spread([seed.value for seed in values]), condition)
    statistics = read_statistics(node, metric)
    if statistics is None:
        return None
    condition = condition_from_summary(statistics, pretraining=pretraining, collapsed=collapsed)
    return ScoreSummary(statistics, condition)


def difference_in(result: Mapping[str, Any]) -> Difference | None:
    """Return the difference from the control in a result, recomputed if an earlier version wrote the result."""
    difference = Difference.from_values(result.get("difference"))
    metric = main_metric(result)
    if difference is not None or metric is None:
        return difference
    own, control = read_scores(result, metric, pretraining="its weights"), read_scores(result.get("control"), metric)
    if own is None or control is None:
        return None
    return compare_conditions(
        own.condition,
        control.condition,
        higher_is_better=higher_is_better(metric, result),
        majority=majority(result, metric),
    )


def _condition(
    values: Sequence[SeedValue], pretraining: str | None, collapsed: int, examples: Examples | None, *, is_random: bool
) -> Condition:
    """Build a condition from individual values; it is never paired if a seed is unknown or occurs twice.

    The condition is constant if its seeds have no effect and it has only one pretraining.
    """
    scores = [
        Score(
            value.value,
            value.seed if value.seed is not None else f"unknown {place}",
            pretraining
            if pretraining is None or value.pretraining_seed is None
            else f"{pretraining}/{value.pretraining_seed}",
        )
        for place, value in enumerate(values)
    ]
    can_be_paired = all(value.seed is not None for value in values)
    if len({(score.pretraining, score.seed) for score in scores}) < len(scores):
        scores = [Score(value.value, f"unknown {place}", pretraining) for place, value in enumerate(values)]
        can_be_paired = False
    is_constant = not is_random and len({score.pretraining for score in scores}) == 1
    return Condition(tuple(scores), examples, collapsed, "" if can_be_paired else None, is_constant)


def _value(child: Any, metric: str) -> float | None:
    if not isinstance(child, Mapping):
        return number(child)
    metrics = child.get("metrics")
    if isinstance(metrics, Mapping) and number(metrics.get(metric)) is not None:
        return number(metrics.get(metric))
    return number(child.get(metric))


def _statistic(node: Mapping[str, Any], name: str, metric: str) -> float | None:
    value = node.get(name)
    return number(value.get(metric)) if isinstance(value, Mapping) else number(value)


def _seed_value(child: Any, metric: str) -> SeedValue | None:
    value = _value(child, metric)
    if value is None:
        return None
    entries = child if isinstance(child, Mapping) else {}
    return SeedValue(value, _whole(entries.get("seed")), _whole(entries.get("pretraining_seed")))


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
