"""Several processes under ``torchrun``, one a device, that learn exactly what one process would.

Gradients are summed in one exchange at the end of a step, not by DistributedDataParallel's hooks: a step has one
exchange whatever its number of micro-batches, ranks may have unequal numbers of them (or none), parameters that a step
does not use need no search, and nothing overlaps that could be reordered. What is given up is the overlap of the
exchange with the last backward pass. ``sum_gradients`` is also the seam for FSDP2, which would shard the learner and
exchange by itself.

Small numbers (counts, losses, flags, the clock) travel between hosts' memories by gloo, so that no device has to wait.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from lmtransfer.errors import Interrupted
from lmtransfer.system import ranks

_BUCKET_ELEMENTS = 32 * 1024 * 1024


def world_size() -> int:
    """Number of processes that train together; 1 without ``torchrun``."""
    return dist.get_world_size() if dist.is_initialized() else 1


def rank() -> int:
    """This process's number, from 0."""
    return dist.get_rank() if dist.is_initialized() else 0


def is_main() -> bool:
    """Whether this process is the one that prints and writes."""
    return rank() == 0


def local_rank() -> int:
    """This process's number on its machine: which of its devices is ours."""
    return ranks.local_rank()


@contextmanager
def process_group() -> Iterator[None]:
    """Join the processes that ``torchrun`` started, for as long as the block lasts; without ``torchrun``, nothing.

    Every process waits for the others before the group is taken down (without it, teardown aborts now and then), also
    after an interruption, which all ranks agree on; but not after an error: the others may never arrive.
    """
    ranks.check()
    if ranks.world_size() == 1 or dist.is_initialized():
        yield
        return
    if torch.cuda.is_available():
        torch.cuda.set_device(local_rank())
        dist.init_process_group("cpu:gloo,cuda:nccl")
    else:
        dist.init_process_group("gloo")
    try:
        yield
        _part()
    except Interrupted:
        _part()
        raise
    finally:
        dist.destroy_process_group()


def _part() -> None:
    """Wait for the others, with no exchange still referred to: one that is freed after its group aborts the process."""
    gc.collect()
    barrier()


def barrier() -> None:
    """Wait for all ranks (by an exchange between hosts, which works on every backend)."""
    if world_size() > 1:
        dist.all_reduce(torch.zeros(1))


def gather(value: Any) -> list[Any]:
    """Every rank's ``value``, by rank; small Python objects or tensors on the host."""
    if world_size() == 1:
        return [value]
    values: list[Any] = [None] * world_size()
    dist.all_gather_object(values, value)
    return values


def sum_over_ranks(values: dict[str, float]) -> dict[str, float]:
    """Sum numbers by name; a name that a rank lacks counts as 0 there. Summed in rank order, so equal on every rank."""
    total: dict[str, float] = {}
    for part in gather(values):
        for name, value in part.items():
            total[name] = total.get(name, 0) + value
    return total


def any_rank(flag: bool) -> bool:
    """Whether ``flag`` is set on any rank."""
    return any(gather(flag))


def from_main(value: Any) -> Any:
    """Rank 0's ``value`` on every rank."""
    if world_size() == 1:
        return value
    box = [value]
    dist.broadcast_object_list(box, src=0)
    return box[0]


@torch.no_grad()
def sum_gradients(parameters: Sequence[nn.Parameter]) -> None:
    """Add up the gradients of all ranks, in place.

    A parameter without a gradient on every rank keeps none; one that has it on some gets the sum everywhere.
    """
    if world_size() == 1:
        return
    present = torch.tensor([p.grad is not None for p in parameters], dtype=torch.int32)
    dist.all_reduce(present, op=dist.ReduceOp.MAX)
    bucket: list[Tensor] = []
    for parameter, has_gradient in zip(parameters, present.tolist(), strict=True):
        if not has_gradient:
            continue
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        if bucket and (bucket[0].dtype != parameter.grad.dtype or sum(g.numel() for g in bucket) > _BUCKET_ELEMENTS):
            _sum_bucket(bucket)
            bucket = []
        bucket.append(parameter.grad)
    if bucket:
        _sum_bucket(bucket)


def _sum_bucket(gradients: list[Tensor]) -> None:
    flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
    dist.all_reduce(flat)
    pieces = flat.split([gradient.numel() for gradient in gradients])
    torch._foreach_copy_(gradients, [piece.view_as(g) for piece, g in zip(pieces, gradients, strict=True)])


@torch.no_grad()
def share_weights(module: nn.Module) -> None:
    """Give every rank rank 0's weights and buffers; equal seeds make them equal, different libraries may not."""
    if world_size() == 1:
        return
    for tensor in [*module.parameters(), *module.buffers()]:
        dist.broadcast(tensor.data, src=0)
