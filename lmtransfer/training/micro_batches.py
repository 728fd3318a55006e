"""Forward and backward passes of the micro-batches of a step; their gradients add up to that of one large batch.

With several ranks, the gradients are summed over the ranks while the last micro-batch of a rank is computed.

If a micro-batch does not fit the memory of the device, the step is repeated with smaller micro-batches.

Gradients are copied together into buckets, the last parameters first, because backward passes reach them first. Every
rank starts the sum of every bucket exactly once in a step, and in the same order. The exchanges of the ranks therefore
always match: for different numbers of micro-batches or none, for parameters without a gradient on some ranks, and if
the memory of a rank does not suffice. A rank contributes zeros where it has no gradient.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor, nn

from lmtransfer.errors import LmtransferError, TrainingError
from lmtransfer.randomness import derived_seed
from lmtransfer.training import distributed
from lmtransfer.training.learner import BatchStream, Learner, Loss, Step
from lmtransfer.training.precision import Precision
from lmtransfer.training.recurrent_state import detached, redistribute

#: Numbers in a bucket: 32 MiB in float32. Larger ones start later, smaller ones take more exchanges.
_BUCKET_SIZE = 8 * 1024 * 1024

#: Key of the number of tokens, next to the names of the losses, while counts are summed over ranks.
_TOKENS = "real tokens of the step"
#: What libraries of CUDA say when they find no memory for themselves; PyTorch raises a plain ``RuntimeError`` for it.
_NO_MEMORY = (
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "ALLOCATION_FAILED",  # CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED
    "CUDA error: out of memory",
)


class GradientExchange:
    """The sum of the gradients of one step over all ranks; it does nothing if there is only one rank.

    Once the sum of a bucket has started, the gradients of its parameters are views of the bucket, so that it takes no
    further memory.

    Args:
        parameters: the parameters, the same in the same order on every rank.
    """

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self._buckets: list[_Bucket] = []
        if distributed.world_size() > 1:
            trained = [parameter for parameter in parameters if parameter.requires_grad]
            self._buckets += _buckets(trained[::-1])
        self._num_started = 0

    @contextmanager
    def overlapping(self) -> Iterator[None]:
        """Start the sum of each bucket as soon as the backward pass in this block has computed its gradients."""
        handles = []
        for bucket in self._buckets:
            bucket.pending = len(bucket.parameters)

            def computed(_: Tensor, bucket: _Bucket = bucket) -> None:
                bucket.pending -= 1
                while self._num_started < len(self._buckets) and not self._buckets[self._num_started].pending:
                    self._start_next()

            handles += [parameter.register_post_accumulate_grad_hook(computed) for parameter in bucket.parameters]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def discard(self) -> None:
        """Free the gradients of this rank: the step will not count. Call it before ``start_rest``."""
        for bucket in self._buckets:
            for parameter in bucket.parameters:
                parameter.grad = None

    def start_rest(self) -> None:
        """Start the sums of all buckets that have not been started; every rank must call this, in every step."""
        while self._num_started < len(self._buckets):
            self._start_next()

    def present(self) -> bytes:
        """Which parameters have a gradient on this rank: 1 or 0 for each; the input of ``finish``."""
        return bytes(parameter.grad is not None for bucket in self._buckets for parameter in bucket.parameters)

    def wait(self) -> None:
        """Wait for the sums; on a GPU only the device waits."""
        for bucket in self._buckets:
            bucket.wait()

    def finish(self, of_ranks: Sequence[bytes]) -> None:
        """Wait for the sums, which then are the gradients of the parameters that have one on any rank.

        Args:
            of_ranks: ``present`` of each rank.
        """
        self.wait()
        flags = iter(zip(*of_ranks, strict=True))
        for bucket in self._buckets:
            for parameter, part in bucket.parts():
                if any(next(flags)) and parameter.grad is None:
                    parameter.grad = part

    def _start_next(self) -> None:
        self._buckets[self._num_started].start()
        self._num_started += 1


@dataclass(slots=True)
class _Bucket:
    """Parameters whose gradients are summed together.

    Attributes:
        parameters: the parameters, of one dtype and device.
        pending: number of gradients that the running backward pass has not computed yet.
        sums: the sums, one after the other.
        work: the running exchange.
    """

    parameters: list[nn.Parameter] = field(default_factory=list)
    pending: int = 0
    sums: Tensor | None = None
    work: torch.distributed.Work | None = None

    @torch.no_grad()
    def start(self) -> None:
        """Copy the gradients together, and start the sum over the ranks."""
        flat = [torch.zeros_like(p).view(-1) if p.grad is None else p.grad.reshape(-1) for p in self.parameters]
        self.sums = torch.cat(flat)
        for parameter, part in self.parts():
            if parameter.grad is not None:
                parameter.grad = part
        self.work = distributed.start_sum(self.sums)

    def wait(self) -> None:
        """Wait for the sum."""
        assert self.work is not None
        distributed.wait(self.work)
        self.work = None

    def parts(self) -> Iterator[tuple[nn.Parameter, Tensor]]:
        """Each parameter with its part of the sums."""
        assert self.sums is not None
        parts = self.sums.split([parameter.numel() for parameter in self.parameters])
        return ((p, part.view_as(p)) for p, part in zip(self.parameters, parts, strict=True))


def _buckets(parameters: Sequence[nn.Parameter]) -> Iterator[_Bucket]:
    bucket, size = _Bucket(), 0
    for parameter in parameters:
        first = bucket.parameters[0] if bucket.parameters else parameter
        differs = (first.dtype, first.device) != (parameter.dtype, parameter.device)
        if bucket.parameters and (differs or size + parameter.numel() > _BUCKET_SIZE):
            yield bucket
            bucket, size = _Bucket(), 0
        bucket.parameters.append(parameter)
        size += parameter.numel()
    if bucket.parameters:
        yield bucket


class OutOfDeviceMemory(Exception):
    """A micro-batch did not fit the device of some rank; weights and recurrent states have not changed.

    Attributes:
        largest: tokens of the largest micro-batch of the step over all ranks.
    """

    def __init__(self, largest: int) -> None:
        self.largest = largest
        super().__init__(f"a micro-batch of at most {largest} tokens does not fit the device's memory")


@dataclass(frozen=True, slots=True)
class Accumulated:
    """The results of the passes of one step, apart from the gradients.

    Attributes:
        counts: count of each loss over all micro-batches and ranks.
        tokens: number of real tokens over all micro-batches and ranks.
        losses: losses of each micro-batch of this rank, detached.
        recurrent_states: recurrent state after each micro-batch of this rank, by the place of the micro-batch in the
            step.
        is_recurrent: a micro-batch of any rank has left a recurrent state.
    """

    counts: dict[str, float]
    tokens: int
    losses: list[dict[str, Loss]] = field(default_factory=list)
    recurrent_states: dict[int, Any] = field(default_factory=dict)
    is_recurrent: bool = False


def accumulate(
    learner: Learner,
    step: Step,
    *,
    recurrent_states: dict[int, Any],
    seed: int,
    device: torch.device | str,
    precision: Precision,
) -> Accumulated:
    """Run every micro-batch forward and backward; the gradients are then those of all ranks.

    Each loss is divided by its count over the whole step, which is known beforehand. Gradients therefore need no later
    correction, even if the micro-batches are unequal. At dropout 0 the gradients are the same for any other split of
    the rows into micro-batches. Numbers from torch's generator belong to the micro-batch, so they change with the
    split: the masks of dropout, and the classes of a sampled softmax. Other random numbers of an objective belong to
    its rows.

    Args:
        learner: computes the losses.
        step: the micro-batches of this rank.
        recurrent_states: recurrent state before each micro-batch, by the place of the micro-batch in the step.
        seed: seed of torch's generator; its state depends only on this seed and the number of the micro-batch.
        device: device of the learner.
        precision: number format; its scale multiplies the gradients.

    Raises:
        OutOfDeviceMemory: raised on every rank if the memory of one of them did not suffice.
    """
    counts = _step_counts(learner, step.micro_batches)
    result = Accumulated(counts=counts, tokens=int(counts.pop(_TOKENS)))
    recurrent_states = (
        redistribute(recurrent_states, [len(batch.keys) for batch in step.micro_batches]) if step.micro_batches else {}
    )
    exchange = GradientExchange(learner.parameters())
    out_of_memory = False
    try:
        for place, batch in enumerate(step.micro_batches):
            _seed_dropout(derived_seed(seed, "dropout", *step.key(place)), torch.device(device))
            is_last = place == len(step.micro_batches) - 1
            with exchange.overlapping() if is_last else nullcontext():
                losses, result.recurrent_states[place] = _pass(
                    learner, batch.to(device), recurrent_states.get(place), counts, precision
                )
            result.losses.append(losses)
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        out_of_memory = True
        exchange.discard()
    exchange.start_rest()
    reports = distributed.gather(
        _RankReport(
            out_of_memory=out_of_memory,
            largest=max((batch.num_tokens for batch in step.micro_batches), default=0),
            is_recurrent=any(state is not None for state in result.recurrent_states.values()),
            with_gradients=exchange.present(),
        )
    )
    if any(report.out_of_memory for report in reports):
        exchange.wait()
        raise OutOfDeviceMemory(max(report.largest for report in reports))
    exchange.finish([report.with_gradients for report in reports])
    return replace(result, is_recurrent=any(report.is_recurrent for report in reports))


@dataclass(frozen=True, slots=True)
class _RankReport:
    """What the ranks tell each other after the last backward pass.

    Attributes:
        out_of_memory: the memory of the rank's device did not suffice.
        largest: tokens of its largest micro-batch.
        is_recurrent: a micro-batch has left a recurrent state.
        with_gradients: which parameters have a gradient.
    """

    out_of_memory: bool
    largest: int
    is_recurrent: bool
    with_gradients: bytes


def is_out_of_memory(error: RuntimeError) -> bool:
    """Whether an error means that the memory of a GPU did not suffice, for PyTorch or for a library that it uses."""
    return isinstance(error, torch.OutOfMemoryError) or any(words in str(error) for words in _NO_MEMORY)


def _seed_dropout(seed: int, device: torch.device) -> None:
    """Seed torch's generators; on a CPU only the generator of the CPU, because seeding the others takes 0.5 ms."""
    if device.type == "cpu":
        torch.default_generator.manual_seed(seed)
    else:
        torch.manual_seed(seed)


