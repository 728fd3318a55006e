"""Activation checkpointing, which recomputes transformer layers in the backward pass to save memory."""

from __future__ import annotations

from functools import partial

from torch import nn
from torch.utils.checkpoint import checkpoint

from lmtransfer.errors import ConfigError
from lmtransfer.models.base import encoders_in
from lmtransfer.models.layers.attention.layout import AttentionLayer


def checkpoint_activations(learner: nn.Module) -> None:
    """Store only the inputs of each block with attention; the backward pass computes the block a second time.

    This is activation checkpointing (Chen et al. 2016, https://arxiv.org/abs/1604.06174) with one segment per layer. It
    takes up to a third more time. The second computation repeats the random numbers of the first, so losses and
    gradients do not change. Call this after ``compile_blocks``: both computations must run the same code, because
    compiled code draws other random numbers than uncompiled code.
    """
    for encoder in encoders_in(learner):
        blocks = [b for b in encoder.blocks() if any(isinstance(part, AttentionLayer) for part in b.modules())]
        if not blocks:
            raise ConfigError(
                "hardware.activation_checkpointing=true recomputes transformer layers, but "
                f"{type(encoder).__name__} has none: set it to false; a lower train.micro_batch_tokens saves memory too"
            )
        for block in blocks:
            call = block._compiled_call_impl or block._call_impl  # the function behind the module's call
            if not isinstance(call, partial):  # an earlier phase of the run may have replaced the call already
                block._compiled_call_impl = partial(checkpoint, call, use_reentrant=False)
