"""Highway layers.

Shape legend: W words, D width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Highway(nn.Module):
    """``g * relu(A x) + (1 - g) * x`` with ``g = sigmoid(B x)`` (Srivastava et al. 2015, equation 3).

    It starts as in allenai/bilm-tf: weights from a normal of variance 1 / D, gate biases -2 (mostly ``x`` passes).

    Args:
        dim: width D.
    """

    def __init__(self, *, dim: int) -> None:
        super().__init__()
        self.gate = nn.Linear(dim, dim)
        self.transform = nn.Linear(dim, dim)
        for layer, bias in ((self.gate, -2.0), (self.transform, 0.0)):
            nn.init.normal_(layer.weight, std=dim**-0.5)
            nn.init.constant_(layer.bias, bias)

    def forward(self, words_WD: Tensor) -> Tensor:
        """(W, D) -> (W, D)."""
        gate_WD = torch.sigmoid(self.gate(words_WD))
        return words_WD + gate_WD * (torch.relu(self.transform(words_WD)) - words_WD)
