"""The learning-rate search: the rates, their scores, and a warning about the choice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, Literal

from lmtransfer.reporting.runs.collect import Run
from lmtransfer.reporting.runs.scores import number
from lmtransfer.verdicts.spread import Spread, spread

Edge = Literal["smallest", "largest"]


def edge_of_grid(rate: Any, grid: Any) -> Edge | None:
    """Return the edge of the grid at which the chosen learning rate is; None if it is inside.

    In a grid of two, both rates are extreme, so such a grid has no edge.

    Args:
        grid: the tried rates; anything but a list of at least three different rates counts as no grid.
    """
    rates = _rates(grid)
    choice = number(rate)
    if len(rates) < 3 or choice is None:
        return None
    return "smallest" if choice == min(rates) else "largest" if choice == max(rates) else None


def edge_text(rate: float, edge: Edge) -> str:
    """Return a warning such as ``learning rate 0.01 is the largest of its grid: a better one may be outside``."""
    return f"learning rate {rate:g} is the {edge} of its grid: a better one may be outside"


def search_text(grid: Any, rate: Any = None) -> str:
    """State the search: ``learning rate: best of 3``, or ``best of 3, the largest (0.01)``; empty without a search.

    Args:
        grid: the tried rates; anything but a list of at least two different rates counts as no search.
        rate: the chosen rate, which is named if it is the smallest or the largest.
    """
    rates, edge = _rates(grid), edge_of_grid(rate, grid)
    if len(rates) < 2:
        return ""
    return f"learning rate: best of {len(rates)}" + ("" if edge is None else f", the {edge} ({rate:g})")


def rate_scores(run: Run, condition: str) -> dict[float, Spread]:
    """Return the scores of each learning rate by seed, on the examples used for the choice; empty if damaged.

    Args:
        run: a task's run.
        condition: "pretrained" or "control".

    Returns:
        Scores by ascending rate, over the seeds that tried all rates, in the same order; only the mean if no seed tried
        all rates.
    """
    tries = run.result.get("learning_rate_tries")
    scores: dict[float, dict[object, float]] = {}
    for place, entry in enumerate(tries if isinstance(tries, list) else []):
        if isinstance(entry, Mapping) and entry.get("arm") == condition:
            rate, score = number(entry.get("learning_rate")), number(entry.get("score"))
            seeds = number(entry.get("pretraining_seed")), number(entry.get("seed"))
            if rate is not None and score is not None:
                scores.setdefault(rate, {})[place if seeds[1] is None else seeds] = score
    common_seeds = [
        seed for seed in next(iter(scores.values()), {}) if all(seed in by_seed for by_seed in scores.values())
    ]
    values = {
        rate: [by_seed[seed] for seed in common_seeds] or [fmean(by_seed.values())] for rate, by_seed in scores.items()
    }
    return {rate: spread(values[rate]) for rate in sorted(values)}


def _rates(grid: Any) -> set[float]:
    """Return the numbers in a list; empty if it is not a list."""
    entries: Sequence[Any] = grid if isinstance(grid, Sequence) and not isinstance(grid, str) else ()
    return {value for value in map(number, entries) if value is not None}
