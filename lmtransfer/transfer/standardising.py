"""What a head sees on one scale, so that it does not depend on the size of the vectors that an encoder gives.

Shape legend: N sequences or tokens, E width of what a head sees, C logits.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

#: A feature that deviates by less than this share of its mean is taken for constant: the rest is rounding.
_LEAST_DEVIATION = 1e-4


class Standardising(nn.Module):
    """Each feature less its mean, over its deviation, both of the training part (as in scikit-learn's StandardScaler).

    The two are buffers, saved with a checkpoint. A new one changes nothing until it is fitted.

    Args:
        dim: E.
    """

    mean: Tensor
    deviation: Tensor

    def __init__(self, *, dim: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(dim))
        self.register_buffer("deviation", torch.ones(dim))

    def forward(self, features: Tensor) -> Tensor:
        """(N, E) -> (N, E), float32."""
        return (features.float() - self.mean) / self.deviation

    @torch.no_grad()
    def fit(self, parts: Iterable[Tensor]) -> None:
        """Take mean and deviation (n in the denominator) of all rows; a constant feature becomes 0.

        Args:
            parts: features, (N, E) each; the parts are added up in float64.

        Raises:
            ValueError: there are no rows.
        """
        count, mean, squares = 0, torch.zeros_like(self.mean, dtype=torch.float64), torch.zeros(())
        for part in parts:
            rows = part.to(mean)
            if len(rows) == 0:
                continue
            shift = rows.mean(0) - mean
            total = count + len(rows)
            # Chan, Golub and LeVeque 1983, equation 2.1: no difference of large sums
            squares = squares.to(mean) + (rows - rows.mean(0)).square().sum(0) + shift**2 * count * len(rows) / total
            mean, count = mean + shift * len(rows) / total, total
        if count == 0:
            raise ValueError("mean and deviation of no features")
        deviation = (squares / count).sqrt()
        constant = deviation <= _LEAST_DEVIATION * mean.abs()
        self.mean.copy_(mean)
        self.deviation.copy_(deviation.masked_fill(constant, 1.0))

    @torch.no_grad()
    def fold_into(self, layer: nn.Linear) -> float:
        """Let a layer that reads these features read them as they were: W / d and b - W m / d, in float64.

        Args:
            layer: E inputs, with a bias.

        Returns:
            The largest of its outputs' sums of |W m / d|, which cancel with the new bias.
        """
        weight_CE = layer.weight.double() / self.deviation.double()
        bias_C = layer.bias.double() - weight_CE @ self.mean.double()
        layer.weight.copy_(weight_CE)
        layer.bias.copy_(bias_C)
        return float((weight_CE.abs() @ self.mean.double().abs()).max())
