"""Forward and backward passes over a step's micro-batches, whose gradients add up to those of one large batch.

If a micro-batch does not fit in device memory, the step is repeated with smaller micro-batches.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import torch

from lmtransfer.errors import LmtransferError, TrainingError
from lmtransfer.randomness import derive_seed
from lmtransfer.training import process_group
from lmtransfer.training.data_parallel import Passes
from lmtransfer.training.learner import BatchStream, Learner, Loss, Step
from lmtransfer.training.recurrent_state import redistribute

#: Key of the token count, next to the names of the losses, while counts are summed over ranks.
_TOKENS = "real tokens of the step"
#: Error texts of CUDA libraries that run out of memory, for which PyTorch raises a plain ``RuntimeError``.
_NO_MEMORY = (
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "ALLOCATION_FAILED",  # CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED
    "CUDA error: out of memory",
)
_ADVICE = "lower train.micro_batch_tokens or objective.max_length, or use a smaller model"


class OutOfDeviceMemory(Exception):
    """A micro-batch did not fit on the device; weights and recurrent states have not changed.

    Attributes:
        largest: number of tokens in the largest micro-batch of the step.
    """

    def __init__(self, largest: int) -> None:
        self.largest = largest
        super().__init__(f"a micro-batch of at most {largest} tokens does not fit in the device's memory")


@dataclass(frozen=True, slots=True)
class PassResults:
    """The results of the passes of one step, except the gradients.

    Attributes:
        counts: the count of each loss over the whole step (all micro-batches and ranks), if known before the passes.
        tokens: number of real tokens in the step over all ranks.
        losses: losses of each micro-batch of this rank, without gradients; empty for a filler.
        recurrent_states: recurrent state after each micro-batch.
    """

    counts: dict[str, float]
    tokens: int
    losses: list[dict[str, Loss]] = field(default_factory=list)
    recurrent_states: dict[int, Any] = field(default_factory=dict)


def accumulate(
    passes: Passes, step: Step, *, recurrent_states: dict[int, Any], seed: int, device: torch.device | str
) -> PassResults:
    """Run a forward and backward pass over every micro-batch; the resulting gradients are those of all ranks.

    Each loss is divided by its count over the whole step, which is known beforehand, so the gradients need no
    correction, even for unequal micro-batches. Without dropout, the gradients do not depend on how the rows are split
    into micro-batches. Numbers from torch's generator (dropout masks and the classes of a sampled softmax) belong to
    the micro-batch, so they change with the split. Other random numbers of an objective belong to its rows.

    Args:
        step: the micro-batches of this rank; every rank has the same number.
        recurrent_states: recurrent state before each micro-batch, by its position within the step.
        seed: seed of torch's generator, whose state depends only on this seed and the number of the micro-batch.
        device: device of the learner.

    Raises:
        OutOfDeviceMemory: the device ran out of memory.
        TrainingError: the device ran out of memory, but the other ranks cannot repeat the step.
        MachineError: the exchange of gradients failed because another rank has ended.
    """
    counts = _step_counts(passes.learner, step)
    result = PassResults(counts=counts, tokens=int(counts.pop(_TOKENS)))
    recurrent_states = (
        redistribute(recurrent_states, [len(batch.keys) for batch in step.micro_batches]) if step.micro_batches else {}
    )
    try:
        for place, batch in enumerate(step.micro_batches):
            _seed_dropout(derive_seed(seed, "dropout", *step.key(place)), torch.device(device))
            counted = place not in step.fillers
            losses, result.recurrent_states[place] = passes.run(
                batch.to(device),
                recurrent_states.get(place),
                counts=counts,
                counted=counted,
                is_last=place == len(step.micro_batches) - 1,
            )
            result.losses.append(losses if counted else {})
    except RuntimeError as error:
        if is_out_of_memory(error):
            largest = max(batch.num_tokens for batch in step.micro_batches)
            if process_group.world_size() == 1:
                raise OutOfDeviceMemory(largest) from None
            raise TrainingError(
                f"step {step.number + 1}: rank {process_group.rank()} is out of memory at {largest} tokens; {_ADVICE}, "
                "and continue with resume=true"
            ) from error
        if process_group.lost_another_rank(error):
            with process_group.explain_lost_ranks():
                raise
        raise
    return result


def is_out_of_memory(error: RuntimeError) -> bool:
    """Whether an error means that PyTorch, or a library that it uses, ran out of GPU memory."""
    return isinstance(error, torch.OutOfMemoryError) or any(words in str(error) for words in _NO_MEMORY)


def _seed_dropout(seed: int, device: torch.device) -> None:
    """Seed torch's generators; on a CPU only the CPU generator, because seeding the others takes 0.5 ms."""
    if device.type == "cpu":
        torch.default_generator.manual_seed(seed)
    else:
        torch.manual_seed(seed)


def _step_counts(learner: Learner, step: Step) -> dict[str, float]:
    counts: dict[str, float] = {_TOKENS: 0.0}
    for place, batch in enumerate(step.micro_batches):
        if place not in step.fillers:
            counts[_TOKENS] += batch.num_tokens
            for name, count in learner.counts(batch).items():
                counts[name] = counts.get(name, 0) + count
    return process_group.sum_over_ranks(counts)


class StepSource:
    """Reads the steps of a stream; a step is a pure function of its number, so it can be split again without loss.

    Args:
        stream: the steps.
        start: number of the first step.
    """

    def __init__(self, stream: BatchStream, *, start: int) -> None:
        self.stream = stream
        self.steps: Iterator[Step] = iter(stream.steps(start))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop the workers of the stream."""
        self._close()

    def next(self) -> Step:
        """Return the next step."""
        return next(self.steps)

    def split_again(self, step: Step, error: OutOfDeviceMemory) -> tuple[Step, str]:
        """Return the same step in micro-batches of half the tokens, and a message for the user.

        Raises:
            TrainingError: the stream cannot build smaller micro-batches, for example because a row is longer.
        """
        tokens = error.largest // 2
        if not tokens:
            raise TrainingError(
                f"step {step.number + 1}: out of memory at {error.largest} tokens; {_ADVICE}"
            ) from error
        self._close()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        try:
            self.stream.set_micro_batch_tokens(tokens)
            self.steps = iter(self.stream.steps(step.number))
            smaller = next(self.steps)
        except LmtransferError as problem:
            raise TrainingError(
                f"step {step.number + 1}: out of memory at {error.largest} tokens, and half as many are too few "
                f"({problem}); {_ADVICE}"
            ) from problem
        note = (
            f"step {step.number + 1}: out of memory at {error.largest:,} tokens in one forward pass; the step is "
            f"repeated, and training continues, with {tokens:,} tokens per pass and more passes per step. The "
            f"gradients do not change. Set train.micro_batch_tokens={tokens} to start with this size"
        )
        return smaller, note

    def _close(self) -> None:
        close = getattr(self.steps, "close", None)
        if close is not None:
            close()
