"""States verdicts in words: the corrected interval, the scope, and the smallest detectable difference."""

from __future__ import annotations

from lmtransfer.system.printable import format_difference, format_metric, in_percent
from lmtransfer.verdicts.difference import BETTER, VERDICTS, Difference, Verdict

WHY_NO_VERDICT: dict[Verdict, str] = {
    "one seed, no spread": "one seed has no spread",
    "collapsed": "every seed predicts the same label for every example",
    "control collapsed": "every seed of the control predicts the same label for every example",
    "seeds all alike": "all seeds of one side, or the differences of all pairs, are equal",
    "no examples": "neither side has random seeds, and the predictions for the examples are not known",
    "settings differ": "the two sides differ in more than their weights",
}


def with_unit(score: float, metric: str) -> str:
    """Format a score with its unit: ``69.6 %``."""
    return format_metric(score, metric) + (" %" if in_percent(metric) else "")


def difference_with_unit(difference: float, metric: str) -> str:
    """Format a difference with its unit: ``+2.8 points``."""
    return format_difference(difference, metric) + (" points" if in_percent(metric) else "")


def interval_text(difference: Difference, metric: str) -> str:
    """State the corrected interval: ``+6.1 to +13.9``; empty if there is none."""
    if difference.interval is None:
        return ""
    low, high = difference.interval
    return f"{format_difference(low, metric)} to {format_difference(high, metric)}"


def grounds(difference: Difference, metric: str, *, of: str = "these examples") -> str:
    """State the basis of a verdict: ``95 % interval +6.1 to +13.9 over 5 pairs of runs, on these examples``.

    Args:
        of: the scored data, which are mentioned if the interval does not include their sampling variance.
    """
    num = difference.num_comparisons
    corrected = f", corrected for {num} comparisons," if num > 1 else ""
    examples = "" if difference.counts_examples else f", on {of}"
    return f"95 % interval{corrected} {interval_text(difference, metric)} over {seeds_text(difference)}{examples}"


def seeds_text(difference: Difference) -> str:
    """State the number of seeds: ``5 pairs of runs``, ``5 and 3 seeds`` or ``5 seeds each``."""
    first, second = difference.num_seeds
    if 0 in (first, second):
        return f"{first or second} seeds" if first or second else "the test examples"
    if difference.paired:
        return f"{first} pairs of runs"
    return f"{first} seeds each" if first == second else f"{first} and {second} seeds"


def power_text(difference: Difference, metric: str) -> str:
    """State the detectable difference, and how many seeds could confirm the observed one; empty without a verdict."""
    if difference.verdict not in VERDICTS or difference.detectable_difference is None:
        return ""
    points = " points" if in_percent(metric) else ""
    size = format_metric(difference.detectable_difference, metric)
    text = f"a true difference of {size}{points} would be found in 80 of 100 such experiments"
    if difference.verdict != "no difference shown" or difference.num_seeds == (0, 0):
        return text
    needed = difference.seeds_needed
    delta = format_difference(difference.delta, metric)
    if needed is None:
        return f"{text}; no number of seeds could confirm {delta}"
    return f"{text}; about {needed} seeds could confirm {delta}"


def detectable_text(difference: Difference | None, metric: str) -> str:
    """Format the smallest detectable difference for a table."""
    detectable = None if difference is None or difference.verdict not in VERDICTS else difference.detectable_difference
    return "" if detectable is None else format_metric(detectable, metric)


def needed_text(difference: Difference | None) -> str:
    """Format the number of seeds that could confirm the observed difference for a table; empty if it is confirmed."""
    if difference is None or difference.verdict != "no difference shown":
        return ""
    return "out of reach" if difference.seeds_needed is None else str(difference.seeds_needed)


def margin_text(difference: Difference, metric: str) -> str:
    """State the margin with its unit: ``1 point``."""
    value = (difference.margin or 0.0) * (100 if in_percent(metric) else 1)
    unit = "" if not in_percent(metric) else " point" if value == 1 else " points"
    return f"{value:g}{unit}"


def verdict_text(difference: Difference | None, metric: str | None = None) -> str:
    """State a verdict with its scope or its margin: ``better, for this checkpoint``."""
    if difference is None:
        return ""
    if difference.verdict == "equivalent":
        return difference.verdict if metric is None else f"equivalent within {margin_text(difference, metric)}"
    is_verdict = difference.verdict in (*BETTER, "worse")
    return f"{difference.verdict}, for {difference.scope}" if is_verdict else difference.verdict


def short_text(difference: Difference, metric: str) -> str:
    """State a difference and its verdict in a few words: ``+2.8 (better)``."""
    delta = format_difference(difference.delta, metric)
    return delta if difference.standard_error is None else f"{delta} ({difference.verdict})"


def verdict_lines(difference: Difference, metric: str, *, reference: str = "the control") -> list[str]:
    """State a difference for the console: the verdict with its basis, then the power of the experiment."""
    start = f"difference from {reference} {difference_with_unit(difference.delta, metric)}"
    if difference.standard_error is None:
        return [f"{start}: no verdict, because one seed has no spread; set seeds=5"]
    if difference.verdict not in VERDICTS:
        return [f"{start}: no verdict, because {WHY_NO_VERDICT[difference.verdict]}"]
    lines = [
        f"{start}: {verdict_text(difference, metric)} ({grounds(difference, metric)})",
        power_text(difference, metric),
    ]
    return [line for line in lines if line]
