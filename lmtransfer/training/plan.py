"""The settings of the training loop, for any learner."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from lmtransfer.training.budget import Budget
from lmtransfer.training.optim.schedules import Factor
from lmtransfer.training.precision import Precision


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The settings of a training.

    Attributes:
        budget: how long to train.
        until: share of the budget at which training ends; less than 1 if another training continues from there.
        schedule: factor on the learning rates.
        seed: seed of the run; it seeds dropout for each micro-batch.
        device: device of the learner.
        precision: number format.
        max_grad_norm: the norm of the gradient is clipped to this; None: no clipping.
        save_every: steps between saves of ``last``, which is also saved at the end and when interrupted.
        save_at: numbers of tokens, ascending: the model is kept as a revision once that many were seen.
        log_every: steps between records; evaluations are always logged.
        max_bad_steps: training fails after this many steps in a row whose loss is not finite.
    """

    budget: Budget
    schedule: Factor
    seed: int
    until: float = 1.0
    device: torch.device | str = "cpu"
    precision: Precision = field(default_factory=Precision)
    max_grad_norm: float | None = None
    save_every: int | None = None
    save_at: tuple[int, ...] = ()
    log_every: int = 10
    max_bad_steps: int = 3
