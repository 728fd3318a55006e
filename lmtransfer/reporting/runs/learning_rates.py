"""The search for a learning rate: what was tried, what each was worth, and what speaks against the choice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, Literal

from lmtransfer.reporting.runs.collect import Run
from lmtransfer.reporting.runs.scores import number
from lmtransfer.verdicts.spread import Spread, spread

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


def tried_rates(run: Run, condition: str) -> dict[float, Spread]:
    """What each learning rate scored, seed by seed, on the examples to choose by; none where it is damaged.

    Args:
        run: of a task.
        condition: "pretrained" or "control".

    Returns:
        By rate, ascending, over the seeds that tried all of them, in one order; where none did, the mean alone.
    """
    tries = run.result.get("learning_rate_tries")
    found: dict[float, dict[object, float]] = {}
    for place, one in enumerate(tries if isinstance(tries, list) else []):
        if isinstance(one, Mapping) and one.get("arm") == condition:
            rate, score = number(one.get("learning_rate")), number(one.get("score"))
            seeds = number(one.get("pretraining_seed")), number(one.get("seed"))
            if rate is not None and score is not None:
                found.setdefault(rate, {})[place if seeds[1] is None else seeds] = score
    everywhere = [seed for seed in next(iter(found.values()), {}) if all(seed in of_rate for of_rate in found.values())]
    values = {
        rate: [of_rate[seed] for seed in everywhere] or [fmean(of_rate.values())] for rate, of_rate in found.items()
    }
    return {rate: spread(values[rate]) for rate in sorted(values)}


def _rates(grid: Any) -> set[float]:
    """The numbers of a list; none where it is no list."""
    listed: Sequence[Any] = grid if isinstance(grid, Sequence) and not isinstance(grid, str) else ()
    return {value for value in map(number, listed) if value is not None}