def _pass(
    learner: Learner, batch: Any, recurrent_state: Any, counts: dict[str, float], precision: Precision
) -> tuple[dict[str, Loss], Any]:
    """Run one micro-batch forward and backward; returns its losses and the next recurrent state, detached.

    This is a separate function, so that after an error no reference keeps the tensors that filled the memory.
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
    """The share of this micro-batch in the total loss of the step, or None if it has no loss to train on."""
    parts = [loss.sum * (loss.weight / counts[name]) for name, loss in losses.items() if loss.weight and loss.count]
    total = torch.stack(parts).sum() if parts else None
    return total if total is not None and total.requires_grad else None


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
        """The next step."""
        return next(self.steps)

    def again(self, step: Step, error: OutOfDeviceMemory) -> tuple[Step, str]:
        """The same step in micro-batches of half the tokens, and a message for the user.

        Raises:
            TrainingError: the stream cannot make smaller micro-batches, for example because a row is longer.
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
                f"step {step.number + 1}: out of memory at {error.largest} tokens, and half of them are too few "
                f"({refused}); {advice}"
            ) from refused
        note = (
            f"step {step.number + 1}: out of memory at {error.largest:,} tokens in one forward pass; the step is "
            f"repeated, and training continues, with {tokens:,} tokens in one pass and more passes per step. The "
            f"gradients do not change. Set train.micro_batch_tokens={tokens} to start with this size"
        )
        return smaller, note

    def _close(self) -> None:
        close = getattr(self.steps, "close", None)
        if close is not None:
            close()
