"""Compiling the blocks of an encoder, for every command that trains one."""

from __future__ import annotations

from torch import nn

from lmtransfer.layers.transformer import TransformerLayer
from lmtransfer.models.modern import ModernLayer


def compile_blocks(learner: nn.Module) -> None:
    """Compile every transformer layer by itself, for each shape that it meets; attention stays outside.

    Layers whose attention is not made for that (relative positions, LSTMs) run as they are.
    """
    for module in learner.modules():
        if isinstance(module, TransformerLayer | ModernLayer):
            module.compile(dynamic=False)
