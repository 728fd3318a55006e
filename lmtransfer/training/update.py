"""One optimiser step: every micro-batch forward and backward, then one update with the mean over all of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor, nn

from lmtransfer.randomness import derived_seed
from lmtransfer.training import distributed
from lmtransfer.training.carry import detached
from lmtransfer.training.gradients import clip_factor, gradient_norm, scale_gradients
from lmtransfer.training.learner import Learner, Loss, Step
from lmtransfer.training.optimizers import Optimizer
from lmtransfer.training.precision import Precision


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one step did.

    Attributes:
        losses: mean of each named loss over the whole step (all micro-batches and ranks), as it was before the update.
        loss: their weighted total.
        tokens: real tokens of the step over all ranks.
        gradient_norm: before clipping.
        updated: whether the weights changed.
        overflowed: the float16 gradients overflowed, and only the loss scale changed.
        loss_scale: after the step; 1 except in float16.
        bad_keys: keys of this rank's micro-batches whose loss was not finite.
    """

    losses: dict[str, float]
    loss: float
    tokens: int
    gradient_norm: float
    updated: bool
    overflowed: bool = False
    loss_scale: float = 1.0
    bad_keys: tuple[str, ...] = field(default=())


class Updater:
    """Makes optimiser steps.

    A learner's carry belongs to a place in the step: micro-batch j of step k continues micro-batch j of step k - 1.

    Args:
        learner: an ``nn.Module`` that is a ``Learner``.
        optimizer: of its parameters.
        seed: of the run; seeds dropout.
        device: where the learner lives.
        precision: number format.
        max_grad_norm: the gradient's norm is clipped to this; None leaves it.
    """

    def __init__(
        self,
        *,
        learner: nn.Module,
        optimizer: Optimizer,
        seed: int,
        device: torch.device | str,
        precision: Precision,
        max_grad_norm: float | None,
    ) -> None:
        self.learner = cast(Learner, learner)
        self.optimizer = optimizer
        self.seed = seed
        self.device = device
        self.precision = precision
        self.max_grad_norm = max_grad_norm
        self.carries: dict[int, Any] = {}

    def step(self, step: Step, *, factor: float) -> Outcome:
        """Learn from one step's data, at ``factor`` times the peak learning rates.

        A loss or gradient that is not finite leaves weights, optimiser state and carry as they were.
        """
        totals = self._totals(step.micro_batches)
        tokens = int(totals.pop("tokens of the step"))
        sums, carries = self._accumulate(step, totals)
        parameters = self.optimizer.parameters
        distributed.sum_gradients(parameters)
        scale, scaler = self.precision.scale, self.precision.scaler
        values, scaled_norm = _read(sums, gradient_norm(parameters))
        norm = scaled_norm / scale
        means = {
            name: total / max(1.0, totals[name]) for name, total in distributed.sum_over_ranks(_added(values)).items()
        }
        weights = {name: loss.weight for losses in sums for name, loss in losses.items()}
        for other in distributed.gather(weights):
            weights = {**other, **weights}
        loss = sum(weights[name] * mean for name, mean in means.items())

        finite = all(math.isfinite(mean) for mean in means.values())
        updated = finite and math.isfinite(norm)
        overflowed = finite and not updated and scaler is not None
        if finite:
            self.carries.update(carries)
            if scaler is not None:
                scaler.update(overflowed=overflowed)
        if updated:
            scale_gradients(parameters, clip_factor(norm, self.max_grad_norm) / scale)
            self.optimizer.set_factor(factor)
            self.optimizer.step()
        self.optimizer.zero_grad()
        return Outcome(
            losses=means,
            loss=loss,
            tokens=tokens,
            gradient_norm=norm,
            updated=updated,
            overflowed=overflowed,
            loss_scale=self.precision.scale,
            bad_keys=_bad_keys(step.micro_batches, values),
        )

    def _totals(self, micro_batches: Sequence[Any]) -> dict[str, float]:
        """What each loss of the step counts, and the step's tokens, over all micro-batches and ranks."""
        totals: dict[str, float] = {"tokens of the step": float(sum(batch.num_tokens for batch in micro_batches))}
        for batch in micro_batches:
            for name, count in self.learner.counts(batch).items():
                totals[name] = totals.get(name, 0) + count
        return distributed.sum_over_ranks(totals)

    def _accumulate(self, step: Step, totals: dict[str, float]) -> tuple[list[dict[str, Loss]], dict[int, Any]]:
        """Forward and backward of every micro-batch; their losses without history, and the carries after them."""
        finished: list[dict[str, Loss]] = []
        carries: dict[int, Any] = {}
        for place, batch in enumerate(step.micro_batches):
            torch.manual_seed(derived_seed(self.seed, "dropout", step.first_micro_batch + place))
            with self.precision.autocast():
                losses, carry = self.learner.losses(batch.to(self.device), self.carries.get(place))
            assert {name: loss.count for name, loss in losses.items()} == self.learner.counts(batch)
            carries[place] = detached(carry)
            parts = [
                loss.sum * (loss.weight / totals[name]) for name, loss in losses.items() if loss.weight and loss.count
            ]
            if parts:
                total = torch.stack(parts).sum() * self.precision.scale
                if total.requires_grad:
                    total.backward()
            finished.append(
                {n: Loss(sum=loss.sum.detach(), count=loss.count, weight=loss.weight) for n, loss in losses.items()}
            )
        return finished, carries


def _read(sums: Sequence[dict[str, Loss]], norm: Tensor) -> tuple[list[dict[str, float]], float]:
    """The loss sums of each micro-batch, and the norm, as numbers: the step's one wait for the device."""
    tensors = [loss.sum.reshape(()).to(norm) for losses in sums for loss in losses.values()]
    *numbers, norm_value = torch.stack([*tensors, norm]).tolist()
    values = iter(numbers)
    return [{name: next(values) for name in losses} for losses in sums], norm_value


def _added(values: Sequence[dict[str, float]]) -> dict[str, float]:
    total: dict[str, float] = {}
    for losses in values:
        for name, value in losses.items():
            total[name] = total.get(name, 0.0) + value
    return total


def _bad_keys(micro_batches: Sequence[Any], values: Sequence[dict[str, float]]) -> tuple[str, ...]:
    return tuple(
        str(key)
        for batch, losses in zip(micro_batches, values, strict=True)
        if not all(math.isfinite(value) for value in losses.values())
        for key in batch.keys
    )
