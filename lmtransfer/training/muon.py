"""Muon (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/): momentum, made orthogonal, for matrices.

Shape legend: P matrices of one shape, R rows, C columns.

On two CPU cores a small encoder's Newton-Schulz iterations are a third of a step, so: matrices of one shape are
stacked and multiplied in batches, always from their smaller side.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

#: Quintic coefficients with the steepest slope at 0 whose results stay within about [0.7, 1.2] (Jordan et al. 2024).
COEFFICIENTS = (3.4445, -4.7750, 2.0315)


def orthogonalise(matrices_PRC: Tensor, *, num_iterations: int = 5, eps: float = 1e-7) -> Tensor:
    """The nearest (semi-)orthogonal matrix of each, roughly: singular values move to about 1.

    Args:
        matrices_PRC: any matrices, R <= C for speed (the result of the transpose is the transpose of the result).
        num_iterations: Newton-Schulz iterations.
        eps: smallest norm divided by.

    Returns:
        bfloat16 (the format of the iterations), same shape.
    """
    a, b, c = COEFFICIENTS
    norms = matrices_PRC.flatten(1).norm(dim=1).clamp_(min=eps)
    x = (matrices_PRC / norms.view(-1, 1, 1)).bfloat16()
    other = torch.empty_like(x)
    gram = x.new_empty(x.shape[0], x.shape[1], x.shape[1])
    polynomial = torch.empty_like(gram)
    for _ in range(num_iterations):
        torch.bmm(x, x.mT, out=gram)
        torch.baddbmm(gram, gram, gram, beta=b, alpha=c, out=polynomial)
        torch.baddbmm(x, polynomial, x, beta=a, out=other)
        x, other = other, x
    return x


class MuonUpdate(torch.optim.Optimizer):
    """Nesterov momentum whose update is made orthogonal; decoupled weight decay.

    The rate of an R x C matrix is scaled by ``sqrt(max(1, R / C))``, as in Jordan's code and ``torch.optim.Muon``.

    Args:
        parameter_groups: groups of matrices with ``lr`` and ``weight_decay``.
        momentum: share of the running mean that is kept.
        num_iterations: Newton-Schulz iterations.
        splits: by ``id`` of a parameter, how many independent matrices are stacked in its rows; 1 if not there.
    """

    def __init__(
        self,
        parameter_groups: list[dict[str, Any]],
        *,
        momentum: float = 0.95,
        num_iterations: int = 5,
        splits: dict[int, int] | None = None,
    ) -> None:
        super().__init__(parameter_groups or [{"params": []}], {"momentum": momentum, "num_iterations": num_iterations})
        self.splits = splits or {}

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One update of every matrix that has a gradient."""
        for group in self.param_groups:
            parameters = [p for p in group["params"] if p.grad is not None]
            if parameters:
                self._step_group(group, parameters)

    def _step_group(self, group: dict[str, Any], parameters: list[Tensor]) -> None:
        gradients = [p.grad for p in parameters if p.grad is not None]
        for parameter in parameters:
            if not self.state[parameter]:
                self.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
        buffers = [self.state[p]["momentum_buffer"] for p in parameters]
        torch._foreach_lerp_(buffers, gradients, 1 - group["momentum"])
        torch._foreach_lerp_(gradients, buffers, group["momentum"])  # Nesterov; the gradients are not needed again
        if group["weight_decay"]:
            torch._foreach_mul_(parameters, 1 - group["lr"] * group["weight_decay"])

        by_shape: dict[tuple[int, int], list[tuple[Tensor, Tensor]]] = {}
        for parameter, gradient in zip(parameters, gradients, strict=True):
            pieces = self.splits.get(id(parameter), 1)
            for weight, update in zip(parameter.chunk(pieces), gradient.chunk(pieces), strict=True):
                rows, columns = weight.shape
                small, large = sorted((rows, columns))
                oriented = (weight, update) if rows <= columns else (weight.mT, update.mT)
                by_shape.setdefault((small, large), []).append(oriented)
        for members in by_shape.values():
            orthogonal = orthogonalise(torch.stack([u for _, u in members]), num_iterations=group["num_iterations"])
            scaled = orthogonal.to(members[0][0].dtype)
            for (weight, _), update in zip(members, scaled, strict=True):
                weight.add_(update, alpha=-group["lr"] * self._rate_scale(weight))

    @staticmethod
    def _rate_scale(weight: Tensor) -> float:
        """``sqrt(max(1, R / C))`` of the matrix as it is stored (a transposed view has its strides swapped)."""
        rows, columns = weight.shape if weight.stride(-1) == 1 else weight.mT.shape
        return math.sqrt(max(1.0, rows / columns))
