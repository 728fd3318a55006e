"""What training would cost: parameters counted, memory and time measured over a few steps."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lmtransfer.objectives.batch import PretrainingBatch
from lmtransfer.objectives.learner import PretrainingLearner
from lmtransfer.randomness import derived_seed
from lmtransfer.training.hardware import Hardware
from lmtransfer.training.optim.optimizers import Optimizer

#: Measuring goes on for so many steps or seconds, whichever ends first.
_STEPS, _SECONDS = 5, 4.0
#: A step that is measured on a CPU multiplies and adds at most about so often.
_OPERATIONS = 4e11


@dataclass(frozen=True, slots=True)
class Cost:
    """What a few steps took.

    Attributes:
        tokens: real tokens of a measured step.
        pass_seconds: forward and backward pass of such a step.
        update_seconds: the optimiser's update, whatever the number of tokens.
        weight_bytes, gradient_bytes, state_bytes: of all parameters; of the trainable ones; of the optimiser.
        activation_bytes: what a forward pass over ``tokens`` keeps for the backward pass.
    """

    tokens: int
    pass_seconds: float
    update_seconds: float
    weight_bytes: int
    gradient_bytes: int
    state_bytes: int
    activation_bytes: int

    def step_seconds(self, tokens: float) -> float:
        """About how long a step of ``tokens`` takes."""
        return self.pass_seconds * tokens / self.tokens + self.update_seconds

    def peak_bytes(self, tokens: float) -> int:
        """About how much the tensors take when a forward pass has ``tokens``."""
        fixed = self.weight_bytes + self.gradient_bytes + self.state_bytes
        return fixed + round(self.activation_bytes * tokens / self.tokens)


def parameter_counts(learner: PretrainingLearner) -> dict[str, int]:
    """Parameters by part: embeddings, the rest of the encoder, each objective's head; and in all, each once."""
    encoder = learner.encoder
    embeddings = {id(p) for m in encoder.modules() if isinstance(m, nn.Embedding) for p in m.parameters()}
    own = list(encoder.parameters())
    counts = {
        "embeddings": sum(p.numel() for p in own if id(p) in embeddings),
        "rest of the encoder": sum(p.numel() for p in own if id(p) not in embeddings),
    }
    for name, head in learner.objectives.items():
        counts[f"head of {name}"] = sum(p.numel() for p in head.parameters())
    return {**counts, "in all": sum(p.numel() for p in learner.parameters())}


def measurable_rows(batch: PretrainingBatch, learner: PretrainingLearner, device: torch.device) -> int:
    """How many of the batch's rows can be measured in seconds on this device: all of them on a GPU."""
    if device.type == "cuda":
        return batch.inputs.num_real
    multiplied = sum(p.numel() for p in learner.parameters() if p.ndim > 1)
    share = _OPERATIONS / (6 * multiplied * batch.num_tokens)
    return max(1, min(batch.inputs.num_real, int(share * batch.inputs.num_real)))


def measure(
    learner: PretrainingLearner, optimizer: Optimizer, batch: PretrainingBatch, *, hardware: Hardware, seed: int
) -> Cost:
    """Take a few training steps on one batch; ``learner`` is not the same afterwards.

    Args:
        learner: on the device.
        optimizer: of its parameters.
        batch: repeated.
        hardware: where, and in which number format.
        seed: of dropout.
    """
    moved = batch.to(hardware.device)
    learner.train()
    optimizer.multiply_in(hardware.precision.optimizer_dtype)
    with torch.random.fork_rng(devices=[hardware.device] if hardware.device.type == "cuda" else []):
        torch.manual_seed(derived_seed(seed, "inspect"))
        activation_bytes = _kept_for_backward(learner, moved, hardware)
        passes: list[float] = []
        updates: list[float] = []
        deadline = time.perf_counter() + _SECONDS
        while len(passes) <= _STEPS and (len(passes) < 2 or time.perf_counter() < deadline):
            start = _now(hardware)
            _total(learner, moved, hardware).backward()
            middle = _now(hardware)
            optimizer.set_factor(1e-3)
            optimizer.step()
            updates.append(_now(hardware) - middle)
            passes.append(middle - start)
            gradient_bytes = sum(p.grad.nbytes for p in learner.parameters() if p.grad is not None)
            optimizer.zero_grad()
    return Cost(
        tokens=batch.num_tokens,
        pass_seconds=min(passes[1:]),  # the first one makes kernels and buffers
        update_seconds=min(updates[1:]),
        weight_bytes=sum(p.nbytes for p in learner.parameters()),
        gradient_bytes=gradient_bytes,
        state_bytes=sum(tensor.nbytes for tensor in optimizer.state_dict().values()),
        activation_bytes=activation_bytes,
    )


def _total(learner: PretrainingLearner, batch: PretrainingBatch, hardware: Hardware) -> Tensor:
    with hardware.precision.autocast():
        losses: Mapping[str, Any] = learner.losses(batch)[0]
    parts = [loss.weight * loss.sum / max(1, loss.count) for loss in losses.values() if loss.weight]
    return torch.stack(parts).sum()


def _kept_for_backward(learner: PretrainingLearner, batch: PretrainingBatch, hardware: Hardware) -> int:
    """Bytes that autograd keeps, each storage once, parameters and the batch left out."""
    known = {p.untyped_storage().data_ptr() for p in learner.parameters()}
    kept: dict[int, tuple[int, Tensor]] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            kept[storage.data_ptr()] = (storage.nbytes(), tensor)  # held, so that its address is not used again
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        _total(learner, batch, hardware)
    return sum(size for size, _ in kept.values())


def _now(hardware: Hardware) -> float:
    if hardware.device.type == "cuda":
        torch.cuda.synchronize(hardware.device)
    return time.perf_counter()
