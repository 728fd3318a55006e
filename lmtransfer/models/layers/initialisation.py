"""Default weight initialisations, for ``Module.apply``."""

from __future__ import annotations

import torch
from torch import nn


def truncated_normal_(module: nn.Module, *, std: float = 0.02) -> None:
    """Initialise as BERT: weights from a normal truncated at two standard deviations, biases 0, norms 1 and 0."""
    if isinstance(module, nn.Linear | nn.Embedding):
        torch.nn.init.trunc_normal_(module.weight, std=std, a=-2 * std, b=2 * std)
    if isinstance(module, nn.Linear) and module.bias is not None:
        torch.nn.init.zeros_(module.bias)


def normal_(module: nn.Module) -> None:
    """Initialise as Transformer-XL and XLNet: weights from a normal, biases 0, norms 1 and 0."""
    if isinstance(module, nn.Linear | nn.Embedding):
        torch.nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear) and module.bias is not None:
        torch.nn.init.zeros_(module.bias)
