"""Endless optimiser steps from a source of rows: step k is a pure function of (config, seed, k)."""

from __future__ import annotations

import signal
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from lmtransfer.data.stream.step_plan import cut_by_tokens, lanes, micro_batches, share
from lmtransfer.errors import ConfigError, DataError
from lmtransfer.randomness import permutation
from lmtransfer.system.interrupts import SIGNALS
from lmtransfer.training.learner import BatchStream, Step

#: Micro-batches are numbered within a step of this many, so that a number needs no history.
MICRO_BATCHES_PER_STEP = 1 << 20
#: Batches that each worker keeps ready.
_PREFETCHED = 4


class Source(ABC):
    """Rows that can be planned an epoch at a time and built into batches. Must survive pickling for workers."""

    @abstractmethod
    def plan(self, epoch: int) -> Any:
        """The rows of ``epoch``, an object with ``lengths``: a pure function of the source's settings and ``epoch``."""

    @abstractmethod
    def build(self, epoch: int, plan: Any, row_ids: Sequence[int] | np.ndarray, *, follows: bool | None = None) -> Any:
        """A micro-batch.

        Args:
            epoch: which.
            plan: of the epoch.
            row_ids: its rows.
            follows: of contiguous rows, whether each goes on where the same row of the batch before it ended; None:
                rows stand alone.
        """

    def set_capacity(self, tokens: int) -> None:  # noqa: B027 (most sources have batches of their own size)
        """Fill every batch from now on up to so many tokens, where batches are filled up at all."""


@dataclass(frozen=True, slots=True)
class _PlannedStep:
    """One step before its batches are built: ``mine`` are this rank's micro-batches, as row numbers."""

    number: int
    epoch: int
    progress: float
    first: int
    mine: list[np.ndarray]
    follows: bool


class PlannedStream:
    """Steps of rows in a random order that is drawn anew for each epoch; see ``training.learner.BatchStream``.

    A step takes rows in that order until its budget would be exceeded; the last step of an epoch takes what is left.
    Inside a step rows are sorted by length and cut into micro-batches, which are dealt to the ranks in consecutive
    shares: number of workers and world size change nothing in what a step holds.

    Args:
        source: the rows.
        seed: of the order.
        batch_tokens: most tokens of a step over all ranks; this or ``batch_examples``.
        batch_examples: rows of a step over all ranks.
        micro_batch_tokens: most tokens of a forward pass; None for one forward pass a rank and step.
        num_workers: processes that build batches ahead; 0 builds them when they are asked for.
        rank: which of the ranks this is.
        world_size: how many ranks there are.
        pin_memory: build batches in page-locked memory, for a GPU (with workers only).
        contiguous: the rows of an epoch are one text: each step's row j goes on where row j of the step before ended
            (as many lanes as full rows fit a step; what is left over is seen in other epochs).

    Raises:
        ConfigError: neither or both budgets, or a budget that is not positive.
    """

    def __init__(
        self,
        source: Source,
        *,
        seed: int,
        batch_tokens: int | None = None,
        batch_examples: int | None = None,
        micro_batch_tokens: int | None = None,
        num_workers: int = 0,
        rank: int = 0,
        world_size: int = 1,
        pin_memory: bool = False,
        contiguous: bool = False,
    ) -> None:
        if (batch_tokens is None) == (batch_examples is None):
            raise ConfigError("give either train.batch_tokens or train.batch_examples, and not both")
        named = {
            "batch_tokens": batch_tokens,
            "batch_examples": batch_examples,
            "micro_batch_tokens": micro_batch_tokens,
        }
        for name, value in named.items():
            if value is not None and value < 1:
                raise ConfigError(f"train.{name}={value} is not allowed: use 1 or more")
        self.source, self.seed = source, seed
        self.batch_tokens, self.batch_examples = batch_tokens, batch_examples
        self.micro_batch_tokens, self.num_workers = micro_batch_tokens, num_workers
        self.rank, self.world_size, self.pin_memory = rank, world_size, pin_memory
        self.contiguous = contiguous
        self._plans = _Plans(source)

    @property
    def steps_per_epoch(self) -> int:
        """Optimiser steps of the first epoch."""
        return self.steps_in(0)

    @property
    def mean_length(self) -> float:
        """Mean length of the first epoch's rows, in tokens."""
        return float(np.mean(self._plans[0].lengths))

    def steps_in(self, epoch: int) -> int:
        """Optimiser steps of one epoch."""
        return len(self._edges(epoch, self._plans[epoch].lengths)[1]) - 1

    def steps(self, start: int = 0) -> Iterator[Step]:
        """Steps from number ``start`` on, without end.

        Raises:
            DataError: an epoch has no rows.
            ConfigError: a row does not fit a step or a micro-batch.
        """
        micro_batch_tokens = self.micro_batch_tokens  # one value for all that this call hands out
        batches = self._batches(start, micro_batch_tokens)
        for planned in self._planned(start, micro_batch_tokens):
            built = tuple(next(batches) for _ in planned.mine)
            yield Step(planned.number, planned.progress, built, planned.first)

    def step_at(self, epoch: float) -> int:
        """The number of the step that comes after ``epoch`` passes over the rows: where a text is gone on with.

        Args:
            epoch: passes that are over, with fraction.
        """
        whole = int(epoch)
        lengths = self._plans[whole].lengths
        over = round((epoch - whole) * len(lengths))
        within = bisect_right(self._edges(whole, lengths)[1], over) - 1
        return sum(self.steps_in(past) for past in range(whole)) + within

    def set_micro_batch_tokens(self, tokens: int) -> None:
        """Cut micro-batches of at most ``tokens`` from the next call of ``steps`` on; the steps hold the same rows."""
        self.micro_batch_tokens = tokens
        self.source.set_capacity(tokens)

    def _batches(self, start: int, micro_batch_tokens: int | None) -> Iterator[Any]:
        """This rank's micro-batches from step ``start`` on."""
        keys = (
            (step.epoch, rows, step.follows if self.contiguous else None)
            for step in self._planned(start, micro_batch_tokens)
            for rows in step.mine
        )
        if self.num_workers == 0:
            return (_built(self.source, self._plans, key) for key in keys)
        loader: DataLoader[Any] = DataLoader(
            _Builder(self.source),
            batch_size=None,
            sampler=keys,
            num_workers=self.num_workers,
            prefetch_factor=_PREFETCHED,
            collate_fn=_as_it_is,
            worker_init_fn=_outlive_signals,
            pin_memory=self.pin_memory,
            generator=torch.Generator(),  # its own, so that starting workers draws nothing from the global one
        )
        return iter(loader)

    def _planned(self, start: int, micro_batch_tokens: int | None) -> Iterator[_PlannedStep]:
        epoch, first_step = 0, 0
        while True:
            lengths = self._plans[epoch].lengths
            order, edges = self._edges(epoch, lengths)
            num_steps = len(edges) - 1
            for place in range(max(start - first_step, 0), num_steps):
                rows = order[edges[place] : edges[place + 1]]
                parts = micro_batches(
                    rows, lengths[rows], micro_batch_tokens=micro_batch_tokens, groups=self.world_size
                )
                mine = share(len(parts), self.rank, self.world_size)
                number = first_step + place
                yield _PlannedStep(
                    number=number,
                    epoch=epoch,
                    progress=epoch + edges[place + 1] / len(lengths),
                    first=number * MICRO_BATCHES_PER_STEP + mine.start,
                    mine=parts[mine.start : mine.stop],
                    follows=place > 0,
                )
            epoch, first_step = epoch + 1, first_step + num_steps

    def _edges(self, epoch: int, lengths: np.ndarray) -> tuple[np.ndarray, list[int]]:
        """The order of the epoch's rows, and where in it steps begin and end."""
        if len(lengths) == 0:
            raise DataError("there is not a single row to train on: the corpus or the training set is empty")
        if self.contiguous:
            return lanes(lengths, batch_tokens=self.batch_tokens, batch_examples=self.batch_examples)
        order = permutation(len(lengths), self.seed, "order", epoch)
        if self.batch_tokens is not None:
            return order, cut_by_tokens(lengths[order], self.batch_tokens, key="train.batch_tokens")
        assert self.batch_examples is not None
        return order, [*range(0, len(lengths), self.batch_examples), len(lengths)]


