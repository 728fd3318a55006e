"""What the operations of a pass do that a GPU would refuse, and where they make the host wait for it."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

#: Products of matrices, which take operands of one dtype only.
_PRODUCTS = {"mm", "bmm", "addmm", "baddbmm", "addbmm", "mv", "addmv", "dot"}
#: Operations that write values into a tensor, which must have its dtype.
_WRITES = {"index_put", "index_put_", "_unsafe_index_put", "index_copy", "index_copy_", "index_add", "index_add_"}
_WRITES |= {"scatter", "scatter_", "scatter_add", "scatter_add_", "scatter_reduce", "scatter_reduce_"}
#: Operations whose result has a size that only the device knows, or that give the host a number.
_WAITS = {"nonzero", "_unique", "_unique2", "unique_dim", "unique_consecutive", "masked_select", "bincount", "equal"}
_WAITS |= {"_local_scalar_dense", "is_nonzero", "histc", "unique_dim_consecutive"}
_COPIES = {"_to_copy", "copy_"}
_INDEXED = {"index", "_unsafe_index", "index_put", "index_put_", "_unsafe_index_put"}


class Watch(TorchDispatchMode):
    """Notes, once each, what the operations inside do wrong.

    Attributes:
        findings: what was wrong and where: ``<kind>: <what> in <file>:<function>``. The kinds are "mismatch" (a GPU
            refuses it) and "waits" (the host waits for the GPU).
    """

    def __init__(self) -> None:
        super().__init__()
        self.findings: dict[str, None] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func._schema.name.split("::")[1]
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        for what in self._wrong(name, tensors, args, kwargs):
            self.findings[f"{what} in {_place()}"] = None
        return func(*args, **kwargs)

    def _wrong(self, name: str, tensors: list[Tensor], args: Any, kwargs: Any) -> Iterator[str]:
        devices = {tensor.device.type for tensor in tensors}
        if name == "copy_":
            target, source, *rest = args
            yield from self._wrong_copy(source, target, target.device, bool(rest and rest[0]))
        if name == "_to_copy":
            device = torch.device(kwargs.get("device") or args[0].device)
            yield from self._wrong_copy(args[0], None, device, bool(kwargs.get("non_blocking")))
        if "cuda" not in devices:
            return
        if name not in _COPIES and name not in _INDEXED and len({t.device.type for t in tensors if t.ndim}) > 1:
            yield f"mismatch: {name} of tensors on {sorted(devices)}"
        if name in _PRODUCTS and len(found := _dtypes(tensors)) > 1:
            yield f"mismatch: {name} of {found}"
        if name in _WRITES and len(found := _dtypes([t for t in (args[0], args[-1]) if isinstance(t, Tensor)])) > 1:
            yield f"mismatch: {name} of {found}"
        if name == "_varlen_attn":
            yield from _refused_by_flash(*args[:5])
        if name in _WAITS:
            yield f"waits: {name}"
        if name in _INDEXED:
            for index in args[1]:
                if index is not None and index.dtype in (torch.bool, torch.uint8):
                    yield f"waits: {name} by a mask"
                if index is not None and index.device.type == "cpu":
                    yield f"waits: {name} by an index on the host"
            if name != "index" and any(isinstance(v, Tensor) and v.device.type == "cpu" for v in args[2:3]):
                yield f"waits: {name} of a number on the host"
        if name == "repeat_interleave" and kwargs.get("output_size") is None:
            yield "waits: repeat_interleave without output_size"
        if name == "segment_reduce" and not kwargs.get("unsafe", False):
            yield "waits: segment_reduce checks its lengths"

    def _wrong_copy(
        self, source: Tensor, target: Tensor | None, device: torch.device, non_blocking: bool
    ) -> Iterator[str]:
        """A copy between host and device must not block, so the memory of the host must be pinned."""
        if source.device.type == device.type or not (source.ndim or device.type == "cpu"):
            return
        on_host = target if device.type == "cpu" else source
        if not non_blocking or on_host is None or not on_host.is_pinned():
            yield f"waits: a copy from {source.device.type} to {device.type}"


def _dtypes(tensors: list[Tensor]) -> list[str]:
    return sorted({str(tensor.dtype) for tensor in tensors if tensor.ndim})


def _refused_by_flash(query: Tensor, key: Tensor, value: Tensor, *offsets: Tensor) -> Iterator[str]:
    """What ``mha_varlen_fwd`` of PyTorch's flash attention checks."""
    if len(dtypes := _dtypes([query, key, value])) > 1 or query.dtype not in (torch.bfloat16, torch.float16):
        yield f"mismatch: varlen attention of {dtypes}"
    if query.shape[-1] % 8 or query.shape[-1] > 256:
        yield f"mismatch: varlen attention with heads of width {query.shape[-1]}"
    if any(tensor.stride(-1) != 1 for tensor in (query, key, value)):
        yield "mismatch: varlen attention of rows that are not contiguous"
    if any(offset.dtype != torch.int32 or not offset.is_contiguous() for offset in offsets):
        yield "mismatch: varlen attention with offsets that are not int32"


def _place() -> str:
    """The innermost function of lmtransfer on the stack."""
    for frame in reversed(traceback.extract_stack()):
        head, found, tail = frame.filename.rpartition("/lmtransfer/")
        if found and "/tests/" not in head:
            return f"{tail}:{frame.name}"
    return "PyTorch's backward pass"
