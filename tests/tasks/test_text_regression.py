from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from fakes.heads import table
from fakes.tasks import WordTokenizer
from support.refusals import refuses

from lmtransfer.errors import DataError
from lmtransfer.tasks.answers import ScoreAnswer
from lmtransfer.tasks.base import Task
from lmtransfer.tasks.heads import RegressionSpec
from lmtransfer.tasks.text.example import TextExample
from lmtransfer.tasks.text.regression import TextRegression

ROWS = "a\tb\tscore\nfirst\tone\t3.25\nsecond\ttwo\t-1\nthird\tthree\t1e-1\n"


def _task(tmp_path: Path, content: str = ROWS, **changes: object) -> TextRegression:
    (tmp_path / "train.tsv").write_text(content)
    arguments: dict[str, object] = {
        "name": "toy",
        "text_column": "a",
        "text_pair_column": "b",
        "score_column": "score",
        "train": "train.tsv",
        "data_root": str(tmp_path),
    }
    return TextRegression(**{**arguments, **changes})  # type: ignore[arg-type]


def _examples(scores: np.ndarray) -> list[TextExample]:
    return [TextExample(f"x:{i}", "w", score=float(score)) for i, score in enumerate(scores)]


def test_scores_are_read_and_asked_for(tmp_path: Path) -> None:
    task = _task(tmp_path)
    assert isinstance(task, Task)
    assert (task.head, task.labels, task.main_metric) == (RegressionSpec(pairs=True), (), "pearson")
    examples = task.examples("train")
    assert [(e.text, e.text_pair, e.score) for e in examples] == [
        ("first", "one", 3.25),
        ("second", "two", -1.0),
        ("third", "three", 0.1),
    ]
    encoded = task.encode(examples, WordTokenizer(), max_length=8, num_segments=2)
    assert table(encoded.targets).dtype == np.float32
    assert table(encoded.targets)[:, 0].tolist() == pytest.approx([3.25, -1, 0.1])
    outputs = np.array([[0.5], [2.0], [-3.0]], dtype=np.float32)
    answers = list(task.answers(encoded, outputs))
    assert answers == [ScoreAnswer(0.5), ScoreAnswer(2.0), ScoreAnswer(-3.0)]
    assert answers[1].as_dict() == {"score": 2.0}


def test_hidden_scores_are_no_numbers(tmp_path: Path) -> None:
    task = _task(tmp_path, hidden_values=["-1"])
    examples = task.examples("train")
    assert [example.has_gold for example in examples] == [True, False, True]
    encoded = task.encode(examples, WordTokenizer(), max_length=8, num_segments=2)
    assert [math.isnan(row[0]) for row in table(encoded.targets)] == [False, True, False]
    with refuses(DataError, "train:1", "gold"):
        task.score(examples, [ScoreAnswer(0.0)] * 3)


@pytest.mark.parametrize("score", ["high", "nan", "inf", "1,5"])
def test_scores_that_are_no_numbers(tmp_path: Path, score: str) -> None:
    content = ROWS + f"fourth\tfour\t{score}\n"
    with refuses(DataError, "train.tsv:5", f"'{score}'", "task.bad_rows=skip"):
        _task(tmp_path, content).examples("train")
    task = _task(tmp_path, content, bad_rows="skip")
    assert len(task.examples("train")) == 3
    assert list(task.notes["train"].first.values()) == [f"{tmp_path}/train.tsv:5"]


def test_the_baseline_is_the_training_mean(tmp_path: Path) -> None:
    task = _task(tmp_path)
    examples = _examples(np.array([0.0, 1.0, 5.0]))
    answers = task.baseline(_examples(np.array([1.0, 2.0, 4.5])), examples)
    assert answers == [ScoreAnswer(2.5)] * 3
    assert task.score(examples, answers) == {"pearson": 0.0, "spearman": 0.0}
