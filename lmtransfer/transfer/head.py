"""Classification heads: the only randomly initialised part in finetuning.

Shape legend: B sequences, E width of a composed vector, C labels.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from lmtransfer.layers.dropout import Dropout

#: Standard deviation of new weights, as in the published BERT.
INITIAL_DEVIATION = 0.02


class ClassificationHead(nn.Module):
    """Dropout and a linear layer (Devlin et al. 2019, section 4.1), with an optional hidden layer before them.

    Args:
        input_dim: E.
        num_labels: C.
        hidden_dim: width of a hidden layer; None: none.
        activation: of the hidden layer.
        dropout: probability of dropping an input feature of the output layer.
        hidden_dropout: the same for the hidden layer.
    """

    def __init__(
        self,
        *,
        input_dim: int,
        num_labels: int,
        hidden_dim: int | None = None,
        activation: Literal["tanh", "gelu"] = "tanh",
        dropout: float = 0.1,
        hidden_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.hidden = None if hidden_dim is None else nn.Linear(input_dim, hidden_dim)
        self.activate = torch.tanh if activation == "tanh" else functional.gelu
        self.hidden_dropout = Dropout(hidden_dropout)
        self.dropout = Dropout(dropout)
        self.output = nn.Linear(input_dim if hidden_dim is None else hidden_dim, num_labels)
        for layer in (self.hidden, self.output):
            if layer is not None:
                nn.init.normal_(layer.weight, std=INITIAL_DEVIATION)
                nn.init.zeros_(layer.bias)

    def forward(self, composed_BE: Tensor) -> Tensor:
        """(B, E) -> logits (B, C)."""
        if self.hidden is not None:
            composed_BE = self.activate(self.hidden(self.hidden_dropout(composed_BE)))
        return self.output(self.dropout(composed_BE))
