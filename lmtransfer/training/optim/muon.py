"""Muon (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/): orthogonalised momentum for matrices.

Shape legend: P matrices of one shape, R rows, C columns.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

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
        momentum: float = 0.95,
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
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                update = self._with_momentum(parameter, group["momentum"])
                pieces = self.splits.get(id(parameter), 1)
                for matrix, part in zip(parameter.chunk(pieces), update.chunk(pieces), strict=True):
                    by_shape.setdefault(tuple(matrix.shape), []).append((matrix, part))
            for shape, members in by_shape.items():
                self._update(members, shape, group)

    def _with_momentum(self, parameter: Tensor, momentum: float) -> Tensor:
        """Replace the gradient in place by Nesterov's mixture with the running mean, and return it."""
        assert parameter.grad is not None
        state = self.state[parameter]
        if not state:
            state["momentum_buffer"] = torch.zeros_like(parameter)
        state["momentum_buffer"].lerp_(parameter.grad, 1 - momentum)
        return parameter.grad.lerp_(state["momentum_buffer"], momentum)

    def _update(self, members: list[tuple[Tensor, Tensor]], shape: tuple[int, ...], group: dict[str, Any]) -> None:
        """Orthogonalise the updates of matrices of one shape together, and apply them."""
        updates_PRC = torch.empty(len(members), *shape, dtype=self.product_dtype, device=members[0][0].device)
        for place, (_, update) in zip(updates_PRC, members, strict=True):
            place.copy_(update)
        orthogonal_PRC = orthogonalise(updates_PRC, num_iterations=group["num_iterations"])
        rate = group["lr"] * math.sqrt(max(1.0, shape[0] / shape[1]))
        for (matrix, _), direction in zip(members, orthogonal_PRC, strict=True):
            if group["weight_decay"]:
                matrix.mul_(1 - group["lr"] * group["weight_decay"])
            matrix.add_(direction, alpha=-rate)
