"""The number format of the residual stream: the states that each layer of a stack passes to the next.

Under autocast, the products in a layer have its dtype, but the stream and its norms are float32, because the embeddings
are float32, and so is the sum of a float32 and a bfloat16 number. A bfloat16 stream halves the memory that norms and
residual sums read, write and keep for the backward pass.

Shape legend: D width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lmtransfer.errors import ConfigError


class ResidualStream(nn.Module):
    """The beginning and end of a residual stream; changes nothing unless ``keep_residual`` sets another format.

    Attributes:
        dtype: format of the stream; None for that of the embeddings and the sums.
    """

    dtype: torch.dtype | None = None

    def begin(self, embedded: Tensor) -> Tensor:
        """Return the input of the first layer: any shape -> the same shape."""
        return embedded if self.dtype is None else embedded.to(self.dtype)

    def end(self, last: Tensor) -> Tensor:
        """Return the output of the last layer, in float32 for the heads: any shape -> the same shape."""
        return last if self.dtype is None else last.float()


class ResidualNorm(nn.LayerNorm):
    """LayerNorm in a residual stream.

    Attributes:
        keeps_dtype: whether the output has the dtype of the input; mean and variance are always float32. Otherwise
            autocast decides, which computes norms in float32 on CUDA.
    """

    keeps_dtype = False

    def forward(self, states: Tensor) -> Tensor:
        """(..., D) -> (..., D)."""
        if not self.keeps_dtype:
            return super().forward(states)
        weight, bias = (None if part is None else part.to(states.dtype) for part in (self.weight, self.bias))
        with torch.autocast(states.device.type, enabled=False):
            return nn.functional.layer_norm(states, self.normalized_shape, weight, bias, self.eps)


def keep_residual(learner: nn.Module, dtype: torch.dtype, *, required: bool = True) -> None:
    """Set the number format of all residual streams of a learner; weights keep their format.

    Args:
        learner: the module with the encoders.
        dtype: ``torch.bfloat16``; ``torch.float32`` leaves everything unchanged.
        required: whether the learner must have such a stream.

    Raises:
        ConfigError: the dtype is bfloat16, ``required`` is set, and the learner has no residual stream.
    """
    if dtype == torch.float32:
        return
    streams = [module for module in learner.modules() if isinstance(module, ResidualStream)]
    if not streams and required:
        raise ConfigError(
            "hardware.residual=bfloat16 needs a model of transformer layers, and this model has no residual stream: "
            "use hardware.residual=float32"
        )
    for stream in streams:
        stream.dtype = dtype
    for module in learner.modules():
        if isinstance(module, ResidualNorm):
            module.keeps_dtype = True
