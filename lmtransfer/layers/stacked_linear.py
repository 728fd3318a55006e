"""Several linear layers of one input as one.

Shape legend: T tokens, D input width, E output width of each layer.
"""

from __future__ import annotations

from torch import nn


class StackedLinear(nn.Linear):
    """``num`` linear layers (T, D) -> (T, E), their weights stored as one matrix (num E, D).

    Args:
        input_dim: D.
        output_dim: E.
        num: how many.
        bias: add biases.

    Attributes:
        muon_splits: ``num``: an optimiser that works on whole matrices takes each by itself.
    """

    def __init__(self, input_dim: int, output_dim: int, *, num: int, bias: bool) -> None:
        super().__init__(input_dim, num * output_dim, bias=bias)
        self.muon_splits = num
