"""What was chosen for a run, and what there is to say against the choice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from lmtransfer.reporting.runs.scores import number

Edge = Literal["smallest", "largest"]


def edge_of_grid(rate: Any, grid: Any) -> Edge | None:
    """Whether the learning rate that was chosen is the smallest or the largest of those that were tried.

    Args:
        rate: the chosen one.
        grid: those that were tried; no list, or fewer than two different ones, are no grid to choose from.
    """
    listed: Sequence[Any] = grid if isinstance(grid, Sequence) and not isinstance(grid, str) else ()
    tried = {value for value in map(number, listed) if value is not None}
    chosen = number(rate)
    if len(tried) < 2 or chosen is None:
        return None
    return "smallest" if chosen == min(tried) else "largest" if chosen == max(tried) else None


def edge_text(rate: float, edge: Edge) -> str:
    """Such as ``learning rate 0.01 is the largest of its grid: a better one may lie beyond``."""
    return f"learning rate {rate:g} is the {edge} of its grid: a better one may lie beyond"


def chosen_on_what_is_scored(config: Mapping[str, Any]) -> bool:
    """Whether the checkpoint or the learning rate of a run of a task was chosen on the very examples it is scored on.

    Args:
        config: of the run; its result is of the split that the config names.
    """
    task, rates = config.get("task"), config.get("learning_rates")
    chooses = config.get("checkpoint") == "best" or (isinstance(rates, list) and len(rates) > 1)
    by_dev = isinstance(task, Mapping) and task.get("dev_from_train") is None
    return chooses and by_dev and config.get("split") == "dev"


def searched_text(grid: Any) -> str:
    """Such as ``learning rate: best of 3``; empty where none was chosen.

    Args:
        grid: the learning rates that were tried; no list, or fewer than two different ones, are no search.
    """
    listed: Sequence[Any] = grid if isinstance(grid, Sequence) and not isinstance(grid, str) else ()
    tried = {value for value in map(number, listed) if value is not None}
    return f"learning rate: best of {len(tried)}" if len(tried) > 1 else ""
