"""One optimiser step: forward and backward for every micro-batch, then one update with the mean over all of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lmtransfer.training import distributed
from lmtransfer.training.learner import Learner, Loss, Step
from lmtransfer.training.micro_batches import Accumulated, OutOfDeviceMemory, accumulate
from lmtransfer.training.optim.optimizer import Optimizer
from lmtransfer.training.precision import Precision


class StepNumbers:
    """The numbers of one step on the device, which the host reads together.

    Args:
        losses: losses of each micro-batch.
        norm: norm of the gradient.
    """

    def __init__(self, losses: Sequence[dict[str, Loss]], norm: Tensor) -> None:
        self.losses, self.norm = losses, norm
        #: the counts of each micro-batch that the pass computed (for metrics)
        self._counts = [
            {name: loss.count for name, loss in of_batch.items() if isinstance(loss.count, Tensor)}
            for of_batch in losses
        ]
        tensors = [loss.sum for of_batch in losses for loss in of_batch.values()]
        tensors += [count for of_batch in self._counts for count in of_batch.values()]
        self._numbers = torch.stack([*(tensor.reshape(()).to(norm) for tensor in tensors), norm])
        self._copied: torch.Event | None = None

    def not_finite(self) -> Tensor:
        """1 if any number is not finite, else 0: a float32 scalar on the device."""
        return (~self._numbers.isfinite()).any().float()

    def copy_to_host(self) -> None:
        """Copy the numbers as soon as the device has them; the host does not wait."""
        if self._numbers.device.type == "cuda":
            on_host = torch.empty(self._numbers.shape, dtype=self._numbers.dtype, pin_memory=True)
            self._numbers = on_host.copy_(self._numbers, non_blocking=True)
            self._copied = torch.Event("cuda")
            self._copied.record()

    def read(self) -> tuple[list[dict[str, float]], list[dict[str, float]], float]:
        """Wait for the numbers.

        Returns:
            The loss sums of each micro-batch; the counts of each micro-batch that the pass computed; and the gradient
            norm.
        """
        if self._copied is not None:
            self._copied.synchronize()
        *numbers, norm = self._numbers.tolist()
        values = iter(numbers)
        sums, found = (
            [{name: next(values) for name in of_batch} for of_batch in read] for read in (self.losses, self._counts)
        )
        return sums, found, norm


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one step.

    Attributes:
        losses: mean of each named loss over the whole step (all micro-batches and ranks), before the update; losses
            with a count of 0 are omitted.
        loss: weighted total of the losses.
        tokens: real tokens of the step over all ranks.
        gradient_norm: norm of the gradient before clipping.
        factor: factor on the peak learning rates.
        updated: whether the weights changed.
        overflowed: the float16 gradients overflowed, and only the loss scale changed.
        loss_scale: loss scale after the step; 1 except in float16.
        bad_keys: keys of the micro-batches of this rank whose loss was not finite.
    """

    losses: dict[str, float]
    loss: float
    tokens: int
    gradient_norm: float
    factor: float
    updated: bool
    overflowed: bool = False
    loss_scale: float = 1.0
    bad_keys: tuple[str, ...] = ()


class Launched:
    """A step that is made, or will be made by the device without another word of the host.

    Attributes:
        tokens: real tokens of the step over all ranks.
        is_ahead: the host has not waited for the device, so the outcome is not known yet.
    """

    def __init__(self, tokens: int, outcome: Callable[[], Outcome], *, is_ahead: bool) -> None:
        self.tokens, self.is_ahead = tokens, is_ahead
        self._outcome = outcome

    def outcome(self) -> Outcome:
        """The result of the step; waits until the device has made it. Call it once."""
        return self._outcome()


