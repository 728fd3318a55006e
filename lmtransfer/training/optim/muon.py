"""Muon (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/): orthogonalized momentum for matrices.

Shape legend: P matrices of one shape, R rows, C columns.

Updates are orthogonalized by Muon's quintic Newton-Schulz iteration, with two changes that make it cheaper on a CPU,
where it takes a third of the training step of a small encoder:

- Each iteration has its own coefficients: those of the polynomial that is closest to 1 over the interval that contains
  the singular values at this iteration (Amsel et al. 2025, "The Polar Express": choosing the polynomials one after
  the other is optimal). Four iterations then come closer to orthogonal than five with Jordan's coefficients.
- Long matrices use the Gram matrix G of their short side. Each iterate X is a polynomial of G times the previous
  iterate, so that products with the long side become products of small matrices. In float32 one Gram matrix serves all
  iterations, in bfloat16 two iterations. The reason is that the iterations amplify the rounding errors of G together
  with the small singular values: 65-fold in the first iteration and tenfold in each later one.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lmtransfer.config.types import DropoutProb
from lmtransfer.training import process_group
from lmtransfer.training.data_parallel import gather_whole, is_sharded, own_part

Coefficients = tuple[float, float, float]

#: For each number of iterations, the coefficients (a, b, c) of each polynomial x -> a x + b x^3 + c x^5. They were
#: found by linear programming for singular values of at least 0.01, 0.004 and 0.002 of the Frobenius norm, with a
#: margin of 2 to 3 % for rounding at the top. These singular values end within 0.29, 0.15 and 0.04 of 1. Smaller ones
#: are multiplied by 76, 245 and 668.
COEFFICIENTS: dict[int, tuple[Coefficients, ...]] = {
    3: (
        (7.9424, -22.2873, 15.8239),
        (3.5875, -2.5845, 0.4893),
        (2.6604, -1.9134, 0.4194),
    ),
    4: (
        (8.1807, -23.1911, 16.5146),
        (3.9111, -2.8037, 0.5126),
        (3.3046, -2.3876, 0.4686),
        (2.3207, -1.6403, 0.3922),
    ),
    5: (
        (8.1838, -22.8292, 15.9586),
        (4.0006, -2.8067, 0.4971),
        (3.6479, -2.5755, 0.4734),
        (2.798, -1.9849, 0.4139),
        (1.9984, -1.3387, 0.3549),
    ),
}

#: Minimum ratio of the sides at which the Gram matrix is cheaper.
_LONG = 1.5


@torch.no_grad()
def orthogonalize(matrices_PRC: Tensor, *, num_iterations: int = 4, eps: float = 1e-7) -> Tensor:
    """Move the singular values of each matrix close to 1, keeping its singular vectors.

    Args:
        matrices_PRC: the matrices, bfloat16 or float32; products have this dtype, and the matrices are overwritten.

    Returns:
        (P, R, C), in the dtype of the matrices. A zero matrix stays zero.
    """
    norms = torch.linalg.vector_norm(matrices_PRC, dim=(1, 2), keepdim=True, dtype=torch.float32).clamp_(min=eps)
    x = matrices_PRC.mul_(norms.reciprocal_().to(matrices_PRC.dtype))
    coefficients = COEFFICIENTS[num_iterations]
    is_long = max(x.shape[1:]) >= _LONG * min(x.shape[1:])
    group = 1 if not is_long else 2 if x.dtype == torch.bfloat16 else num_iterations
    spare = torch.empty_like(x)
    for start in range(0, num_iterations, group):
        gram = torch.bmm(x.mT, x) if x.shape[1] > x.shape[2] else torch.bmm(x, x.mT)
        polynomial = _polynomial(gram, coefficients[start : start + group])
        if x.shape[1] > x.shape[2]:
            torch.bmm(x, polynomial.mT, out=spare)
        else:
            torch.bmm(polynomial, x, out=spare)
        x, spare = spare, x
    return x


def _once(gram: Tensor, coefficients: Coefficients) -> Tensor:
    """Return the factor of X in one iteration: p(G) = a I + b G + c G^2."""
    a, b, c = coefficients
    polynomial = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
    polynomial.diagonal(dim1=1, dim2=2).add_(a)
    return polynomial


def _polynomial(gram: Tensor, coefficients: Sequence[Coefficients]) -> Tensor:
    """Return the factor of X in several iterations: ... p2(G2) p1(G).

    G2 = p1(G) G p1(G) is the Gram matrix after the first iteration. Without rounding the polynomials would commute.
    With rounding, singular values near the top of their interval diverge unless the polynomials are applied in the
    order in which the Gram matrices were computed. A tall X is therefore multiplied by the transpose from the right.
    """
    product = step = _once(gram, coefficients[0])
    for chosen in coefficients[1:]:
        gram = torch.bmm(step, torch.bmm(gram, step))
        step = _once(gram, chosen)
        product = torch.bmm(step, product)
    return product


class MuonUpdate(torch.optim.Optimizer):
    """Nesterov momentum with orthogonalized updates and decoupled weight decay.

    The rate of an R x C matrix is scaled by ``sqrt(max(1, R / C))``, as in Jordan's code and ``torch.optim.Muon``.
    Matrices of one shape are multiplied in batches.

    Args:
        splits: number of independent matrices stacked in the rows of a parameter, by ``id`` of the parameter; 1 for
            parameters not listed.

    With several ranks, the matrices of each shape are assigned to the ranks in turn. A rank keeps the means of its own
    matrices, orthogonalizes their updates, and sends the updates to the other ranks. Each rank keeps its part of the
    means of a sharded matrix, and the updates are gathered before they are orthogonalized.
    """

    def __init__(
        self,
        parameter_groups: list[dict[str, Any]],
        *,
        momentum: DropoutProb = 0.95,
        num_iterations: int = 4,
        splits: dict[int, int] | None = None,
    ) -> None:
        super().__init__(parameter_groups or [{"params": []}], {"momentum": momentum, "num_iterations": num_iterations})
        self.splits = splits or {}
        self.product_dtype = torch.float32
        self._owners: dict[int, int] = {}  # the rank that orthogonalizes a parameter, by its ``id``
        num_of_shape: Counter[torch.Size] = Counter()
        for group in self.param_groups:
            for parameter in group["params"]:
                self._owners[id(parameter)] = num_of_shape[parameter.shape] % process_group.world_size()
                num_of_shape[parameter.shape] += 1

    def owns(self, parameter: Tensor) -> bool:
        """Whether this rank keeps the state of a parameter, or its part of the state."""
        return is_sharded(parameter) or self._owners[id(parameter)] == process_group.rank()

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every matrix that has a gradient; the gradients are overwritten.

        If PyTorch's gradient scaler has set the attribute ``found_inf`` and it is 1, nothing changes.
        """
        skip: Tensor | None = getattr(self, "found_inf", None)
        for group in self.param_groups:
            by_shape: dict[tuple[int, ...], list[_Matrix]] = {}
            parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
            self._mix_in_means(parameters, group["momentum"], skip)
            for parameter in parameters:
                for matrix in self._matrices(parameter):
                    by_shape.setdefault(matrix.shape, []).append(matrix)
            for shape, members in by_shape.items():
                self._update(members, shape, group, skip)

    def _mix_in_means(self, parameters: list[Tensor], momentum: float, skip: Tensor | None) -> None:
        """Replace the gradients that this rank needs, in place, by Nesterov's mixture with their running means."""
        own = [parameter for parameter in parameters if self.owns(parameter)]
        for parameter in own:
            if not self.state[parameter]:
                self.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
        gradients = [own_part(parameter.grad) for parameter in own if parameter.grad is not None]
        means = [own_part(self.state[parameter]["momentum_buffer"]) for parameter in own]
        if skip is not None:
            for mean, gradient in zip(means, gradients, strict=True):  # moving a mean towards itself keeps it
                torch.where(skip.bool(), mean, gradient, out=gradient)
        if gradients:
            torch._foreach_lerp_(means, gradients, 1 - momentum)
            torch._foreach_lerp_(gradients, means, momentum)

    def _matrices(self, parameter: Tensor) -> Iterator[_Matrix]:
        """Yield the matrices of a parameter; if it is sharded, every rank must call this at the same time."""
        assert parameter.grad is not None
        pieces, owner = self.splits.get(id(parameter), 1), self._owners[id(parameter)]
        update, local = gather_whole(parameter.grad), own_part(parameter)
        height = len(parameter) // pieces
        begins = 0  # first row of this rank
        if is_sharded(parameter):
            begins = min(len(parameter), process_group.rank() * -(-len(parameter) // process_group.world_size()))
        for start in range(0, len(parameter), height):
            first, last = (min(max(row - start, 0), height) for row in (begins, begins + len(local)))
            yield _Matrix(
                shape=(height, *parameter.shape[1:]),
                rows=slice(first, last),
                target=local[start + first - begins : start + last - begins],
                update=update[start : start + height] if owner == process_group.rank() else None,
                owner=owner,
            )

    def _update(
        self, members: list[_Matrix], shape: tuple[int, ...], group: dict[str, Any], skip: Tensor | None
    ) -> None:
        """Orthogonalize the updates of matrices of one shape together, each on its rank, and apply them."""
        own = [matrix.update for matrix in members if matrix.update is not None]
        num_of_rank = Counter(matrix.owner for matrix in members)
        device, dtype = members[0].target.device, members[0].target.dtype
        updates_PRC = torch.empty(max(num_of_rank.values()), *shape, dtype=self.product_dtype, device=device)
        updates_PRC[len(own) :].zero_()
        if own:
            torch._foreach_copy_(updates_PRC[: len(own)].unbind(), own)
            updates_PRC = orthogonalize(updates_PRC, num_iterations=group["num_iterations"])
        of_ranks = [iter(of_rank.to(dtype).unbind()) for of_rank in process_group.gather_on_device(updates_PRC)]
        updates = [next(of_ranks[matrix.owner])[matrix.rows] for matrix in members]
        rate = group["lr"] * math.sqrt(max(1.0, shape[0] / shape[1]))
        targets = [matrix.target for matrix in members]
        decay = group["lr"] * group["weight_decay"]
        if skip is not None:
            torch._foreach_mul_(updates, 1 - skip)
            decay = decay * (1 - skip)
        if group["weight_decay"]:
            torch._foreach_mul_(targets, 1 - decay)
        torch._foreach_add_(targets, updates, alpha=-rate)


@dataclass(frozen=True, slots=True)
class _Matrix:
    """A matrix to update.

    Attributes:
        rows: the rows of the matrix that this rank has.
        target: the weights in these rows.
        update: the update of the whole matrix; None on ranks that do not orthogonalize the update.
        owner: the rank that orthogonalizes the update.
    """

    shape: tuple[int, ...]
    rows: slice
    target: Tensor
    update: Tensor | None
    owner: int
