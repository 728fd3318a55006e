"""An optimizer step: forward and backward passes over all micro-batches, then an update with the mean gradient.

On a GPU, the host launches a step and continues; the device itself decides whether the weights change. The results of a
step stay on the device until the host reads them together with those of other steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from lmtransfer.errors import LmtransferError, TrainingError
from lmtransfer.randomness import derive_seed
from lmtransfer.training import process_group
from lmtransfer.training.data_parallel import Passes, gradient_norm, own_part
from lmtransfer.training.learner import BatchStream, Learner, Loss, Step
from lmtransfer.training.optim.optimizers import Optimizer
from lmtransfer.training.precision import Precision
from lmtransfer.training.recurrent_state import choose, redistribute

#: Key of the token count among the counts of the losses, which are summed over ranks together.
_TOKENS = "real tokens of the step"
#: Messages of CUDA libraries that run out of memory, for which PyTorch raises a plain ``RuntimeError``.
_NO_MEMORY = (
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "ALLOCATION_FAILED",  # CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED
    "CUDA error: out of memory",
)
_ADVICE = "lower train.micro_batch_tokens or objective.max_length, or use a smaller model"


class OutOfDeviceMemory(Exception):
    """A micro-batch did not fit in the device's memory; weights and recurrent states have not changed."""

    def __init__(self, largest: int) -> None:
        self.largest = largest
        super().__init__(f"a micro-batch of at most {largest} tokens does not fit in the device's memory")


@dataclass(frozen=True, slots=True)
class PassResults:
    """The results of one step's forward and backward passes, except the gradients."""

    counts: dict[str, float]
    tokens: int
    losses: list[dict[str, Loss]] = field(default_factory=list)
    recurrent_states: dict[int, Any] = field(default_factory=dict)


def accumulate(
    passes: Passes, step: Step, *, recurrent_states: dict[int, Any], seed: int, device: torch.device | str
) -> PassResults:
    """Run a forward and backward pass over every micro-batch; the resulting gradients are sums over all ranks.

    Each loss is divided by its count over the whole step, which is known beforehand, so the gradients need no
    correction, even for unequal micro-batches. Without dropout, the gradients do not depend on how the rows are split
    into micro-batches. Random numbers from torch's generator (dropout masks and the classes of a sampled softmax)
    depend on the micro-batch, so they change with the split. An objective's other random numbers depend on the row.

    Raises:
        OutOfDeviceMemory: the device ran out of memory.
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
    """Reads the steps of a stream; a step is a pure function of its index, so it can be split again without loss."""

    def __init__(self, stream: BatchStream, *, start: int) -> None:
        self.stream = stream
        self.steps: Iterator[Step] = iter(stream.steps(start))

    def next(self) -> Step:
        """Return the next step."""
        return next(self.steps)

    def split_again(self, step: Step, error: OutOfDeviceMemory) -> tuple[Step, str]:
        """Return the same step in micro-batches of half the tokens, and a message for the user."""
        tokens = error.largest // 2
        if not tokens:
            raise TrainingError(
                f"step {step.number + 1}: out of memory at {error.largest} tokens; {_ADVICE}"
            ) from error
        self.close()
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

    def close(self) -> None:
        """Stop the workers of the stream."""
        close = getattr(self.steps, "close", None)
        if close is not None:
            close()


@dataclass(frozen=True, slots=True)
class StepResult:
    """The results of one step.

    Attributes:
        overflowed: whether the float16 gradients overflowed, in which case only the loss scale changed.
        loss_scale: loss scale after the step; 1 except in float16.
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


@dataclass(frozen=True, slots=True)
class PendingStep:
    """A step whose results the device may still be computing.

    Attributes:
        counts: count of each loss over all micro-batches and ranks, if known before the passes.
        norm: gradient norm, multiplied by the loss scale.
        skipped: 1 if the weights did not change, else 0.
    """

    tokens: int
    counts: dict[str, float]
    losses: Sequence[dict[str, Loss]]
    keys: Sequence[Sequence[str]]
    norm: Tensor
    skipped: Tensor
    scale: float
    scale_after: float
    overflowed: bool
    factor: float


