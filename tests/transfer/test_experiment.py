"""The parts of an experiment: shared data, the choice of learning rate and checkpoint, and the printed output."""

from __future__ import annotations

import json
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fakes.tasks import WordTokenizer, bert
from support.refusals import refuses

from lmtransfer.errors import DataError
from lmtransfer.runs.run_directory import RunDirectory
from lmtransfer.system.console import Console
from lmtransfer.tasks.base import Task
from lmtransfer.tasks.heads import ClassificationSpec, HeadSpec, SpanSpec, TaggingSpec
from lmtransfer.tasks.qa.example import GoldSpan, QuestionExample
from lmtransfer.tasks.tagging.example import TaggedExample
from lmtransfer.tasks.text.classification import TextClassification
from lmtransfer.tasks.text.example import sentences_of
from lmtransfer.training.checkpoints import TrainState
from lmtransfer.training.evaluation import SelectionWithTies
from lmtransfer.transfer.experiment.data import read_task_data
from lmtransfer.transfer.experiment.experiment import Experiment
from lmtransfer.transfer.experiment.messages import remarks
from lmtransfer.transfer.experiment.part_run import match_labels
from lmtransfer.transfer.method import TransferMethod


def _phrases(num_sentences: int) -> list[str]:
    """Return random sentences and phrases from them, in random order; each word occurs in several sentences."""
    rng = random.Random(0)
    texts = []
    for _ in range(num_sentences):
        words = rng.choices("abcdefghijklmnopqrstuvwxyz", k=12)
        texts.append(" ".join(words))
        for _ in range(6):
            start = rng.randrange(11)
            texts.append(" ".join(words[start : start + rng.randint(1, 8)]))
    rng.shuffle(texts)
    return texts


def _contains(longer: str, shorter: str) -> bool:
    return f" {shorter} " in f" {longer} "


def test_the_sentence_of_a_phrase_is_the_one_that_contains_it() -> None:
    texts = _phrases(40)
    for text, sentence in zip(texts, sentences_of(texts), strict=True):
        longest = {other for other in texts if _contains(other, text)}
        longest = {one for one in longest if not any(one != other and _contains(other, one) for other in longest)}
        assert sentence == (longest.pop() if len(longest) == 1 else "")


def test_hidden_gold_labels_are_not_scored(tmp_path: Path) -> None:
    (tmp_path / "train.tsv").write_text("sentence\tlabel\na b\t1\nc d\t0\n")
    (tmp_path / "test.tsv").write_text("sentence\tlabel\na b\t-1\nc d\t-1\n")
    task: Task = TextClassification(
        name="hidden",
        labels=["0", "1"],
        text_column="sentence",
        label_column="label",
        files={"train": "train.tsv", "test": "test.tsv"},
        data_root=str(tmp_path),
    )
    with refuses(DataError, "split test", "2 of 2", "gold"):
        read_task_data(task, WordTokenizer(), bert(), seeds=[0], split="test")


def test_no_held_out_phrase_lies_inside_a_trained_one(tmp_path: Path) -> None:
    texts = _phrases(60)
    rows = [f"{text}\t{len(text) % 2}" for text in texts]
    (tmp_path / "train.tsv").write_text("\n".join(["sentence\tlabel", *rows]) + "\n")
    (tmp_path / "dev.tsv").write_text("sentence\tlabel\na b\t1\nc d\t0\n")
    task = TextClassification(
        name="phrases",
        labels=["0", "1"],
        text_column="sentence",
        label_column="label",
        files={"train": "train.tsv", "dev": "dev.tsv"},
        phrases=True,
        dev_from_train=0.1,
        data_root=str(tmp_path),
    )
    assert isinstance(task, Task)
    data = read_task_data(task, WordTokenizer(), bert(), seeds=[0, 1], split="dev")
    for part in data.parts.values():
        trained, held_out = ([data.train.examples[row].text for row in rows] for rows in (part.train, part.held_out))
        assert abs(len(held_out) - 0.1 * len(texts)) <= 8
        assert not [text for text in held_out if any(_contains(other, text) for other in trained)]


