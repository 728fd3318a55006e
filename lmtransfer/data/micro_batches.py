"""Micro-batches: the rows of each step, micro-batch and rank, the stream of training steps, and evaluation batches."""

from __future__ import annotations

import io
import pickle
import signal
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from itertools import groupby, pairwise
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset
from typing_extensions import override

from lmtransfer.errors import ConfigError, DataError
from lmtransfer.randomness import permutation
from lmtransfer.system import door
from lmtransfer.system.interrupts import SIGNALS
from lmtransfer.training.learner import BatchStream, Step

#: The capacity of a forward pass is rounded up to a multiple of this, for efficient matrix products.
_CAPACITY_MULTIPLE = 16
#: The first micro-batch of step k has the index k times this, so that indices do not depend on earlier steps.
MICRO_BATCHES_PER_STEP = 1 << 20
#: Number of batches that each worker keeps ready.
_PREFETCHED = 4


def cut_by_tokens(lengths: np.ndarray, max_tokens: int, *, key: str) -> list[int]:
    """Return the edges of consecutive groups, each with as many rows as fit into ``max_tokens``.

    Edges go from 0 to ``len(lengths)``; group i is rows [edges[i], edges[i + 1]). ``key`` is the setting with the value
    ``max_tokens``.
    """
    check_longest(lengths, max_tokens, key=key)
    tokens = np.cumsum(lengths, dtype=np.int64).data
    edges, taken = [0], 0
    while edges[-1] < len(tokens):
        edges.append(bisect_right(tokens, taken + max_tokens, lo=edges[-1]))
        taken = tokens[edges[-1] - 1]
    return edges


def check_longest(lengths: np.ndarray, max_tokens: int, *, key: str) -> None:
    """Raise a ``ConfigError`` if a row is longer than ``max_tokens``, the value of the setting ``key``."""
    longest = int(lengths.max(initial=0))
    if longest > max_tokens:
        raise ConfigError(
            f"{key}={max_tokens} is less than the longest row ({longest} tokens): raise it to {longest} or more, or "
            "use shorter rows"
        )


def contiguous_streams(
    lengths: np.ndarray, *, batch_tokens: int | None = None, batch_examples: int | None = None
) -> tuple[np.ndarray, list[int]]:
    """Return the order of contiguous rows and the edges of the steps in it: a step takes the next row of every stream.

    A stream is a contiguous part of the text. All rows have the same length, except perhaps a shorter last one. A
    shorter last row and rows that do not fill a step are not used. Give either ``batch_tokens`` or ``batch_examples``.
    """
    longest = int(lengths.max(initial=1))
    num_rows = int((lengths == longest).sum())
    if batch_tokens is not None and batch_tokens < longest:
        raise ConfigError(
            f"train.batch_tokens={batch_tokens} is less than a row ({longest} tokens): raise it to {longest} or more"
        )
    num_streams = batch_tokens // longest if batch_tokens is not None else batch_examples
    assert num_streams is not None
    num_steps = num_rows // num_streams
    if num_steps == 0:
        raise ConfigError(
            f"the text has {num_rows} rows of {longest} tokens, but a step needs {num_streams} contiguous streams "
            "with a row each: lower train.batch_tokens or objective.max_length, or use more text"
        )
    order = np.arange(num_streams * num_steps).reshape(num_streams, num_steps).T.reshape(-1)
    return order, list(range(0, len(order) + 1, num_streams))


def cut_evenly(lengths: np.ndarray, groups: int) -> list[slice]:
    """Cut rows into consecutive groups with about the same number of tokens; a row's midpoint decides its group.

    A group therefore exceeds its share by less than one row. Doubling the number of groups halves each group. Each
    group has at least one row if there are enough rows.
    """
    ends = np.cumsum(lengths, dtype=np.int64)
    middles = (2 * ends - lengths) * groups // (2 * int(ends[-1])) if len(ends) else ends
    edges = np.searchsorted(middles, np.arange(groups + 1))
    if len(lengths) >= groups:
        numbers = np.arange(groups + 1)
        edges = np.maximum.accumulate(edges - numbers) + numbers
        edges = np.minimum(edges, len(lengths) - numbers[::-1])
    return [slice(first, last) for first, last in pairwise(edges.tolist())]


