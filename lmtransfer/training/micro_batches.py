"""A step's micro-batches: forward and backward, so that their gradients add up to that of one large batch.

Where the device's memory does not suffice for one, the step is done again with smaller ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor

from lmtransfer.errors import LmtransferError, TrainingError
from lmtransfer.randomness import derived_seed
from lmtransfer.training import distributed
from lmtransfer.training.learner import BatchStream, Learner, Loss, Step
from lmtransfer.training.precision import Precision
from lmtransfer.training.recurrent_state import detached, redistribute

#: Stands beside the losses' names while counts are summed over ranks.
_TOKENS = "real tokens of the step"


class OutOfDeviceMemory(Exception):
    """A micro-batch did not fit the device of some rank; no weight has changed, and no recurrent state.

    Attributes:
        largest: tokens of the step's largest micro-batch over all ranks.
    """

    def __init__(self, largest: int) -> None:
        self.largest = largest
        super().__init__(f"a micro-batch of at most {largest} tokens does not fit the device's memory")


@dataclass(frozen=True, slots=True)
class Accumulated:
    """What one step's passes leave behind, beside the gradients of this rank.

    Attributes:
        counts: what each loss counts over all micro-batches and ranks.
        tokens: real tokens over all micro-batches and ranks.
        losses: of each micro-batch of this rank, without history.
        recurrent_states: after each micro-batch of this rank, by its place in the step.
    """

    counts: dict[str, float]
    tokens: int
    losses: list[dict[str, Loss]] = field(default_factory=list)
    recurrent_states: dict[int, Any] = field(default_factory=dict)


def accumulate(
    learner: Learner,
    step: Step,
    *,
    recurrent_states: dict[int, Any],
    seed: int,
    device: torch.device | str,
    precision: Precision,
) -> Accumulated:
    """Run every micro-batch forward and backward.

    Each loss is divided by its count over the whole step, which is known beforehand, so gradients need no correction
    later, however unequal the micro-batches are. At dropout 0 they are those of any other cut of the same rows into
    micro-batches. What is drawn from torch's generator belongs to the micro-batch, and so changes with the cut: the
    masks of dropout, and the classes of a sampled softmax. An objective's other noise belongs to its rows.

    Args:
        learner: gives the losses.
        step: this rank's micro-batches.
        recurrent_states: before each micro-batch, by its place in the step.
        seed: of torch's generator, whose state depends on it and on the micro-batch's number alone.
        device: where the learner lives.
        precision: number format; its scale multiplies the gradients.

    Raises:
        OutOfDeviceMemory: on every rank, if one of them had too little.
    """
    counts = _step_counts(learner, step.micro_batches)
    result = Accumulated(counts=counts, tokens=int(counts.pop(_TOKENS)))
    recurrent_states = (
        redistribute(recurrent_states, [len(batch.keys) for batch in step.micro_batches]) if step.micro_batches else {}
    )
    out_of_memory = False
    try:
        for place, batch in enumerate(step.micro_batches):
            _seed_dropout(derived_seed(seed, "dropout", step.first_micro_batch + place), torch.device(device))
            losses, result.recurrent_states[place] = _pass(
                learner, batch.to(device), recurrent_states.get(place), counts, precision
            )
            result.losses.append(losses)
    except torch.OutOfMemoryError:
        out_of_memory = True
    if distributed.any_rank(out_of_memory):
        sizes = distributed.gather(max((batch.num_tokens for batch in step.micro_batches), default=0))
        raise OutOfDeviceMemory(max(sizes))
    return result


def _seed_dropout(seed: int, device: torch.device) -> None:
    """Seed torch's generators; only the CPU's where it alone computes: the others' cost 0.5 ms."""
    if device.type == "cpu":
        torch.default_generator.manual_seed(seed)
    else:
        torch.manual_seed(seed)


def _pass(
    learner: Learner, batch: Any, recurrent_state: Any, counts: dict[str, float], precision: Precision
) -> tuple[dict[str, Loss], Any]:
    """One micro-batch forward and backward; its losses and the next recurrent state, without history.

    A function of its own, so that an error leaves no reference to what filled the memory.
    """
    with precision.autocast():
        losses, recurrent_state = learner.losses(batch, recurrent_state)
    total = _weighted(losses, counts)
    if total is not None:
        (total * precision.scale).backward()
    plain = {name: Loss(sum=loss.sum.detach(), count=loss.count, weight=loss.weight) for name, loss in losses.items()}
    return plain, detached(recurrent_state)


def _step_counts(learner: Learner, micro_batches: Sequence[Any]) -> dict[str, float]:
    counts: dict[str, float] = {_TOKENS: float(sum(batch.num_tokens for batch in micro_batches))}
    for batch in micro_batches:
        for name, count in learner.counts(batch).items():
            counts[name] = counts.get(name, 0) + count
    return distributed.sum_over_ranks(counts)


def _weighted(losses: dict[str, Loss], counts: dict[str, float]) -> Tensor | None:
    """This micro-batch's share of the step's total loss, or None if nothing in it is trained on."""
    parts = [loss.sum * (loss.weight / counts[name]) for name, loss in losses.items() if loss.weight and loss.count]
    total = torch.stack(parts).sum() if parts else None
    return total if total is not None and total.requires_grad else None


class StepSource:
    """Reads a stream. No batch is ever left out: a step is a pure function of its number, so it can be cut anew.

    Args:
        stream: the steps.
        start: number of the first.
    """

    def __init__(self, stream: BatchStream, *, start: int) -> None:
        self.stream = stream
        self.steps: Iterator[Step] = iter(stream.steps(start))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Let the stream's workers go."""
        self._close()

    def next(self) -> Step:
        """The next step."""
        return next(self.steps)

    def again(self, step: Step, error: OutOfDeviceMemory) -> tuple[Step, str]:
        """The same step in micro-batches of half the tokens, and what the user should be told.

        Raises:
            TrainingError: the stream cannot cut them smaller, as where a row is longer than that.
        """
        tokens = error.largest // 2
        advice = "lower train.micro_batch_tokens or objective.max_length, or take a smaller model"
        if not tokens:
            raise TrainingError(f"step {step.number + 1}: out of memory at {error.largest} tokens; {advice}") from error
        self._close()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        try:
            self.stream.set_micro_batch_tokens(tokens)
            self.steps = iter(self.stream.steps(step.number))
            smaller = next(self.steps)
        except LmtransferError as refused:
            raise TrainingError(
                f"step {step.number + 1}: out of memory at {error.largest} tokens, and half of them is too few "
                f"({refused}); {advice}"
            ) from refused
        note = (
            f"step {step.number + 1}: out of memory at {error.largest:,} tokens a forward pass; it is done again, and "
            f"training goes on, with {tokens:,} and more passes a step, which changes no gradient. "
            f"Set train.micro_batch_tokens={tokens} to begin so"
        )
        return smaller, note

    def _close(self) -> None:
        close = getattr(self.steps, "close", None)
        if close is not None:
            close()
