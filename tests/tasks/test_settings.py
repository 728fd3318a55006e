"""The settings of tasks: each class has one model, which defines its arguments."""

from __future__ import annotations

from pathlib import Path

import pytest

from lmtransfer.config.component import arguments_of, component_problems
from lmtransfer.errors import ConfigError
from lmtransfer.tasks.qa.task import SpanQa
from lmtransfer.tasks.tagging.task import Tagging
from lmtransfer.tasks.text.classification import Classification, TextClassification
from lmtransfer.tasks.text.multi_label import MultiLabel
from lmtransfer.tasks.text.regression import TextRegression

OWN = {"text_column": "text", "label_column": "label", "labels": ["no", "yes"], "train": "train.tsv"}


class Threshold(TextClassification):
    """A task with an additional setting."""

    class Settings(TextClassification.Settings):
        """The settings of the task.

        Attributes:
            threshold: a number.
        """

        threshold: float = 0.5

    settings: Settings


class Fixed(Classification):
    """A task with its own constructor, as users may write it."""

    splits = ("train",)

    def __init__(self, *, name: str, num_train: int | None = None) -> None:
        super().__init__(name=name, labels=["a", "b"], num_train=num_train)

    def examples(self, split: str) -> list[object]:
        return []


def test_a_subclass_adds_a_setting_by_naming_it_only() -> None:
    task = Threshold(name="own", **OWN, threshold=0.25, num_train=7)
    assert (task.settings.threshold, task.num_train, task.labels) == (0.25, 7, ("no", "yes"))
    assert set(arguments_of(Threshold)) == {*arguments_of(TextClassification), "threshold"}


def test_a_constructor_of_ones_own_keeps_its_arguments() -> None:
    assert set(arguments_of(Fixed)) == {"name", "num_train"}
    task = Fixed(name="fixed", num_train=3)
    assert (task.name, task.num_train, task.labels, task.metric_names) == ("fixed", 3, ("a", "b"), ("accuracy",))


@pytest.mark.parametrize(
    ("task", "required"),
    [
        (TextClassification, {"name", "labels", "text_column", "label_column"}),
        (TextRegression, {"name", "text_column", "score_column"}),
        (MultiLabel, {"name", "labels", "text_column", "label_column"}),
        (Tagging, {"name"}),
        (SpanQa, {"name"}),
    ],
)
def test_what_a_config_must_give(task: type, required: set[str]) -> None:
    assert {name for name, argument in arguments_of(task).items() if argument.required} == required
    node = {"_target_": f"{task.__module__}.{task.__qualname__}"}
    problems = component_problems(node, key="task", nodes={}, complete=True)
    assert set(problems) == {f"task.{name}" for name in required}


def test_wrong_and_missing_arguments_are_named_together() -> None:
    with pytest.raises(ConfigError) as caught:
        TextClassification(name="own", **{**OWN, "num_train": 0, "metrics": ["f2"]}, colour="red")
    assert {problem.partition(":")[0] for problem in caught.value.problems} == {
        "task.metrics[0]",
        "task.num_train",
        "task.colour",
    }
    with pytest.raises(ConfigError, match=r"task\.text_column: is missing"):
        TextClassification(name="own", labels=None, label_column="label", train="train.tsv")


def test_a_file_of_a_split_by_its_own_key_replaces_that_of_files(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.tsv").write_text(f"text\tlabel\n{name}\tno\n")
    given = {**OWN, "train": "b.tsv", "files": {"train": "a.tsv", "dev": ["missing.tsv", "a.tsv"]}}
    task = TextClassification(name="own", **given, data_root=str(tmp_path))
    assert [example.text for split in ("train", "dev") for example in task.examples(split)] == ["b", "a"]
