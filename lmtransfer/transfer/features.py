"""Features, the inputs to a head before training: of all examples if the encoder is frozen, otherwise of a sample.

The features of a frozen encoder are stored, so an epoch of probing only runs the head. If neither the reading nor the
composition has parameters, the head's inputs are stored. Otherwise the layers that are read are stored for each token.

Shape legend: S sequences, R rows (sequences or tokens), D width, E width of a composed vector.
"""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from lmtransfer.data.micro_batches import evaluation_batches
from lmtransfer.system.machine import naming
from lmtransfer.tasks.source import TaskSource
from lmtransfer.transfer.learner import TaskLearner
from lmtransfer.transfer.scoring import EVALUATION_TOKENS, evaluation_mode

#: Larger features go to a memory-mapped file.
MAX_BYTES_IN_MEMORY = 512 * 2**20

#: If the encoder is trained, the mean and deviation of the head's inputs are computed from at most this many examples.
MAX_SAMPLE = 4096


@dataclass(frozen=True, slots=True, eq=False)
class FeatureTable:
    """Features, float32, (R, E) or (R, layers, D), with the first row and the number of rows of each sequence."""

    values: np.ndarray
    starts: np.ndarray
    lengths: np.ndarray

    def rows(self, row_ids: np.ndarray) -> Tensor:
        """Return the features of these sequences, end to end, in the given order."""
        lengths = self.lengths[row_ids]
        first = np.cumsum(lengths) - lengths
        indices = np.repeat(self.starts[row_ids] - first, lengths) + np.arange(lengths.sum())
        return torch.from_numpy(np.asarray(self.values[indices]))

    def parts(self, *, most_rows: int = 1 << 16) -> Iterator[Tensor]:
        """Yield the features of all sequences, end to end, a few sequences at a time."""
        start, rows = 0, 0
        for stop, length in enumerate(self.lengths):
            if rows and rows + length > most_rows:
                yield self.rows(np.arange(start, stop))
                start, rows = stop, 0
            rows += int(length)
        yield self.rows(np.arange(start, len(self.lengths)))

    def select(self, indices: np.ndarray) -> FeatureTable:
        """Return the sequences at ``indices``, in the given order, sharing the values."""
        return FeatureTable(self.values, self.starts[indices], self.lengths[indices])


def compute_features(
    learner: TaskLearner,
    source: TaskSource,
    *,
    folder: Path | None,
    device: torch.device | str = "cpu",
    autocast: Callable[[], AbstractContextManager[object]] = nullcontext,
    max_tokens: int = EVALUATION_TOKENS,
    max_bytes_in_memory: int = MAX_BYTES_IN_MEMORY,
) -> FeatureTable:
    """Run the frozen encoder over every sequence once.

    Large features go to an unnamed, memory-mapped file in ``folder``, which is deleted when the process ends.
    """
    if not learner.freezing.is_frozen:
        raise ValueError("the encoder is not frozen, so its features would change in training")
    lengths = source.encoded.lengths
    if not learner.keeps_tokens:
        lengths = np.ones_like(lengths)
    starts = np.cumsum(lengths) - lengths
    values: np.ndarray | None = None
    with evaluation_mode(learner):
        for batch in evaluation_batches(source, micro_batch_tokens=max_tokens):
            with autocast():
                features = learner.frozen_features(batch.to(device)).float().cpu().numpy()
            if values is None:
                values = _allocate((int(lengths.sum()), *features.shape[1:]), folder, max_bytes_in_memory)
            place = 0
            for row in batch.rows:
                start, length = int(starts[row]), int(lengths[row])
                values[start : start + length] = features[place : place + length]
                place += length
    if values is None:
        raise ValueError("there are no examples")
    return FeatureTable(values, starts, lengths)


@torch.no_grad()
def sample_features(
    learner: TaskLearner,
    source: TaskSource,
    *,
    device: torch.device | str = "cpu",
    autocast: Callable[[], AbstractContextManager[object]] = nullcontext,
    most_examples: int = MAX_SAMPLE,
    max_tokens: int = EVALUATION_TOKENS,
) -> Iterator[Tensor]:
    """Yield the head's inputs, (B, E), or (T, E) if the head reads tokens, before training; sequences sorted by length.

    If there are more than ``most_examples``, an evenly spaced sample is used.
    """
    num = len(source.encoded.examples)
    places = np.linspace(0, num - 1, min(num, most_examples)).astype(np.int64)
    sample = TaskSource(source.encoded.select(places))
    with evaluation_mode(learner):
        for batch in evaluation_batches(sample, micro_batch_tokens=max_tokens):
            with autocast():
                head_input = learner.head_input(batch.to(device))
            yield head_input


def _allocate(shape: tuple[int, ...], folder: Path | None, max_bytes_in_memory: int) -> np.ndarray:
    if folder is None or 4 * int(np.prod(shape)) <= max_bytes_in_memory:
        return np.empty(shape, dtype=np.float32)
    folder.mkdir(parents=True, exist_ok=True)
    with naming(folder), tempfile.TemporaryFile(dir=folder) as file:  # unnamed: freed with the last array that maps it
        if hasattr(os, "posix_fallocate"):  # otherwise a full disk would kill the process later
            os.posix_fallocate(file.fileno(), 0, 4 * math.prod(shape))
        return np.memmap(file, dtype=np.float32, mode="w+", shape=shape)
