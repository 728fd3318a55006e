"""Scaled dot-product attention over packed sequences, with the best backend for the device and dtype.

Shape legend: N packed queries, T packed keys, H heads, K head width, G sequences of a block, Q and S its query and key
slots.

All backends compute the same function:

* CUDA with bfloat16 or float16 on sm80 and newer: PyTorch's variable-length flash kernel (``flash_attention``).
* A CPU, if the sequences differ in length and there is no dropout: several short sequences share a row
  (``joined_attention``); each long sequence is computed separately (``long_attention``).
* All other cases: dense blocks of sequences of similar length (``blocks``), as matrix products and a softmax. On two
  AVX512-BF16 cores, 32 x 64 tokens, 4 heads of 64, forward and backward in bfloat16: 2.9 ms, compared with 13.9 ms
  for ``scaled_dot_product_attention``, whose CPU backward is slow in that dtype.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lmtransfer.models.layers.attention.bin_packed_attention import joined_attention
from lmtransfer.models.layers.attention.blocks import Block, from_blocks, to_blocks
from lmtransfer.models.layers.attention.flash import flash_attention, takes
from lmtransfer.models.layers.attention.layout import Layout
from lmtransfer.models.layers.attention.per_sequence_attention import long_attention
from lmtransfer.models.layers.attention.visibility import attention_mask, unseen_keys
from lmtransfer.models.layers.dropout import dropout as drop


def attention(
    query_NHK: Tensor,
    key_THK: Tensor,
    value_THK: Tensor,
    layout: Layout,
    *,
    reach: int | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """Softmax(q k^T / sqrt(K)) v within each sequence.

    Args:
        query_NHK: packed queries.
        key_THK: packed keys.
        value_THK: packed values.
        layout: which queries and keys form a sequence, and which sequences are causal.
        reach: a query sees only keys at most this many positions away; None: no limit.
        dropout: probability of dropping an attention weight. Only the dense blocks support it, so a probability above
            0 selects them.

    Returns:
        (N, H, K), in the dtype of the queries.
    """
    flash = layout.flash
    if flash is not None and dropout == 0.0 and len(query_NHK) and takes(query_NHK, key_THK, value_THK):
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
    assert not (layout.selected and (causal or reach is not None)), "a selection of queries sees everything"
    if not len(query):
        return query
    with torch.autocast(query.device.type, enabled=False):
        if layout.is_ragged and dropout == 0.0 and query.device.type == "cpu":
            if layout.is_long:
                return long_attention(query, key, value, layout.ranges, causal=causal, reach=reach)
            return joined_attention(query, key, value, layout.joined, causal=causal, reach=reach)
        return _dense(query, key, value, layout, causal, reach, dropout)


def _dense(
    query: Tensor, key: Tensor, value: Tensor, layout: Layout, causal: bool, reach: int | None, dropout: float
) -> Tensor:
    heads, width = query.shape[1:]
    dtype = query.dtype
    if dtype == torch.bfloat16 and query.device.type == "cpu" and layout.keys.moves is not None:
        # Blocks of ragged batches rarely have the same shape twice, and a CPU builds a new kernel for each new
        # shape of a bfloat16 product. float32 needs no new kernels, and the products are small.
        query, key, value = query.float(), key.float(), value.float()
    queries = to_blocks(query * width**-0.5, layout.queries)
    keys = to_blocks(key, layout.keys)
    values = to_blocks(value, layout.keys)
    outputs = []
    for block, q, k, v in zip(layout.blocks, queries, keys, values, strict=True):
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
    return from_blocks(output, layout.queries)


def _hidden(block: Block, causal: bool, reach: int | None) -> Tensor | None:
    """True at keys that a query may not see, broadcastable to (G, H, Q, S); None if every query sees every key."""
    hidden = None if block.key_mask is None else ~block.key_mask[:, None, None, :]
    if causal or reach is not None:
        unseen = unseen_keys(block.positions, causal=causal, reach=reach)
        hidden = unseen if hidden is None else hidden | unseen
    return hidden
