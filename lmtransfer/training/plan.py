"""How a learner is trained, whatever it is: the settings of the one loop."""

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
        until: the share of the budget at which training ends; less than 1 where another training goes on from there.
        schedule: factor on the learning rates.
        seed: of the run; seeds dropout by micro-batch.
        device: where the learner lives.
        precision: number format.
        max_grad_norm: the gradient's norm is clipped to this; None leaves it.
        save_every: steps between saves of ``last``, which is also saved at the end and when interrupted.
        log_every: steps between records; evaluations are always logged.
        max_bad_steps: steps in a row whose loss is not finite before training gives up.
    """

    budget: Budget
    schedule: Factor
    seed: int
    until: float = 1.0
    device: torch.device | str = "cpu"
    precision: Precision = field(default_factory=Precision)
    max_grad_norm: float | None = None
    save_every: int | None = None
    log_every: int = 10
    max_bad_steps: int = 3
