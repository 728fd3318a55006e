"""The learning rate search: the tried rates, their scores, and a warning about the choice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, Literal

from lmtransfer.reporting.runs.collect import Run
from lmtransfer.reporting.runs.scores import number
from lmtransfer.verdicts.spread import Spread, spread

Edge = Literal["smallest", "largest"]


def edge_of_grid(rate: Any, grid: Any) -> Edge | None:
    """Whether the chosen learning rate is the smallest or the largest of the grid.

    In a grid of two both rates are extreme, so such a grid has no edge.

    Args:
        grid: the tried rates; anything but a list of at least three different rates counts as no grid.
    """
    tried = _rates(grid)
    chosen = number(rate)
    if len(tried) < 3 or chosen is None:
        return None
    return "smallest" if chosen == min(tried) else "largest" if chosen == max(tried) else None


def edge_text(rate: float, edge: Edge) -> str:
    """A warning such as ``learning rate 0.01 is the largest of its grid: a better one may be outside``."""
    return f"learning rate {rate:g} is the {edge} of its grid: a better one may be outside"


def searched_text(grid: Any, rate: Any = None) -> str:
    """A note such as ``learning rate: best of 3``, or ``best of 3, the largest (0.01)``; empty if none was chosen.

    Args:
        grid: the tried rates; anything but a list of at least two different rates counts as no search.
        rate: the chosen rate, which is named if it is the smallest or the largest.
    """
    tried, edge = _rates(grid), edge_of_grid(rate, grid)
    if len(tried) < 2:
        return ""
    return f"learning rate: best of {len(tried)}" + ("" if edge is None else f", the {edge} ({rate:g})")


def tried_rates(run: Run, condition: str) -> dict[float, Spread]:
    """The scores of each learning rate by seed, on the examples used for the choice; empty if they are damaged.

    Args:
        run: a run of a task.
        condition: "pretrained" or "control".

    Returns:
        Scores by ascending rate, over the seeds that tried all rates, in the same order; only the mean if there are no
        such seeds.
    """
    tries = run.result.get("learning_rate_tries")
    scores: dict[float, dict[object, float]] = {}
    for place, one in enumerate(tries if isinstance(tries, list) else []):
        if isinstance(one, Mapping) and one.get("arm") == condition:
            rate, score = number(one.get("learning_rate")), number(one.get("score"))
            seeds = number(one.get("pretraining_seed")), number(one.get("seed"))
            if rate is not None and score is not None:
                scores.setdefault(rate, {})[place if seeds[1] is None else seeds] = score
    everywhere = [
        seed for seed in next(iter(scores.values()), {}) if all(seed in of_rate for of_rate in scores.values())
    ]
    values = {
        rate: [of_rate[seed] for seed in everywhere] or [fmean(of_rate.values())] for rate, of_rate in scores.items()
    }
    return {rate: spread(values[rate]) for rate in sorted(values)}


def _rates(grid: Any) -> set[float]:
    """The numbers in a list; empty if it is not a list."""
    listed: Sequence[Any] = grid if isinstance(grid, Sequence) and not isinstance(grid, str) else ()
    return {value for value in map(number, listed) if value is not None}
