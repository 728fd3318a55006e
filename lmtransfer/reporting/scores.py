"""The numbers of a ``result.json``: what a run scored over its seeds, and what its control and the majority scored."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from lmtransfer.reporting.statistics import Spread, spread

#: Metrics that are better when smaller, by the end of their name.
_LOWER = re.compile(r"(?:.*[/_ ])?(?:loss|perplexity|entropy|error|mlm|nsp|sop|lm|rtd)")


def number(value: Any) -> float | None:
    """``value`` as a finite float, or None where it is none (a torn or foreign result may hold anything)."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def main_metric(result: Mapping[str, Any]) -> str | None:
    """The name of the metric that decides, as the result says it."""
    name = result.get("main_metric")
    return name if isinstance(name, str) and name else None


def higher_is_better(metric: str, result: Mapping[str, Any]) -> bool:
    """The direction of a metric: as the result says, else by its name (losses and perplexities are better small)."""
    said = result.get("higher_is_better")
    if isinstance(said, bool):
        return said
    return _LOWER.fullmatch(metric.lower()) is None


def score(node: Any, metric: str, seeds: Sequence[Mapping[str, Any]] = ()) -> Spread | None:
    """A metric over seeds, from the single values where they are there, else from the stated statistics.

    Args:
        node: a ``result.json``, or the part of one that describes a control: a number, or a mapping with some of
            ``seeds`` (a list of values, or of mappings with ``metrics``), ``mean``, ``median``, ``deviation``, ``n``,
            and ``metrics``. Statistics may be numbers of the main metric or mappings from metric to number.
        metric: which metric.
        seeds: the ``result.json`` of the seeds' own run directories.

    Returns:
        The spread, or None where there is no such number.
    """
    plain = number(node)
    if plain is not None:
        return spread((plain,))
    if not isinstance(node, Mapping):
        return None
    listed = node.get("seeds", node.get("values"))
    children: Sequence[Any] = listed if isinstance(listed, list) else list(seeds)
    values = [value for value in (_value(child, metric) for child in children) if value is not None]
    if values:
        return spread(values)
    mean = _statistic(node, "mean", metric)
    if mean is None:
        single = _value(node, metric)
        return None if single is None else spread((single,))
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


def num_collapsed(node: Any) -> int:
    """How many seeds answer every example alike; ``node`` is a ``result.json`` or a control's part of one."""
    said = node.get("collapsed") if isinstance(node, Mapping) else None
    return int(said) if isinstance(said, bool | int) else 0


def majority(result: Mapping[str, Any], metric: str) -> float | None:
    """What always answering the majority label scores, where the result says it."""
    value = _value({"metrics": result.get("majority")}, metric)
    return number(result.get("majority")) if value is None else value


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
