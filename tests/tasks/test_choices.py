"""Several choices for a text: COPA's published format, written here by hand, and answers that compare choices."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from fakes.tasks import WordTokenizer, bert
from omegaconf import OmegaConf
from support.refusals import refuses

from lmtransfer.config.component import build
from lmtransfer.config.config_files import group_config
from lmtransfer.config.paths import conf_dir
from lmtransfer.data.documents import Notes
from lmtransfer.errors import ConfigError, DataError
from lmtransfer.tasks.source import TaskSource
from lmtransfer.tasks.targets import LabelTargets
from lmtransfer.tasks.text.superglue import Copa
from lmtransfer.transfer.method import TransferMethod
from lmtransfer.transfer.scoring import evaluate

ROWS = [
    {"premise": "I fell.", "choice1": "It rained.", "choice2": "I slipped.", "question": "cause", "idx": 0, "label": 1},
    {"premise": "I ran.", "choice1": "I sweated.", "choice2": "I slept.", "question": "effect", "idx": 1, "label": 0},
    {"premise": "It rang.", "choice1": "I woke.", "choice2": "I slept.", "question": "effect", "idx": 2, "label": 0},
]


def made(folder: Path, rows: list[dict[str, object]] = ROWS) -> Copa:
    (folder / "COPA").mkdir(exist_ok=True)
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "COPA/train.jsonl").write_text(lines)
    hidden = "".join(json.dumps({k: v for k, v in row.items() if k != "label"}) + "\n" for row in rows)
    (folder / "COPA/test.jsonl").write_text(hidden)
    task: Copa = build(OmegaConf.create(group_config("task", "copa", [conf_dir()])), data_root=str(folder))
    return task


def test_published_files_are_read(tmp_path: Path) -> None:
    task = made(tmp_path)
    first, second, _ = task.examples("train")
    assert first.text == "I fell. What was the cause of this?"
    assert second.text == "I ran. What happened as a result?"
    assert (first.choices, first.right_choices) == (("It rained.", "I slipped."), {1})
    assert [example.has_gold for example in task.examples("test")] == [False] * 3
    with refuses(DataError, "dev", "copa/val.jsonl", "data_root="):
        task.examples("dev")


def test_each_choice_is_a_pair_and_the_answer_compares_them(tmp_path: Path) -> None:
    task = made(tmp_path)
    examples = task.examples("train")
    encoded = task.encode(examples, WordTokenizer(), max_length=32, num_segments=2)
    assert encoded.owners.tolist() == [0, 0, 1, 1, 2, 2]
    assert LabelTargets.of(encoded.targets).labels.tolist() == [0, 1, 1, 0, 1, 0]
    outputs = np.array([[5, 1], [5, 2], [0, 3], [0, 3], [1, 0], [0, 9]], dtype=np.float32)
    answers = list(task.answers(encoded, outputs))
    assert [answer.choice for answer in answers] == [1, 0, 1]  # 0 of two equal ones
    assert answers[0].text == "I slipped."
    assert answers[0].probabilities == pytest.approx((1 / (1 + np.e), np.e / (1 + np.e)))
    assert task.score(examples, answers) == {"accuracy": pytest.approx(2 / 3)}
    kept = task.scored_examples(examples, answers)
    assert kept.predicted.tolist() == [1, 0, 1]
    assert kept.gold.tolist() == [1, 0, 0]
    assert {answer.choice for answer in task.baseline(examples, examples)} == {0}  # type: ignore[attr-defined]
    part = encoded.select(np.array([2, 0]))
    assert part.owners.tolist() == [0, 0, 1, 1]
    hidden = task.encode(task.examples("test"), WordTokenizer(), max_length=32, num_segments=2)
    assert set(LabelTargets.of(hidden.targets).labels.tolist()) == {-1}


def test_a_learner_is_evaluated_on_examples_and_not_on_choices(tmp_path: Path) -> None:
    task = made(tmp_path, [{**row, "premise": f"{row['premise']} {i}"} for i in range(4) for row in ROWS])
    encoded = task.encode(task.examples("train"), WordTokenizer(), max_length=32, num_segments=2)
    learner = TransferMethod(freeze="full").learner(bert(), head=task.head, seed=0)
    found = evaluate(learner, task, TaskSource(encoded), keep=True)
    assert found.outputs.shape == (24, 2)
    assert found.answers is not None
    assert len(found.answers) == 12
    assert not found.collapsed
    assert found.calibration is None


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"question": "why"}, ("train.jsonl:1", "question", "'why'", "cause", "effect")),
        ({"label": 2}, ("train.jsonl:1", "label", "2", "choice2")),
        ({"choice2": " "}, ("train.jsonl:1", "choice2")),
    ],
)
def test_rows_that_are_no_examples(changes: dict[str, object], names: tuple[str, ...], tmp_path: Path) -> None:
    task = made(tmp_path, [{**ROWS[0], **changes}])
    with refuses(DataError, *names):
        task.examples("train")


def test_files_that_are_no_tasks(tmp_path: Path) -> None:
    with refuses(ConfigError, "task.files"):
        Copa(name="copa", files={})
    task = made(tmp_path, [])
    with refuses(DataError, "train.jsonl"):
        task.examples("train")


def test_lines_of_users(tmp_path: Path) -> None:
    reader = made(tmp_path).reader()
    example = reader.parse_line("I ran. [SEP] I slept. [SEP] I sweated. [SEP] I sang.", "x:1", "0", Notes())
    assert (example.text, example.choices) == ("I ran.", ("I slept.", "I sweated.", "I sang."))
    for line in ("I ran.", "I ran. [SEP] I slept.", "I ran. [SEP] [SEP] I sang.", " [SEP] a [SEP] b"):
        with refuses(ValueError, "[SEP]"):
            reader.parse_line(line, "x:1", "0", Notes())