@dataclass(kw_only=True, eq=False)
class Updater:
    """Takes optimizer steps.

    The recurrent state of a learner belongs to a position within the step: micro-batch j of step k continues
    micro-batch j of step k - 1.
    """

    learner: Learner
    optimizer: Optimizer
    seed: int
    device: torch.device | str
    precision: Precision
    max_grad_norm: float | None

    def __post_init__(self) -> None:
        self.recurrent_states: dict[int, Any] = {}
        self.asynchronous = torch.device(self.device).type == "cuda"
        self._passes = Passes(self.learner, self.precision)
        self.optimizer.multiply_in(self.precision.optimizer_dtype)

    def step(self, step: Step, *, factor: Callable[[int], float]) -> StepResult:
        """Train on the data of one step and wait for its results."""
        return next(self.read([self.launch_step(step, factor=factor)]))

    def launch_step(self, step: Step, *, factor: Callable[[int], float]) -> PendingStep:
        """Train on the data of one step.

        If a loss or the gradient is not finite on any rank, the weights, optimizer state and recurrent states do not
        change.

        Args:
            factor: returns the factor on the peak learning rates, given the number of real tokens in the step over all
                ranks; called on every rank after the gradients are computed.

        Raises:
            OutOfDeviceMemory: the device ran out of memory; nothing has changed.
        """
        try:
            results = accumulate(
                self._passes, step, recurrent_states=self.recurrent_states, seed=self.seed, device=self.device
            )
        except OutOfDeviceMemory:
            self.optimizer.zero_grad()
            raise
        norm = gradient_norm(self.optimizer.parameters)
        skipped = process_group.max_on_device(_not_finite(results, norm))
        scale, rate = self.precision.scale, factor(results.tokens)
        self.optimizer.set_factor(rate)
        overflowed = False
        if self._waits():
            overflowed = self._update_from_host(results, norm, skipped)
        else:
            self._update_on_device(results, norm, skipped)
        self.optimizer.zero_grad()
        return PendingStep(
            tokens=results.tokens,
            counts=results.counts,
            losses=results.losses,
            keys=[batch.keys for batch in step.micro_batches],
            norm=norm,
            skipped=skipped,
            scale=scale,
            scale_after=self.precision.scale,
            overflowed=overflowed,
            factor=rate,
        )

    def _waits(self) -> bool:
        """Whether the host decides on the update, and therefore waits for the device.

        On a CPU, not waiting would gain nothing. In float16, the scale of the next loss depends on the gradients of
        this one.
        """
        return not self.asynchronous or self.precision.scaler is not None or not self.optimizer.skips_on_device

    def _update_from_host(self, results: PassResults, norm: Tensor, skipped: Tensor) -> bool:
        """Update the weights unless ``skipped`` is 1, and return whether the float16 gradients overflowed."""
        scale, scaler = self.precision.scale, self.precision.scaler
        skips = bool(skipped)
        overflowed = skips and scaler is not None and _losses_are_finite(results)
        if scaler is not None and (overflowed or not skips):
            scaler.update(overflowed=overflowed)
        if not skips:
            self.recurrent_states = results.recurrent_states
            _scale_gradients(self.optimizer.parameters, _clip_factor(float(norm) / scale, self.max_grad_norm) / scale)
            self.optimizer.step()
        return overflowed

    def _update_on_device(self, results: PassResults, norm: Tensor, skipped: Tensor) -> None:
        """Let the device update the weights unless ``skipped`` is 1."""
        gradients = [own_part(p.grad) for p in self.optimizer.parameters if p.grad is not None]
        if self.max_grad_norm is not None and gradients:
            torch._foreach_mul_(gradients, (self.max_grad_norm / norm).clamp(max=1.0))
        self.optimizer.step(skip=skipped)
        self.recurrent_states = {
            place: choose(skipped.bool(), self.recurrent_states.get(place), state)
            for place, state in results.recurrent_states.items()
        }

    def read(self, updates: Sequence[PendingStep]) -> Iterator[StepResult]:
        """Yield the results of steps in order, once the device has finished them; every rank must call this."""
        of_ranks = process_group.gather(_of_this_rank(updates))
        for place, update in enumerate(updates):
            yield _result(update, [steps[place] for steps in of_ranks])


