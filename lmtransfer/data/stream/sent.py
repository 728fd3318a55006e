"""Batches as bytes, as which workers send them.

PyTorch would put each tensor into shared memory. Where that is full (containers often have 64 MB), the tensor is lost,
and the training waits for it for ever. Bytes go through the worker's pipe, which holds them back until they are read.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

import torch


class Sent:
    """A batch as bytes.

    Args:
        batch: the batch; its tensors are on the host.
    """

    def __init__(self, batch: Any) -> None:
        content = io.BytesIO()
        _Pickler(content, protocol=pickle.HIGHEST_PROTOCOL).dump(batch)
        self._content = content.getvalue()

    def batch(self) -> Any:
        """The batch."""
        return pickle.loads(self._content)

    def pin_memory(self) -> Any:
        """The batch in page-locked memory; a loader with ``pin_memory=True`` calls this beside the step."""
        return self.batch().pin_memory()


def received(item: Any) -> Any:
    """The batch that a loader gives, which it has pinned or not."""
    return item.batch() if isinstance(item, Sent) else item


class _Pickler(pickle.Pickler):
    """Writes tensors as arrays: their own numbers only, where PyTorch writes the memory that they share with others."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, torch.Tensor) and obj.dtype != torch.bfloat16:  # NumPy does not have that
            return torch.from_numpy, (obj.numpy(),)
        return NotImplemented
