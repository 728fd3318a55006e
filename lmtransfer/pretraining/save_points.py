"""The token counts at which pretraining keeps a copy of its model (``train.save_at``)."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from lmtransfer.config.effective import KINDS
from lmtransfer.config.phases import Phase
from lmtransfer.config.revisions import count_text, read_count
from lmtransfer.config.settings import TrainSettings
from lmtransfer.errors import ConfigError


def save_points(train: TrainSettings) -> tuple[int, ...]:
    """Return the points as token counts; none without ``train.save_at``.

    Raises:
        ConfigError: a point is not a number of tokens, or the points do not ascend; the message lists all problems.
    """
    problems, points = [], []
    for point in train.save_at or ():
        tokens = read_count(point)
        if tokens is None or tokens < 0:
            problems.append(
                f"train.save_at: {point!r} is not a number of tokens; use 0 (for the initial weights) or more, such as "
                "100000, 100k, 1M or 2.5B"
            )
        else:
            points.append(tokens)
    for before, after in zip(points, points[1:], strict=False):
        if after <= before:
            repeated = "is listed twice" if after == before else f"follows {count_text(before)}"
            problems.append(f"train.save_at: {count_text(after)} {repeated}; list each number once, in ascending order")
    if problems:
        raise ConfigError(problems)
    return tuple(points)


def check_reached(train: TrainSettings, phases: Sequence[Phase], *, steps_per_epoch: int | None = None) -> None:
    """Check that the budget reaches all points, as far as it is known: a budget in seconds may reach any.

    Args:
        train: the points and the budget.
        phases: the phases of the run, whose steps may differ in size.
        steps_per_epoch: number of steps in an epoch; None if not known yet.

    Raises:
        ConfigError: some points are beyond the budget.
    """
    steps = train.steps
    if train.epochs is not None and steps_per_epoch is not None:
        steps = max(math.ceil(train.epochs * steps_per_epoch), train.min_steps or 0)
    sizes = [(phase.train or {}).get("batch_tokens") or train.batch_tokens or 0 for phase in phases]
    most_tokens = train.tokens if steps is None else steps * max(sizes)
    if most_tokens is None:
        return
    budget = next(f"train.{kind}={limit:g}" for kind in KINDS if (limit := getattr(train, kind)) is not None)
    points = save_points(train)
    missing = [count_text(point) for point in points if point > most_tokens]
    if missing:
        raise ConfigError(
            f"train.save_at: the budget {budget} gives at most {most_tokens:,} tokens, so it does not reach "
            f"{', '.join(missing)}: raise the budget, or lower train.save_at"
        )


def explain_unreached(points: Sequence[int], tokens: float) -> list[str]:
    """Return a line for the user on the points that a run of ``tokens`` tokens does not reach; empty if none."""
    missing = [count_text(point) for point in points if point > tokens]
    if not missing:
        return []
    points_text = ", ".join(missing)
    return [f"warning: train.save_at: the run will probably not reach {points_text} tokens: raise train.seconds"]


def explain_missed(points: Sequence[int], *, tokens: int, revisions: Collection[int]) -> list[str]:
    """Return a line for the user on the points that a resumed run passed without keeping its model; empty if none.

    Args:
        tokens: the number of tokens seen before the run was interrupted.
        revisions: the points at which the model was kept.
    """
    missed = [count_text(point) for point in points if point <= tokens and point not in revisions]
    if not missed:
        return []
    seen = count_text(tokens)
    return [f"train.save_at: the model cannot be saved at {', '.join(missed)}: the run has already seen {seen} tokens"]
