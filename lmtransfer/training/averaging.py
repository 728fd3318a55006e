"""A running average of the weights, which is validated, saved and transferred in place of the trained weights.

The average does not influence training. While the average is read, the parameters hold it instead of the weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import nn

from lmtransfer.errors import ConfigError

#: Tolerance for rounding errors in shares of a budget.
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class ExponentialAverage:
    """An exponential moving average: ``average <- d average + (1 - d) weights``.

    The average starts as a copy of the weights. After that, d is ``min(decay, (1 + num) / (10 + num))``, the usual
    warm-up, so that the average of a short training run covers a short time.
    """

    decay: float

    def __call__(self, *, num: int, fraction: float) -> float:
        """Return the share of the newest weights in the average."""
        return 1 - min(self.decay, (1 + num) / (10 + num)) if num else 1.0

    def __str__(self) -> str:
        return f"exponential moving average, decay {self.decay:g}"


@dataclass(frozen=True, slots=True)
class LastPartMean:
    """The mean over all updates in the last part of the budget (Izmailov et al. 2018; LAWA: Kaddour 2022)."""

    share: float

    def __call__(self, *, num: int, fraction: float) -> float | None:
        """Return the share of the newest weights in the average; None before the last part."""
        return 1 / (num + 1) if fraction > 1 - self.share + _ROUNDING else None

    def __str__(self) -> str:
        return f"mean over the last {100 * self.share:.3g} % of the budget, not averaged before that"


#: Returns the share of the newest weights in the average, given the number of updates in it and the share of the budget
#: used up after the update; None if the average has not begun.
UpdateWeight: TypeAlias = ExponentialAverage | LastPartMean


def weight_average(*, ema_decay: float | None, average_last: float | None) -> UpdateWeight | None:
    """Return the weight average that the settings ask for, or None."""
    if ema_decay is not None and average_last is not None:
        raise ConfigError(
            f"train.ema_decay={ema_decay:g} and train.average_last={average_last:g} are two different averages, but a "
            "run can have only one: set one of the keys to null"
        )
    if ema_decay is not None:
        return ExponentialAverage(ema_decay)
    return None if average_last is None else LastPartMean(average_last)


class Average:
    """The average of parameters over ``num`` updates; while ``num`` is 0, the weights themselves are used."""

    def __init__(self, parameters: Sequence[nn.Parameter], update_weight: UpdateWeight) -> None:
        self.parameters: list[torch.Tensor] = list(parameters)
        self.update_weight = update_weight
        self.num = 0
        self.tensors: list[torch.Tensor] = []

    @torch.no_grad()
    def on_progress(self, *, fraction: float) -> None:
        """Include the current weights in the average, after an update."""
        weight = self.update_weight(num=self.num, fraction=fraction)
        if weight is None:
            return
        if self.num:
            torch._foreach_lerp_(self.tensors, self.parameters, weight)
        else:
            self.tensors = [parameter.detach().clone() for parameter in self.parameters]
        self.num += 1

    def restore(self, num: int) -> None:
        """Set the average to the current weights, as an average over ``num`` updates."""
        self.tensors = [parameter.detach().clone() for parameter in self.parameters]
        self.num = num

    @contextmanager
    def swap_in(self) -> Iterator[None]:
        """Replace the parameters by the average inside the block; do nothing before the average has begun."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        if not self.num:
            return
        for parameter, tensor in zip(self.parameters, self.tensors, strict=True):
            weights = parameter.detach().clone()
            parameter.copy_(tensor)
            tensor.copy_(weights)
