"""Basic layers: dropout, stacked and feed-forward layers, input embeddings, and the residual stream.

Shape legend: T tokens of a packed batch, D width, E output width, F hidden width.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn


def dropout(values: Tensor, probability: float) -> Tensor:
    """Set each value to 0 with ``probability``, and scale the other values up (Srivastava et al. 2014).

    A CPU draws random numbers one by one, and one random number per value would take a tenth of the time of a training
    step of a small encoder. Here, one 64-bit random number serves eight values: a byte below a limit drops its value.
    The limit is one of two adjacent integers, sampled for each row (of the last dimension) so that the probability is
    exact; the values of a row are otherwise independent. On two cores, the forward pass is five to six times as fast as
    ``torch.nn.functional.dropout``, which serves other devices, compiled code, and probabilities too close to 1.
    """
    limit, rest = divmod(256 * probability, 1)
    if values.device.type != "cpu" or limit >= 255 or torch.compiler.is_compiling():
        return nn.functional.dropout(values, probability)
    size, shape = values.numel(), values.shape
    sampled = torch.empty(-(-size // 8), dtype=torch.int64).random_(-(2**63), None).view(torch.uint8)[:size].view(shape)
    limits = torch.empty((*shape[:-1], 1) if shape else (), dtype=torch.uint8)
    torch.lt(torch.rand(limits.shape), rest, out=limits).add_(int(limit))
    # Write directly in the dtype of the values: converting booleans to numbers takes several times as long.
    mask = torch.ge(sampled, limits, out=torch.empty_like(values, requires_grad=False))
    return values * mask.mul_(1 / (1 - probability))


class Dropout(nn.Module):
    """Applies ``dropout`` during training."""

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.probability = probability

    def forward(self, values: Tensor) -> Tensor:
        """Apply dropout in training; return the values unchanged in evaluation."""
        return dropout(values, self.probability) if self.training and self.probability else values


class StackedLinear(nn.Linear):
    """Several linear layers (T, D) -> (T, E), stored as one matrix with a block of E rows for each layer.

    Args:
        parts: names of the layers, in the order of their rows.

    Attributes:
        muon_splits: number of layers, whose matrices an optimizer of whole matrices (Muon) updates separately.
    """

    def __init__(self, input_dim: int, output_dim: int, *, parts: tuple[str, ...], bias: bool) -> None:
        super().__init__(input_dim, len(parts) * output_dim, bias=bias)
        self.parts = parts
        self.muon_splits = len(parts)

    def forward_slice(self, input_TD: Tensor, first: int, stop: int) -> Tensor:
        """Compute only the layers ``first`` to ``stop - 1``, with their outputs side by side: (T, D) -> (T, S E)."""
        width = self.out_features // len(self.parts)
        rows = slice(first * width, stop * width)
        return nn.functional.linear(input_TD, self.weight[rows], None if self.bias is None else self.bias[rows])


Activation = Literal["gelu", "gelu_tanh", "relu"]


def activation_module(name: Activation) -> nn.Module:
    """Return the activation with this name: exact GELU, its tanh approximation (ALBERT, GPT-2), or ReLU."""
    return {"gelu": nn.GELU(), "gelu_tanh": nn.GELU(approximate="tanh"), "relu": nn.ReLU()}[name]


class FeedForward(nn.Module):
    """``contract(activation(expand(x)))`` (Vaswani et al. 2017, section 3.3)."""

    def __init__(self, *, dim: int, hidden_dim: int, activation: Activation = "gelu") -> None:
        super().__init__()
        self.expand = nn.Linear(dim, hidden_dim)
        self.activation = activation_module(activation)
        self.contract = nn.Linear(hidden_dim, dim)

    def forward(self, hidden_TD: Tensor) -> Tensor:
        """Apply the layer, (T, D) -> (T, D)."""
        return self.contract(self.activation(self.expand(hidden_TD)))


class GatedFeedForward(nn.Module):
    """``contract(activation(x A) * (x B))``, GeGLU with the GELU (Shazeer 2020, https://arxiv.org/abs/2002.05202)."""

    def __init__(self, *, dim: int, hidden_dim: int, activation: Activation, bias: bool) -> None:
        super().__init__()
        self.expand = StackedLinear(dim, hidden_dim, parts=("expand", "gate"), bias=bias)
        self.activation = activation_module(activation)
        self.contract = nn.Linear(hidden_dim, dim, bias=bias)

    def forward(self, hidden_TD: Tensor) -> Tensor:
        """Apply the layer, (T, D) -> (T, D)."""
        states_TF, gates_TF = self.expand(hidden_TD).chunk(2, dim=-1)
        return self.contract(self.activation(states_TF) * gates_TF)


def truncated_normal_(module: nn.Module) -> None:
    """Initialize a module as in BERT: weights from a normal distribution truncated at two deviations, biases 0."""
    if isinstance(module, nn.Linear | nn.Embedding):
        torch.nn.init.trunc_normal_(module.weight, std=0.02, a=-0.04, b=0.04)
    if isinstance(module, nn.Linear) and module.bias is not None:
        torch.nn.init.zeros_(module.bias)


def normal_(module: nn.Module) -> None:
    """Initialize a module as in Transformer-XL and XLNet: weights from a normal distribution, biases 0."""
    if isinstance(module, nn.Linear | nn.Embedding):
        torch.nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear) and module.bias is not None:
        torch.nn.init.zeros_(module.bias)


