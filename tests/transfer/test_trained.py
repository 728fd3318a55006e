"""The labels of a run in the order of another task."""

from __future__ import annotations

import pytest
import torch
from fakes.tasks import bert
from support.refusals import refuses

from lmtransfer.errors import DataError
from lmtransfer.tasks.heads import ClassificationSpec, HeadSpec, SpanSpec, TaggingSpec
from lmtransfer.transfer.experiment.part_run import match_labels
from lmtransfer.transfer.method import TransferMethod


def test_labels_are_matched_by_name() -> None:
    assert match_labels(["a", "b"], ["a", "b"]) is None
    assert match_labels(["entailment", "neutral", "contradiction"], ["contradiction", "entailment", "neutral"]) == [
        2,
        0,
        1,
    ]
    with refuses(DataError, " a, b", " a, c", "task.labels"):
        match_labels(["a", "b"], ["a", "c"])


@pytest.mark.parametrize(
    ("spec", "fixed"),
    [(ClassificationSpec(3), 0), (TaggingSpec(3), 0), (SpanSpec(3, max_answer_tokens=4), 3)],
)
def test_logits_come_in_the_order_of_the_task(spec: HeadSpec, fixed: int) -> None:
    learner = TransferMethod(freeze="full", pooling="mean", dropout=0.0).learner(bert(), head=spec, seed=0)
    vectors = torch.randn(5, 16)
    before = learner.head(vectors)
    learner.head.reorder([2, 0, 1])
    after = learner.head(vectors)
    expected = [*range(fixed), fixed + 2, fixed, fixed + 1]
    torch.testing.assert_close(after, before[:, expected])
