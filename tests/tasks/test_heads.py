"""Class weights and label smoothing, compared with torch's cross-entropy over a whole step."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from fakes.heads import asked
from fakes.tasks import bert, random_examples
from sklearn.utils.class_weight import compute_class_weight
from support.refusals import refuses
from torch.nn import functional

from lmtransfer.data.micro_batches import PlannedStream
from lmtransfer.errors import ConfigError
from lmtransfer.tasks.heads import ClassificationSpec, LabelTargets, balanced_weights, weights_in_order
from lmtransfer.tasks.source import TaskSource
from lmtransfer.tasks.text.classification import TextClassification
from lmtransfer.training.data_parallel import Passes
from lmtransfer.training.precision import Precision
from lmtransfer.training.update import accumulate
from lmtransfer.transfer.heads import ClassificationHead, HeadLayers
from lmtransfer.transfer.learner import TaskLearner
from lmtransfer.transfer.method import TransferMethod

WEIGHTS = (0.25, 3.0, 1.5)
LABELS = [2, 0, 1, 2, 0]
CASES = [(None, 0.0), (WEIGHTS, 0.0), (None, 0.1), (WEIGHTS, 0.3)]


@pytest.mark.parametrize(("weights", "smoothing"), CASES)
def test_sum_over_count_is_the_mean_of_torch(weights: tuple[float, ...] | None, smoothing: float) -> None:
    head = ClassificationHead(HeadLayers(input_dim=6), num_labels=3, class_weights=weights, label_smoothing=smoothing)
    batch = asked([1] * 5, [[[label]] for label in LABELS])
    ours = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    theirs = ours.detach().clone().requires_grad_()
    loss = head.loss(ours, batch)
    given = None if weights is None else torch.tensor(weights, dtype=torch.float64)
    expected = functional.cross_entropy(theirs, torch.tensor(LABELS), weight=given, label_smoothing=smoothing)
    torch.testing.assert_close(loss.sum / loss.count, expected)
    assert loss.count == head.count(batch) == pytest.approx(5 if weights is None else sum(weights[i] for i in LABELS))
    (loss.sum / loss.count).backward()
    expected.backward()
    torch.testing.assert_close(ours.grad, theirs.grad)


def test_evaluation_measures_the_plain_cross_entropy() -> None:
    head = ClassificationHead(HeadLayers(input_dim=6), num_labels=3, class_weights=WEIGHTS, label_smoothing=0.3).eval()
    batch, logits = asked([1] * 5, [[[label]] for label in LABELS]), torch.randn(5, 3)
    loss = head.loss(logits, batch)
    torch.testing.assert_close(loss.sum / loss.count, functional.cross_entropy(logits, torch.tensor(LABELS)))
    assert loss.count == 5


def _learner() -> TaskLearner:
    head = ClassificationSpec(2, class_weights=(0.5, 4.0), label_smoothing=0.2)
    learner = TransferMethod(freeze="full", dropout=0.0).learner(bert(dropout=0.0), head=head, seed=0)
    torch.manual_seed(1)
    torch.nn.init.normal_(learner.head.output.weight)
    return learner


@pytest.mark.parametrize("micro_batch_tokens", [None, 40, 16])
def test_the_gradient_of_a_step_does_not_depend_on_micro_batches(micro_batch_tokens: int | None) -> None:
    source = TaskSource(random_examples(24))
    stream = PlannedStream(source, seed=0, batch_examples=24, micro_batch_tokens=micro_batch_tokens)
    step = next(stream.steps())
    assert (len(step.micro_batches) > 1) == (micro_batch_tokens is not None)
    learner, whole = _learner(), _learner()
    accumulate(Passes(learner, Precision()), step, recurrent_states={}, seed=0, device="cpu")
    batch = source.build(0, source.plan(0), range(24))
    labels = LabelTargets.of(batch.targets).labels
    weights = torch.tensor([0.5, 4.0])
    functional.cross_entropy(whole.logits(batch), labels, weight=weights, label_smoothing=0.2).backward()
    for (name, ours), theirs in zip(learner.named_parameters(), whole.parameters(), strict=True):
        if theirs.grad is not None:
            torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-6, msg=name)


def test_balanced_weights_are_those_of_scikit_learn() -> None:
    labels = np.random.default_rng(0).choice(4, size=97, p=[0.6, 0.3, 0.08, 0.02])
    expected = compute_class_weight("balanced", classes=np.arange(4), y=labels)
    np.testing.assert_allclose(balanced_weights(labels, num_labels=4), expected)
    head = ClassificationHead(HeadLayers(input_dim=6), num_labels=4, class_weights="balanced")
    head.begin(LabelTargets(labels))
    np.testing.assert_allclose(head.weights_C, expected, rtol=1e-6)
    assert "weights_C" not in head.state_dict()  # recomputed from the training examples
    assert balanced_weights(np.array([1, 1, 3]), num_labels=4).tolist() == [1.0, 0.75, 1.0, 1.5]


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ({"spam": 2.0}, ("task.class_weights", "'spam'", "no, yes")),
        ({"yes": 0.0}, ("task.class_weights.yes=0.0",)),
        ({"yes": -1.0}, ("task.class_weights.yes=-1.0",)),
        ({"yes": float("nan")}, ("task.class_weights.yes=nan",)),
    ],
)
def test_weights_that_cannot_be(given: dict[str, float], names: tuple[str, ...], tmp_path: Path) -> None:
    arguments = {"name": "t", "text_column": "text", "label_column": "label", "class_weights": given}
    with refuses(ConfigError, *names):
        TextClassification(labels=["no", "yes"], train="t.tsv", **arguments)  # type: ignore[arg-type]
    (tmp_path / "t.tsv").write_text("text\tlabel\na\tno\nb\tyes\n")
    found = TextClassification(labels=None, train=str(tmp_path / "t.tsv"), **arguments)  # type: ignore[arg-type]
    with refuses(ConfigError, *names):
        _ = found.labels


def test_weights_are_matched_by_name() -> None:
    assert weights_in_order({"b": 2.0}, ["a", "b"]) == (1.0, 2.0)
    assert weights_in_order({1: 3, 0: 1}, ["0", "1"]) == (1.0, 3.0)  # type: ignore[dict-item]
    assert weights_in_order("balanced", ["a", "b"]) == "balanced"
