"""Tensors without numbers on the fake device; those on the host stay real."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only


class _OnDevice(TorchDispatchMode):
    """Runs operations on the device without numbers, and those on the host as they are."""

    def __init__(self) -> None:
        super().__init__()
        self._fake = FakeTensorMode()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        on_device = any(isinstance(leaf, FakeTensor) for leaf in tree_leaves((args, kwargs)))
        if not on_device and torch.device(kwargs.get("device") or "cpu").type != "cuda":
            return func(*args, **kwargs)
        args, kwargs = tree_map_only(Tensor, self._faked, (args, kwargs))
        with self._fake:
            return func(*args, **kwargs)

    def _faked(self, tensor: Tensor) -> Tensor:
        return tensor if isinstance(tensor, FakeTensor) else self._fake.from_tensor(tensor)


@contextmanager
def fake_tensors() -> Iterator[None]:
    """Tensors on CUDA are fake inside."""
    with _OnDevice():
        yield


def to_device(module: nn.Module) -> None:
    """Move a module of the host or of ``meta`` to the device; ``Module.to`` cannot make shared weights fake."""
    moved: dict[int, Tensor] = {}
    kept = []  # so that no later tensor has the same id
    for part in module.modules():
        for named in (part._parameters, part._buffers):
            for name, tensor in named.items():
                if tensor is None:
                    continue
                if id(tensor) not in moved:
                    kept.append(tensor)
                    found = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cuda")
                    moved[id(tensor)] = (
                        nn.Parameter(found, tensor.requires_grad) if named is part._parameters else found
                    )
                named[name] = moved[id(tensor)]
        if isinstance(part, nn.RNNBase):
            part._flat_weights = [getattr(part, name) for name in part._flat_weights_names]