@dataclass(frozen=True, slots=True)
class _OfRank:
    """The results of a step on one rank."""

    losses: list[tuple[str, float, float, float | None]]
    norm: float
    skipped: bool
    bad_keys: list[str]


def _of_this_rank(steps: Sequence[PendingStep]) -> list[_OfRank]:
    """Return this rank's results, copied to the host in one transfer."""
    tensors = [_on_device(step) for step in steps]
    if not tensors:
        return []
    numbers = iter(torch.stack([t.reshape(()).to(steps[0].norm) for of_step in tensors for t in of_step]).tolist())
    return [_of_rank(step, [next(numbers) for _ in of_step]) for step, of_step in zip(steps, tensors, strict=True)]


def _on_device(step: PendingStep) -> list[Tensor]:
    """Return the results of a step that are on the device: loss sums, loss counts, the skip flag and the norm."""
    losses = [loss for of_batch in step.losses for loss in of_batch.values()]
    counts = [loss.count for loss in losses if isinstance(loss.count, Tensor)]
    return [*(loss.sum for loss in losses), *counts, step.skipped, step.norm]


def _of_rank(step: PendingStep, on_device: Sequence[float]) -> _OfRank:
    losses = [(name, loss) for of_batch in step.losses for name, loss in of_batch.items()]
    *numbers, skipped, norm = on_device
    sums, counts = numbers[: len(losses)], iter(numbers[len(losses) :])
    values = [
        (name, value, loss.weight, next(counts) if isinstance(loss.count, Tensor) else None)
        for (name, loss), value in zip(losses, sums, strict=True)
    ]
    sums_left, bad_keys = iter(sums), []
    for keys, of_batch in zip(step.keys, step.losses, strict=True):
        if not all([math.isfinite(next(sums_left)) for _ in of_batch]):
            bad_keys += [str(key) for key in keys]
    return _OfRank(values, norm / step.scale, bool(skipped), bad_keys)


def _result(step: PendingStep, of_ranks: Sequence[_OfRank]) -> StepResult:
    """Compute the mean of each loss over all micro-batches and ranks, and the weighted total."""
    weights: dict[str, float] = {}
    totals: dict[str, float] = {}
    counts = dict(step.counts)
    for of_rank in of_ranks:
        for name, value, weight, count in of_rank.losses:
            totals[name], weights[name] = totals.get(name, 0.0) + value, weight
            if count is not None:
                counts[name] = counts.get(name, 0.0) + count
    means = {name: total / counts[name] for name, total in totals.items() if counts[name]}
    own = of_ranks[process_group.rank()]
    return StepResult(
        losses=means,
        loss=sum(weights[name] * mean for name, mean in means.items()),
        tokens=step.tokens,
        gradient_norm=own.norm,
        factor=step.factor,
        updated=not own.skipped,
        overflowed=step.overflowed,
        loss_scale=step.scale_after,
        bad_keys=tuple(key for of_rank in of_ranks for key in of_rank.bad_keys),
    )


def _not_finite(results: PassResults, norm: Tensor) -> Tensor:
    """Return 1 (float32, on the device) if the gradient or a loss with a nonzero count is not finite, else 0."""
    losses = [loss.sum for of_batch in results.losses for loss in of_batch.values() if _counts(loss)]
    numbers = torch.stack([*(loss.reshape(()).to(norm) for loss in losses), norm])
    return (~numbers.isfinite()).any().float()


def _losses_are_finite(results: PassResults) -> bool:
    losses = [loss.sum for of_batch in results.losses for loss in of_batch.values() if _counts(loss)]
    return all(process_group.gather(all(bool(loss.isfinite()) for loss in losses)))


def _counts(loss: Loss) -> bool:
    return isinstance(loss.count, Tensor) or loss.count > 0


@torch.no_grad()
def _scale_gradients(parameters: Sequence[nn.Parameter], factor: float) -> None:
    if factor != 1:
        torch._foreach_mul_([own_part(p.grad) for p in parameters if p.grad is not None], factor)


def _clip_factor(norm: float, max_norm: float | None) -> float:
    return 1.0 if max_norm is None or norm <= max_norm else max_norm / norm
