"""The search for a learning rate: what was tried, what each was worth, and what speaks against the choice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, Literal

from lmtransfer.reporting.runs.collect import Run
from lmtransfer.reporting.runs.scores import number

Edge = Literal["smallest", "largest"]


def edge_of_grid(rate: Any, grid: Any) -> Edge | None:
    """Whether the learning rate that was chosen is the smallest or the largest of those that were tried.

    Args:
        rate: the chosen one.
        grid: those that were tried; no list, or fewer than two different ones, are no grid to choose from.
    """
    tried = _rates(grid)
    chosen = number(rate)
    if len(tried) < 2 or chosen is None:
        return None
    return "smallest" if chosen == min(tried) else "largest" if chosen == max(tried) else None


def edge_text(rate: float, edge: Edge) -> str:
    """Such as ``learning rate 0.01 is the largest of its grid: a better one may lie beyond``."""
    return f"learning rate {rate:g} is the {edge} of its grid: a better one may lie beyond"


def searched_text(grid: Any) -> str:
    """Such as ``learning rate: best of 3``; empty where none was chosen.

    Args:
        grid: the learning rates that were tried; no list, or fewer than two different ones, are no search.
    """
    tried = _rates(grid)
    return f"learning rate: best of {len(tried)}" if len(tried) > 1 else ""


def tried_rates(run: Run, arm: str) -> dict[float, float]:
    """The score of each learning rate on the examples to choose by, in the mean over seeds; none where it is damaged.

    Args:
        run: of a task.
        arm: "pretrained" or "control".
    """
    tries = run.result.get("learning_rate_tries")
    found: dict[float, list[float]] = {}
    for one in tries if isinstance(tries, list) else []:
        if isinstance(one, Mapping) and one.get("arm") == arm:
            rate, score = number(one.get("learning_rate")), number(one.get("score"))
            if rate is not None and score is not None:
                found.setdefault(rate, []).append(score)
    return {rate: fmean(scores) for rate, scores in sorted(found.items())}


def _rates(grid: Any) -> set[float]:
    """The numbers of a list; none where it is no list."""
    listed: Sequence[Any] = grid if isinstance(grid, Sequence) and not isinstance(grid, str) else ()
    return {value for value in map(number, listed) if value is not None}
