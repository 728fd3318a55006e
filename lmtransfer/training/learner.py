"""The interfaces that the loop uses: a learner that computes losses, and a stream of optimizer steps."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class Loss:
    """A loss as a sum and a count; only the loop divides, by the count of the whole optimizer step.

    Attributes:
        sum: the sum over the counted items, a scalar tensor with gradient.
        count: number of items in the sum (masked tokens, pairs, examples), or their total weight, known before the
            forward pass. For a metric, it may be a scalar tensor that the pass computes; ``counts`` then omits it.
        weight: factor of the loss in the total; 0 for a metric, which is logged but not trained on.
    """

    sum: Tensor
    count: float | Tensor
    weight: float = 1.0


class Batch(Protocol):
    """One micro-batch."""

    num_tokens: int  #: real tokens, for throughput and budgets
    keys: Sequence[str]  #: names of the rows or examples, for error messages

    def to(self, device: torch.device | str) -> Batch:
        """Return the same batch on ``device``."""
        ...


class Learner(nn.Module):
    """An objective or a task over an encoder."""

    def counts(self, batch: Any) -> Mapping[str, float]:
        """Return the count of each loss on ``batch``, keyed by name; it is known before the forward pass."""
        raise NotImplementedError

    def losses(self, batch: Any, recurrent_state: Any = None) -> tuple[dict[str, Loss], Any]:
        """Return the losses of ``batch``, keyed by name, and the state for the next contiguous batch (or None)."""
        raise NotImplementedError

    def forward(self, batch: Any, recurrent_state: Any = None) -> tuple[dict[str, Loss], Any]:
        """Call ``losses``; the engines for several ranks call the module itself."""
        return self.losses(batch, recurrent_state)

    def on_progress(self, fraction: float) -> None:
        """Change the learner during training, for example by unfreezing more layers; the default does nothing.

        Args:
            fraction: share of the budget used up before a step, in [0, 1]; the change must depend on nothing else.
        """

    def parts(self) -> Mapping[str, nn.Module]:
        """Return the modules to save by file name: ``model``, for all commands, and others, for training only."""
        return {"model": self}


@runtime_checkable
class HasBlocks(Protocol):
    """An encoder as the optimizers see it."""

    def blocks(self) -> Sequence[nn.Module]:
        """Return the repeated layers, whose matrices have the kind ``hidden``."""
        ...


@runtime_checkable
class GivesEmbeddings(Protocol):
    """A network that replaces an embedding table (ELMo's character CNN), as the optimizers see it."""

    gives_embeddings: bool  #: whether its parameters have the kind ``embedding``


@runtime_checkable
class HasSplits(Protocol):
    """A stacked linear layer as the optimizers see it."""

    muon_splits: int  #: number of matrices that are stacked in the rows of its weight


@dataclass(frozen=True, slots=True)
class Step:
    """This rank's data for one optimizer step.

    Attributes:
        epoch: number of epochs seen after this step, as a fraction.
        first_micro_batch: index of the first micro-batch, counted over the whole run and all ranks.
        other_keys: keys of the last micro-batches if they come from another stream, which does not index them.
        fillers: positions of micro-batches that repeat rows of the step and do not count; a rank gets them if the step
            has too few rows, because all ranks run the same number of passes.
    """

    number: int
    epoch: float
    micro_batches: Sequence[Any] = field(default_factory=tuple)
    first_micro_batch: int = 0
    other_keys: Sequence[tuple[str | int, ...]] = ()
    fillers: Collection[int] = ()

    def key(self, place: int) -> tuple[str | int, ...]:
        """Return the key of the micro-batch at ``place``, unique over the run and all ranks (it seeds dropout)."""
        own = len(self.micro_batches) - len(self.other_keys)
        return (self.first_micro_batch + place,) if place < own else self.other_keys[place - own]


class BatchStream(Protocol):
    """An endless sequence of optimizer steps; step k is a pure function of (config, seed, k)."""

    @property
    def steps_per_epoch(self) -> int:
        """The number of optimizer steps in the first epoch, for budgets in epochs."""
        ...

    def steps(self, start: int = 0) -> Iterator[Step]:
        """Yield the steps from index ``start`` on; the stream's workers prefetch them."""
        ...

    def set_micro_batch_tokens(self, tokens: int) -> None:
        """Limit micro-batches to ``tokens`` from the next call of ``steps`` on; steps keep the same rows."""
        ...