class RenumberedStream:
    """A stream from one of its steps on, under other numbers: for a run that has taken steps of another before.

    Args:
        stream: the steps.
        begins: number of the step that comes first.
        number: what that one is numbered here.
    """

    def __init__(self, stream: BatchStream, *, begins: int, number: int) -> None:
        self.stream, self.begins, self.number = stream, begins, number

    @property
    def steps_per_epoch(self) -> int:
        """See ``BatchStream``."""
        return self.stream.steps_per_epoch

    def steps(self, start: int = 0) -> Iterator[Step]:
        """See ``BatchStream``; ``start`` is one of the numbers here."""
        moved = self.number - self.begins
        for step in self.stream.steps(start - moved):
            yield replace(step, number=step.number + moved)

    def set_micro_batch_tokens(self, tokens: int) -> None:
        """See ``BatchStream``."""
        self.stream.set_micro_batch_tokens(tokens)


#: One micro-batch: its epoch, its rows, and whether they go on from the ones before (None: they stand alone).
_Key = tuple[int, np.ndarray, bool | None]


class _Plans:
    """The plans of the epochs in use, made when first asked for."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._plans: dict[int, Any] = {}

    def __getitem__(self, epoch: int) -> Any:
        if epoch not in self._plans:
            # Prefetching reads at most one epoch ahead, so two are in use at the same time.
            self._plans = {kept: plan for kept, plan in self._plans.items() if kept == epoch - 1}
            self._plans[epoch] = self._source.plan(epoch)
        return self._plans[epoch]


class _Builder(Dataset[Any]):
    """Builds batches in a worker process, which plans the epochs for itself."""

    def __init__(self, source: Source) -> None:
        self._source, self._plans = source, _Plans(source)

    def __getitem__(self, key: _Key) -> Any:
        return _built(self._source, self._plans, key)


def _built(source: Source, plans: _Plans, key: _Key) -> Any:
    epoch, rows, follows = key
    return source.build(epoch, plans[epoch], rows, follows=follows)


def _as_it_is(batch: Any) -> Any:
    return batch


def _outlive_signals(worker: int) -> None:
    """Ctrl-C, SIGHUP and often SIGTERM reach the whole process group, while the main process has a step to finish.

    So Ctrl-C, SIGHUP and the first SIGTERM are ignored; the main process ends its workers itself.
    """
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: signal.signal(signal.SIGTERM, signal.SIG_DFL))