class Updater:
    """Makes optimiser steps.

    The recurrent state of a learner belongs to a place in the step: micro-batch j of step k continues micro-batch j of
    step k - 1.

    Args:
        learner: computes the losses.
        optimizer: optimiser of its parameters.
        seed: seed of the run; it seeds dropout.
        device: device of the learner.
        precision: number format.
        max_grad_norm: the norm of the gradient is clipped to this; None: no clipping.

    Attributes:
        asynchronous: the device works while the host does something else.
    """

    def __init__(
        self,
        *,
        learner: Learner,
        optimizer: Optimizer,
        seed: int,
        device: torch.device | str,
        precision: Precision,
        max_grad_norm: float | None,
    ) -> None:
        self.learner = learner
        self.optimizer = optimizer
        self.seed = seed
        self.device = device
        self.precision = precision
        self.max_grad_norm = max_grad_norm
        self.recurrent_states: dict[int, Any] = {}
        self.asynchronous = torch.device(device).type == "cuda"
        optimizer.multiply_in(precision.optimizer_dtype)

    def step(self, step: Step, *, factor: Callable[[int], float]) -> Outcome:
        """Train on the data of one step, and wait for its result; see ``launch``."""
        return self.launch(step, factor=factor).outcome()

    def launch(self, step: Step, *, factor: Callable[[int], float], ahead: bool = False) -> Launched:
        """Train on the data of one step.

        If a loss or the gradient is not finite, weights and optimiser state do not change.

        Args:
            step: the share of this rank in the step.
            factor: factor on the peak learning rates, as a function of the real tokens of the step over all ranks; it
                is called on every rank after the gradients are computed.
            ahead: do not wait for an asynchronous device, which then decides itself whether weights change. A recurrent
                state, a loss scale and optimisers other than AdamW need the decision of the host, so it waits for them.

        Raises:
            OutOfDeviceMemory: the memory of a device did not suffice; nothing has changed.
        """
        try:
            passed = accumulate(
                self.learner,
                step,
                recurrent_states=self.recurrent_states,
                seed=self.seed,
                device=self.device,
                precision=self.precision,
            )
        except OutOfDeviceMemory:
            self.optimizer.zero_grad()
            raise
        numbers = StepNumbers(passed.losses, _gradient_norm(self.optimizer.parameters))
        ahead = ahead and self.asynchronous and self.precision.scaler is None and self.optimizer.skips_on_device
        if ahead and not passed.is_recurrent:
            return self._go_ahead(step, passed, numbers, factor(passed.tokens))
        outcome = self._finish(step, passed, numbers, factor)
        return Launched(passed.tokens, lambda: outcome, is_ahead=False)

    def _finish(self, step: Step, passed: Accumulated, numbers: StepNumbers, factor: Callable[[int], float]) -> Outcome:
        """Wait for the numbers of the step, and update if all are finite."""
        parameters = self.optimizer.parameters
        scale, scaler = self.precision.scale, self.precision.scaler
        sums, found, scaled_norm = numbers.read()
        norm = scaled_norm / scale
        losses, loss = _means(passed, sums, found)

        rate_factor = factor(passed.tokens)
        finite = all(math.isfinite(value) for value in losses.values())
        updated = finite and math.isfinite(norm)
        overflowed = finite and not updated and scaler is not None
        if finite:
            self.recurrent_states = passed.recurrent_states
            if scaler is not None:
                scaler.update(overflowed=overflowed)
        if updated:
            _scale_gradients(parameters, _clip_factor(norm, self.max_grad_norm) / scale)
            self.optimizer.set_factor(rate_factor)
            self.optimizer.step()
        self.optimizer.zero_grad()
        return Outcome(
            losses=losses,
            loss=loss,
            tokens=passed.tokens,
            gradient_norm=norm,
            factor=rate_factor,
            updated=updated,
            overflowed=overflowed,
            loss_scale=self.precision.scale,
            bad_keys=_bad_keys(step.micro_batches, sums),
        )

    def _go_ahead(self, step: Step, passed: Accumulated, numbers: StepNumbers, rate_factor: float) -> Launched:
        """Let the device update if all numbers of the step are finite, without waiting for it."""
        gradients = [p.grad for p in self.optimizer.parameters if p.grad is not None]
        skip = distributed.largest_on_device(numbers.not_finite())
        if self.max_grad_norm is not None and gradients:
            torch._foreach_mul_(gradients, (self.max_grad_norm / numbers.norm).clamp(max=1.0))
        self.optimizer.set_factor(rate_factor)
        self.optimizer.step(skip=skip)
        self.optimizer.zero_grad()
        numbers.copy_to_host()

        def outcome() -> Outcome:
            sums, found, norm = numbers.read()
            losses, loss = _means(passed, sums, found)
            return Outcome(
                losses=losses,
                loss=loss,
                tokens=passed.tokens,
                gradient_norm=norm,
                factor=rate_factor,
                updated=math.isfinite(norm) and all(math.isfinite(value) for value in losses.values()),
                bad_keys=_bad_keys(step.micro_batches, sums),
            )

        return Launched(passed.tokens, outcome, is_ahead=True)


def _means(
    passed: Accumulated, sums: Sequence[dict[str, float]], found: Sequence[dict[str, float]]
) -> tuple[dict[str, float], float]:
    """Mean of each loss over all micro-batches and ranks, and their weighted total."""
    weights: dict[str, float] = {}
    totals: dict[str, float] = {}
    counts = dict(passed.counts)
    local = [
        (name, of_batch[name], delayed.get(name), loss.weight)
        for of_batch, delayed, losses in zip(sums, found, passed.losses, strict=True)
        for name, loss in losses.items()
    ]
    for of_rank in distributed.gather(local):
        for name, value, delayed, weight in of_rank:
            totals[name], weights[name] = totals.get(name, 0.0) + value, weight
            if delayed is not None:
                counts[name] = counts.get(name, 0.0) + delayed
    means = {name: total / counts[name] for name, total in totals.items() if counts[name]}
    return means, sum(weights[name] * mean for name, mean in means.items())


def _bad_keys(micro_batches: Sequence[Any], sums: Sequence[dict[str, float]]) -> tuple[str, ...]:
    return tuple(
        str(key)
        for batch, of_batch in zip(micro_batches, sums, strict=True)
        if not all(math.isfinite(value) for value in of_batch.values())
        for key in batch.keys
    )


@torch.no_grad()
def _gradient_norm(parameters: Sequence[nn.Parameter]) -> Tensor:
    """Euclidean norm over all gradients, a scalar on their device; not finite if any gradient is not finite."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    if not gradients:
        return torch.zeros(())
    return torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))


@torch.no_grad()
def _scale_gradients(parameters: Sequence[nn.Parameter], factor: float) -> None:
    """Multiply all gradients by ``factor``, in place; does nothing if ``factor`` is 1."""
    if factor != 1:
        torch._foreach_mul_([p.grad for p in parameters if p.grad is not None], factor)


def _clip_factor(norm: float, max_norm: float | None) -> float:
    """The factor that clips a gradient of norm ``norm`` to ``max_norm``; 1 if it is smaller or there is no limit."""
    return 1.0 if max_norm is None or norm <= max_norm else max_norm / norm
