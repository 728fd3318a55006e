"""The cost of training: the number of parameters, and the memory and time measured over a few steps."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lmtransfer.objectives.batch import PretrainingBatch
from lmtransfer.objectives.learner import PretrainingLearner
from lmtransfer.randomness import derive_seed
from lmtransfer.training.hardware import Hardware
from lmtransfer.training.optim.optimizers import Optimizer
from lmtransfer.training.precision import Precision

#: Measuring stops after this many steps or seconds, whichever comes first.
_STEPS, _SECONDS = 5, 4.0
#: Bytes per parameter in training on a GPU.
_BYTES_PER_PARAMETER = 18
#: Maximum number of multiply-add operations in a step measured on a CPU.
_OPERATIONS = 4e11


@dataclass(frozen=True, slots=True)
class StepCost:
    """The cost of a training step, measured over a few steps.

    Attributes:
        tokens: number of real tokens in a measured step.
        pass_seconds: duration of the forward and backward pass of such a step.
        update_seconds: duration of the optimizer's update, which does not depend on the number of tokens.
        activation_bytes: bytes that a forward pass over ``tokens`` keeps for the backward pass.
    """

    tokens: int
    pass_seconds: float
    update_seconds: float
    weight_bytes: int
    gradient_bytes: int
    state_bytes: int
    activation_bytes: int

    def step_seconds(self, tokens: float) -> float:
        """Estimate the duration of a step with ``tokens`` tokens."""
        return self.pass_seconds * tokens / self.tokens + self.update_seconds

    def peak_bytes(self, tokens: float) -> int:
        """Estimate the tensors' peak memory if a forward pass has ``tokens`` tokens."""
        fixed = self.weight_bytes + self.gradient_bytes + self.state_bytes
        return fixed + round(self.activation_bytes * tokens / self.tokens)


def parameter_counts(learner: PretrainingLearner) -> dict[str, int]:
    """Count the distinct parameters of each part (embeddings, rest of the encoder, each head) and in total."""
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
    """Return the number of batch rows that can be measured within seconds on this device: all of them on a GPU."""
    if device.type == "cuda":
        return batch.inputs.num_real
    multiplied = sum(p.numel() for p in learner.parameters() if p.ndim > 1)
    share = _OPERATIONS / (6 * multiplied * batch.num_tokens)
    return max(1, min(batch.inputs.num_real, int(share * batch.inputs.num_real)))


def measure(
    learner: PretrainingLearner, optimizer: Optimizer, batch: PretrainingBatch, *, hardware: Hardware, seed: int
) -> StepCost:
    """Measure a few training steps on one batch; the steps change the weights of ``learner``."""
    batch_on_device = batch.to(hardware.device)
    learner.train()
    optimizer.multiply_in(hardware.precision.optimizer_dtype)
    with torch.random.fork_rng(devices=[hardware.device] if hardware.device.type == "cuda" else []):
        torch.manual_seed(derive_seed(seed, "inspect"))
        activation_bytes = _activation_bytes(learner, batch_on_device, hardware)
        passes: list[float] = []
        updates: list[float] = []
        deadline = time.perf_counter() + _SECONDS
        while len(passes) <= _STEPS and (len(passes) < 2 or time.perf_counter() < deadline):
            start = _now(hardware)
            torch.autograd.backward(_total_loss(learner, batch_on_device, hardware))
            middle = _now(hardware)
            optimizer.set_factor(1e-3)
            optimizer.step()
            updates.append(_now(hardware) - middle)
            passes.append(middle - start)
            gradient_bytes = sum(p.grad.nbytes for p in learner.parameters() if p.grad is not None)
            optimizer.zero_grad()
    return StepCost(
        tokens=batch.num_tokens,
        pass_seconds=min(passes[1:]),  # the first pass allocates kernels and buffers
        update_seconds=min(updates[1:]),
        weight_bytes=sum(p.nbytes for p in learner.parameters()),
        gradient_bytes=gradient_bytes,
        state_bytes=sum(tensor.nbytes for tensor in optimizer.state_dict().values()),
        activation_bytes=activation_bytes,
    )


def estimate_gpu_memory(
    learner: PretrainingLearner, batches: Sequence[PretrainingBatch], *, tokens: float, device: torch.device, seed: int
) -> int:
    """Estimate the peak memory of training on a GPU, in bytes, from two small bfloat16 forward passes on any device.

    A parameter takes 18 bytes: weight, gradient and two moments in float32, and a copy in bfloat16. The memory that
    the backward pass needs per token follows from the difference between the two passes. On an H200, the memory of BERT
    base and of ELECTRA small was within 1 % of the estimate; that of a modern encoder was 7 % below.

    Args:
        batches: two batches, the second larger than the first if there are enough rows.
        tokens: number of tokens in a forward pass on the GPU.
    """
    in_bf16 = Hardware(device, Precision(name="bf16", device=device), reason="", threads=1, compile=False)
    learner.train()
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(derive_seed(seed, "inspect"))
        sizes = [_activation_bytes(learner, batch.to(device), in_bf16) for batch in batches]
    more_tokens = batches[1].num_tokens - batches[0].num_tokens
    token_bytes = (sizes[1] - sizes[0]) / more_tokens if more_tokens else sizes[0] / batches[0].num_tokens
    return round(_BYTES_PER_PARAMETER * sum(p.numel() for p in learner.parameters()) + token_bytes * tokens)


def _total_loss(learner: PretrainingLearner, batch: PretrainingBatch, hardware: Hardware) -> Tensor:
    with hardware.precision.autocast():
        losses: Mapping[str, Any] = learner.losses(batch)[0]
    parts = [loss.weight * loss.sum / max(1, loss.count) for loss in losses.values() if loss.weight]
    return torch.stack(parts).sum()


def _activation_bytes(learner: PretrainingLearner, batch: PretrainingBatch, hardware: Hardware) -> int:
    """Count the bytes that autograd keeps for the backward pass, each storage once, without the parameters."""
    parameter_storages = {p.untyped_storage().data_ptr() for p in learner.parameters()}
    tensors: dict[int, tuple[int, Tensor]] = {}

    def record(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameter_storages:
            tensors[storage.data_ptr()] = (storage.nbytes(), tensor)  # a reference, so that the address is not reused
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(record, lambda tensor: tensor):
        _total_loss(learner, batch, hardware)
    return sum(size for size, _ in tensors.values())


def _now(hardware: Hardware) -> float:
    if hardware.device.type == "cuda":
        torch.cuda.synchronize(hardware.device)
    return time.perf_counter()
