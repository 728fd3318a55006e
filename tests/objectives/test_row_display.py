"""The rows of a batch for display, and their counts against a plain loop."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from fakes.objectives import TOKENIZER, random_documents, store_of

from lmtransfer.objectives.corruption.masking import TokenMasking
from lmtransfer.objectives.row_display import RowCounts, RowView, count_rows, row_views
from lmtransfer.objectives.rows.pairs import SentencePairs
from lmtransfer.objectives.source import PretrainingSource


@pytest.mark.parametrize("capacity", [None, 2048])
def test_views_are_the_rows_of_the_batch(tmp_path: Path, capacity: int | None) -> None:
    source = PretrainingSource(
        store=store_of(tmp_path / "s", random_documents(40)),
        rows=SentencePairs(max_length=40, tokenizer=TOKENIZER),
        corruption=TokenMasking(mask_prob=0.3, tokenizer=TOKENIZER),
        seed=0,
        output_positions=("masked", "starts"),
        capacity=capacity,
    )
    plan = source.plan(0)
    ids = [4, 9, 2, 30]
    views = list(row_views(source.build(0, plan, ids)))
    assert len(views) == 4
    for view, i in zip(views, ids, strict=True):
        row = plan.row(i)
        assert view.key == row.key
        assert view.original.tolist() == row.tokens.tolist()
        assert view.segments.tolist() == row.segments.tolist()
        assert view.labels == row.labels
        assert view.is_hidden.sum() == max(1, round(0.3 * len(row.tokens)))
        assert (view.original[~view.is_hidden] == view.inputs[~view.is_hidden]).all()


def test_counts_are_those_of_a_plain_loop() -> None:
    def view(original: list[int], inputs: list[int], hidden: list[int], label: int) -> RowView:
        is_hidden = np.isin(np.arange(len(original)), hidden)
        return RowView("k", np.array(original), np.array(inputs), np.zeros(len(original)), is_hidden, {"nsp": label})

    counts = count_rows(
        [
            view([1, 10, 11, 0, 12, 2], [1, 3, 11, 0, 40, 2], [1, 2, 4], 1),
            view([1, 20, 21, 2], [1, 20, 3, 3], [2, 3], 0),
            view([1, 20, 2], [1, 20, 2], [], 1),
        ],
        TOKENIZER,
    )
    assert counts == RowCounts(
        rows=3,
        tokens=13,
        num_special=7,
        num_hidden=5,
        num_masked=3,
        num_unchanged=1,
        num_special_hidden=1,
        labels={"nsp": {1: 2, 0: 1}},
    )
    assert counts.num_replaced == 1
