"""The losses, counts and gradient norm of one step, which the host reads from the device together."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lmtransfer.training.learner import Loss


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
