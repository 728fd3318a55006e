"""The source of pretraining batches, which are built from the rows of a token store and their corruption.

Shape legend: T tokens, B sequences, M prediction positions, N output positions.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from lmtransfer.data.batch import pack
from lmtransfer.data.micro_batches import Source
from lmtransfer.data.token_shards import MixedStore, TokenStore
from lmtransfer.models.base import OutputPositions
from lmtransfer.objectives.base import Read
from lmtransfer.objectives.batch import PretrainingBatch
from lmtransfer.objectives.corruption.masking import CorruptedRow, Corruption
from lmtransfer.objectives.rows.base import Row, RowPlan, Rows
from lmtransfer.objectives.rows.mixture import MixedPlan
from lmtransfer.randomness import generators

#: With static shapes, the numbers of predictions and of output positions are rounded up to multiples of this.
_STATIC_MULTIPLE = 128
#: With ``few_shapes``, these two and the number of tokens are rounded up to a multiple of this.
_FEW_MULTIPLE = 32


class PretrainingSource(Source):
    """Builds batches of rows for a ``PlannedStream``.

    A row, its mask and its random numbers for sampling are functions of (seed, epoch, row), independent of the batch.

    Args:
        capacity: number of tokens in every batch. Batches are padded with filler, which no loss counts, so that
            compiled models get static shapes. None means no filler.
        few_shapes: without ``capacity``, round the number of tokens and the number of positions up to multiples of 32,
            because a CPU builds a kernel for each new shape of a bfloat16 product.
        characters: character ids of each token id, int16, (V, 50), for encoders that read characters; None for batches
            without characters.
    """

    def __init__(
        self,
        *,
        store: TokenStore | MixedStore,
        rows: Rows,
        corruption: Corruption,
        seed: int,
        output_positions: Collection[Read] = frozenset[Read](("all",)),
        capacity: int | None = None,
        few_shapes: bool = False,
        characters: np.ndarray | None = None,
    ) -> None:
        self.store, self.rows, self.corruption, self.seed = store, rows, corruption, seed
        self.output_positions, self.capacity, self.few_shapes = frozenset(output_positions), capacity, few_shapes
        self.characters = None if characters is None else torch.from_numpy(characters)

    @override
    def set_capacity(self, capacity: Callable[[int], int]) -> None:
        if self.capacity is not None:
            self.capacity = capacity(self.rows.max_length)

    @override
    def plan(self, epoch: int) -> RowPlan:
        sampled = self._sampling_epoch(epoch)
        if isinstance(self.store, MixedStore):
            return MixedPlan(self.rows, self.store, seed=self.seed, epoch=sampled)
        return self.rows.plan(self.store, seed=self.seed, epoch=sampled)

    @override
    def part(self, plan: RowPlan, row_ids: np.ndarray) -> RowPlan:
        return plan.take(row_ids)

    @cached_property
    def _text(self) -> Any:
        """The source from which rows are read; each process creates its own."""
        if isinstance(self.store, MixedStore):
            return {name: self.rows.text(part) for name, part in self.store.parts.items()}
        return self.rows.text(self.store)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the text."""
        return {name: value for name, value in self.__dict__.items() if name != "_text"}

    @override
    def build(
        self, epoch: int, plan: RowPlan, row_ids: Sequence[int] | np.ndarray, *, follows: bool | None = None
    ) -> PretrainingBatch:
        sampling_epoch, corrupt = self._sampling_epoch(epoch), self.corruption.corrupt
        if plan.text is None:
            plan.text = self._text
            rows = [plan.row(place) for place in range(len(row_ids))]
        else:
            rows = [plan.row(int(i)) for i in row_ids]
        rngs = generators(self.seed, "corrupt", sampling_epoch, indices=np.asarray(row_ids))
        corrupted = [corrupt(row, rng) for row, rng in zip(rows, rngs, strict=True)]
        num_causal = None
        if self.corruption.causal_share:  # causal rows first
            order = sorted(range(len(rows)), key=lambda place: not corrupted[place].causal)
            rows, corrupted = [rows[place] for place in order], [corrupted[place] for place in order]
            row_ids = [int(row_ids[place]) for place in order]
            num_causal = sum(part.causal for part in corrupted)
        original = pack(
            [row.tokens for row in rows],
            [row.segments for row in rows],
            capacity=self._capacity(sum(len(row.tokens) for row in rows)),
            max_length=self.rows.max_length,
        )
        original = replace(original, chars_TC=self._characters_of(original.tokens_T), num_causal=num_causal)
        cu_seqlens = original.cu_seqlens.numpy()
        inputs = original
        if any(part.tokens is not row.tokens for part, row in zip(corrupted, rows, strict=True)):
            tokens_T = original.tokens_T.clone()
            tokens_T[: cu_seqlens[len(rows)]] = torch.from_numpy(np.concatenate([part.tokens for part in corrupted]))
            inputs = original.with_tokens(tokens_T, self._characters_of(tokens_T))
        positions, targets, weights, num_targets = self._targets(corrupted, cu_seqlens)
        output_positions, read_index = self._reads(positions, cu_seqlens, len(rows))
        return PretrainingBatch(
            original=original,
            inputs=inputs,
            positions_M=torch.from_numpy(positions),
            targets_M=torch.from_numpy(targets),
            weights_M=torch.from_numpy(weights),
            uniform_M=torch.from_numpy(self._uniform(epoch, row_ids, corrupted, size=len(positions))),
            num_targets=num_targets,
            labels=_labels(rows),
            output_positions=output_positions,
            read_index=read_index,
            keys=tuple(row.key for row in rows),
            per_target=_joined([part.per_target for part in corrupted], size=len(positions)),
            per_token=_joined([part.per_token for part in corrupted], size=len(original.tokens_T)),
            follows=follows,
        )

    def _capacity(self, num_tokens: int) -> int | None:
        """Return the number of tokens to which a batch of ``num_tokens`` is padded; None for no padding."""
        if self.capacity is None and self.few_shapes:
            return _up(num_tokens, _FEW_MULTIPLE)
        return self.capacity

    def _places(self, size: int, *, more: int = 0) -> int:
        """Return the padded number of positions.

        Args:
            size: actual number of positions.
            more: expected number of positions without a prediction.
        """
        if self.capacity is None:
            return _up(size, _FEW_MULTIPLE) if self.few_shapes else size
        expected = self.corruption.expected_targets(self.capacity) + more
        return _up(max(size, expected + expected // 16, 1), _STATIC_MULTIPLE)

    def _characters_of(self, tokens_T: Tensor) -> Tensor | None:
        """Return the characters of the tokens, (T, 50); words outside the vocabulary have the characters of [UNK]."""
        return None if self.characters is None else self.characters.index_select(0, tokens_T)

    def _sampling_epoch(self, epoch: int) -> int:
        return 0 if self.corruption.static_masking else epoch

    def _targets(
        self, corrupted: Sequence[CorruptedRow], cu_seqlens: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
        """Return the padded positions (indices into T), targets and weights, and the actual number of predictions."""
        counts = [len(part.positions) for part in corrupted]
        num_targets = sum(counts)
        size = self._places(num_targets)
        positions = np.full(size, cu_seqlens[-1] - 1, dtype=np.int64)
        positions[:num_targets] = np.concatenate([part.positions for part in corrupted])
        positions[:num_targets] += np.repeat(cu_seqlens[: len(counts)], counts)
        targets = np.zeros(size, dtype=np.int64)
        targets[:num_targets] = np.concatenate([part.targets for part in corrupted])
        weights = np.zeros(size, dtype=np.float32)
        weights[:num_targets] = 1
        return positions, targets, weights, num_targets

    def _uniform(
        self, epoch: int, row_ids: Sequence[int] | np.ndarray, corrupted: Sequence[CorruptedRow], *, size: int
    ) -> np.ndarray:
        """Return a random number for each target as a function of (seed, epoch, row), padded with zeros to ``size``."""
        uniform, end = np.zeros(size, dtype=np.float32), 0
        rngs = generators(self.seed, "sample", epoch, indices=np.asarray(row_ids))
        for rng, part in zip(rngs, corrupted, strict=True):
            count = len(part.positions)
            rng.random(out=uniform[end : end + count], dtype=np.float32)
            end += count
        return uniform

    def _reads(
        self, positions: np.ndarray, cu_seqlens: np.ndarray, num_real: int
    ) -> tuple[OutputPositions | None, dict[str, Tensor | None]]:
        starts = cu_seqlens[:num_real].astype(np.int64)
        reads = [
            places for name, places in (("masked", positions), ("starts", starts)) if name in self.output_positions
        ]
        if "all" in self.output_positions or not any(len(places) for places in reads):
            return None, {"masked": torch.from_numpy(positions), "starts": torch.from_numpy(starts)}
        index: dict[str, Tensor | None]
        if len(reads) == 1:
            index = {name: None for name in ("masked", "starts") if name in self.output_positions}
            return OutputPositions.of(reads[0], cu_seqlens), index
        union = np.unique(np.concatenate(reads))
        size = self._places(len(union), more=num_real)
        if size > len(union):
            union = np.append(union, np.full(size - len(union), cu_seqlens[-1] - 1))
        index = {
            name: torch.from_numpy(union.searchsorted(places))
            for name, places in (("masked", positions), ("starts", starts))
        }
        return OutputPositions.of(union, cu_seqlens), index


def _up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


def _joined(parts: Sequence[Mapping[str, np.ndarray]], *, size: int) -> dict[str, Tensor]:
    """Concatenate the named integers of all rows, padded with zeros up to ``size``."""
    tensors = {}
    for name in parts[0]:
        numbers = np.concatenate([part[name] for part in parts])
        tensors[name] = torch.zeros(size, dtype=torch.int64)
        tensors[name][: len(numbers)] = torch.from_numpy(numbers)
    return tensors


def _labels(rows: Sequence[Row]) -> dict[str, Tensor]:
    return {name: torch.tensor([row.labels[name] for row in rows]) for name in rows[0].labels}
