"""The processes that ``torchrun`` starts, one per device: how they join, communicate and wait for each other.

Several processes train on the same rows, in the same order, as a single process.

PyTorch's engines reduce the gradients (``data_parallel``). Small values travel between host memories with gloo, so that
no device waits. Each step gathers values twice: first the counts by which the losses are divided; at the end, the time
and any requests to stop. The losses are gathered when they are read.
"""

from __future__ import annotations

import gc
import itertools
import os
import pickle
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from lmtransfer.errors import Interrupted, MachineError
from lmtransfer.system import ranks
from lmtransfer.system.printable import first_line

#: Size in bytes of a message between hosts, and of the length field at its start.
_MESSAGE, _HEADER = 4096, 8
#: Default number of seconds for which a process waits for the others at the start.
WAIT_SECONDS = 300.0
#: Seconds after which it says so, and between its looks.
_PATIENCE, _PAUSE = 3.0, 0.02
#: Maximum number of missing ranks that the message names.
_MAX_NAMES = 8

_meetings = itertools.count()


def world_size() -> int:
    """Return the number of processes that train together; 1 without ``torchrun``."""
    return dist.get_world_size() if dist.is_initialized() else 1


def rank() -> int:
    """Return the rank of this process; 0 without ``torchrun``."""
    return dist.get_rank() if dist.is_initialized() else 0


def is_main() -> bool:
    """Whether this is the process that prints and writes files."""
    return rank() == 0


@contextmanager
def join(wait_seconds: float = WAIT_SECONDS) -> Iterator[None]:
    """Join the processes that ``torchrun`` started, inside the block; without ``torchrun``, do nothing.

    Before the group is destroyed, every process waits for the others, because otherwise destroying the group sometimes
    aborts a process. Processes also wait after an interruption, on which all ranks agree. They do not wait after an
    error, because the others may never arrive.

    Raises:
        MachineError: a process has not arrived after ``wait_seconds``, or the place where they meet cannot be used.
    """
    ranks.check()
    if ranks.world_size() == 1 or dist.is_initialized():
        yield
        return
    if ranks.local_rank() < torch.cuda.device_count():
        torch.cuda.set_device(ranks.local_rank())
    store = _meet(wait_seconds)
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    with explain_lost_ranks():
        dist.init_process_group(backend, store=store, rank=ranks.rank(), world_size=ranks.world_size())
    try:
        yield
        _leave()
    except Interrupted:
        _leave()
        raise
    finally:
        dist.destroy_process_group()


def _meet(wait_seconds: float) -> dist.Store:
    """Return the store through which the processes find each other, once all of them have arrived.

    PyTorch's own rendezvous waits silently in C++, where Python handles no signal. Here, a thread connects, and the
    main thread waits in Python.
    """
    own, host, port = ranks.rank(), *ranks.meeting_place()
    prefix = f"lmtransfer-{next(_meetings)}"  # a process that runs several commands meets the others each time
    connection: Future[dist.Store] = Future()

    def connect() -> None:
        is_host = own == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
        limit = timedelta(seconds=wait_seconds + 60)  # the main thread gives up first
        try:
            store = dist.TCPStore(
                host, port, is_master=is_host, timeout=limit, wait_for_workers=False, multi_tenant=True
            )
            store.set(f"{prefix}/{own}", "")
        except BaseException as error:
            connection.set_exception(error)
        else:
            connection.set_result(store)

    threading.Thread(target=connect, daemon=True).start()
    missing = [rank for rank in range(ranks.world_size()) if rank != own]
    start, since, has_told = time.monotonic(), time.strftime("%H:%M:%S"), False
    while missing:
        if connection.done():
            try:
                missing = [rank for rank in missing if not connection.result().check([f"{prefix}/{rank}"])]
            except RuntimeError as error:
                raise MachineError(_no_meeting(error, f"{host}:{port}")) from error
        seconds = time.monotonic() - start
        if seconds >= _PATIENCE and not has_told and missing:
            print(_waiting(missing, connection.done(), since), file=sys.stderr, flush=True)
            has_told = True
        if seconds >= wait_seconds and missing:
            raise MachineError(
                f"{_waiting(missing, connection.done(), since)}. The limit is hardware.wait_seconds={wait_seconds:g}"
            )
        time.sleep(_PAUSE)
    return dist.PrefixStore(prefix, connection.result())


def _waiting(missing: Sequence[int], is_connected: bool, since: str) -> str:
    """Say for whom this process waits, where and since when, and what to do."""
    host, port = ranks.meeting_place()
    names = ", ".join(map(str, missing[:_MAX_NAMES])) + (" and others" if len(missing) > _MAX_NAMES else "")
    others = f"{len(missing)} other process{'es' if len(missing) > 1 else ''} (rank {names})"
    whom = others if is_connected else "an answer of rank 0"
    return (
        f"rank {ranks.rank()} waits for {whom} at {host}:{port} since {since}, because the environment sets "
        f"WORLD_SIZE={ranks.world_size()}: start the other processes, or unset RANK and WORLD_SIZE to run a single one"
    )


