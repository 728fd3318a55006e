"""Muon (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/): orthogonalised momentum for matrices.

Shape legend: P matrices of one shape, R rows, C columns.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from lmtransfer.config.types import DropoutProb
from lmtransfer.errors import ConfigError
from lmtransfer.training.optim.newton_schulz import COEFFICIENTS, orthogonalise


class MuonUpdate(torch.optim.Optimizer):
    """Nesterov momentum with orthogonalised updates and decoupled weight decay.

    The rate of an R x C matrix is scaled by ``sqrt(max(1, R / C))``, as in Jordan's code and ``torch.optim.Muon``.
    Matrices of one shape are multiplied in batches.

    Args:
        parameter_groups: groups of matrices with ``lr`` and ``weight_decay``.
        momentum: share of the running mean that is kept.
        num_iterations: number of Newton-Schulz iterations.
        splits: number of independent matrices stacked in the rows of a parameter, by ``id`` of the parameter; 1 for
            parameters that are not listed.

    Attributes:
        product_dtype: dtype of the matrix products, float32 or bfloat16; see ``Optimizer.multiply_in``.

    Raises:
        ConfigError: there are no coefficients for ``num_iterations``.
    """

    def __init__(
        self,
        parameter_groups: list[dict[str, Any]],
        *,
        momentum: DropoutProb = 0.95,
        num_iterations: int = 4,
        splits: dict[int, int] | None = None,
    ) -> None:
        if num_iterations not in COEFFICIENTS:
            allowed = ", ".join(str(number) for number in COEFFICIENTS)
            raise ConfigError(f"optimizer.num_iterations={num_iterations} is not one of {allowed}")
        super().__init__(parameter_groups or [{"params": []}], {"momentum": momentum, "num_iterations": num_iterations})
        self.splits = splits or {}
        self.product_dtype = torch.float32

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every matrix that has a gradient; the gradients are overwritten."""
        for group in self.param_groups:
            by_shape: dict[tuple[int, ...], list[tuple[Tensor, Tensor]]] = {}
            parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
            for parameter, update in zip(parameters, self._with_momentum(parameters, group["momentum"]), strict=True):
                pieces = self.splits.get(id(parameter), 1)
                for matrix, part in zip(parameter.chunk(pieces), update.chunk(pieces), strict=True):
                    by_shape.setdefault(tuple(matrix.shape), []).append((matrix, part))
            for shape, members in by_shape.items():
                self._update(members, shape, group)

    def _with_momentum(self, parameters: list[Tensor], momentum: float) -> list[Tensor]:
        """Replace the gradients in place by Nesterov's mixture with their running means, and return them."""
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        for parameter in parameters:
            if not self.state[parameter]:
                self.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
        if gradients:
            means = [self.state[parameter]["momentum_buffer"] for parameter in parameters]
            torch._foreach_lerp_(means, gradients, 1 - momentum)
            torch._foreach_lerp_(gradients, means, momentum)
        return gradients

    def _update(self, members: list[tuple[Tensor, Tensor]], shape: tuple[int, ...], group: dict[str, Any]) -> None:
        """Orthogonalise the updates of matrices of one shape together, and apply them."""
        updates_PRC = torch.empty(len(members), *shape, dtype=self.product_dtype, device=members[0][0].device)
        torch._foreach_copy_(updates_PRC.unbind(), [update for _, update in members])
        orthogonal_PRC = orthogonalise(updates_PRC, num_iterations=group["num_iterations"])
        rate = group["lr"] * math.sqrt(max(1.0, shape[0] / shape[1]))
        matrices = [matrix for matrix, _ in members]
        if group["weight_decay"]:
            torch._foreach_mul_(matrices, 1 - group["lr"] * group["weight_decay"])
        torch._foreach_add_(matrices, orthogonal_PRC.to(matrices[0].dtype).unbind(), alpha=-rate)
