"""Rotary position embeddings (Su et al. 2021, RoFormer, https://arxiv.org/abs/2104.09864, section 3.2).

Shape legend: T tokens, N output positions, H heads, K head width, P pairs of features (K / 2).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Rotation(NamedTuple):
    """The rotation angles of each token; computed once per batch, used by every layer.

    Attributes:
        cos_TP, sin_TP: cosine and sine of the angles, float32.
    """

    cos_TP: Tensor
    sin_TP: Tensor

    def at(self, positions_N: Tensor) -> Rotation:
        """Return the rotation of the tokens at these positions only."""
        return Rotation(self.cos_TP.index_select(0, positions_N), self.sin_TP.index_select(0, positions_N))

    def turn(self, states: Tensor) -> Tensor:
        """Rotate states (T, ..., K); feature p is paired with feature p + K / 2; products are float32 or wider.

        Where we differ from the paper: it pairs neighbors (2p, 2p + 1). The result is the same up to the order of the
        features, and halves need no reordering. GPT-NeoX and ModernBERT also pair halves.
        """
        shape = (-1, *(1,) * (states.dim() - 2), self.cos_TP.shape[-1])
        cos, sin = self.cos_TP.view(shape), self.sin_TP.view(shape)
        first, second = states.chunk(2, dim=-1)
        return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(states.dtype)


def rotation(positions_T: Tensor, *, head_dim: int, theta: float) -> Rotation:
    """Compute the angles ``position * theta ** (-2 p / K)``.

    Args:
        positions_T: position of each token in its own sequence, int64.
        head_dim: K, even.
        theta: base of the angles. With a larger ``theta``, the slowest pair rotates more slowly, so attention can
            distinguish longer distances.
    """
    device = positions_T.device
    exponents_P = torch.arange(0, head_dim, 2, dtype=torch.float32, device=device) / head_dim
    angles_TP = positions_T.float()[:, None] * (1.0 / theta**exponents_P)
    return Rotation(angles_TP.cos(), angles_TP.sin())
