"""Multi-head self-attention over packed sequences.

Shape legend: T tokens or packed keys, N output positions or packed queries, D width, H heads, K head width, G sequences
of a block, Q and S its query and key slots.

All attention backends compute the same function:

* CUDA with bfloat16 or float16 on sm80 and newer: PyTorch's variable-length flash kernel (``flash_attention``).
* A CPU, if the sequences differ in length and there is no dropout: several short sequences share a row
  (``SharedRowAttention``); each long sequence is computed separately (``LongAttention``).
* All other cases: dense blocks of sequences of similar length (``blocks``), as matrix products and a softmax. On two
  AVX512-BF16 cores, 32 x 64 tokens, 4 heads of 64, forward and backward in bfloat16: 2.9 ms, compared with 13.9 ms
  for ``scaled_dot_product_attention``, whose CPU backward is slow in that dtype.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from lmtransfer.models.layers.attention.blocks import DenseBlock, attention_mask, from_blocks, to_blocks, unseen_keys
from lmtransfer.models.layers.attention.cpu import LongAttention, SharedRowAttention
from lmtransfer.models.layers.attention.flash import can_run_flash, flash_attention
from lmtransfer.models.layers.attention.layout import AttentionLayer, Layout
from lmtransfer.models.layers.building_blocks import StackedLinear
from lmtransfer.models.layers.building_blocks import dropout as drop


class Rotation(NamedTuple):
    """The rotation angles of each token; computed once per batch, used by every layer.

    Attributes:
        cos_TP, sin_TP: cosine and sine of the angles, float32.
    """

    cos_TP: Tensor
    sin_TP: Tensor

    def at(self, positions_N: Tensor) -> Rotation:
        """Return the rotation of the tokens at these positions only."""
        return Rotation(self.cos_TP.index_select(0, positions_N), self.sin_TP.index_select(0, positions_N))

    def turn(self, states: Tensor) -> Tensor:
        """Rotate states (T, ..., K); feature p is paired with feature p + K / 2; products are float32 or wider.

        Where we differ from the paper: it pairs neighbors (2p, 2p + 1). The result is the same up to the order of the
        features, and halves need no reordering. GPT-NeoX and ModernBERT also pair halves.
        """
        shape = (-1, *(1,) * (states.dim() - 2), self.cos_TP.shape[-1])
        cos, sin = self.cos_TP.view(shape), self.sin_TP.view(shape)
        first, second = states.chunk(2, dim=-1)
        return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(states.dtype)


def rotation(positions_T: Tensor, *, head_dim: int, theta: float) -> Rotation:
    """Compute the angles ``position * theta ** (-2 p / K)``."""
    device = positions_T.device
    exponents_P = torch.arange(0, head_dim, 2, dtype=torch.float32, device=device) / head_dim
    angles_TP = positions_T.float()[:, None] * (1.0 / theta**exponents_P)
    return Rotation(angles_TP.cos(), angles_TP.sin())


def attention(
    query_NHK: Tensor,
    key_THK: Tensor,
    value_THK: Tensor,
    layout: Layout,
    *,
    reach: int | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """Compute softmax(q k^T / sqrt(K)) v within each sequence, (N, H, K), in the dtype of the queries.

    Args:
        reach: a query sees only keys at most this many positions away; None for no limit.
        dropout: probability of dropping an attention weight; above 0, it selects the dense blocks, which alone support
            it.
    """
    flash = layout.flash
    if flash is not None and dropout == 0.0 and len(query_NHK) and can_run_flash(query_NHK, key_THK, value_THK):
        return flash_attention(query_NHK, key_THK, value_THK, flash, reach=reach)
    return _uncompiled(query_NHK, key_THK, value_THK, layout, reach, dropout)


@torch.compiler.disable  # its block shapes change from batch to batch; the code around it has static shapes
def _uncompiled(query: Tensor, key: Tensor, value: Tensor, layout: Layout, reach: int | None, dropout: float) -> Tensor:
    if len(layout.parts) > 1:
        sizes = [sum(part.lengths) for part in layout.parts]
        split = (states.split(sizes) for states in (query, key, value))
        return torch.cat(
            [
                attention(of_query, of_key, of_value, part, reach=reach, dropout=dropout)
                for of_query, of_key, of_value, part in zip(*split, layout.parts, strict=True)
            ]
        )
    causal = layout.causal
    assert not (layout.has_selected_queries and (causal or reach is not None)), "a selection of queries sees everything"
    if not len(query):
        return query
    with torch.autocast(query.device.type, enabled=False):
        if layout.is_ragged and dropout == 0.0 and query.device.type == "cpu":
            if layout.is_long:
                return LongAttention.apply(query, key, value, layout.ranges, causal, reach)
            mask_GQS = layout.shared_rows.attention_mask(query.dtype, causal=causal, reach=reach)
            return SharedRowAttention.apply(query, key, value, layout.shared_rows, mask_GQS)
        return _dense(query, key, value, layout, causal, reach, dropout)


def _dense(
    query: Tensor, key: Tensor, value: Tensor, layout: Layout, causal: bool, reach: int | None, dropout: float
) -> Tensor:
    (heads, width), dtype, dense = query.shape[1:], query.dtype, layout.dense
    if dtype == torch.bfloat16 and query.device.type == "cpu" and dense.keys.moves is not None:
        # Blocks of ragged batches rarely have the same shape twice, and a CPU builds a new kernel for each new
        # shape of a bfloat16 product. float32 needs no new kernels, and the products are small.
        query, key, value = query.float(), key.float(), value.float()
    queries = to_blocks(query * width**-0.5, dense.queries)
    keys, values = to_blocks(key, dense.keys), to_blocks(value, dense.keys)
    outputs = []
    for block, q, k, v in zip(dense.blocks, queries, keys, values, strict=True):
        q_GHQK = q.view(block.size, block.num_queries, heads, width).transpose(1, 2)
        k_GHKS = k.view(block.size, block.num_keys, heads, width).permute(0, 2, 3, 1)
        v_GHSK = v.view(block.size, block.num_keys, heads, width).transpose(1, 2)
        scores_GHQS = q_GHQK @ k_GHKS
        hidden = _hidden(block, causal, reach)
        if hidden is not None:
            scores_GHQS = scores_GHQS + attention_mask(hidden, scores_GHQS.dtype)
        weights_GHQS = scores_GHQS.softmax(-1)
        if dropout:
            weights_GHQS = drop(weights_GHQS, dropout)
        outputs.append((weights_GHQS @ v_GHSK).transpose(1, 2).reshape(-1, heads, width))
    output = (outputs[0] if len(outputs) == 1 else torch.cat(outputs)).to(dtype)
    return from_blocks(output, dense.queries)


def _hidden(block: DenseBlock, causal: bool, reach: int | None) -> Tensor | None:
    """Return True at keys hidden from a query, broadcastable to (G, H, Q, S); None if every query sees every key."""
    hidden = None if block.key_mask is None else ~block.key_mask[:, None, None, :]
    if causal or reach is not None:
        unseen = unseen_keys(block.positions, causal=causal, reach=reach)
        hidden = unseen if hidden is None else hidden | unseen
    return hidden


class HeadNorm(nn.RMSNorm):
    """Root-mean-square norm over the features of each head; it keeps the dtype of the states under autocast."""

    def forward(self, states: Tensor) -> Tensor:
        """(T, H, K) -> (T, H, K)."""
        assert self.weight is not None
        normed = nn.functional.rms_norm(states, self.normalized_shape, self.weight.to(states.dtype), self.eps)
        return normed.to(states.dtype)  # autocast on CUDA computes it in float32


class SelfAttention(AttentionLayer):
    """Multi-head self-attention (Vaswani et al. 2017, section 3.2) with one fused projection.

    Args:
        dropout: probability of dropping an attention weight. The default is 0, unlike 0.1 in the papers: the flash
            kernels have no dropout, so attention with dropout uses the slower dense blocks.
        query_key_norm: whether to normalize the queries and keys of each head by their root mean square, with a gain
            (Henry et al. 2020; one gain per feature as in Qwen3), so that scores cannot grow without bound.
    """

    def __init__(
        self,
        *,
        dim: int,
        num_heads: int,
        dropout: float = 0.0,
        window: int | None = None,
        bias: bool = True,
        query_key_norm: bool = False,
        norm_eps: float = 1e-6,
    ) -> None:
        super().__init__(dim=dim, window=window)
        self.num_heads, self.head_dim = num_heads, dim // num_heads
        self.attention_dropout = dropout
        self.query_key_value = StackedLinear(dim, dim, parts=("query", "key", "value"), bias=bias)
        self.query_norm = HeadNorm(self.head_dim, eps=norm_eps) if query_key_norm else nn.Identity()
        self.key_norm = HeadNorm(self.head_dim, eps=norm_eps) if query_key_norm else nn.Identity()
        self.output = nn.Linear(dim, dim, bias=bias)

    def forward(
        self, hidden_TD: Tensor, layout: Layout, reads_N: Tensor | None = None, rotation: Rotation | None = None
    ) -> Tensor:
        """Compute self-attention, (T, D), or (N, D) with ``reads_N``.

        Args:
            layout: layout of the batch; with ``reads_N``, layout of the batch and these positions.
            reads_N: positions to compute; None for all, as required by causal attention and by windows.
        """
        if reads_N is None:
            query, key, value = self.query_key_value(hidden_TD).view(-1, 3, self.num_heads, self.head_dim).unbind(1)
        else:
            query = self.query_key_value.forward_slice(hidden_TD[reads_N], 0, 1).view(-1, self.num_heads, self.head_dim)
            projected = self.query_key_value.forward_slice(hidden_TD, 1, 3)
            key, value = projected.view(-1, 2, self.num_heads, self.head_dim).unbind(1)
        query, key = self.query_norm(query), self.key_norm(key)
        if rotation is not None:
            query = (rotation if reads_N is None else rotation.at(reads_N)).turn(query)
            key = rotation.turn(key)
        dropout = self.attention_dropout if self.training else 0.0
        attended = attention(query, key, value, layout, reach=self.window, dropout=dropout)
        return self.output(attended.flatten(1))
