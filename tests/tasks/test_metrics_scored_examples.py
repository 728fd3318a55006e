"""Precision, recall and F1 of each class, compared with scikit-learn and seqeval."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from seqeval.metrics import classification_report as chunk_report
from sklearn.metrics import classification_report

from lmtransfer.tasks.answers import LabelAnswer, TagsAnswer
from lmtransfer.tasks.metrics.scored_examples import Ratio, mean_by_class, scores_by_class
from lmtransfer.tasks.tagging.example import TaggedExample
from lmtransfer.tasks.tagging.task import Tagging
from lmtransfer.tasks.text.classification import TextClassification
from lmtransfer.tasks.text.example import TextExample

LABELS = ["a", "b", "c"]


def test_labels_are_scored_as_scikit_learn_scores_them() -> None:
    rng = np.random.default_rng(0)
    task = TextClassification(name="t", labels=LABELS, text_column="text", label_column="label", train="none.tsv")
    gold, predicted = rng.integers(0, 2, 60), rng.integers(0, 3, 60)  # c is predicted, but never gold
    examples = [TextExample(str(n), f"text {n}", label=int(label)) for n, label in enumerate(gold)]
    answers = task.scored_examples(examples, [LabelAnswer(int(label), LABELS[label]) for label in predicted])
    assert answers is not None
    expected = classification_report(
        gold, predicted, labels=[0, 1, 2], target_names=LABELS, output_dict=True, zero_division=0
    )
    found = scores_by_class(answers)
    assert list(found) == LABELS
    for label, scores in found.items():
        assert scores["support"] == expected[label]["support"]
        for ours, theirs in (("precision", "precision"), ("recall", "recall"), ("f1", "f1-score")):
            assert scores[ours] == pytest.approx(expected[label][theirs])


def test_chunks_are_scored_by_kind_as_seqeval_scores_them() -> None:
    rng = np.random.default_rng(1)
    tags = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
    task = Tagging(name="t", scheme="bio", labels=tags, train="none.conll")
    sentences = [(rng.integers(0, 5, size), rng.integers(0, 5, size)) for size in rng.integers(1, 12, 40).tolist()]
    examples = [
        TaggedExample(str(n), ("w",) * len(gold), tuple(gold.tolist())) for n, (gold, _) in enumerate(sentences)
    ]
    answers = [TagsAnswer(tuple(said.tolist()), tuple(tags[tag] for tag in said)) for _, said in sentences]
    scored = task.scored_examples(examples, answers)
    assert scored is not None
    expected = chunk_report(
        *([[tags[tag] for tag in pair[side]] for pair in sentences] for side in (0, 1)),
        output_dict=True,
        zero_division=0,
    )
    found = scores_by_class(scored)
    assert list(found) == ["LOC", "PER"]
    for kind, scores in found.items():
        theirs = expected[kind]
        assert (scores["precision"], scores["recall"], scores["f1"]) == pytest.approx(
            (theirs["precision"], theirs["recall"], theirs["f1-score"])
        )
        assert scores["support"] == theirs["support"]


def test_sets_of_labels_are_scored_label_by_label() -> None:
    task = TextClassification(name="t", labels=["x", "y"], text_column="text", label_column="label", train="none.tsv")
    examples = [TextExample(str(n), f"text {n}", label=0) for n in range(3)]
    scored = task.scored_examples(examples, [LabelAnswer(0, "x")] * 3)
    assert scored is not None
    gold_NC, said_NC = np.array([[1, 0], [1, 1], [0, 1]]), np.array([[1, 1], [0, 1], [0, 0]])
    sets = replace(scored, kind="multi_label", gold=gold_NC.reshape(-1), predicted=said_NC.reshape(-1))
    found = scores_by_class(sets)
    assert (found["x"]["precision"], found["x"]["recall"], found["x"]["support"]) == (1.0, 0.5, 2)
    assert (found["y"]["precision"], found["y"]["recall"], found["y"]["f1"]) == (0.5, 0.5, 0.5)


def test_the_mean_over_seeds() -> None:
    seeds = [{"a": {"f1": 0.5, "support": 4}, "b": {"f1": 1.0, "support": 1}}, {"a": {"f1": 0.7, "support": 4}}]
    assert mean_by_class(seeds) == {"a": {"f1": pytest.approx(0.6), "support": 4}}


def test_answers_without_classes_have_no_such_scores() -> None:
    task = Tagging(name="t", scheme="words", labels=["X", "Y"], train="none.conll")
    example = TaggedExample("1", ("w",), (0,))
    scored = task.scored_examples([example], [TagsAnswer((0,), ("X",))])
    assert scored is not None
    assert set(scores_by_class(scored)) == {"X", "Y"}
    assert scores_by_class(replace(scored, kind="span", ratios={"f1": Ratio.mean(np.ones(1))})) == {}
