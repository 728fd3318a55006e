"""Learning-rate schedules: pure functions of the step and the progress, each the product of warm-up and decay.

The factor of update ``step`` (from 0) multiplies every peak learning rate. The decay is evaluated at the *start* of an
update, so with a budget of N steps the last update of a linear decay has 1 / N of the peak rate, not zero. The warm-up
is evaluated at the *end* of an update, so the first update has a rate above zero and update W has the full rate. As in
the published BERT and ELECTRA code, the warm-up multiplies a decay that runs over the whole budget.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Protocol

from typing_extensions import override

from lmtransfer.config.types import DropoutProb, LargeCount, PositiveProb, Prob, Whole


class Factor(Protocol):
    """A factor on the learning rates."""

    def __call__(self, *, step: int, fraction: float, fraction_after: float) -> float:
        """Return the factor of one update; see ``Schedule``."""
        ...


class Schedule(ABC):
    """Warm-up times decay.

    Args:
        warmup_steps: number of updates over which the rate rises linearly from 0 to its peak; None to use
            ``warmup_fraction``.
        warmup_fraction: length of the warm-up as a share of the budget, in [0, 1).
        final_factor: final rate of the decay, as a share of the peak.
    """

    def __init__(
        self, *, warmup_steps: Whole | None = None, warmup_fraction: DropoutProb = 0.0, final_factor: Prob = 0.0
    ) -> None:
        self.warmup_steps = warmup_steps
        self.warmup_fraction = warmup_fraction
        self.final_factor = final_factor

    def __call__(self, *, step: int, fraction: float, fraction_after: float) -> float:
        """Return the factor of one update."""
        warmup = 1.0
        if self.warmup_steps is not None:
            warmup = min(1.0, (step + 1) / max(1, self.warmup_steps))
        elif self.warmup_fraction:
            warmup = min(1.0, fraction_after / self.warmup_fraction)
        return warmup * (self.final_factor + (1 - self.final_factor) * self.decay(step=step, fraction=fraction))

    @abstractmethod
    def decay(self, *, step: int, fraction: float) -> float:
        """Return the decay without warm-up: 1 at the start, and for most schedules 0 at the end of the budget."""


class Constant(Schedule):
    """No decay."""

    @override
    def decay(self, *, step: int, fraction: float) -> float:
        return 1.0


class Linear(Schedule):
    """Linear decay to 0 (BERT, RoBERTa, ELECTRA)."""

    @override
    def decay(self, *, step: int, fraction: float) -> float:
        return 1.0 - fraction


class Cosine(Schedule):
    """Cosine decay to 0 (Loshchilov & Hutter 2017, without restarts)."""

    @override
    def decay(self, *, step: int, fraction: float) -> float:
        return 0.5 * (1.0 + math.cos(math.pi * fraction))


class WarmupStableDecay(Schedule):
    """Constant, then linear decay to 0 over the last part of the budget (WSD: Hu et al. 2024, MiniCPM).

    Args:
        decay_fraction: share of the budget over which the rate falls, in (0, 1].
    """

    def __init__(
        self,
        *,
        decay_fraction: PositiveProb = 0.2,
        warmup_steps: Whole | None = None,
        warmup_fraction: DropoutProb = 0.0,
        final_factor: Prob = 0.0,
    ) -> None:
        super().__init__(warmup_steps=warmup_steps, warmup_fraction=warmup_fraction, final_factor=final_factor)
        self.decay_fraction = decay_fraction

    @override
    def decay(self, *, step: int, fraction: float) -> float:
        return min(1.0, (1.0 - fraction) / self.decay_fraction)


class InverseSqrt(Schedule):
    """1 / sqrt(step) after the warm-up, independent of the budget (Vaswani et al. 2017, section 5.3).

    Args:
        warmup_steps: number of warm-up updates, at least 1; the factor is 1 at the end of the warm-up and
            sqrt(warmup_steps / n) at update n.
    """

    def __init__(self, *, warmup_steps: LargeCount = 1000) -> None:
        super().__init__(warmup_steps=warmup_steps)
        self.peak_step = warmup_steps

    @override
    def decay(self, *, step: int, fraction: float) -> float:
        return math.sqrt(self.peak_step / max(self.peak_step, step + 1))


@dataclass(frozen=True, slots=True)
class PartOfBudget:
    """A schedule that runs over part of the budget; steps are counted from the start of that part."""

    schedule: Schedule
    begins: float = 0.0
    ends: float = 1.0

    def __call__(self, *, step: int, fraction: float, fraction_after: float) -> float:
        """Return the factor of one update; see ``Schedule``."""
        return self.schedule(step=step, fraction=self._within(fraction), fraction_after=self._within(fraction_after))

    def _within(self, fraction: float) -> float:
        return min(1.0, max(0.0, (fraction - self.begins) / (self.ends - self.begins)))