def test_questions_of_a_passage_and_equal_texts_are_a_group() -> None:
    gold = (GoldSpan("a", 0, 1),)
    one, other = (QuestionExample(f"q{i}", f"what {i}", "a passage", gold) for i in range(2))
    assert one.group == other.group != QuestionExample("q3", "what", "another", gold).group
    assert TaggedExample("1", ("a", "b")).group == TaggedExample("2", ("a", "b")).group


@pytest.mark.parametrize(
    ("tries", "best"),
    [
        ({0.1: [(0.5, 0.9), (0.7, 0.9)], 0.2: [(0.7, 0.4), (0.5, 0.6)], 0.3: [(0.6, 0.8), (0.6, 0.8)]}, 0.2),
        ({0.1: [(0.5, 0.9), (0.7, 0.9)], 0.2: [(0.7, 0.4), (0.4, 0.6)]}, 0.1),
        ({0.1: [(0.5, None), (0.5, 0.1)], 0.2: [(0.5, 7.0), (0.5, 7.0)]}, 0.2),
        ({0.1: [(0.5, 0.9), (0.5, 0.9)], 0.2: [(0.5, 0.9), (0.5, 0.9)]}, 0.1),
    ],
)
def test_of_learning_rates_with_the_same_mean_score_the_one_with_the_lowest_mean_loss_is_chosen(
    tries: dict[float, list[tuple[float, float | None]]], best: float, tmp_path: Path
) -> None:
    (tmp_path / "tries").mkdir()
    for rate, scores in tries.items():
        for seed, (score, loss) in enumerate(scores):
            tried = {"arm": "pretrained", "seed": seed, "learning_rate": rate, "score": score}
            tried |= {} if loss is None else {"loss": loss}
            (tmp_path / "tries" / f"pretrained-seed-{seed}-rate-{rate:g}.json").write_text(json.dumps(tried))
    data = SimpleNamespace(choosing=None)
    setting: Any = SimpleNamespace(solves=False, pretraining_seed=None, data=data, score_text=str)
    config = {"seed": 0, "seeds": 2, "learning_rates": list(tries)}
    experiment = Experiment("probe", config, [setting], RunDirectory(tmp_path), Console(quiet=True))
    assert experiment._learning_rate("pretrained") == best


@pytest.mark.parametrize(
    ("evaluations", "best"),
    [
        ([(0.5, 1.0), (0.5, 0.9), (0.5, 0.95)], 2),
        ([(0.5, 1.0), (0.6, 1.2), (0.6, 1.2)], 2),
        ([(0.7, 1.0), (0.6, 0.1)], 1),
        ([(0.5, 1.0), (0.5, float("nan"))], 1),
    ],
)
def test_ties_are_decided_by_the_loss_and_nothing_else_is(evaluations: list[tuple[float, float]], best: int) -> None:
    selection = SelectionWithTies(metric="accuracy", higher_is_better=True)
    state = TrainState()
    improved = []
    for step, (accuracy, loss) in enumerate(evaluations, start=1):
        state.step = step
        improved.append(selection.observe({"accuracy": accuracy, "loss": loss}, state))
    assert state.best_step == best
    assert state.best == evaluations[best - 1][0]
    assert improved[best - 1]
    assert not any(improved[best:])


def test_a_better_tie_counts_for_patience() -> None:
    selection = SelectionWithTies(metric="accuracy", higher_is_better=True, patience=2)
    state = TrainState()
    for loss in (1.0, 0.9, 0.8, 0.7):
        selection.observe({"accuracy": 0.5, "loss": loss}, state)
    assert state.finished is None
    for loss in (0.9, 0.9):
        selection.observe({"accuracy": 0.5, "loss": loss}, state)
    assert state.finished == "patience"


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


@pytest.mark.parametrize(
    ("seeds", "line"),
    [
        (1, "examples truncated to max_length: 29 in train, 1,530 in dev"),
        (5, "examples truncated to max_length: 29 in train (all seeds together), 1,530 in dev"),
    ],
)
def test_examples_that_were_cut_are_those_of_all_seeds(seeds: int, line: str) -> None:
    result: dict[str, Any] = {"n": seeds, "collapsed": 0, "main_metric": "accuracy"}
    result["num_truncated"] = {"train": 29, "dev": 1530, "test": 0}
    assert line in remarks(result)
