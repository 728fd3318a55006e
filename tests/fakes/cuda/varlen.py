"""The operator of variable-length attention on a CPU: a plain loop over the sequences, in float32."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from lmtransfer.models.layers.attention import dispatch


def flash_on_cpu(patch: pytest.MonkeyPatch) -> None:
    """Let layers use the operator on a CPU, until the patch ends."""
    from torch.nn.attention import varlen  # noqa: F401 - defines the operators

    _register()
    patch.setattr(dispatch, "has_kernel", lambda device: True)


def _register() -> None:
    if getattr(_register, "done", False):
        return
    torch.library.register_kernel("torch_attn::_varlen_attn", "cpu", _forward)
    torch.library.register_kernel("torch_attn::_varlen_attn_backward", "cpu", _backward)
    _register.done = True  # type: ignore[attr-defined]


def _sequences(
    query: Tensor, key: Tensor, value: Tensor, cu_queries: Tensor, cu_keys: Tensor, max_q: int, max_k: int, window: Any
) -> Iterator[tuple[slice, slice, Tensor, Tensor, Tensor, Tensor]]:
    """The rows of the queries and of the keys of each sequence, q, k and v, and where a query does not see a key."""
    left, right = window
    edges = [offsets.tolist() for offsets in (cu_queries, cu_keys)]
    for first_q, end_q, first_k, end_k in zip(edges[0], edges[0][1:], edges[1], edges[1][1:], strict=False):
        assert end_q - first_q <= max_q
        assert end_k - first_k <= max_k
        if first_q == end_q:
            continue
        ahead = torch.arange(end_k - first_k)[None] - torch.arange(end_q - first_q)[:, None]
        hidden = ((left >= 0) & (-ahead > left)) | ((right >= 0) & (ahead > right))
        queries, keys = slice(first_q, end_q), slice(first_k, end_k)
        yield queries, keys, query[queries].float(), key[keys].float(), value[keys].float(), hidden


def _weights(q: Tensor, k: Tensor, hidden: Tensor, scale: float) -> Tensor:
    return (torch.einsum("qhd,khd->hqk", q, k) * scale).masked_fill(hidden, -torch.inf).softmax(-1)


def _forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor,
    max_q: int,
    max_k: int,
    is_causal: bool = False,
    scale: float | None = None,
    window_size: Any = None,
    *unused: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    """Softmax(scale q k^T) v of each sequence; rows that no sequence holds are NaN, as no kernel writes them."""
    assert query.shape[-1] % 8 == 0
    assert is_causal == (tuple(window_size) == (-1, 0))
    assert scale is not None
    output = torch.full_like(query, torch.nan)
    spans = (cu_seq_q, cu_seq_k, max_q, max_k, window_size)
    for queries, _, q, k, v, hidden in _sequences(query, key, value, *spans):
        output[queries] = torch.einsum("hqk,khd->qhd", _weights(q, k, hidden, scale), v).to(query.dtype)
    return output, torch.zeros(query.shape[1], len(query)), torch.zeros(2, dtype=torch.uint64)


def _backward(
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    lse: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor,
    max_q: int,
    max_k: int,
    is_causal: bool,
    rng_state: Tensor,
    scale: float | None = None,
    window_size: Any = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients, by the chain rule; keys of a sequence without queries have none."""
    assert scale is not None
    found = [torch.zeros_like(tensor) for tensor in (query, key, value)]
    spans = (cu_seq_q, cu_seq_k, max_q, max_k, window_size)
    for queries, keys, q, k, v, hidden in _sequences(query, key, value, *spans):
        weights, upstream = _weights(q, k, hidden, scale), grad_out[queries].float()
        by_weight = torch.einsum("qhd,khd->hqk", upstream, v)
        by_score = weights * (by_weight - (by_weight * weights).sum(-1, keepdim=True)) * scale
        found[0][queries] = torch.einsum("hqk,khd->qhd", by_score, k).to(query.dtype)
        found[1][keys] = torch.einsum("hqk,qhd->khd", by_score, q).to(key.dtype)
        found[2][keys] = torch.einsum("hqk,qhd->khd", weights, upstream).to(value.dtype)
    return found[0], found[1], found[2]
