"""The layers that every head is made of.

Shape legend: N sequences or tokens, E width of what a head sees, C logits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from lmtransfer.layers.dropout import Dropout

#: Standard deviation of new weights, as in the published BERT.
INITIAL_DEVIATION = 0.02

Activation = Literal["tanh", "gelu", "relu"]
_ACTIVATE: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh,
    "gelu": functional.gelu,
    "relu": functional.relu,
}


class HeadLayers(nn.Module):
    """Dropout and a linear layer (Devlin et al. 2019, section 4.1), with an optional hidden layer before them.

    Weights start normal with deviation 0.02, biases at 0.

    Args:
        input_dim: E.
        output_dim: C.
        hidden_dim: width of a hidden layer; None: none.
        activation: of the hidden layer.
        dropout: probability of dropping an input feature of the output layer.
        hidden_dropout: the same for the hidden layer.

    Attributes:
        cancelling: the largest sum of magnitudes that cancel in its first layer, where a scale was folded into it: what
            rounding there is to be measured by.
    """

    def __init__(
        self,
        *,
        input_dim: int,
        output_dim: int,
        hidden_dim: int | None,
        activation: Activation,
        dropout: float,
        hidden_dropout: float,
    ) -> None:
        super().__init__()
        self.cancelling = 0.0
        self.hidden = None if hidden_dim is None else nn.Linear(input_dim, hidden_dim)
        self.activate = _ACTIVATE[activation]
        self.hidden_dropout = Dropout(hidden_dropout)
        self.dropout = Dropout(dropout)
        self.output = nn.Linear(input_dim if hidden_dim is None else hidden_dim, output_dim)
        for layer in (self.hidden, self.output):
            if layer is not None:
                nn.init.normal_(layer.weight, std=INITIAL_DEVIATION)
                nn.init.zeros_(layer.bias)

    def forward(self, hidden: Tensor) -> Tensor:
        """(N, E) -> logits (N, C)."""
        if self.hidden is not None:
            hidden = self.activate(self.hidden(self.hidden_dropout(hidden)))
        return self.output(self.dropout(hidden))


def at_least_float32(logits: Tensor) -> Tensor:
    """Half precision as float32, and anything wider as it is."""
    return logits.float() if logits.dtype.itemsize < 4 else logits
