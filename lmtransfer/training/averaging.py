"""An average of the weights over the updates of a training, which is what is validated, saved and transferred.

The weights that are trained go their own way; the average only looks on. It is exchanged with them, in place, for as
long as something is to see it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import nn

#: Shares of a budget may miss one another by so much in rounding.
_ROUNDING = 1e-9


class Newest(Protocol):
    """How much of the average the newest weights become."""

    def __call__(self, *, num: int, fraction: float) -> float | None:
        """Their weight, in (0, 1]; None: the average has not begun.

        Args:
            num: how many weights are in the average so far; the weight is 1 where there are none.
            fraction: share of the budget that is used up after the update.
        """
        ...


@dataclass(frozen=True, slots=True)
class Exponential:
    """An exponential moving average: ``average <- d average + (1 - d) weights``.

    The first weights begin it; then d is ``min(decay, (1 + num) / (10 + num))``, the usual warm-up, so that a short
    training has a short memory.

    Attributes:
        decay: d at most.
    """

    decay: float

    def __call__(self, *, num: int, fraction: float) -> float:
        """See ``Newest``."""
        return 1 - min(self.decay, (1 + num) / (10 + num)) if num else 1.0

    def __str__(self) -> str:
        return f"exponential moving average, decay {self.decay:g}"


@dataclass(frozen=True, slots=True)
class LastPart:
    """The mean over all updates in the last part of the budget (Izmailov et al. 2018; LAWA: Kaddour 2022).

    Attributes:
        share: of the budget.
    """

    share: float

    def __call__(self, *, num: int, fraction: float) -> float | None:
        """See ``Newest``."""
        return 1 / (num + 1) if fraction > 1 - self.share + _ROUNDING else None

    def __str__(self) -> str:
        return f"mean over the last {100 * self.share:.3g} % of the budget, before that as they are"


class Average:
    """The average of some parameters.

    Args:
        parameters: the trainable ones.
        newest: how much of it the newest weights become.

    Attributes:
        num: how many weights are in it; 0: it has not begun, and the weights themselves stand for it.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], newest: Newest) -> None:
        self.parameters: list[torch.Tensor] = list(parameters)
        self.newest = newest
        self.num = 0
        self.tensors: list[torch.Tensor] = []

    @torch.no_grad()
    def on_progress(self, *, fraction: float) -> None:
        """Take the weights in, after an update.

        Args:
            fraction: share of the budget that is used up.
        """
        weight = self.newest(num=self.num, fraction=fraction)
        if weight is None:
            return
        if self.num:
            torch._foreach_lerp_(self.tensors, self.parameters, weight)
        else:
            self.tensors = [parameter.detach().clone() for parameter in self.parameters]
        self.num += 1

    def restore(self, num: int) -> None:
        """Begin with the weights as they are now, as the average of ``num``."""
        self.tensors = [parameter.detach().clone() for parameter in self.parameters]
        self.num = num

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Let the parameters have the average for as long as the block lasts; before it has begun, nothing happens."""
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    @torch.no_grad()
    def _exchange(self) -> None:
        if not self.num:
            return
        for parameter, tensor in zip(self.parameters, self.tensors, strict=True):
            kept = parameter.detach().clone()
            parameter.copy_(tensor)
            tensor.copy_(kept)
