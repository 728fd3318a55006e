"""Examples as micro-batches: the source from which a batch stream plans epochs and builds batches.

Shape legend: S sequences, of which B are in a batch, T tokens of the batch, R rows of targets.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from lmtransfer.data.batch import PackedBatch, copy_to, pack
from lmtransfer.data.micro_batches import Source
from lmtransfer.tasks.encoded import EncodedExamples, ragged_places
from lmtransfer.tasks.heads import Targets

#: Batches are filled up to a multiple of this number of tokens, because kernels are compiled for each new shape. On a
#: CPU in bfloat16, 150 steps of 300 to 700 tokens take 10 % more time and 800 MB more memory if every length differs.
TOKENS_MULTIPLE = 32


@dataclass(frozen=True, slots=True)
class TaskBatch:
    """One micro-batch of sequences.

    Attributes:
        target_owners_R: index in the batch of the sequence to which each target belongs, int64.
        rows: index of each sequence in the encoded examples.
        first_lengths: number of tokens in the first text of each pair, on the host; None if the examples are single
            texts.
        features: a frozen encoder's output for the sequences (see ``transfer.features``), or None to run the encoder.
        host_source: the batch on the host that was moved to a device; None if this batch is on the host.
    """

    packed: PackedBatch
    targets: Targets[Tensor]
    target_owners_R: Tensor
    rows: tuple[int, ...]
    keys: Sequence[str]
    first_lengths: tuple[int, ...] | None = None
    features: Tensor | None = None
    host_source: TaskBatch | None = None

    @property
    def host_batch(self) -> TaskBatch:
        """The same batch on the host, where its values can be read without waiting for a device."""
        return self if self.host_source is None else self.host_source

    @property
    def num_tokens(self) -> int:
        """Number of real tokens."""
        return self.packed.num_tokens

    @property
    def target_starts_R(self) -> Tensor:
        """Position in the batch of the first token of each target's sequence, int64."""
        return self.packed.cu_seqlens.long()[self.target_owners_R]

    def to(self, device: torch.device | str) -> TaskBatch:
        """Return the same batch on ``device``."""
        return replace(self._map(lambda tensor: copy_to(tensor, device)), host_source=self.host_batch)

    def pin_memory(self) -> TaskBatch:
        """Return the same batch in page-locked memory, from which a GPU copies without blocking."""
        return self._map(torch.Tensor.pin_memory)

    def _map(self, change: Callable[[Tensor], Tensor]) -> TaskBatch:
        """Apply ``change`` to every tensor except the characters."""
        return replace(
            self,
            packed=self.packed.map(change),
            targets=self.targets.map(change),
            target_owners_R=change(self.target_owners_R),
            features=None if self.features is None else change(self.features),
        )


def coarse_size(num_tokens: int) -> int:
    """Round up to one of a few sizes: multiples of 32 and of an eighth of the next power of two (four per doubling)."""
    step = max(TOKENS_MULTIPLE, (1 << (num_tokens - 1).bit_length()) // 8)
    return -(-num_tokens // step) * step


class FeatureRows(Protocol):
    """A store of features by sequence."""

    def rows(self, row_ids: np.ndarray) -> Tensor:
        """Return the features of these sequences, concatenated."""
        ...


@dataclass(frozen=True, slots=True)
class SequencePlan:
    """The sequences of an epoch."""

    lengths: np.ndarray


class TaskSource(Source):
    """A source that yields every sequence once per epoch.

    Args:
        few_sizes: whether to fill batches up to one of a few sizes, for compiled models; at most a fifth of the tokens
            are filler.
    """

    def __init__(
        self, encoded: EncodedExamples, features: FeatureRows | None = None, *, few_sizes: bool = False
    ) -> None:
        self.encoded = encoded
        self.features = features
        self.few_sizes = few_sizes

    def plan(self, epoch: int) -> SequencePlan:
        """Plan all sequences; the stream shuffles them."""
        return SequencePlan(self.encoded.lengths)

    def build(
        self, epoch: int, plan: SequencePlan, row_ids: Sequence[int] | np.ndarray, *, follows: bool | None = None
    ) -> TaskBatch:
        """Build the micro-batch of these sequences, in the given order; no sequence continues another."""
        encoded, rows = self.encoded, np.asarray(row_ids, dtype=np.int64)
        where = ragged_places(encoded.offsets, rows)
        lengths = encoded.lengths[rows]
        edges = np.cumsum(lengths)[:-1]
        size = len(where)
        capacity = coarse_size(size) if self.few_sizes else size + -size % TOKENS_MULTIPLE
        packed = pack(
            np.split(encoded.tokens_T[where], edges),
            np.split(encoded.segments_T[where], edges),
            capacity=capacity,
            max_length=int(lengths.max()),
        )
        if encoded.character_table is not None:
            chars_TC = encoded.character_table.table[
                np.pad(encoded.character_table.rows_T[where], (0, capacity - size))
            ]
            packed = packed.with_tokens(packed.tokens_T, torch.from_numpy(chars_TC))
        num_targets = np.diff(encoded.target_offsets)[rows]
        return TaskBatch(
            packed=packed,
            targets=encoded.targets_of(rows).map(torch.from_numpy),
            target_owners_R=torch.from_numpy(np.repeat(np.arange(len(rows)), num_targets)),
            rows=tuple(int(row) for row in rows),
            keys=tuple(encoded.examples[encoded.owners[row]].id for row in rows),
            first_lengths=None if encoded.first_lengths is None else tuple(encoded.first_lengths[rows].tolist()),
            features=None if self.features is None else self.features.rows(rows),
        )
