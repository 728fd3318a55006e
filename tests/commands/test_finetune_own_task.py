"""A user's own task, one class and one YAML file, works with every command like a built-in task."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fakes.transfer_files import lmtransfer, make_world, result

#: Is a text long? The task uses only the interface of tasks, and has its own head.
CLASS = '''
"""A task from elsewhere."""

import random
from dataclasses import dataclass

import numpy as np
from torch.nn import functional

from lmtransfer.tasks.answers import LabelAnswer
from lmtransfer.tasks.base import Task
from lmtransfer.tasks.heads import ClassificationSpec
from lmtransfer.tasks.heads import LabelTargets
from lmtransfer.tasks.text.example import encode_texts
from lmtransfer.tasks.text.files import TextReader
from lmtransfer.training.learner import Loss
from lmtransfer.transfer.heads import ClassificationHead

SIZES = {"train": 60, "dev": 30, "test": 30}


@dataclass(frozen=True)
class Line:
    id: str
    text: str
    label: int | None = None
    text_pair: str | None = None
    group: str = ""

    @property
    def has_gold(self):
        return self.label is not None

    @property
    def class_index(self):
        return self.label or 0

    @property
    def content(self):
        return (self.text,)


class MarginHead(ClassificationHead):
    """One of C labels by a margin."""

    loss_name = "margin"

    def loss(self, logits, batch):
        return Loss(functional.multi_margin_loss(logits, batch.targets.labels, reduction="sum"), self.count(batch))


class MarginSpec(ClassificationSpec):
    module = "own_tasks.MarginHead"


class IsLong(Task):
    """Whether a text has five words or more."""

    main_metric = "accuracy"
    splits = tuple(SIZES)
    labels = ("short", "long")

    def __init__(self, *, name: str, num_train: int | None = None, data_root: str | None = None) -> None:
        self.name, self.num_train = name, num_train

    @property
    def head(self):
        return MarginSpec(2)

    def examples(self, split):
        rng = random.Random(split)
        counts = [rng.randint(1, 9) for _ in range(SIZES[split])]
        texts = [" ".join(rng.choices(["good", "bad", "film", "plot"], k=count)) for count in counts]
        return [Line(f"{split}:{i}", text, int(count > 4)) for i, (text, count) in enumerate(zip(texts, counts))]

    def encode(self, examples, tokenizer, *, max_length, num_segments):
        labels = LabelTargets(np.array([-1 if e.label is None else e.label for e in examples]))
        return encode_texts(examples, labels, tokenizer, max_length=max_length, num_segments=num_segments)

    def answers(self, encoded, outputs):
        yield from (LabelAnswer(label, self.labels[label]) for label in outputs.argmax(1).tolist())

    def score(self, examples, answers):
        right = [example.label == answer.label for example, answer in zip(examples, answers, strict=True)]
        return {"accuracy": sum(right) / len(right)}

    def reader(self):
        return TextReader("classification", owner=self.name)
'''
YAML = "# Is a text long?\n_target_: own_tasks.IsLong\nname: is_long\nnum_train: null\n"
QUICK = ["-cd", "mine", "task=is_long", "hardware=exact", "init=runs/pretrain/base"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    make_world(folder)
    return folder


def test_one_class_and_one_yaml_are_all_that_a_task_takes(
    world: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("own_tasks.py").write_text(CLASS)
    Path("mine/task").mkdir(parents=True)
    Path("mine/task/is_long.yaml").write_text(YAML)
    monkeypatch.syspath_prepend(str(world))
    monkeypatch.setenv("LMTRANSFER_ALLOW", "own_tasks")

    assert lmtransfer("inspect", "-cd", "mine", "task=is_long", "init=runs/pretrain/base") == 0
    assert "label long" in capsys.readouterr().out
    quick = ["train.epochs=1", "baseline=null"]
    assert lmtransfer("probe", *QUICK, *quick, "name=probe", "control=true", "seeds=2") == 0
    assert result("runs/probe/probe")["difference"] is not None
    assert lmtransfer("finetune", *QUICK, "train.epochs=12", "optimizer.learning_rate=0.01", "name=own") == 0
    found = result("runs/finetune/own")
    assert "  margin 0." in capsys.readouterr().err  # its own loss
    assert found["mean"] > 0.75  # the majority has 63 %
    assert "majority_label" not in found  # it declares no baseline

    assert lmtransfer("evaluate", "run=runs/finetune/own", "split=test", "hardware=exact", "name=own") == 0
    assert result("runs/evaluate/own")["num_scored"] == 30
    capsys.readouterr()
    assert lmtransfer("predict", "run=runs/finetune/own", "text='good good good good good good good'") == 0
    assert json.loads(capsys.readouterr().out.strip().splitlines()[-1])["label"] == "long"
    assert lmtransfer("export", "run=runs/finetune/own", "to=out/folder") == 0
    assert json.loads(Path("out/folder/config.json").read_text())["id2label"] == {"0": "short", "1": "long"}
    assert lmtransfer("report", "runs") == 0
