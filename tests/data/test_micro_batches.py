"""The stream of steps: step k is a pure function of (config, seed, k), for any workers, ranks and starting step."""

from __future__ import annotations

import os
import pickle
import subprocess
from dataclasses import dataclass
from itertools import islice
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import pytest
import torch
from support.refusals import refuses

from lmtransfer.data.micro_batches import (
    MICRO_BATCHES_PER_STEP,
    PlannedStream,
    RenumberedStream,
    SerializedBatch,
    Source,
    capacity_of_pass,
    cut_by_tokens,
    cut_evenly,
    evaluation_batches,
    rank_share,
    receive,
    tokens_of_pass,
)
from lmtransfer.errors import ConfigError, DataError
from lmtransfer.randomness import permutation
from lmtransfer.training.learner import Step


@dataclass(frozen=True)
class Plan:
    lengths: np.ndarray


class RaggedSource(Source):
    """A source whose epochs have different numbers of rows; a batch is the list of its rows."""

    def plan(self, epoch: int) -> Plan:
        rng = np.random.default_rng(100 + epoch)
        return Plan(rng.integers(1, 30, 60 + 7 * (epoch % 3)))

    def part(self, plan: Plan, row_ids: np.ndarray) -> Plan:
        return plan

    def build(
        self, epoch: int, plan: Plan, row_ids: Any, *, follows: bool | None = None
    ) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
        assert np.array_equal(plan.lengths, self.plan(epoch).lengths)
        rows = tuple(int(row) for row in row_ids)
        return epoch, rows, tuple(int(plan.lengths[row]) for row in rows)


def taken(stream: PlannedStream, count: int, start: int = 0) -> list[Step]:
    return list(islice(stream.steps(start), count))


def stream(**changes: Any) -> PlannedStream:
    settings: dict[str, Any] = {"seed": 1, "batch_tokens": 100, "micro_batch_tokens": 40}
    return PlannedStream(RaggedSource(), **{**settings, **changes})


def test_each_epoch_holds_each_row_once_and_its_last_step_is_kept() -> None:
    steps = taken(stream(), 120)
    for epoch in range(3):
        local = [step for step in steps if any(batch[0] == epoch for batch in step.micro_batches)]
        rows = [row for step in local for batch in step.micro_batches for row in batch[1]]
        lengths = RaggedSource().plan(epoch).lengths
        assert sorted(rows) == list(range(len(lengths)))
        sizes = [sum(sum(batch[2]) for batch in step.micro_batches) for step in local]
        assert max(sizes) <= 100
        assert all(batch[0] == epoch for step in local for batch in step.micro_batches)
        assert local[-1].epoch == epoch + 1
        progress = [step.epoch for step in local]
        assert progress == sorted(set(progress))
        assert progress[0] > epoch
    assert [step.number for step in steps] == list(range(120))


def test_a_step_takes_rows_in_order_until_the_next_would_not_fit() -> None:
    lengths = RaggedSource().plan(0).lengths
    expected: list[list[int]] = [[]]
    for row in permutation(len(lengths), 1, "order", 0).tolist():
        if sum(lengths[r] for r in expected[-1]) + lengths[row] > 100:
            expected.append([])
        expected[-1].append(row)
    steps = taken(stream(), len(expected))
    assert [sorted(r for b in s.micro_batches for r in b[1]) for s in steps] == [sorted(rows) for rows in expected]
    assert stream().steps_per_epoch == len(expected)


def test_rows_of_one_length_keep_the_order_of_the_step() -> None:
    lengths = RaggedSource().plan(0).lengths
    order = permutation(len(lengths), 1, "order", 0).tolist()
    (batch,) = taken(stream(batch_tokens=10_000, micro_batch_tokens=None), 1)[0].micro_batches
    assert list(batch[1]) == sorted(order, key=lambda row: lengths[row])


