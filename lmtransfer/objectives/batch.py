"""A micro-batch in pretraining: the original rows, the corrupted rows, and the tokens to predict.

Shape legend: T tokens, B sequences, M prediction positions, N output positions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from lmtransfer.data.batch import PackedBatch, copy_to
from lmtransfer.models.base import EncoderOutput, OutputPositions


@dataclass(frozen=True, slots=True)
class PretrainingBatch:
    """Rows ready for the objectives.

    Attributes:
        original: the rows as they are in the corpus.
        inputs: the rows as the encoder reads them, after corruption.
        positions_M: indices into T of the tokens to predict, int64, ascending.
        targets_M: the ids at these positions in ``original``, int64.
        weights_M: 1 for predictions, 0 for unused positions in a static shape, float32.
        uniform_M: a random number in [0, 1) for each prediction, sampled per row and epoch, for objectives that sample;
            0 at unused positions, float32.
        labels: labels of whole rows by name, int64, shape (num_real,) each.
        keys: the key of each row, for messages.
        per_target: named integers from the corruption for each target, int64, (M,) each; 0 at unused positions.
        per_token: named integers from the corruption for each token, int64, (T,) each; 0 in filler.
        follows: whether each row continues the same row of the previous batch, so that a recurrent state is meaningful;
            False in the first batch of an epoch, None if rows are independent.
        output_positions: the positions at which the last layer is needed; None for all.
        read_index: for "masked" and "starts", the indices into the last layer of the states at ``positions_M`` and at
            the first tokens of the rows; None if the last layer contains exactly these states, in order.
        host_source: the batch on the host of which this batch is a copy; None if this batch is on the host.
    """

    original: PackedBatch
    inputs: PackedBatch
    positions_M: Tensor
    targets_M: Tensor
    weights_M: Tensor
    uniform_M: Tensor
    num_targets: int
    labels: Mapping[str, Tensor]
    output_positions: OutputPositions | None
    read_index: Mapping[str, Tensor | None]
    keys: tuple[str, ...]
    per_target: Mapping[str, Tensor] = field(default_factory=dict)
    per_token: Mapping[str, Tensor] = field(default_factory=dict)
    follows: bool | None = None
    host_source: PretrainingBatch | None = None

    @property
    def host_batch(self) -> PretrainingBatch:
        """The same batch on the host, which can be read without waiting for a device."""
        return self if self.host_source is None else self.host_source

    @property
    def num_tokens(self) -> int:
        """The number of real tokens, including special tokens."""
        return self.inputs.num_tokens

    def read(self, name: str, output: EncoderOutput) -> Tensor:
        """Return the states of the last layer at the positions "masked", (M, D), or "starts", (num_real, D)."""
        index = self.read_index[name]
        return output.last if index is None else output.last.index_select(0, index)

    def to(self, device: torch.device | str) -> PretrainingBatch:
        """Return the same batch on ``device``."""
        moved = self._map(lambda tensor: copy_to(tensor, device))
        return replace(moved, host_source=self.host_batch)

    def pin_memory(self) -> PretrainingBatch:
        """Return the same batch in page-locked memory, from which a GPU copies without blocking."""
        return self._map(torch.Tensor.pin_memory)

    def _map(self, change: Callable[[Tensor], Tensor]) -> PretrainingBatch:
        """Apply ``change`` to every tensor; tensors shared by ``original`` and ``inputs`` stay shared."""
        inputs = self.inputs.map(change)
        same = self.original.tokens_T is self.inputs.tokens_T
        return replace(
            self,
            inputs=inputs,
            original=inputs if same else inputs.with_tokens(change(self.original.tokens_T), self.original.chars_TC),
            positions_M=change(self.positions_M),
            targets_M=change(self.targets_M),
            weights_M=change(self.weights_M),
            uniform_M=change(self.uniform_M),
            labels={name: change(label) for name, label in self.labels.items()},
            per_target={name: change(numbers) for name, numbers in self.per_target.items()},
            per_token={name: change(numbers) for name, numbers in self.per_token.items()},
            output_positions=None
            if self.output_positions is None
            else OutputPositions(change(self.output_positions.positions_N), self.output_positions.counts),
            read_index={name: None if t is None else change(t) for name, t in self.read_index.items()},
        )
