"""The base class of all attention layers."""

from __future__ import annotations

from torch import nn


class AttentionLayer(nn.Module):
    """A layer in which the tokens of a sequence see one another.

    Args:
        dim: width of the queries and keys over all heads.
        window: a token sees only tokens at most this many positions away; None for no limit.
    """

    def __init__(self, *, dim: int, window: int | None = None) -> None:
        super().__init__()
        self.dim, self.window = dim, window

    def num_seen(self, mean_length: float) -> float:
        """Return the approximate number of tokens that a token sees in sequences of ``mean_length``."""
        return mean_length if self.window is None else min(mean_length, 2 * self.window + 1)
