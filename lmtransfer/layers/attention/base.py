"""What every attention layer says of itself."""

from __future__ import annotations

from torch import nn


class AttentionLayer(nn.Module):
    """A layer in which tokens of a sequence see one another.

    Args:
        dim: width of its queries and keys over all heads.
        window: a token sees others at most this many positions away; None: all.
    """

    def __init__(self, *, dim: int, window: int | None = None) -> None:
        super().__init__()
        self.dim, self.window = dim, window

    def num_seen(self, mean_length: float) -> float:
        """About how many tokens a token sees in sequences of ``mean_length``."""
        return mean_length if self.window is None else min(mean_length, 2 * self.window + 1)
