"""Several linear layers that read the same input, computed as one layer.

Shape legend: T tokens, D input width, E output width of each layer, S number of layers that are computed.
"""

from __future__ import annotations

from torch import Tensor, nn


class StackedLinear(nn.Linear):
    """Linear layers (T, D) -> (T, E) whose weights are stored as one matrix with a block of E rows for each layer.

    Args:
        input_dim: D.
        output_dim: E.
        parts: names of the layers, in the order of their rows.
        bias: whether to add biases.

    Attributes:
        muon_splits: number of layers; an optimizer of whole matrices (Muon) updates each matrix separately.
    """

    def __init__(self, input_dim: int, output_dim: int, *, parts: tuple[str, ...], bias: bool) -> None:
        super().__init__(input_dim, len(parts) * output_dim, bias=bias)
        self.parts = parts
        self.muon_splits = len(parts)

    def forward_slice(self, input_TD: Tensor, first: int, stop: int) -> Tensor:
        """Return the outputs of some layers side by side, (T, D) -> (T, S E).

        Args:
            first: index of the first layer to compute.
            stop: index after the last layer to compute.
        """
        width = self.out_features // len(self.parts)
        rows = slice(first * width, stop * width)
        return nn.functional.linear(input_TD, self.weight[rows], None if self.bias is None else self.bias[rows])
