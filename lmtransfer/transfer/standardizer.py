"""The standardizer of a head's inputs, which makes the head independent of the scale of the encoder's vectors.

Shape legend: N sequences or tokens, E width of a head's input, C logits.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

#: A feature whose deviation is below this share of its mean is treated as constant; smaller values are rounding.
_LEAST_DEVIATION = 1e-4


class Standardizer(nn.Module):
    """Subtracts each feature's mean and divides by its deviation over the training examples (as StandardScaler).

    Mean and deviation are buffers, which checkpoints include. Before ``fit``, the input stays unchanged.
    """

    mean: Tensor
    deviation: Tensor

    def __init__(self, *, dim: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(dim))
        self.register_buffer("deviation", torch.ones(dim))

    def forward(self, features: Tensor) -> Tensor:
        """Standardize features, (N, E) -> (N, E), float32."""
        return (features.float() - self.mean) / self.deviation

    @torch.no_grad()
    def fit(self, parts: Iterable[Tensor]) -> None:
        """Compute the mean and deviation (n in the denominator) of all rows in float64; constant features become 0."""
        count, mean, squares = 0, torch.zeros_like(self.mean, dtype=torch.float64), torch.zeros(())
        for part in parts:
            rows = part.to(mean)
            if len(rows) == 0:
                continue
            shift = rows.mean(0) - mean
            total = count + len(rows)
            # Chan, Golub and LeVeque 1983, equation 2.1: avoids differences of large sums
            squares = squares.to(mean) + (rows - rows.mean(0)).square().sum(0) + shift**2 * count * len(rows) / total
            mean, count = mean + shift * len(rows) / total, total
        if count == 0:
            raise ValueError("there are no features from which to compute mean and deviation")
        deviation = (squares / count).sqrt()
        constant = deviation <= _LEAST_DEVIATION * mean.abs()
        self.mean.copy_(mean)
        self.deviation.copy_(deviation.masked_fill(constant, 1.0))

    @torch.no_grad()
    def fold_into(self, layer: nn.Linear) -> float:
        """Change a layer so that it reads features that are not standardized: W / d and b - W m / d, in float64.

        Returns the maximum over outputs of the sum of |W m / d|; these sums cancel with the new bias.
        """
        weight_CE = layer.weight.double() / self.deviation.double()
        bias_C = layer.bias.double() - weight_CE @ self.mean.double()
        layer.weight.copy_(weight_CE)
        layer.bias.copy_(bias_C)
        return float((weight_CE.abs() @ self.mean.double().abs()).max())