class InputEmbeddings(nn.Module):
    """The sum of token, learned position and segment embeddings (Devlin et al. 2019, section 3), optionally normalized.

    Args:
        position_offset: number of unused rows at the beginning of the position table.
        type_row: whether to add one learned vector to every token if there are no segments.
    """

    def __init__(
        self,
        vocab_size: int,
        dim: int,
        max_length: int,
        num_segments: int,
        *,
        norm: bool,
        norm_eps: float,
        dropout: float,
        position_offset: int = 0,
        type_row: bool = False,
    ) -> None:
        super().__init__()
        self.position_offset = position_offset
        self.token = nn.Embedding(vocab_size, dim)
        self.position = nn.Embedding(max_length + position_offset, dim)
        self.segment = nn.Embedding(num_segments, dim) if num_segments > 1 or type_row else None
        self.norm = nn.LayerNorm(dim, eps=norm_eps) if norm else nn.Identity()
        self.dropout = Dropout(dropout)

    def forward(self, tokens_T: Tensor, positions_T: Tensor, segments_T: Tensor) -> Tensor:
        """Embed tokens, given their ids, positions and segments, int64 (T,) each -> (T, D)."""
        hidden_TD = self.token(tokens_T) + self.position(positions_T + self.position_offset)
        if self.segment is not None:
            hidden_TD = hidden_TD + self._of_segments(self.segment, segments_T)
        return self.dropout(self.norm(hidden_TD))

    @staticmethod
    def _of_segments(segment: nn.Embedding, segments_T: Tensor) -> Tensor:
        """Return the segment embeddings, (T, D), or (D,) if there is only one segment."""
        if segment.num_embeddings == 1:
            return segment.weight[0]
        if segment.num_embeddings == 2 and segments_T.device.type != "cpu":
            # In the backward pass of a lookup, all threads would add to two rows and wait for one another.
            return torch.where(segments_T[:, None] == 0, segment.weight[0], segment.weight[1])
        return segment(segments_T)


class ResidualStream(nn.Module):
    """The dtype of a residual stream, the states that each layer of a stack passes to the next.

    Under autocast, matrix products have autocast's dtype, but the stream and its norms are float32: the embeddings are
    float32, and so is the sum of a float32 and a bfloat16 number. A bfloat16 stream (``keep_residual``) halves the
    memory that norms and residual sums read, write and keep for the backward pass.
    """

    dtype: torch.dtype | None = None

    def begin(self, embedded: Tensor) -> Tensor:
        """Return the input of the first layer."""
        return embedded if self.dtype is None else embedded.to(self.dtype)

    def end(self, last: Tensor) -> Tensor:
        """Return the output of the last layer, as float32 for the heads."""
        return last if self.dtype is None else last.float()


class ResidualNorm(nn.LayerNorm):
    """LayerNorm in a residual stream.

    Attributes:
        keeps_dtype: whether the output has the dtype of the input; mean and variance are always float32. If not,
            autocast decides; on CUDA, norms are then float32.
    """

    keeps_dtype = False

    def forward(self, states: Tensor) -> Tensor:
        """Normalize the features, (..., D) -> (..., D)."""
        if not self.keeps_dtype:
            return super().forward(states)
        weight, bias = (None if part is None else part.to(states.dtype) for part in (self.weight, self.bias))
        with torch.autocast(states.device.type, enabled=False):
            return nn.functional.layer_norm(states, self.normalized_shape, weight, bias, self.eps)