def _no_meeting(error: RuntimeError, place: str) -> str:
    if "EADDRINUSE" in str(error):
        return (
            f"rank 0 cannot listen at {place}, because another process uses this port: set MASTER_PORT to a free port "
            "for all processes, or start them with torchrun --standalone"
        )
    return (
        f"rank {ranks.rank()} cannot meet the other processes at {place}: correct MASTER_ADDR and MASTER_PORT, or "
        f"start the processes with torchrun. PyTorch reports: {first_line(error)}"
    )


def _leave() -> None:
    """Free all finished collectives, then wait for the other ranks: freeing one after its group aborts the process."""
    gc.collect()
    barrier()


@contextmanager
def explain_lost_ranks() -> Iterator[None]:
    """Replace communication errors inside the block by a message that another process has ended."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        raise MachineError(
            f"rank {ranks.rank()} stops, because another process of this run has ended or cannot be reached: see the "
            "message of that process, or the root cause that torchrun reports. Continue a training run from its last "
            f"checkpoint with resume=true. Communication failed with: {error}"
        ) from error


def lost_another_rank(error: RuntimeError) -> bool:
    """Whether an error from PyTorch's engines means that another rank has ended."""
    return world_size() > 1 and (isinstance(error, dist.DistError) or "gloo" in str(error).lower())


def barrier() -> None:
    """Wait for all ranks, with a collective between hosts, which works on every backend."""
    if world_size() > 1:
        with explain_lost_ranks():
            dist.all_reduce(torch.zeros(1))


def gather(value: Any) -> list[Any]:
    """Return the ``value`` of every rank, in rank order, for Python objects and tensors on the host.

    Messages have a fixed size: objects of up to 4 KiB take one collective, and larger objects take two.
    """
    if world_size() == 1:
        return [value]
    content = pickle.dumps(value)
    messages = _gather_bytes(len(content).to_bytes(_HEADER, "little") + content, size=_MESSAGE)
    sizes = [int.from_bytes(message[:_HEADER], "little") for message in messages]
    contents = [message[_HEADER:] for message in messages]
    if max(sizes) > _MESSAGE - _HEADER:
        contents = _gather_bytes(content, size=max(sizes))
    return [pickle.loads(content[:size]) for content, size in zip(contents, sizes, strict=True)]


def _gather_bytes(content: bytes, *, size: int) -> list[bytes]:
    """Return the first ``size`` bytes of every rank's ``content``, padded with zeros."""
    sent = torch.frombuffer(bytearray(content[:size].ljust(size, b"\0")), dtype=torch.uint8)
    received = [torch.empty_like(sent) for _ in range(world_size())]
    with explain_lost_ranks():
        dist.all_gather(received, sent)
    return [message.numpy().tobytes() for message in received]


def sum_over_ranks(values: dict[str, float]) -> dict[str, float]:
    """Sum named numbers in rank order, so that all ranks get the same sums; a name missing on a rank counts as 0."""
    total: dict[str, float] = {}
    for part in gather(values):
        for name, value in part.items():
            total[name] = total.get(name, 0) + value
    return total


def any_rank(flag: bool) -> bool:
    """Whether ``flag`` is set on any rank."""
    return any(gather(flag))


def max_on_device(number: Tensor) -> Tensor:
    """Return the largest ``number`` of any rank, on the device, without making the host wait."""
    return _reduce(number, dist.ReduceOp.MAX)


def sum_on_device(number: Tensor) -> Tensor:
    """Return the sum of ``number`` over all ranks, on the device, without making the host wait."""
    return _reduce(number, dist.ReduceOp.SUM)


def gather_on_device(tensor: Tensor) -> list[Tensor]:
    """Return the ``tensor`` of every rank, all of one shape, in rank order, without making the host wait."""
    if world_size() == 1:
        return [tensor]
    content = tensor.contiguous().view(torch.uint8)  # gloo does not support every dtype
    received = [torch.empty_like(content) for _ in range(world_size())]
    with explain_lost_ranks():
        dist.all_gather(received, content)
    return [content.view(tensor.dtype) for content in received]


def _reduce(number: Tensor, operation: Any) -> Tensor:
    if world_size() > 1:
        with explain_lost_ranks():
            dist.all_reduce(number, op=operation)
    return number


def broadcast(value: Any) -> Any:
    """Return the ``value`` of rank 0 on every rank."""
    return gather(value if is_main() else None)[0]


@torch.no_grad()
def union(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the named tensors of all ranks; a rank gets missing tensors from the first rank that has them."""
    if world_size() == 1:
        return tensors
    descriptions = gather({name: (tuple(t.shape), t.dtype, t.device.type) for name, t in tensors.items()})
    for name in sorted(set().union(*descriptions)):
        holders = [index for index, names in enumerate(descriptions) if name in names]
        if len(holders) < world_size():
            shape, dtype, device = descriptions[holders[0]][name]
            tensor = tensors.get(name, torch.empty(shape, dtype=dtype, device=device))
            with explain_lost_ranks():
                dist.broadcast(tensor, src=holders[0])
            tensors[name] = tensor
    return tensors


@torch.no_grad()
def share_weights(module: nn.Module) -> None:
    """Copy rank 0's weights and buffers to every rank: other library versions may initialize them differently."""
    if world_size() == 1:
        return
    for tensor in [*module.parameters(), *module.buffers()]:
        with explain_lost_ranks():
            dist.broadcast(tensor.data, src=0)
