"""Pretraining batches: rows and masks depend only on (seed, epoch, row), and indices are right."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fakes.objectives import TOKENIZER, random_documents, store_of

from lmtransfer.data.micro_batches import PlannedStream
from lmtransfer.data.token_shards import TokenStore
from lmtransfer.models.base import EncoderOutput
from lmtransfer.objectives.batch import PretrainingBatch
from lmtransfer.objectives.corruption.masking import Corruption, NoCorruption, TokenMasking
from lmtransfer.objectives.rows.pairs import SentencePairs
from lmtransfer.objectives.rows.stream import FullSentences, LanguageStream
from lmtransfer.objectives.source import PretrainingSource


def source_of(store: TokenStore, *, corruption: Corruption | None = None, **changes: Any) -> PretrainingSource:
    settings: dict[str, Any] = {"seed": 3, "output_positions": ("masked", "starts")}
    return PretrainingSource(
        store=store,
        rows=SentencePairs(max_length=40, tokenizer=TOKENIZER),
        corruption=corruption or TokenMasking(tokenizer=TOKENIZER),
        **{**settings, **changes},
    )


def rows_of(batch: PretrainingBatch) -> list[dict[str, Any]]:
    """Split a batch into its rows."""
    edges = batch.inputs.cu_seqlens.tolist()
    positions, targets = batch.positions_M.tolist()[: batch.num_targets], batch.targets_M.tolist()
    rows = []
    for i in range(batch.inputs.num_real):
        first, last = edges[i], edges[i + 1]
        local = [m for m, position in enumerate(positions) if first <= position < last]
        rows.append(
            {
                "key": batch.keys[i],
                "original": batch.original.tokens_T[first:last].tolist(),
                "inputs": batch.inputs.tokens_T[first:last].tolist(),
                "segments": batch.inputs.segments_T[first:last].tolist(),
                "positions": [positions[m] - first for m in local],
                "targets": [targets[m] for m in local],
                "labels": {name: int(values[i]) for name, values in batch.labels.items()},
            }
        )
    return rows


def test_rows_and_masks_do_not_depend_on_the_batch(store: TokenStore) -> None:
    source = source_of(store)
    plan = source.plan(1)
    ids = [5, 0, 17, 30, 8, 2]
    together = rows_of(source.build(1, plan, ids))
    apart = [rows_of(source.build(1, plan, [i]))[0] for i in ids]
    assert together == apart
    reordered = rows_of(source.build(1, source.plan(1), ids[::-1]))
    assert reordered == together[::-1]


def test_a_batch_says_what_was_hidden(store: TokenStore) -> None:
    source = source_of(store)
    plan = source.plan(0)
    batch = source.build(0, plan, range(20))
    assert batch.num_tokens == plan.lengths[:20].sum()
    for i, row in enumerate(rows_of(batch)):
        planned = plan.row(i)
        assert row["original"] == planned.tokens.tolist()
        assert row["segments"] == planned.segments.tolist()
        assert row["key"] == planned.key
        assert row["labels"] == planned.labels
        assert row["targets"] == [row["original"][p] for p in row["positions"]]
        assert len(row["targets"]) == max(1, round(0.15 * len(row["original"])))
        changed = [p for p, (a, b) in enumerate(zip(row["original"], row["inputs"], strict=True)) if a != b]
        assert set(changed) <= set(row["positions"])
    assert batch.weights_M.tolist() == [1.0] * batch.num_targets


def test_masks_differ_across_epochs_rows_and_seeds(tmp_path: Path) -> None:
    # The same sentence in every row of every epoch, so that only the masks can differ.
    store = store_of(tmp_path / "s", [[[10, 11, 12, 13, 14, 15, 16, 17] * 4]] * 20)
    masks = set()
    for seed in range(2):
        source = PretrainingSource(
            store=store,
            rows=FullSentences(max_length=34, tokenizer=TOKENIZER),
            corruption=TokenMasking(tokenizer=TOKENIZER),
            seed=seed,
        )
        for epoch in range(2):
            rows = rows_of(source.build(epoch, source.plan(epoch), range(20)))
            assert len({tuple(row["original"]) for row in rows}) == 1
            masks |= {tuple(row["positions"]) for row in rows}
    assert len(masks) > 75  # 80 samples among more than 150,000 possible masks


def test_static_masking_repeats_the_first_epoch(store: TokenStore) -> None:
    static = source_of(store, corruption=TokenMasking(static_masking=True, tokenizer=TOKENIZER))
    dynamic = source_of(store)
    first = rows_of(static.build(0, static.plan(0), range(10)))
    assert rows_of(static.build(4, static.plan(4), range(10))) == first
    assert rows_of(dynamic.build(0, dynamic.plan(0), range(10))) == first
    assert rows_of(dynamic.build(4, dynamic.plan(4), range(10))) != first


def test_editing_one_row_changes_no_other(tmp_path: Path) -> None:
    documents = random_documents(30, longest=8)
    edited = [[list(sentence) for sentence in document] for document in documents]
    edited[10] = [[4 + (token - 3) % 86 for token in sentence] for sentence in edited[10]]
    batches = []
    for name, version in (("a", documents), ("b", edited)):
        source = source_of(store_of(tmp_path / name, version))
        plan = source.plan(0)
        batches.append(rows_of(source.build(0, plan, range(len(plan.lengths)))))
    same = [first == second for first, second in zip(*batches, strict=True)]
    holds_edit = []
    starts = np.cumsum([0] + [sum(map(len, document)) for document in documents])
    for row in batches[0]:
        parts = [tuple(map(int, part.split(":"))) for part in row["key"].removeprefix("tokens ").split(" + ")]
        holds_edit.append(any(start < starts[11] and stop > starts[10] for start, stop in parts))
    assert same == [not edit for edit in holds_edit]
    assert 0 < sum(holds_edit) < len(holds_edit) / 2


@pytest.mark.parametrize(
    "output_positions", [("masked",), ("starts",), ("masked", "starts"), ("all",), ("all", "starts")]
)
@pytest.mark.parametrize("capacity", [None, 1024])
def test_reads_name_the_positions_that_are_needed(
    store: TokenStore, output_positions: tuple[str, ...], capacity: int | None
) -> None:
    source = source_of(store, output_positions=output_positions, capacity=capacity)
    batch = source.build(0, source.plan(0), range(20))
    marks_T = torch.arange(len(batch.inputs.tokens_T))[:, None]
    whole = EncoderOutput((marks_T,))
    if batch.output_positions is None:
        assert "all" in output_positions
        read = whole
    else:
        read = EncoderOutput((marks_T[batch.output_positions.positions_N],))
        assert (batch.output_positions.positions_N.diff() >= 0).all()
        for b, count in enumerate(batch.output_positions.counts):
            first, last = batch.inputs.cu_seqlens[b], batch.inputs.cu_seqlens[b + 1]
            assert (
                (batch.output_positions.positions_N >= first) & (batch.output_positions.positions_N < last)
            ).sum() == count
        needed = set(batch.positions_M.tolist()) if "masked" in output_positions else set()
        needed |= set(batch.inputs.starts_B.tolist()) if "starts" in output_positions else set()
        assert set(read.last[:, 0].tolist()) - {len(marks_T) - 1} == needed - {len(marks_T) - 1}
    if "masked" in output_positions or "all" in output_positions:
        assert torch.equal(batch.read("masked", read)[:, 0], batch.positions_M)
    if "starts" in output_positions or "all" in output_positions:
        assert torch.equal(batch.read("starts", read)[:, 0], batch.inputs.starts_B)


def test_static_shapes_hold_the_same_rows_in_one_shape(store: TokenStore) -> None:
    source, loose = source_of(store, capacity=1024), source_of(store)
    plan = source.plan(0)
    shapes = set()
    for ids in ([0, 1, 2], range(20), range(3, 27)):
        batch, expected = source.build(0, plan, ids), loose.build(0, plan, ids)
        shapes.add((len(batch.inputs.tokens_T), len(batch.positions_M), len(batch.output_positions.positions_N)))
        assert rows_of(batch) == rows_of(expected)
        assert batch.num_tokens == expected.num_tokens
        assert batch.num_targets == expected.num_targets == int(batch.weights_M.sum())
        assert max(batch.inputs.lengths) <= 40
    assert len(shapes) == 1


def test_few_shapes_fill_up_and_change_no_row(store: TokenStore) -> None:
    filled, own = source_of(store, few_shapes=True), source_of(store)
    ids = [3, 1, 4, 15, 9, 2]
    batch, reference = filled.build(0, own.plan(0), ids), own.build(0, own.plan(0), ids)
    sizes = [len(part) for part in (batch.inputs.tokens_T, batch.positions_M, batch.output_positions.positions_N)]
    assert [size % 32 for size in sizes] == [0, 0, 0]
    assert (batch.num_tokens, batch.num_targets) == (reference.num_tokens, int(batch.weights_M.sum()))
    assert rows_of(batch) == rows_of(reference)


def test_rows_without_anything_to_hide_make_an_empty_prediction(tmp_path: Path) -> None:
    store = store_of(tmp_path / "s", [[[0, 0, 0]]] * 4)
    source = PretrainingSource(
        store=store,
        rows=LanguageStream(max_length=10, tokenizer=TOKENIZER),
        corruption=TokenMasking(tokenizer=TOKENIZER),
        seed=0,
        output_positions=("masked",),
    )
    batch = source.build(0, source.plan(0), [0, 1])
    assert batch.num_targets == len(batch.positions_M) == 0
    assert batch.output_positions is None


def test_without_corruption_inputs_are_the_original(store: TokenStore) -> None:
    source = source_of(store, corruption=NoCorruption(), output_positions=("all",))
    batch = source.build(0, source.plan(0), [0, 1])
    assert batch.inputs is batch.original
    moved = batch.to("cpu")
    assert moved.inputs is moved.original


def test_moving_a_batch_keeps_everything(store: TokenStore) -> None:
    source = source_of(store)
    batch = source.build(0, source.plan(0), range(6))
    moved = batch.to("meta")
    assert moved.keys == batch.keys
    assert rows_of(batch.to("cpu")) == rows_of(batch)
    tensors = [
        moved.inputs.tokens_T,
        moved.inputs.cu_seqlens,
        moved.original.tokens_T,
        moved.original.segments_T,
        moved.positions_M,
        moved.targets_M,
        moved.weights_M,
        moved.labels["nsp"],
        moved.output_positions.positions_N,
        *moved.read_index.values(),
    ]
    assert {tensor.device.type for tensor in tensors} == {"meta"}


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_workers_see_the_same_batches(store: TokenStore) -> None:
    def batches(workers: int) -> list[list[dict[str, Any]]]:
        stream = PlannedStream(source_of(store), seed=3, batch_tokens=400, micro_batch_tokens=150, num_workers=workers)
        return [rows_of(batch) for step in islice(stream.steps(), 12) for batch in step.micro_batches]

    assert batches(3) == batches(0)
