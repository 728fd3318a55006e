"""Attention with PyTorch's variable-length flash kernel, on CUDA.

Compiled code is valid only for the shapes and numbers for which it was compiled. Ragged batches with the same token
budget therefore give the kernel the same number of sequences, padded with empty sequences, and the same maximum length.
The kernel starts a thread block for each head of a spare sequence, which ends at once, so their number is limited.

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

#: Maximum width of a head that the kernel accepts; the width must also be a multiple of the second number.
_MAX_HEAD_DIM, _HEAD_MULTIPLE = 256, 8
#: A batch is padded to a number of sequences that leaves as many again to spare: the number of tokens divided by this,
#: doubled as often as necessary.
_MEAN_LENGTH = 64
#: The numbers of sequences and the maximum lengths in use, by number of tokens. A batch uses one of each if it fits.
_in_use: dict[int, tuple[list[int], list[int]]] = {}
#: The maximum length is rounded up to this, doubled as often as necessary. The kernel works on blocks of 128 queries.
_LENGTH = 128
#: From this length on, cuDNN computes sequences of equal length, with kernels designed for Hopper. On an H100, BERT
#: base with rows of 512 tokens trains 1.10 times as fast; with rows of 128 it trained more slowly.
_EQUAL_LENGTH = 256


@dataclass(frozen=True, slots=True)
class FlashLayout:
    """Which packed queries and keys form a sequence, in the kernel's form.

    Attributes:
        cu_queries, cu_keys: offsets of the sequences, int32; the spare sequences after them are empty.
        max_queries, max_keys: upper bounds on sequence length, which determine the number of thread blocks.
        equal_length: the length of every sequence, if all have the same length, cuDNN is faster at it
            (``_EQUAL_LENGTH``), and every token is a query; else None.
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
    """Whether the kernel runs on this device: on GPUs of compute capability 8.0 and above."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)


def can_run_flash(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Whether the kernel can compute attention for these tensors."""
    is_16_bit = query.dtype in (torch.bfloat16, torch.float16)
    return is_16_bit and query.dtype == key.dtype == value.dtype and query.shape[-1] <= _MAX_HEAD_DIM


def flash_attention(
    query_NHK: Tensor, key_THK: Tensor, value_THK: Tensor, layout: FlashLayout, *, reach: int | None = None
) -> Tensor:
    """Compute softmax(q k^T / sqrt(K)) v within each sequence.

    Heads of a width that the kernel does not accept are padded with zeros, which change no product.

    Returns:
        (N, H, K).
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
    """Compute ``flash_attention`` for sequences of equal length with cuDNN, or else with PyTorch's own kernel."""
    q, k, v = (states.unflatten(0, (-1, length)).transpose(1, 2) for states in (query, key, value))
    with sdpa_kernel([SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION], set_priority=True):
        output = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
    return output.transpose(1, 2).reshape(query.shape)


def _reuse(number: int, in_use: list[int], *, spare: int, start: int) -> int:
    """Return an upper bound on a number: a bound in use that is not far too large, or a new bound."""
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
    """Return the offsets of the sequences and of the empty sequences after them, ``size`` in all, (size + 1) int32."""
    padded = np.zeros(size + 1, dtype=np.int32)
    padded[1 : len(counts) + 1] = counts
    return np.cumsum(padded, dtype=np.int32)
