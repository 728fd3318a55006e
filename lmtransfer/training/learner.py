"""What the loop sees: a learner that turns a batch into losses, and a stream of optimiser steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class Loss:
    """A loss as a sum and a count; one place (the loop) divides, by the count of the whole optimiser step.

    Attributes:
        sum: the sum over the counted things, a scalar tensor with gradient.
        count: how many things it sums over (masked tokens, pairs, examples); known before the forward pass, but of a
            metric it may be a scalar tensor that the pass finds, and then ``counts`` does not name it.
        weight: its factor in the total; 0 makes it a metric that is logged and not trained on.
    """

    sum: Tensor
    count: int | Tensor
    weight: float = 1.0


class Batch(Protocol):
    """One micro-batch."""

    num_tokens: int  #: real tokens, for throughput and budgets
    keys: Sequence[str]  #: which rows or examples it holds, for error messages

    def to(self, device: torch.device | str) -> Batch:
        """The same batch on ``device``."""
        ...


class Learner(nn.Module):
    """An objective or a task over an encoder."""

    def counts(self, batch: Any) -> dict[str, int]:
        """The counts of the losses of ``batch``, by name, before the forward pass."""
        raise NotImplementedError

    def losses(self, batch: Any, recurrent_state: Any = None) -> tuple[dict[str, Loss], Any]:
        """The losses of ``batch`` by name, and the recurrent state for the next contiguous batch (or None)."""
        raise NotImplementedError

    def on_progress(self, fraction: float) -> None:
        """Change in the course of training, such as by letting more of itself learn; nothing, unless overridden.

        Args:
            fraction: share of the budget that is used up before a step, in [0, 1]; it must depend on nothing else.
        """

    def parts(self) -> Mapping[str, nn.Module]:
        """What is saved of it, by file: ``model``, which is all that other commands read, and what training needs."""
        return {"model": self}


@runtime_checkable
class HasBlocks(Protocol):
    """An encoder, as optimisers know it."""

    def blocks(self) -> Sequence[nn.Module]:
        """Its repeated layers, whose matrices are hidden ones."""
        ...


@runtime_checkable
class HasSplits(Protocol):
    """A linear layer that is several, as optimisers know it."""

    muon_splits: int  #: how many matrices are stacked in the rows of its own


@dataclass(frozen=True, slots=True)
class Step:
    """One optimiser step's data on this rank.

    Attributes:
        number: optimiser step, from 0 at the start of the run.
        epoch: fraction of epochs seen once this step is done.
        micro_batches: this rank's micro-batches, in order.
        first_micro_batch: number of the first of them over the whole run and all ranks (seeds dropout).
    """

    number: int
    epoch: float
    micro_batches: Sequence[Any] = field(default_factory=tuple)
    first_micro_batch: int = 0


class BatchStream(Protocol):
    """An endless sequence of optimiser steps; step k is a pure function of (config, seed, k)."""

    @property
    def steps_per_epoch(self) -> int:
        """Optimiser steps of the first epoch, for budgets in epochs."""
        ...

    def steps(self, start: int = 0) -> Iterator[Step]:
        """Steps from number ``start`` on, prefetched by the stream's workers."""
        ...

    def set_micro_batch_tokens(self, tokens: int) -> None:
        """Cut micro-batches of at most ``tokens`` from the next call of ``steps`` on; the steps hold the same rows.

        Raises:
            LmtransferError: they cannot be cut smaller.
        """
        ...
