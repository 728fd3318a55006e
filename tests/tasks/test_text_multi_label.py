"""Texts with any number of labels: files, predictions, the majority baseline, and refusals."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from fakes.tasks import WordTokenizer
from support.refusals import refuses

from lmtransfer.errors import ConfigError, DataError
from lmtransfer.tasks.answers import LabelSetAnswer
from lmtransfer.tasks.heads import LabelSetTargets, MultiLabelSpec
from lmtransfer.tasks.text.example import TextExample
from lmtransfer.tasks.text.multi_label import MultiLabel
from lmtransfer.transfer.scoring import is_collapsed

SETS = [["sport", "art"], [], ["art"], ["news"], ["art", "news", "sport"]]


def made(tmp_path: Path, content: str, name: str = "train.tsv", **changes: object) -> MultiLabel:
    (tmp_path / name).write_text(content)
    arguments: dict[str, object] = {"name": "m", "labels": None, "text_column": "text", "label_column": "labels"}
    return MultiLabel(**{**arguments, "train": str(tmp_path / name), **changes})  # type: ignore[arg-type]


FORMS = {
    "train.tsv": ("text\tlabels\n", lambda i, names: f"t{i}\t{','.join(names)}", {}),
    "spaced.tsv": ("text\tlabels\n", lambda i, names: f"t{i}\t{' , '.join(names)}", {}),
    "words.tsv": ("text\tlabels\n", lambda i, names: f"t{i}\t{'  '.join(names)}", {"separator": " "}),
    "bars.csv": ("text,labels\n", lambda i, names: f"t{i},{'|'.join(names)}", {"separator": "|"}),
    "json.tsv": ("text\tlabels\n", lambda i, names: f"t{i}\t{json.dumps(names)}", {}),
    "lists.jsonl": ("", lambda i, names: json.dumps({"text": f"t{i}", "labels": names}), {}),
    "texts.jsonl": ("", lambda i, names: json.dumps({"text": f"t{i}", "labels": ",".join(names)}), {}),
}


@pytest.mark.parametrize("name", FORMS)
def test_the_same_sets_from_every_form(name: str, tmp_path: Path) -> None:
    header, line, changes = FORMS[name]
    content = header + "\n".join(line(i, names) for i, names in enumerate(SETS)) + "\n"
    task = made(tmp_path, content, name, **changes)
    assert task.labels == ("art", "news", "sport")
    assert task.head == MultiLabelSpec(3)
    examples = task.examples("train")
    assert [example.text for example in examples] == [f"t{i}" for i in range(len(SETS))]
    assert [{task.labels[label] for label in example.label_set or ()} for example in examples] == [
        set(names) for names in SETS
    ]
    assert all(example.has_gold for example in examples)
    encoded = task.encode(examples, WordTokenizer(), max_length=8, num_segments=1)
    rows = LabelSetTargets.of(encoded.targets).labels
    assert rows.tolist() == [[int(label in names) for label in task.labels] for names in SETS]
    assert dict(task.head.counts(encoded.targets, task.labels)) == {"art": 3, "news": 2, "sport": 2}
    assert encoded.select(np.array([3, 0])).targets.labels.tolist() == [[0, 1, 0], [1, 0, 1]]  # type: ignore[attr-defined]


def test_answers_are_the_labels_above_one_half(tmp_path: Path) -> None:
    task = made(tmp_path, "text\tlabels\na b\tx\nc\ty\n")
    examples = task.examples("train")
    encoded = task.encode(examples, WordTokenizer(), max_length=8, num_segments=1)
    logits = np.array([[2.0, -1.0], [0.5, 1000.0]], dtype=np.float32)
    one, other = task.answers(encoded, logits)
    assert (one.labels, one.names, other.names) == ((0,), ("x",), ("x", "y"))
    assert one.probabilities == pytest.approx({"x": 1 / (1 + np.exp(-2)), "y": 1 / (1 + np.exp(1))})
    assert one.as_dict() == {"labels": ["x"], "probabilities": one.probabilities}
    assert task.score(examples, [one, other])["micro_f1"] == pytest.approx(2 * 2 / (2 + 3))
    assert is_collapsed(task.head, logits[[1, 1]], encoded.targets)
    assert not is_collapsed(task.head, logits, encoded.targets)
    mean = task.head.mean([logits, -logits])
    np.testing.assert_allclose(mean, 0, atol=1e-6)


def test_the_baseline_gives_the_labels_of_most_examples(tmp_path: Path) -> None:
    task = made(tmp_path, "text\tlabels\na\tx\nb\tx,y\nc\tx\nd\t\n")
    examples = task.examples("train")
    (answer, *rest) = task.baseline(examples, examples)
    assert isinstance(answer, LabelSetAnswer)
    assert answer.names == ("x",)
    assert answer.probabilities == {"x": 0.75, "y": 0.25}
    assert len(rest) == 3
    assert task.score(examples, [answer, *rest])["average_precision"] == pytest.approx((0.75 + 0.25) / 2)


def test_unknown_labels_are_refused_and_hidden_sets_predicted_but_not_scored(tmp_path: Path) -> None:
    (tmp_path / "test.tsv").write_text("text\na\n")
    (tmp_path / "dev.tsv").write_text("text\tlabels\na\tx\nb\tx,other\n")
    splits = {split: str(tmp_path / f"{split}.tsv") for split in ("dev", "test")}
    task = made(tmp_path, "text\tlabels\na\tx\nb\ty\n", **splits)
    with refuses(DataError, "dev.tsv:3", "'other'", "x, y", "task.labels"):
        task.examples("dev")
    (example,) = task.examples("test")
    assert not example.has_gold
    assert task.gold([example]).labels.tolist() == [[-1, -1]]
    with refuses(DataError, "test:0"):
        task.score([example], [LabelSetAnswer((), (), {"x": 0.1, "y": 0.2})])


@pytest.mark.parametrize(
    ("cell", "names"),
    [
        ("a,,b", ("'a,,b'",)),
        ("a,b,a", ("'a'", "'a,b,a'")),
        ("[1.5]", ("'[1.5]'", "names")),
        ('["a", null]', ("names",)),
        ("[a]", ("'[a]'", "JSON")),
    ],
)
def test_cells_that_are_no_sets(cell: str, names: tuple[str, ...], tmp_path: Path) -> None:
    content = f"text\tlabels\nt\tx\nu\ty\nv\t{cell}\n"
    with refuses(DataError, "train.tsv:4", *names):
        made(tmp_path, content).examples("train")
    task = made(tmp_path, content, bad_rows="skip")
    assert len(task.examples("train")) == 2
    assert sum(task.notes["train"].counts.values()) == 1


@pytest.mark.parametrize(
    ("content", "names"),
    [
        ("text\tlabels\na\t\nb\t\n", ("train.tsv", "2 rows", "no label", "task.label_column=labels")),
        ("text\tlabels\na\tx\nb\tx\n", ("train.tsv", "'x'", "two labels", "task.separator=','")),
        ("text\tlabels\na\tx;y\nb\tx;y\n", ("'x;y'", "task.separator=','")),
        ("text\tother\na\tx\n", ("train.tsv:1", "'labels'", "task.label_column")),
    ],
)
def test_columns_without_labels(content: str, names: tuple[str, ...], tmp_path: Path) -> None:
    with refuses(DataError, *names):
        _ = made(tmp_path, content).labels


def test_settings_that_cannot_be(tmp_path: Path) -> None:
    with refuses(ConfigError, "task.separator"):
        made(tmp_path, "", separator="")
    with refuses(ConfigError, "task.labels=[x, x]"):
        made(tmp_path, "", labels=["x", "x"])
    with refuses(ConfigError, "task.labels=null", "task.files.train"):
        _ = MultiLabel(name="m", labels=None, text_column="t", label_column="l", test="x.tsv").labels


def test_worst_errors_are_the_most_certain(tmp_path: Path) -> None:
    from lmtransfer.reporting.page.run_answers import class_scores
    from lmtransfer.reporting.page.wrong_answers import worst_label_sets
    from lmtransfer.tasks.metrics.scored_examples import Predictions

    task = made(tmp_path, "text\tlabels\na\tx\nb\ty\nc\tx,y\n")
    examples: list[TextExample] = task.examples("train")
    chances = ([(0.9, 0.2), (0.6, 0.7), (0.1, 0.3)], [(0.8, 0.1), (0.4, 0.9), (0.9, 0.4)])
    answers = [
        Predictions(
            "m", "dev", "micro_f1", seed, None, False, task.scored_examples(examples, [task._answer(c) for c in rows])
        )
        for seed, rows in enumerate(chances)
    ]
    worst = worst_label_sets(answers)
    assert [(one.row, one.gold, one.predicted, one.num_agreeing) for one in worst] == [
        (2, "x, y", "no label", 1),  # 0.9 and 0.7 of one seed, 0.6 of the other
        (1, "y", "x, y", 1),  # 0.6 of one seed
    ]
    scores = class_scores(answers)
    assert scores is not None
    x, y = ([column.cell(line).sort for column in scores.columns[1:4]] for line in scores.lines)
    assert scores.rows[0] == ["x", "75.0", "75.0", "75.0", "2"]
    assert (x[0], x[1]) == (pytest.approx(3 / 4), pytest.approx(3 / 4))
    assert (y[2], y[0]) == (pytest.approx(2 * 2 / (2 + 4)), 1.0)


@pytest.mark.parametrize(
    ("cells", "mark"),
    [
        (["a", "a|b", "a|b|c"], "|"),
        (["x;y", "y", "x"], ";"),
        (["new york", "new", "york"], " "),
        (["rock/pop", "rock/jazz"], None),
        (["a, b|c", "b|c"], None),
        (["real estate", "film"], None),
        (["a||b", "a", "b"], None),
    ],
)
def test_labels_that_look_joined_are_noted_with_the_setting(cells: list[str], mark: str | None, tmp_path: Path) -> None:
    content = "\n".join(["text\tlabels", *(f"text {place}\t{cell}" for place, cell in enumerate(cells))]) + "\n"
    task = made(tmp_path, content)
    assert len(task.labels) >= 2
    task.examples("train")
    notes = [kind for kind in task.notes["train"].counts if "joined by" in kind]
    assert [f"task.separator={mark!r}" in note for note in notes] == [True] * (mark is not None)
    if mark is not None:
        divided = made(tmp_path, content, separator=mark)
        assert set(divided.labels) == {part for cell in cells for part in cell.split(mark)}
        with refuses(DataError, "train.tsv:", f"task.separator={mark!r}"):
            made(tmp_path, content, labels=list(divided.labels)).examples("train")


def test_equal_whole_numbers_are_one_label(tmp_path: Path) -> None:
    (tmp_path / "d.jsonl").write_text('{"text": "a", "labels": "1, 2.0"}\n')
    content = '{"text": "a", "labels": [2, 3.0]}\n{"text": "b", "labels": "3,1.0"}\n'
    task = made(tmp_path, content, "t.jsonl", dev=str(tmp_path / "d.jsonl"))
    assert task.labels == ("1.0", "2", "3")
    assert [example.label_set for example in task.examples("train")] == [(1, 2), (0, 2)]
    assert [example.label_set for example in task.examples("dev")] == [(0, 1)]
