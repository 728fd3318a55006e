"""The packed batch: one long row of tokens and the offsets of its sequences, without padding tokens.

Shape legend: T tokens of a packed batch, B sequences, C characters of a word.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """Sequences laid end to end.

    Attributes:
        segments_T: segment ids (0 for the first text of a pair, 1 for the second), int64.
        positions_T: position of each token within its own sequence, from 0, int64.
        cu_seqlens: (B + 1) int32 offsets; sequence b is ``tokens_T[cu_seqlens[b]:cu_seqlens[b + 1]]``.
        lengths: the sequence lengths as Python integers, so that reading them needs no device synchronization.
        num_real: number of real sequences; the sequences after them are filler, which no loss counts.
        num_causal: number of leading sequences with causal attention; the others have bidirectional attention. None if
            all sequences have the encoder's own attention. Only for encoders that support both.
        chars_TC: character ids of each word, int16, if the tokenizer provides characters (see
            ``tokenizers.words``); always on the host, where an encoder finds the distinct words.
    """

    tokens_T: Tensor
    segments_T: Tensor
    positions_T: Tensor
    cu_seqlens: Tensor
    lengths: tuple[int, ...]
    num_real: int
    chars_TC: Tensor | None = None
    num_causal: int | None = None
    one_segment: bool = False

    @property
    def num_sequences(self) -> int:
        """B, including filler."""
        return len(self.lengths)

    @property
    def num_tokens(self) -> int:
        """Number of real tokens, excluding filler."""
        return sum(self.lengths[: self.num_real])

    @property
    def max_seqlen(self) -> int:
        """Length of the longest sequence in tokens."""
        return max(self.lengths, default=0)

    @property
    def starts_B(self) -> Tensor:
        """Index in T of each real sequence's first token ([CLS]), int64, shape (num_real,)."""
        return self.cu_seqlens[: self.num_real].long()

    def to(self, device: torch.device | str) -> PackedBatch:
        """Return the same batch on ``device``."""
        return self.map(lambda tensor: copy_to(tensor, device))

    def map(self, change: Callable[[Tensor], Tensor]) -> PackedBatch:
        """Return the same batch with ``change`` applied to every tensor except the characters."""
        changed: dict[str, Any] = {
            field.name: change(getattr(self, field.name))
            for field in fields(self)
            if isinstance(getattr(self, field.name), Tensor) and field.name != "chars_TC"
        }
        return replace(self, **changed)

    def halve(self, firsts: Sequence[int]) -> PackedBatch:
        """Cut each real sequence after ``firsts`` tokens; positions restart at 0, and all segment ids are 0."""
        real = self.lengths[: self.num_real]
        lengths = [part for whole, first in zip(real, firsts, strict=True) for part in (first, whole - first)]
        if min(lengths) <= 0:
            raise ValueError("a sequence cannot be cut before its first token or after its last token")
        lengths += self.lengths[self.num_real :]
        device = self.tokens_T.device
        return replace(
            self,
            segments_T=torch.zeros_like(self.segments_T),
            positions_T=upload(np.concatenate([np.arange(length) for length in lengths]), device),
            cu_seqlens=upload(np.array([0, *accumulate(lengths)], dtype=np.int32), device),
            lengths=tuple(lengths),
            num_real=2 * self.num_real,
            one_segment=True,
        )

    def with_tokens(self, tokens_T: Tensor, chars_TC: Tensor | None = None) -> PackedBatch:
        """Return the same sequences with other token ids (from a corruption or a generator) and their characters."""
        return replace(self, tokens_T=tokens_T, chars_TC=chars_TC)


def pack(
    tokens: Sequence[np.ndarray],
    segments: Sequence[np.ndarray] | None = None,
    *,
    capacity: int | None = None,
    max_length: int | None = None,
    filler_id: int = 0,
) -> PackedBatch:
    """Pack sequences end to end.

    Args:
        capacity: exact number of tokens in the batch, reached by adding filler sequences (for static shapes); None to
            add no filler.
    """
    lengths = [len(sequence) for sequence in tokens]
    if not lengths or min(lengths) == 0:
        raise ValueError("pack() needs at least one sequence, and none of them may be empty")
    num_real, total = len(lengths), sum(lengths)
    rows = list(tokens)
    if capacity is not None:
        if total > capacity:
            raise ValueError(f"{total} tokens do not fit into a capacity of {capacity}")
        missing = capacity - total
        while missing:
            filler = min(missing, max_length or missing)
            rows.append(np.full(filler, filler_id, dtype=np.int64))
            lengths.append(filler)
            missing -= filler
        total = capacity
    cu_seqlens = np.zeros(len(lengths) + 1, dtype=np.int32)
    np.cumsum(lengths, out=cu_seqlens[1:])
    flat = np.concatenate(rows).astype(np.int64, copy=False)
    segments_T = np.zeros(total, dtype=np.int64)
    if segments is not None:
        real = np.concatenate(list(segments))
        segments_T[: len(real)] = real
    positions_T = np.arange(total, dtype=np.int64) - np.repeat(cu_seqlens[:-1], lengths)
    return PackedBatch(
        tokens_T=torch.from_numpy(flat),
        segments_T=torch.from_numpy(segments_T),
        positions_T=torch.from_numpy(positions_T),
        cu_seqlens=torch.from_numpy(cu_seqlens),
        lengths=tuple(lengths),
        num_real=num_real,
        one_segment=not segments_T.any(),
    )


def upload(numbers: np.ndarray, device: torch.device | str) -> Tensor:
    """Copy a NumPy array to a tensor on ``device``; see ``copy_to``."""
    return copy_to(torch.from_numpy(numbers), device)


def copy_to(tensor: Tensor, device: torch.device | str) -> Tensor:
    """Copy a tensor to ``device``; return the tensor itself if it is already there.

    A GPU copies from page-locked memory in the order of its other work, so the host does not wait. A tensor in other
    host memory is moved to page-locked memory first.
    """
    if torch.device(device).type != "cuda" or tensor.device.type != "cpu":
        return tensor.to(device)
    locked = tensor if tensor.is_pinned() else tensor.pin_memory()
    return locked.to(device, non_blocking=True)
