"""The gated feed-forward layer.

Shape legend: T tokens, D width, F hidden width.
"""

from __future__ import annotations

from torch import Tensor, nn

from lmtransfer.layers.dropout import Dropout
from lmtransfer.layers.feed_forward import Activation, activation_module


class GatedFeedForward(nn.Module):
    """``contract(activation(x A) * (x B))``, GeGLU with the GELU (Shazeer 2020, https://arxiv.org/abs/2002.05202).

    Args:
        dim: width D.
        hidden_dim: width F of each of the two halves.
        activation: of the first half.
        bias: add biases; the paper has none.
        dropout: probability of dropping a hidden feature.
    """

    def __init__(
        self,
        *,
        dim: int,
        hidden_dim: int,
        activation: Activation = "gelu",
        bias: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.expand = nn.Linear(dim, 2 * hidden_dim, bias=bias)
        self.expand.muon_splits = 2  # type: ignore[assignment]  # two matrices, stored as one
        self.activation = activation_module(activation)
        self.dropout = Dropout(dropout)
        self.contract = nn.Linear(hidden_dim, dim, bias=bias)

    def forward(self, hidden_TD: Tensor) -> Tensor:
        """(T, D) -> (T, D)."""
        states_TF, gates_TF = self.expand(hidden_TD).chunk(2, dim=-1)
        return self.contract(self.dropout(self.activation(states_TF) * gates_TF))
