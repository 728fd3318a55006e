"""The norm of all gradients, and their scaling."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


@torch.no_grad()
def gradient_norm(parameters: Sequence[nn.Parameter]) -> Tensor:
    """Euclidean norm over all gradients, a scalar on their device; not finite if any of them is not."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    if not gradients:
        return torch.zeros(())
    return torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))


@torch.no_grad()
def scale_gradients(parameters: Sequence[nn.Parameter], factor: float) -> None:
    """Multiply all gradients by ``factor``, in place; nothing is touched where it is 1."""
    if factor != 1:
        torch._foreach_mul_([p.grad for p in parameters if p.grad is not None], factor)


def clip_factor(norm: float, max_norm: float | None) -> float:
    """What brings a gradient of norm ``norm`` to at most ``max_norm``; 1 if it is there already, or None."""
    return 1.0 if max_norm is None or norm <= max_norm else max_norm / norm
