"""Default weight initialization, for ``Module.apply``."""

from __future__ import annotations

import torch
from torch import nn


def truncated_normal_(module: nn.Module, *, std: float = 0.02) -> None:
    """Initialize a module as in BERT: weights from a normal distribution truncated at two deviations, biases 0.

    LayerNorms keep their weights of 1 and biases of 0.
    """
    if isinstance(module, nn.Linear | nn.Embedding):
        torch.nn.init.trunc_normal_(module.weight, std=std, a=-2 * std, b=2 * std)
    if isinstance(module, nn.Linear) and module.bias is not None:
        torch.nn.init.zeros_(module.bias)


def normal_(module: nn.Module) -> None:
    """Initialize a module as in Transformer-XL and XLNet: weights from a normal distribution, biases 0.

    LayerNorms keep their weights of 1 and biases of 0.
    """
    if isinstance(module, nn.Linear | nn.Embedding):
        torch.nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear) and module.bias is not None:
        torch.nn.init.zeros_(module.bias)
