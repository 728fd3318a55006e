"""The position-wise feed-forward layer.

Shape legend: T tokens, D width, F hidden width.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn

Activation = Literal["gelu", "gelu_tanh", "relu"]


def activation_module(name: Activation) -> nn.Module:
    """The activation called ``name``: exact GELU, its tanh approximation (ALBERT, GPT-2), or ReLU."""
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
