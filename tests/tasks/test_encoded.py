"""Examples with several sequences, each with several target rows: selection, packing and features."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from fakes.heads import table
from fakes.tasks import bert

from lmtransfer.tasks.encoded import EncodedExamples, ragged_offsets
from lmtransfer.tasks.heads import (
    ClassificationSpec,
    LabelTargets,
    RegressionSpec,
    ScoreTargets,
    SpanSpec,
    SpanTargets,
    TaggingSpec,
    TagTargets,
)
from lmtransfer.tasks.source import TaskSource
from lmtransfer.tasks.tagging.example import TaggedExample
from lmtransfer.transfer.features import compute_features
from lmtransfer.transfer.method import TransferMethod
from lmtransfer.transfer.scoring import is_collapsed, run_head

#: The number of words in each window of each example.
WINDOWS = [[3], [2, 4], [1], [5, 1, 2]]


def _encoded(seed: int = 0) -> EncodedExamples:
    rng = np.random.default_rng(seed)
    words = [count for example in WINDOWS for count in example]
    lengths = [count + 2 for count in words]
    rows = [[place + 1, 1, int(rng.integers(0, 3))] for count in words for place in range(count)]
    tags = iter(rows)
    examples = tuple(
        TaggedExample(str(i), ("w",) * sum(example), tuple(next(tags)[2] for _ in range(sum(example))))
        for i, example in enumerate(WINDOWS)
    )
    return EncodedExamples(
        examples=examples,
        owners=np.repeat(np.arange(len(WINDOWS)), [len(example) for example in WINDOWS]),
        tokens_T=rng.integers(4, 128, sum(lengths)).astype(np.int32),
        segments_T=np.zeros(sum(lengths), np.int8),
        offsets=ragged_offsets(lengths),
        targets=TagTargets(*np.array(rows).T),
        target_offsets=ragged_offsets(words),
        num_truncated=0,
        unreachable_ids=("1", "3"),
    )


def test_selecting_takes_all_sequences_of_an_example_and_their_targets() -> None:
    encoded = _encoded()
    chosen = encoded.select(np.array([3, 0, 1]))
    places = [4, 5, 6, 0, 1, 2]  # indices of sequences, worked out by hand
    assert [example.id for example in chosen.examples] == ["3", "0", "1"]
    assert chosen.owners.tolist() == [0, 0, 0, 1, 2, 2]
    tokens = [encoded.tokens_T[encoded.offsets[p] : encoded.offsets[p + 1]].tolist() for p in places]
    found = [chosen.tokens_T[a:b].tolist() for a, b in zip(chosen.offsets[:-1], chosen.offsets[1:], strict=True)]
    assert found == tokens
    tags = [tag for example in chosen.examples for tag in example.tags]
    assert table(chosen.targets)[:, 2].tolist() == tags
    assert chosen.unreachable_ids == ("1", "3")
    assert encoded.select(np.array([0, 2])).unreachable_ids == ()


def test_a_batch_knows_the_token_of_each_row_of_targets() -> None:
    encoded = _encoded()
    source = TaskSource(encoded)
    batch = source.build(0, source.plan(0), [6, 2, 0])
    expected = []
    for sequence in (6, 2, 0):
        start = encoded.offsets[sequence]
        for row in table(encoded.targets)[encoded.target_rows(np.array([sequence]))]:
            expected.append(int(encoded.tokens_T[start + row[0]]))
    found = batch.packed.tokens_T[batch.target_starts_R + batch.targets.first]
    assert found.tolist() == expected
    assert batch.keys == ("3", "1", "0")


def test_outputs_come_in_the_order_of_the_targets_whatever_the_batches() -> None:
    encoded = _encoded()
    learner = TransferMethod(freeze="full", dropout=0.0).learner(bert(), head=TaggingSpec(3), seed=0)
    whole = run_head(learner, TaskSource(encoded))
    assert whole.values.shape == (len(table(encoded.targets)), 3)
    for size in (1, 12, 25):
        again = run_head(learner, TaskSource(encoded), max_tokens=size)
        np.testing.assert_allclose(again.values, whole.values, atol=1e-5)
        assert again.loss == pytest.approx(whole.loss, abs=1e-5)


def test_features_of_tokens_are_kept_for_every_token() -> None:
    encoded = _encoded()
    method = TransferMethod(freeze="frozen", pooling="mean", dropout=0.0)
    learner = method.learner(bert(), head=TaggingSpec(3), seed=0).eval()
    table = compute_features(learner, TaskSource(encoded), folder=None, max_tokens=10)
    assert table.values.shape == (int(encoded.lengths.sum()), 16)
    live, cached = TaskSource(encoded), TaskSource(encoded, table)
    rows = [5, 0, 2]
    expected = learner.predict(live.build(0, live.plan(0), rows))
    torch.testing.assert_close(learner.predict(cached.build(0, cached.plan(0), rows)), expected, atol=1e-5, rtol=1e-5)


def test_collapse_is_one_answer_where_the_gold_ones_differ() -> None:
    one, two = np.array([[0.1, 0.9], [0.4, 0.6]]), np.array([[0.1, 0.9], [0.6, 0.4]])
    differ, alike = LabelTargets(np.array([0, 1])), LabelTargets(np.array([1, 1]))
    assert is_collapsed(ClassificationSpec(2), one, differ)
    assert not is_collapsed(ClassificationSpec(2), two, differ)
    assert not is_collapsed(ClassificationSpec(2), one, alike)
    tags = TagTargets(np.array([1, 2]), np.array([1, 1]), np.array([0, 1]))
    assert is_collapsed(TaggingSpec(2), one, tags)
    scores = ScoreTargets(np.array([1.0, 2.0]))
    assert is_collapsed(RegressionSpec(), np.array([[0.5], [0.5]]), scores)
    assert is_collapsed(RegressionSpec(), np.array([[0.5], [0.5 + 1e-7]]), scores)
    assert not is_collapsed(RegressionSpec(), np.array([[0.5], [0.501]]), scores)
    spans = SpanTargets(*np.array([[1, 1, -1, 1, 2], [2, 2, -1, 1, 3]]).T)
    assert not is_collapsed(SpanSpec(0, 4), np.ones((2, 4)), spans)
