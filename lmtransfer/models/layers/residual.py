"""The number format of the residual stream, the states that one layer of a stack passes to the next.

Under autocast the products of a layer have its dtype, but the stream and its norms are float32: the embeddings are, and
the sum of a float32 and a bfloat16 number is. A stream in bfloat16 halves what norms and residual sums read, write and
keep for the backward pass.

Shape legend: D width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lmtransfer.errors import ConfigError


class ResidualStream(nn.Module):
    """Where a residual stream begins and ends; it changes nothing unless ``keep_residual`` sets another format.

    Attributes:
        dtype: format of the stream; None: that of the embeddings and of the sums.
    """

    dtype: torch.dtype | None = None

    def begin(self, embedded: Tensor) -> Tensor:
        """The input of the first layer: any shape -> the same shape."""
        return embedded if self.dtype is None else embedded.to(self.dtype)

    def end(self, last: Tensor) -> Tensor:
        """The output of the last layer, in float32 for the heads: any shape -> the same shape."""
        return last if self.dtype is None else last.float()


class ResidualNorm(nn.LayerNorm):
    """LayerNorm of a residual stream.

    Attributes:
        keeps_dtype: the output has the dtype of the input; mean and variance are float32 in any case. Otherwise
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
        dtype: ``torch.bfloat16``; ``torch.float32`` leaves everything as it is.
        required: whether the learner must have such a stream.

    Raises:
        ConfigError: the dtype is bfloat16, it is required, and the learner has no residual stream.
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
