"""Add up the gradients of all ranks, during the last backward pass of a step as far as possible.

Gradients are copied together into buckets, the last parameters first, because backward passes reach them first. Every
rank starts the sum of every bucket exactly once in a step, and in the same order. The exchanges of the ranks therefore
always match: for different numbers of micro-batches or none, for parameters without a gradient on some ranks, and if
the memory of a rank does not suffice. A rank contributes zeros where it has no gradient.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from lmtransfer.training import distributed

#: Numbers in a bucket: 32 MiB in float32. Larger ones start later, smaller ones take more exchanges.
_BUCKET_SIZE = 8 * 1024 * 1024


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
