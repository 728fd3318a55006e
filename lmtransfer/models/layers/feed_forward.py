"""The position-wise feed-forward layer, plain and gated.

Shape legend: T tokens, D width, F hidden width.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn

from lmtransfer.models.layers.dropout import Dropout
from lmtransfer.models.layers.stacked_linear import StackedLinear

Activation = Literal["gelu", "gelu_tanh", "relu"]


def activation_module(name: Activation) -> nn.Module:
    """Return the activation with this name: exact GELU, its tanh approximation (ALBERT, GPT-2), or ReLU."""
    modules = {"gelu": nn.GELU(), "gelu_tanh": nn.GELU(approximate="tanh"), "relu": nn.ReLU()}
    return modules[name]


class FeedForward(nn.Module):
    """``contract(activation(expand(x)))`` (Vaswani et al. 2017, section 3.3)."""

    def __init__(self, *, dim: int, hidden_dim: int, activation: Activation = "gelu") -> None:
        super().__init__()
        self.expand = nn.Linear(dim, hidden_dim)
        self.activation = activation_module(activation)
        self.contract = nn.Linear(hidden_dim, dim)

    def forward(self, hidden_TD: Tensor) -> Tensor:
        """(T, D) -> (T, D)."""
        return self.contract(self.activation(self.expand(hidden_TD)))


class GatedFeedForward(nn.Module):
    """``contract(activation(x A) * (x B))``, GeGLU with the GELU (Shazeer 2020, https://arxiv.org/abs/2002.05202).

    Args:
        dim: width D.
        hidden_dim: width F of each of the two halves.
        activation: activation of the first half.
        bias: whether to add biases; the paper uses none.
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
        self.expand = StackedLinear(dim, hidden_dim, parts=("expand", "gate"), bias=bias)
        self.activation = activation_module(activation)
        self.dropout = Dropout(dropout)
        self.contract = nn.Linear(hidden_dim, dim, bias=bias)

    def forward(self, hidden_TD: Tensor) -> Tensor:
        """(T, D) -> (T, D)."""
        states_TF, gates_TF = self.expand(hidden_TD).chunk(2, dim=-1)
        return self.contract(self.dropout(self.activation(states_TF) * gates_TF))