def test_micro_batches_are_sorted_by_length_and_even() -> None:
    for step in taken(stream(), 30):
        lengths = [n for batch in step.micro_batches for n in batch[2]]
        assert lengths == sorted(lengths)
        assert len(step.micro_batches) == min(-(-sum(lengths) // 34), len(lengths))  # 34, for at most 40
        assert all(sum(batch[2]) < 34 + max(lengths) for batch in step.micro_batches)


@pytest.mark.parametrize(("start", "num_workers"), [(1, 0), (7, 0), (8, 0), (25, 4), (60, 0)])
@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_a_resumed_stream_goes_on_with_the_same_steps(start: int, num_workers: int) -> None:
    assert taken(stream(num_workers=num_workers), 10, start) == taken(stream(), start + 10)[start:]


@pytest.mark.parametrize("num_workers", [1, 3])
@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_workers_change_nothing(num_workers: int) -> None:
    assert taken(stream(num_workers=num_workers), 40) == taken(stream(), 40)


def of_ranks(world_size: int, count: int, **changes: Any) -> list[list[Step]]:
    return [taken(stream(rank=rank, world_size=world_size, **changes), count) for rank in range(world_size)]


@pytest.mark.parametrize("world_size", [2, 3, 8])
@pytest.mark.parametrize("micro_batch_tokens", [40, 90, None])
def test_ranks_share_the_rows_of_a_step(world_size: int, micro_batch_tokens: int | None) -> None:
    alone = taken(stream(micro_batch_tokens=micro_batch_tokens), 30)
    ranks = of_ranks(world_size, 30, micro_batch_tokens=micro_batch_tokens)
    for number, step in enumerate(alone):
        shares = [steps[number] for steps in ranks]
        assert [row for part in shares for row in _rows(part)] == _rows(step)
        assert {(part.number, part.epoch) for part in shares} == {(step.number, step.epoch)}
        numbers = [part.first_micro_batch + i for part in shares for i in range(len(part.micro_batches))]
        assert numbers == sorted(set(numbers))
        assert min(numbers) // MICRO_BATCHES_PER_STEP == max(numbers) // MICRO_BATCHES_PER_STEP == number
        (_,) = {len(part.micro_batches) for part in shares}  # every rank runs the same number of passes
        assert all(len(part.fillers) < len(part.micro_batches) for part in shares) or len(_rows(step)) < 24
        if len(_rows(step)) >= 24 and micro_batch_tokens is not None:
            most = capacity_of_pass(100, longest=29, micro_batch_tokens=micro_batch_tokens, world_size=world_size)
            assert all(sum(batch[2]) <= most for part in shares for batch in part.micro_batches)


def _rows(step: Step) -> list[int]:
    """Return the rows that count."""
    return [row for place, batch in enumerate(step.micro_batches) if place not in step.fillers for row in batch[1]]


@pytest.mark.parametrize("world_size", [1, 2, 3, 8])
def test_a_rank_builds_only_its_share(world_size: int) -> None:
    """A stream without a limit on micro-batches; also returns the number of batches built before the first step."""

    class Counting(RaggedSource):
        num_rows = num_tokens = 0

        def build(self, epoch: int, plan: Plan, row_ids: Any, *, follows: bool | None = None) -> Any:
            self.num_rows += len(row_ids)
            self.num_tokens += int(plan.lengths[row_ids].sum())
            return super().build(epoch, plan, row_ids)

    sources = [Counting() for _ in range(world_size)]
    for rank, source in enumerate(sources):
        ranks_steps = PlannedStream(source, seed=1, batch_examples=48, rank=rank, world_size=world_size).steps()
        next(ranks_steps)
    assert sum(source.num_rows for source in sources) == 48
    whole = sum(source.num_tokens for source in sources)
    assert max(source.num_tokens for source in sources) <= whole / world_size + RaggedSource().plan(0).lengths.max()


@pytest.mark.parametrize("world_size", [2, 3, 8])
@pytest.mark.parametrize("micro_batch_tokens", [4096, None])
def test_no_rank_waits_long_for_another(world_size: int, micro_batch_tokens: int | None) -> None:
    """Rows of 470 to 512 tokens, which one rank processes in 33 micro-batches."""
    rng = np.random.default_rng(0)
    for _ in range(20):
        lengths = rng.integers(470, 513, size=8 * 32 + 4)
        rows = np.arange(len(lengths))
        total = int(lengths.sum())
        pass_tokens = tokens_of_pass(total, micro_batch_tokens=micro_batch_tokens, world_size=world_size)
        shares = [
            rank_share(rows, lengths, pass_tokens=pass_tokens, rank=rank, world_size=world_size)
            for rank in range(world_size)
        ]
        sizes = [[int(lengths[part].sum()) for part in share.micro_batches] for share in shares]
        loads = [sum(of_rank) for of_rank in sizes]
        assert sum(loads) == total
        assert total / (world_size * max(loads)) > 0.95
        (number,) = {len(of_rank) for of_rank in sizes}
        assert number == (1 if micro_batch_tokens is None else -(-total // (4096 * world_size)))
        most = capacity_of_pass(total, longest=512, micro_batch_tokens=micro_batch_tokens, world_size=world_size)
        assert max(size for of_rank in sizes for size in of_rank) <= most


@pytest.mark.parametrize("world_size", [1, 2, 7, 8])
@pytest.mark.parametrize("micro_batch_tokens", [None, 96])
@pytest.mark.parametrize("batch_tokens", [384, 389])
def test_equally_long_rows_need_no_room_for_one_more(
    world_size: int, micro_batch_tokens: int | None, batch_tokens: int
) -> None:
    """Rows of 12 tokens and, as in a mixture, a few shorter last rows; 384 tokens are 32 rows."""

    class Equal(RaggedSource):
        def plan(self, epoch: int) -> Plan:
            lengths = np.full(1000, 12)
            lengths[[3, 400, 999]] = 1, 4, 5
            return Plan(lengths)

    settings = {"seed": 3, "batch_tokens": batch_tokens, "micro_batch_tokens": micro_batch_tokens}
    rows, largest = [], []
    for rank in range(world_size):
        ranks_stream = PlannedStream(Equal(), rank=rank, world_size=world_size, **settings)
        steps = taken(ranks_stream, 64)  # two epochs
        rows.append([_rows(step) for step in steps])
        largest.append(max(sum(batch[2]) for step in steps for batch in step.micro_batches))
        num_passes = len(steps[0].micro_batches)
        most = -(-32 // (world_size * num_passes)) * 12
        assert largest[-1] <= ranks_stream.capacity(12) <= most + 15
    together = [sorted(row for part in step for row in part) for step in zip(*rows, strict=True)]
    assert [len(step) for step in together] == ([32] * 31 + [8]) * 2
    assert sorted(row for step in together[:32] for row in step) == list(range(1000))


@pytest.mark.parametrize("num_workers", [0, 1])
def test_smaller_micro_batches_hold_the_same_steps(num_workers: int) -> None:
    told = stream(num_workers=num_workers, micro_batch_tokens=90)
    running = told.steps()
    before = [next(running) for _ in range(2)]
    told.set_micro_batch_tokens(40)
    assert [*before, next(running)] == taken(stream(micro_batch_tokens=90), 3)
    assert taken(told, 10, start=2) == taken(stream(micro_batch_tokens=40), 12)[2:]


def test_examples_a_step() -> None:
    steps = taken(stream(batch_tokens=None, batch_examples=8, micro_batch_tokens=None), 9)
    assert [len(step.micro_batches[0][1]) for step in steps] == [8] * 7 + [4, 8]
    assert steps[7].epoch == 1.0
    assert steps[8].epoch == pytest.approx(1 + 8 / 67)


def test_order_differs_between_epochs_and_seeds() -> None:
    class Same(RaggedSource):
        def plan(self, epoch: int) -> Plan:
            return Plan(np.full(64, 5))

        def build(self, epoch: int, plan: Plan, row_ids: Any, *, follows: bool | None = None) -> Any:
            return tuple(row_ids.tolist())

    orders = {
        (seed, epoch): tuple(
            row
            for step in taken(PlannedStream(Same(), seed=seed, batch_examples=8), 8, start=8 * epoch)
            for batch in step.micro_batches
            for row in batch
        )
        for seed in range(2)
        for epoch in range(2)
    }
    assert len(set(orders.values())) == 4


def test_the_global_generator_is_not_touched() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    taken(stream(num_workers=1), 3)
    assert torch.equal(torch.rand(3), expected)


def test_workers_outlive_interrupts_of_the_process_group() -> None:
    class Telling(RaggedSource):
        def build(self, epoch: int, plan: Plan, row_ids: Any, *, follows: bool | None = None) -> Any:
            return os.getpid(), super().build(epoch, plan, row_ids)

    steps = PlannedStream(Telling(), seed=1, batch_tokens=100, num_workers=1).steps()
    worker = next(steps).micro_batches[0][0]
    assert worker != os.getpid()
    for name in ("INT", "TERM", "USR1", "TERM", "TERM"):  # from another process: the main one ends its workers so
        subprocess.run(["kill", f"-{name}", str(worker)], check=True)
    seen = [next(steps).micro_batches[0] for _ in range(20)]
    assert {pid for pid, _ in seen} == {worker}
    assert [batch for _, batch in seen] == [
        step.micro_batches[0] for step in taken(stream(micro_batch_tokens=None), 20, start=1)
    ]


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({"batch_tokens": None}, ("train.batch_tokens", "train.batch_examples")),
        ({"batch_examples": 4}, ("train.batch_tokens", "train.batch_examples")),
        ({"batch_tokens": 0}, ("train.batch_tokens=0",)),
        ({"micro_batch_tokens": -1}, ("train.micro_batch_tokens=-1",)),
        ({"batch_tokens": 20}, ("train.batch_tokens=20", "29 tokens")),
        ({"micro_batch_tokens": 20}, ("train.micro_batch_tokens=20", "29 tokens")),
    ],
)
def test_bad_budgets_are_refused_by_name(settings: dict[str, Any], names: tuple[str, ...]) -> None:
    with refuses(ConfigError, *names):
        taken(stream(**settings), 10)


class Empty(RaggedSource):
    def plan(self, epoch: int) -> Plan:
        return Plan(np.zeros(0, dtype=np.int32))


def test_an_empty_epoch_is_refused_and_an_empty_set_evaluated() -> None:
    with refuses(DataError, "row"):
        taken(PlannedStream(Empty(), seed=0, batch_tokens=10), 1)
    for rank in range(2):
        assert list(evaluation_batches(Empty(), micro_batch_tokens=8, rank=rank, world_size=2)) == []


@pytest.mark.parametrize("micro_batch_tokens", [1, 64, 10_000])
def test_evaluation_sees_each_row_once(micro_batch_tokens: int) -> None:
    lengths = RaggedSource().plan(0).lengths
    for world_size in (1, 2, 3):
        ranks = [
            list(
                evaluation_batches(
                    RaggedSource(), micro_batch_tokens=micro_batch_tokens, rank=rank, world_size=world_size
                )
            )
            for rank in range(world_size)
        ]
        batches = [batch for rank in ranks for batch in rank]
        assert sorted(row for batch in batches for row in batch[1]) == list(range(len(lengths)))
        assert all(sum(batch[2]) <= max(micro_batch_tokens, lengths.max()) for batch in batches)
        tokens = [sum(sum(batch[2]) for batch in rank) for rank in ranks]
        if micro_batch_tokens >= lengths.max():  # otherwise each row is a batch, and the numbers of batches are even
            assert max(tokens) <= -(-lengths.sum() // world_size) + lengths.max()


def test_evaluation_of_a_subset_is_random_and_within_its_budget() -> None:
    def chosen(seed: int, max_tokens: int, micro: int = 64) -> list[int]:
        batches = evaluation_batches(RaggedSource(), micro_batch_tokens=micro, max_tokens=max_tokens, seed=seed)
        return sorted(row for batch in batches for row in batch[1])

    lengths = RaggedSource().plan(0).lengths
    assert chosen(0, 200) == chosen(0, 200, micro=30)
    assert chosen(0, 200) != chosen(1, 200)
    assert 200 - 30 < lengths[chosen(0, 200)].sum() <= 200
    assert len(chosen(0, 0)) == 1
    assert len(chosen(0, 10**6)) == len(lengths)


def test_cuts_against_plain_loops() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        lengths = rng.integers(1, 20, int(rng.integers(1, 40)))
        edges, size = [0], 0
        for i, length in enumerate(lengths):
            if size + length > 30:
                edges.append(i)
                size = 0
            size += length
        assert cut_by_tokens(lengths, 30, key="k") == [*edges, len(lengths)]
        for groups in (1, 2, 3, 7):
            even = cut_evenly(lengths, groups)
            assert [row for group in even for row in range(len(lengths))[group]] == list(range(len(lengths)))
            sums = [int(lengths[group].sum()) for group in even]
            assert max(sums) < lengths.sum() / groups + lengths.max() or groups == 1
            assert all(sums) or len(lengths) < groups
            if lengths.max() <= lengths.sum() / (2 * groups):
                halves = cut_evenly(lengths, 2 * groups)
                assert [(group.start, group.stop) for group in even] == [
                    (first.start, second.stop) for first, second in zip(halves[::2], halves[1::2], strict=True)
                ]


def test_the_step_at_an_epoch_is_the_one_that_comes_next() -> None:
    assert stream().step_at(0.0) == 0
    steps = taken(stream(), 60)
    assert steps[-1].epoch > 3
    assert [stream().step_at(step.epoch) for step in steps] == [step.number + 1 for step in steps]


@pytest.mark.parametrize("start", [40, 47])
def test_a_renumbered_stream_hands_out_the_same_steps_under_other_numbers(start: int) -> None:
    renumbered = RenumberedStream(stream(), first=7, number=40)
    found = list(islice(renumbered.steps(start), 20))
    same = taken(stream(), 20, start=start - 33)
    assert [step.number for step in found] == list(range(start, start + 20))
    assert [(step.epoch, step.micro_batches) for step in found] == [(step.epoch, step.micro_batches) for step in same]
    assert renumbered.steps_per_epoch == stream().steps_per_epoch
    renumbered.set_micro_batch_tokens(30)
    smaller = taken(stream(micro_batch_tokens=30), 1, start=7)[0]
    assert next(renumbered.steps(40)).micro_batches == smaller.micro_batches


@dataclass(frozen=True, slots=True)
class _Batch:
    tokens: torch.Tensor
    again: torch.Tensor
    view: torch.Tensor
    half: torch.Tensor
    rounded: torch.Tensor
    none: torch.Tensor
    array: np.ndarray
    names: tuple[str, ...]


def _batch() -> _Batch:
    torch.manual_seed(0)
    tokens, large = torch.randint(9, (4, 3)), torch.randn(1000, 7)
    return _Batch(
        tokens, tokens, large[:, 2][:5], tokens.half(), tokens.bfloat16(), tokens[:0], np.arange(3), ("a", "b")
    )


def test_a_batch_arrives_as_it_was_sent() -> None:
    batch = _batch()
    arrived = pickle.loads(pickle.dumps(SerializedBatch(batch))).batch()
    for name in ("tokens", "view", "half", "rounded", "none"):
        before, after = getattr(batch, name), getattr(arrived, name)
        assert before.dtype == after.dtype
        assert torch.equal(before, after)
    assert arrived.again is arrived.tokens
    arrived.tokens.add_(1)  # the received tensor is writable
    assert np.array_equal(arrived.array, batch.array)
    assert arrived.names == batch.names
    assert receive(batch) is batch
    assert torch.equal(receive(SerializedBatch(batch)).tokens, batch.tokens)


def test_only_the_numbers_of_a_view_are_sent() -> None:
    large = torch.randn(1000, 1000)
    assert len(pickle.dumps(SerializedBatch(large[3]))) < 2 * 4 * 1000


def test_no_tensor_goes_through_shared_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(tensor: torch.Tensor) -> None:
        raise OSError("no space in shared memory")

    monkeypatch.setitem(ForkingPickler._extra_reducers, torch.Tensor, refuse)
    batch = torch.arange(6)
    with pytest.raises(OSError, match="shared memory"):
        ForkingPickler.dumps(batch)
    assert torch.equal(pickle.loads(ForkingPickler.dumps(SerializedBatch(batch))).batch(), batch)


def test_it_is_pinned_as_a_batch_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor + 100)
    assert receive(SerializedBatch(torch.arange(3)).pin_memory()).tolist() == [100, 101, 102]
