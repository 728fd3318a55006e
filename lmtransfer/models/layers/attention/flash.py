"""Attention with PyTorch's variable-length flash kernel, on CUDA.

Compiled code is valid only for the shapes and integers for which it was compiled. Therefore, all ragged batches with
the same token budget pass the same number of sequences (some of them empty) and the same maximum length to the kernel.
The number of empty sequences is limited, because the kernel starts a thread block for each head of each sequence.

Shape legend: N packed queries, T packed keys, B sequences, H heads, K head width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from lmtransfer.data.batch import upload

#: The kernel's maximum head width; the head width must also be a multiple of the second constant.
_MAX_HEAD_DIM, _HEAD_MULTIPLE = 256, 8
#: The number of sequences is padded to the number of tokens divided by this, doubled until it is at least twice the
#: number of sequences in the batch.
_MEAN_LENGTH = 64
#: The numbers of sequences and the maximum lengths used so far, by number of tokens. Batches reuse them if possible.
_in_use: dict[int, tuple[list[int], list[int]]] = {}
#: The maximum length is rounded up to this constant, doubled as often as necessary. The kernel works on blocks of 128
#: queries.
_LENGTH = 128
#: Minimum length from which cuDNN, whose kernels are designed for Hopper, computes sequences of equal length. On an
#: H100, BERT base trains 1.10 times as fast with rows of 512 tokens, but more slowly with rows of 128.
_EQUAL_LENGTH = 256


@dataclass(frozen=True, slots=True)
class FlashLayout:
    """The layout of a batch for the kernel.

    Attributes:
        cu_queries, cu_keys: offsets of the sequences, int32; the sequences beyond those of the batch are empty.
        max_queries, max_keys: upper bounds on sequence length, which determine the number of thread blocks.
        equal_length: length of the sequences if cuDNN can compute them faster: they have the same length, at least
            ``_EQUAL_LENGTH``, and every token is a query. Otherwise None.
    """

    cu_queries: Tensor
    cu_keys: Tensor
    max_queries: int
    max_keys: int
    causal: bool
    equal_length: int | None = None

    @classmethod
    def of(
        cls, lengths: Sequence[int], counts: Sequence[int] | None, device: torch.device, *, causal: bool
    ) -> FlashLayout:
        """Lay out B sequences."""
        num_tokens = sum(lengths)
        sizes, maxima = _in_use.setdefault(num_tokens, ([], []))
        size = _reuse(len(lengths), sizes, spare=len(lengths), start=max(1, num_tokens // _MEAN_LENGTH))
        cu_keys = upload(_offsets(lengths, size), device)
        max_keys = _reuse(max(lengths, default=0), maxima, spare=0, start=_LENGTH)
        if counts is None:
            is_equal = len(set(lengths)) == 1 and lengths[0] >= _EQUAL_LENGTH
            return cls(cu_keys, cu_keys, max_keys, max_keys, causal, lengths[0] if is_equal else None)
        max_queries = _double(max(counts, default=0), start=_LENGTH)
        return cls(upload(_offsets(counts, size), device), cu_keys, max_queries, max_keys, causal)


def has_kernel(device: torch.device) -> bool:
    """Whether the device supports the kernel: a GPU of compute capability 8.0 or above."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)


def can_run_flash(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Whether the kernel can compute attention for these tensors."""
    is_16_bit = query.dtype in (torch.bfloat16, torch.float16)
    return is_16_bit and query.dtype == key.dtype == value.dtype and query.shape[-1] <= _MAX_HEAD_DIM


def flash_attention(
    query_NHK: Tensor, key_THK: Tensor, value_THK: Tensor, layout: FlashLayout, *, reach: int | None = None
) -> Tensor:
    """Compute softmax(q k^T / sqrt(K)) v within each sequence, (N, H, K).

    Heads whose width the kernel does not support are padded with zeros, which does not change the result.
    """
    from torch.nn.attention.varlen import varlen_attn

    width = query_NHK.shape[-1]
    if layout.equal_length is not None and reach is None and width % _HEAD_MULTIPLE == 0:
        return _of_equal_length(query_NHK, key_THK, value_THK, layout.equal_length, causal=layout.causal)
    spare = -width % _HEAD_MULTIPLE
    if spare:
        query_NHK, key_THK, value_THK = (
            torch.nn.functional.pad(states, (0, spare)) for states in (query_NHK, key_THK, value_THK)
        )
    sides = -1 if reach is None else reach
    output = varlen_attn(
        query_NHK,
        key_THK,
        value_THK,
        layout.cu_queries,
        layout.cu_keys,
        layout.max_queries,
        layout.max_keys,
        scale=width**-0.5,
        window_size=(sides, 0 if layout.causal else sides),
    )
    assert isinstance(output, Tensor)  # a pair only if the call requests auxiliary results
    return output[..., :width] if spare else output


def _of_equal_length(query: Tensor, key: Tensor, value: Tensor, length: int, *, causal: bool) -> Tensor:
    """Compute ``flash_attention`` for sequences of equal length with cuDNN, or if necessary with PyTorch's kernel."""
    q, k, v = (states.unflatten(0, (-1, length)).transpose(1, 2) for states in (query, key, value))
    with sdpa_kernel([SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION], set_priority=True):
        output = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
    return output.transpose(1, 2).reshape(query.shape)


def _reuse(number: int, in_use: list[int], *, spare: int, start: int) -> int:
    """Return an upper bound on ``number``: a bound in use, if one is not much too large, or a new bound."""
    candidates = [bound for bound in in_use if number <= bound <= max(8 * number, 2 * start)]
    if not candidates:
        candidates = [_double(number + spare, start=start)]
        in_use += candidates
    return min(candidates)


def _double(number: int, *, start: int) -> int:
    """Double ``start`` until it is at least ``number``."""
    while start < number:
        start *= 2
    return start


def _offsets(counts: Sequence[int], size: int) -> np.ndarray:
    """Return the offsets of ``size`` sequences, of which the last are empty, int32, (size + 1,)."""
    padded = np.zeros(size + 1, dtype=np.int32)
    padded[1 : len(counts) + 1] = counts
    return np.cumsum(padded, dtype=np.int32)
