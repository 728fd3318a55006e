"""Several linear layers that read the same input, computed as one layer.

Shape legend: T tokens, D input width, E output width of each layer.
"""

from __future__ import annotations

from torch import nn


class StackedLinear(nn.Linear):
    """``num`` linear layers (T, D) -> (T, E), their weights stored as one matrix (num E, D).

    Args:
        input_dim: D.
        output_dim: E.
        num: number of layers.
        bias: add biases.

    Attributes:
        muon_splits: ``num``; an optimiser of whole matrices (Muon) updates each of the ``num`` matrices separately.
    """

    def __init__(self, input_dim: int, output_dim: int, *, num: int, bias: bool) -> None:
        super().__init__(input_dim, num * output_dim, bias=bias)
        self.muon_splits = num
