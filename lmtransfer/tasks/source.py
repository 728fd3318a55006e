"""Examples as micro-batches: the source that a batch stream plans and builds from.

Shape legend: N examples, B sequences of a batch, T their tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from lmtransfer.data.batch import PackedBatch, pack
from lmtransfer.tasks.encoded import EncodedExamples

#: Batches are filled up to a multiple of this many tokens. Kernels are made anew for each shape they meet: on a CPU in
#: bfloat16, 150 steps of 300 to 700 tokens cost 10 % more time and 800 MB more memory when every length is its own.
TOKENS_MULTIPLE = 32


@dataclass(frozen=True, slots=True)
class TaskBatch:
    """One micro-batch of examples.

    Attributes:
        packed: their tokens, end to end, and a filler sequence after them.
        labels_B: label indices, int64; -1 where hidden.
        rows: number of each example within its encoded set.
        keys: their ids.
        features: what a frozen encoder gave for them (see ``transfer.features``), or None to run the encoder.
    """

    packed: PackedBatch
    labels_B: Tensor
    rows: tuple[int, ...]
    keys: Sequence[str]
    features: Tensor | None = None

    @property
    def num_tokens(self) -> int:
        """Real tokens."""
        return self.packed.num_tokens

    def to(self, device: torch.device | str) -> TaskBatch:
        """The same batch on ``device``."""
        return replace(
            self,
            packed=self.packed.to(device),
            labels_B=self.labels_B.to(device, non_blocking=True),
            features=None if self.features is None else self.features.to(device, non_blocking=True),
        )


def coarse_size(num_tokens: int) -> int:
    """The next of few sizes: multiples of an eighth of the next power of two (four sizes a doubling), and of 32."""
    step = max(TOKENS_MULTIPLE, (1 << (num_tokens - 1).bit_length()) // 8)
    return -(-num_tokens // step) * step


class FeatureRows(Protocol):
    """Features kept by example."""

    def rows(self, row_ids: np.ndarray) -> Tensor:
        """The features of these examples, laid end to end."""
        ...


@dataclass(frozen=True, slots=True)
class ExamplePlan:
    """The rows of an epoch.

    Attributes:
        lengths: tokens of each example, int64, shape (N,).
    """

    lengths: np.ndarray


class TaskSource:
    """Every example once an epoch.

    Args:
        encoded: the examples.
        features: a frozen encoder's features of the same examples, or None.
        few_sizes: fill batches up to one of few sizes, for compiled models; at most a fifth of the tokens is filler.
    """

    def __init__(
        self, encoded: EncodedExamples, features: FeatureRows | None = None, *, few_sizes: bool = False
    ) -> None:
        self.encoded = encoded
        self.features = features
        self.few_sizes = few_sizes

    def plan(self, epoch: int) -> ExamplePlan:
        """All examples; the stream shuffles them."""
        return ExamplePlan(self.encoded.lengths)

    def build(self, epoch: int, plan: ExamplePlan, row_ids: Sequence[int] | np.ndarray) -> TaskBatch:
        """The micro-batch of these examples, in this order."""
        rows = np.asarray(row_ids, dtype=np.int64)
        chosen = self.encoded.select(rows)
        edges = chosen.offsets[1:-1]
        size = len(chosen.tokens_T)
        capacity = coarse_size(size) if self.few_sizes else size + -size % TOKENS_MULTIPLE
        packed = pack(
            np.split(chosen.tokens_T, edges),
            np.split(chosen.segments_T, edges),
            capacity=capacity,
            max_length=int(chosen.lengths.max()),
        )
        if chosen.spelling is not None:
            spelt = chosen.spelling.table[np.pad(chosen.spelling.rows_T, (0, capacity - size))]
            packed = packed.with_tokens(packed.tokens_T, torch.from_numpy(spelt))
        return TaskBatch(
            packed=packed,
            labels_B=torch.from_numpy(chosen.labels),
            rows=tuple(int(row) for row in rows),
            keys=chosen.ids,
            features=None if self.features is None else self.features.rows(rows),
        )