def tokens_of_pass(batch_tokens: int, *, micro_batch_tokens: int | None, world_size: int) -> int:
    """Return a forward pass's share of a step's tokens; every rank performs the same number of passes."""
    passes = 1 if micro_batch_tokens is None else -(-batch_tokens // (world_size * micro_batch_tokens))
    return -(-batch_tokens // (world_size * passes))


def capacity_of_pass(
    batch_tokens: int, *, longest: int, micro_batch_tokens: int | None = None, world_size: int = 1
) -> int:
    """Return the maximum number of tokens in a forward pass over rows of any lengths up to ``longest``."""
    share = tokens_of_pass(batch_tokens, micro_batch_tokens=micro_batch_tokens, world_size=world_size)
    return min(batch_tokens, -(-(share + longest) // _CAPACITY_MULTIPLE) * _CAPACITY_MULTIPLE)


@dataclass(frozen=True, slots=True)
class RankShare:
    """The micro-batches of one rank in one step.

    Attributes:
        first: number of micro-batches that are reserved for earlier ranks.
        num_fillers: number of trailing micro-batches that do not count because they repeat a row of the step.
    """

    first: int
    micro_batches: list[np.ndarray]
    num_fillers: int = 0


def rank_share(
    rows: np.ndarray, lengths: np.ndarray, *, pass_tokens: int | None, rank: int = 0, world_size: int = 1
) -> RankShare:
    """Divide one step's rows among the ranks, and cut one rank's share into micro-batches.

    Rows are sorted by length and cut evenly. Every rank has the same number of micro-batches; some are fillers if the
    step has fewer rows than micro-batches. The rows of a rank do not depend on the number of micro-batches. A
    micro-batch may exceed ``pass_tokens`` by less than one row; None means one micro-batch per rank.
    """
    rows, lengths = _by_length(rows, lengths)
    passes = 1 if pass_tokens is None else max(1, -(-int(lengths.sum(dtype=np.int64)) // (world_size * pass_tokens)))
    groups = cut_evenly(lengths, world_size * passes)
    of_ranks = [
        [rows[group] for group in groups[first : first + passes] if group.start < group.stop]
        for first in range(0, len(groups), passes)
    ]
    num_fillers = max(map(len, of_ranks)) - len(of_ranks[rank])
    return RankShare(rank * passes, of_ranks[rank] + [rows[:1]] * num_fillers, num_fillers)


def micro_batches(
    rows: np.ndarray, lengths: np.ndarray, *, micro_batch_tokens: int, rank: int = 0, world_size: int = 1
) -> list[np.ndarray]:
    """Cut one rank's rows into micro-batches of rows with similar lengths, each with as many rows as fit."""
    rows, lengths = _by_length(rows, lengths)
    own = cut_evenly(lengths, world_size)[rank]
    edges = cut_by_tokens(lengths[own], micro_batch_tokens, key="train.micro_batch_tokens")
    return [rows[own][first:last] for first, last in pairwise(edges)]


def _by_length(rows: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    order = np.argsort(lengths, kind="stable")
    return rows[order], lengths[order]


class SerializedBatch:
    """A batch in host memory, serialized to bytes."""

    def __init__(self, batch: Any) -> None:
        content = io.BytesIO()
        _Pickler(content, protocol=pickle.HIGHEST_PROTOCOL).dump(batch)
        self._content = content.getvalue()

    def batch(self) -> Any:
        """Deserialize the batch."""
        return pickle.loads(self._content)

    def pin_memory(self) -> Any:
        """Return the batch in page-locked memory; a loader with ``pin_memory=True`` calls this during the step."""
        return self.batch().pin_memory()


def receive(item: Any) -> Any:
    """Return the batch from a loader's item, which the loader may already have deserialized and pinned."""
    return item.batch() if isinstance(item, SerializedBatch) else item


class _Pickler(pickle.Pickler):
    """A pickler that writes only a tensor's own elements; PyTorch would write the whole storage that tensors share."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, torch.Tensor) and obj.dtype != torch.bfloat16:  # NumPy has no bfloat16
            return torch.from_numpy, (obj.numpy(),)
        return NotImplemented


class Source(ABC):
    """Rows that are planned one epoch at a time and built into batches; must be picklable for workers."""

    @abstractmethod
    def plan(self, epoch: int) -> Any:
        """Plan the rows of ``epoch``: an object with ``lengths`` that depends only on the settings and ``epoch``."""

    @abstractmethod
    def build(self, epoch: int, plan: Any, row_ids: Sequence[int] | np.ndarray, *, follows: bool | None = None) -> Any:
        """Build a micro-batch; ``follows``: whether its contiguous rows continue the rows of the previous batch."""

    def part(self, plan: Any, row_ids: np.ndarray) -> Any:
        """Return the part of a plan that ``build`` needs for these rows, to send to a worker; None if it needs none."""
        return None

    def set_capacity(self, capacity: Callable[[int], int]) -> None:  # noqa: B027 (most sources do not fill batches)
        """Fill all later batches up to ``capacity(tokens of the longest row)``, if the source fills batches."""


@dataclass(frozen=True, slots=True)
class _PlannedStep:
    number: int
    epoch: int
    progress: float
    local: RankShare
    follows: bool


@dataclass(eq=False)
class PlannedStream:
    """Steps with rows in random order, in a new order each epoch; see ``training.learner.BatchStream``.

    A step takes rows in that order up to its budget; the last step of an epoch takes the remaining rows. Within a step,
    rows are sorted by length and cut evenly into micro-batches, the same number for each rank. Each rank builds only
    its own. The rows of a step do not depend on the number of workers or on the world size.

    Attributes:
        batch_tokens: maximum number of tokens in a step over all ranks; give this or ``batch_examples``.
        micro_batch_tokens: tokens per forward pass, which may exceed this by less than one row; None for one forward
            pass per rank and step.
        num_workers: number of processes that build batches in advance; 0 builds batches in this process.
        pin_memory: whether to build batches in page-locked memory, for a GPU (with workers only).
        contiguous: whether the rows of an epoch are contiguous text: row j of each step continues row j of the previous
            step. There are as many contiguous streams as full rows in a step. Leftover rows are read in other epochs.
    """

    source: Source
    _: KW_ONLY
    seed: int
    batch_tokens: int | None = None
    batch_examples: int | None = None
    micro_batch_tokens: int | None = None
    num_workers: int = 0
    rank: int = 0
    world_size: int = 1
    pin_memory: bool = False
    contiguous: bool = False

    def __post_init__(self) -> None:
        if (self.batch_tokens is None) == (self.batch_examples is None):
            raise ConfigError("set either train.batch_tokens or train.batch_examples, but not both")
        for name in ("batch_tokens", "batch_examples", "micro_batch_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"train.{name}={value} is not allowed: use 1 or more")
        self._plans = _Plans(self.source)

    @property
    def steps_per_epoch(self) -> int:
        """Number of optimizer steps in the first epoch."""
        return self.steps_in(0)

    @property
    def mean_length(self) -> float:
        """Mean length of the first epoch's rows, in tokens."""
        return float(np.mean(self._plans[0].lengths))

    @property
    def tokens_per_epoch(self) -> int:
        """Number of tokens in the first epoch's rows, including special tokens."""
        return int(np.sum(self._plans[0].lengths, dtype=np.int64))

    def steps_in(self, epoch: int) -> int:
        """Return the number of optimizer steps in an epoch."""
        return len(self._edges(epoch, self._plans[epoch].lengths)[1]) - 1

    def steps(self, start: int = 0) -> Iterator[Step]:
        """Yield steps without end, from index ``start`` on."""
        micro_batch_tokens = self.micro_batch_tokens  # the same value for all steps of this call
        batches = self._batches(start, micro_batch_tokens)
        for planned in self._planned(start, micro_batch_tokens):
            local, first = planned.local, planned.number * MICRO_BATCHES_PER_STEP + planned.local.first
            micro_batches = tuple(next(batches) for _ in local.micro_batches)
            fillers = range(len(micro_batches) - local.num_fillers, len(micro_batches))
            yield Step(planned.number, planned.progress, micro_batches, first, fillers=fillers)

    def step_at(self, epoch: float) -> int:
        """Return the index of the step after ``epoch`` (fractional) epochs, for a run that continues the same text."""
        whole = int(epoch)
        lengths = self._plans[whole].lengths
        over = round((epoch - whole) * len(lengths))
        within = bisect_right(self._edges(whole, lengths)[1], over) - 1
        return sum(self.steps_in(past) for past in range(whole)) + within

    def set_micro_batch_tokens(self, tokens: int) -> None:
        """Set the tokens per micro-batch for later calls of ``steps``; the rows of each step do not change."""
        self.micro_batch_tokens = tokens
        if self.batch_tokens is not None:
            self.source.set_capacity(self.capacity)

    def capacity(self, longest: int) -> int:
        """Return the maximum tokens in a forward pass of rows up to ``longest``, if steps count tokens."""
        most = self._most_tokens(longest)
        assert most is not None
        return capacity_of_pass(
            most, longest=longest, micro_batch_tokens=self.micro_batch_tokens, world_size=self.world_size
        )

    def _most_tokens(self, longest: int) -> int | None:
        """Return the maximum number of tokens in a step over all ranks; None if steps count examples."""
        if self.batch_tokens is None or not self.contiguous:
            return self.batch_tokens
        return max(self.batch_tokens // longest, 1) * longest

    def _batches(self, start: int, micro_batch_tokens: int | None) -> Iterator[Any]:
        keys = (
            (step.epoch, rows, step.follows if self.contiguous else None)
            for step in self._planned(start, micro_batch_tokens)
            for rows in step.local.micro_batches
        )
        if self.num_workers == 0:
            return (self.source.build(key[0], self._plans[key[0]], key[1], follows=key[2]) for key in keys)
        tasks = ((*key, self.source.part(self._plans[key[0]], key[1])) for key in keys)
        loader: DataLoader[Any] = DataLoader(
            _Builder(self.source),
            batch_size=None,
            sampler=tasks,
            num_workers=self.num_workers,
            prefetch_factor=_PREFETCHED,
            collate_fn=_identity,
            worker_init_fn=partial(_start_worker, door.state()),
            pin_memory=self.pin_memory,
            generator=torch.Generator(),  # separate, so that starting workers does not use the global generator
        )
        return map(receive, loader)

    def _planned(self, start: int, micro_batch_tokens: int | None) -> Iterator[_PlannedStep]:
        epoch, first_step = 0, 0
        while True:
            lengths = self._plans[epoch].lengths
            if micro_batch_tokens is not None:
                check_longest(lengths, micro_batch_tokens, key="train.micro_batch_tokens")
            order, edges = self._edges(epoch, lengths)
            num_steps = len(edges) - 1
            pass_tokens = micro_batch_tokens
            if (most := self._most_tokens(int(lengths.max()))) is not None:
                pass_tokens = tokens_of_pass(most, micro_batch_tokens=micro_batch_tokens, world_size=self.world_size)
            for place in range(max(start - first_step, 0), num_steps):
                rows = order[edges[place] : edges[place + 1]]
                local = rank_share(
                    rows,
                    lengths[rows],
                    pass_tokens=pass_tokens,
                    rank=self.rank,
                    world_size=self.world_size,
                )
                progress = epoch + edges[place + 1] / len(lengths)
                yield _PlannedStep(first_step + place, epoch, progress, local, follows=place > 0)
            epoch, first_step = epoch + 1, first_step + num_steps

    def _edges(self, epoch: int, lengths: np.ndarray) -> tuple[np.ndarray, list[int]]:
        if len(lengths) == 0:
            raise DataError("there are no rows to train on: the corpus or the training set is empty")
        if self.contiguous:
            return contiguous_streams(lengths, batch_tokens=self.batch_tokens, batch_examples=self.batch_examples)
        order = permutation(len(lengths), self.seed, "order", epoch)
        if self.batch_tokens is not None:
            return order, cut_by_tokens(lengths[order], self.batch_tokens, key="train.batch_tokens")
        assert self.batch_examples is not None
        return order, [*range(0, len(lengths), self.batch_examples), len(lengths)]


class RenumberedStream(BatchStream):
    """A stream from step ``first`` on, renumbered from ``number``, for a run that already took steps elsewhere."""

    def __init__(self, stream: BatchStream, *, first: int, number: int) -> None:
        self.stream, self.first, self.number = stream, first, number

    @property
    @override
    def steps_per_epoch(self) -> int:
        return self.stream.steps_per_epoch

    @override
    def steps(self, start: int = 0) -> Iterator[Step]:
        """Yield steps without end; ``start`` is an index after the renumbering."""
        moved = self.number - self.first
        for step in self.stream.steps(start - moved):
            yield replace(step, number=step.number + moved)

    @override
    def set_micro_batch_tokens(self, tokens: int) -> None:
        self.stream.set_micro_batch_tokens(tokens)


class _Plans:
    """The plans of the epochs in use, created on first access."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._plans: dict[int, Any] = {}

    def __getitem__(self, epoch: int) -> Any:
        if epoch not in self._plans:
            # Prefetching reads at most one epoch ahead, so at most two plans are in use.
            self._plans = {number: plan for number, plan in self._plans.items() if number == epoch - 1}
            self._plans[epoch] = self._source.plan(epoch)
        return self._plans[epoch]


class _Builder(Dataset[Any]):
    """A data set that builds batches in a worker process, from its part of the plan, and sends them as bytes."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def __getitem__(self, key: tuple[int, np.ndarray, bool | None, Any]) -> SerializedBatch:
        epoch, rows, follows, part = key
        return SerializedBatch(self._source.build(epoch, part, rows, follows=follows))


def _identity(batch: Any) -> Any:
    return batch


def _start_worker(closed: door.Door | None, worker: int) -> None:
    """Take over the parent's door, and ignore Ctrl-C, SIGHUP and the first SIGTERM in a worker.

    These signals often reach the whole process group while the main process still has to finish a step. The main
    process ends its workers itself.
    """
    door.take_over(closed)
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: signal.signal(signal.SIGTERM, signal.SIG_DFL))


def evaluation_batches(
    source: Source,
    *,
    micro_batch_tokens: int,
    max_tokens: int | None = None,
    seed: int = 0,
    rank: int = 0,
    world_size: int = 1,
    num_streams: int | None = None,
) -> Iterator[Any]:
    """Yield evaluation batches: each row of epoch 0 once, sorted by length.

    The selected rows do not depend on the batch size or on the number of ranks. Neither does the predecessor of each
    row in contiguous text.

    Args:
        micro_batch_tokens: maximum number of tokens in a batch (a longer row is a batch by itself).
        max_tokens: size of a random subset, at most this many tokens (at least one row); None for all rows.
        num_streams: if given, the rows are contiguous text, as in a contiguous ``PlannedStream``, and are read in this
            number of parallel contiguous streams of equal length. The remaining rows form one more, shorter stream.
            With ``max_tokens``, only the first rows of each stream are used. Each rank gets a share of the streams.
    """
    plan = source.plan(0)
    if num_streams is not None:
        streams = _streams(plan.lengths, num_streams, max_tokens)
        width = max(micro_batch_tokens // int(plan.lengths.max(initial=1)), 1)
        first, last = (number * len(streams) // world_size for number in (rank, rank + 1))
        for group in _groups(streams[first:last], plan.lengths, width):
            for place, rows in enumerate(np.stack(group, axis=1)):
                yield source.build(0, plan, rows, follows=place > 0)
        return
    rows = np.arange(len(plan.lengths))
    if max_tokens is not None and plan.lengths.sum(dtype=np.int64) > max_tokens:
        rows = permutation(len(rows), seed, "subset")
        fitting = np.cumsum(plan.lengths[rows], dtype=np.int64).searchsorted(max_tokens, side="right")
        rows = rows[: max(int(fitting), 1)]
    limit = max(micro_batch_tokens, int(plan.lengths[rows].max(initial=0)))
    own = {"rank": rank, "world_size": world_size}
    for part in micro_batches(rows, plan.lengths[rows], micro_batch_tokens=limit, **own):
        yield source.build(0, plan, part)


def _streams(lengths: np.ndarray, num_streams: int, max_tokens: int | None) -> list[np.ndarray]:
    """Return the rows of each contiguous stream; all rows have the same length, except perhaps a shorter last one."""
    longest = int(lengths.max(initial=1))
    num_full = int((lengths == longest).sum())
    most = len(lengths) if max_tokens is None else max(max_tokens // longest, 1)
    num_streams = max(min(num_streams, num_full, most), 1)
    height = num_full // num_streams
    left_over = np.arange(height * num_streams, len(lengths))
    streams = list(np.arange(height * num_streams).reshape(num_streams, height)[:, : max(most // num_streams, 1)])
    if max_tokens is None or lengths.sum(dtype=np.int64) <= max_tokens:
        streams.append(left_over)
    return [stream for stream in streams if len(stream)]


def _groups(streams: list[np.ndarray], lengths: np.ndarray, width: int) -> Iterator[list[np.ndarray]]:
    """Yield groups of at most ``width`` consecutive streams with the same number of tokens."""
    for _, alike in groupby(streams, key=lambda rows: int(lengths[rows].sum())):
        together = list(alike)
        for start in range(0, len(together), width):
            yield together[start : start + width]
