from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes.heads import table
from fakes.tasks import WordTokenizer
from scipy.special import softmax
from support.refusals import refuses

from lmtransfer.errors import ConfigError, DataError
from lmtransfer.tasks.answers import LabelAnswer
from lmtransfer.tasks.base import Task
from lmtransfer.tasks.heads import ClassificationSpec
from lmtransfer.tasks.label_checks import OTHER_SPELLING
from lmtransfer.tasks.text.classification import TemplateClassification, TextClassification
from lmtransfer.tasks.text.example import TextExample

SST2 = 'sentence\tlabel\na "bare quote \t1\n"another one\t0\n  it \'s fine\u2028b\x85c\t1\n'


def _task(tmp_path: Path, **changes: object) -> TextClassification:
    arguments: dict[str, object] = {
        "name": "toy",
        "labels": ["negative", "positive"],
        "label_values": ["0", "1"],
        "text_column": "sentence",
        "label_column": "label",
        "files": {"train": "train.tsv", "dev": "dev.tsv"},
        "data_root": str(tmp_path),
    }
    return TextClassification(**{**arguments, **changes})  # type: ignore[arg-type]


def _own(tmp_path: Path, content: str, name: str = "train.tsv", **changes: object) -> TextClassification:
    """Return a task on a user's file, from which the labels are read."""
    (tmp_path / name).write_text(content)
    return _task(
        tmp_path, **{"labels": None, "label_values": None, "text_column": "text", "files": {"train": name}, **changes}
    )


def test_quotes_are_text_and_rows_are_lines(tmp_path: Path) -> None:
    (tmp_path / "train.tsv").write_text(SST2)
    task = _task(tmp_path)
    assert isinstance(task, Task)
    assert task.head == ClassificationSpec(2)
    examples = task.examples("train")
    assert len(examples) == SST2.count("\n") - 1
    assert [example.text for example in examples] == ['a "bare quote ', '"another one', "  it 's fine\u2028b\x85c"]
    assert [example.label for example in examples] == [1, 0, 1]
    assert [example.id for example in examples] == ["train:0", "train:1", "train:2"]
    assert task.origin("train") == str(tmp_path / "train.tsv")


def test_several_names_of_a_file_are_tried_in_order(tmp_path: Path) -> None:
    task = _task(tmp_path, files={"train": ["mine/train.tsv", "THEIRS/train.tsv"], "dev": "dev.tsv"})
    for folder, expected in (("THEIRS", "THEIRS"), ("mine", "mine")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "train.tsv").write_text(SST2)
        assert task.origin("train") == str(tmp_path / expected / "train.tsv")
        assert len(task.examples("train")) == 3


def test_bad_bytes_are_named_by_line_or_replaced(tmp_path: Path) -> None:
    (tmp_path / "train.tsv").write_bytes(b"sentence\tlabel\nfine\t1\ncaf\xe9\t0\n")
    with refuses(DataError, "train.tsv:3", "UTF-8", "task.encoding_errors"):
        _task(tmp_path).examples("train")
    task = _task(tmp_path, encoding_errors="replace")
    assert task.examples("train")[1].text == "caf\ufffd"
    assert sum(task.notes["train"].counts.values()) == 1


def test_labels_by_name_in_pairs_without_a_header(tmp_path: Path) -> None:
    (tmp_path / "train.tsv").write_text("7\tp one\tq one\tyes\n8\tp two\tq two\tno\n")
    task = _task(
        tmp_path,
        labels=["no", "yes"],
        label_values=None,
        columns=["index", "p", "q", "gold"],
        text_column="p",
        text_pair_column="q",
        label_column="gold",
    )
    examples = task.examples("train")
    assert [(e.text, e.text_pair, e.label) for e in examples] == [("p one", "q one", 1), ("p two", "q two", 0)]
    encoded = task.encode(examples, WordTokenizer(), max_length=16, num_segments=2)
    assert encoded.lengths.tolist() == [7, 7]
    assert table(encoded.targets).tolist() == [[1], [0]]


def test_a_header_is_known_as_one_though_columns_are_named(tmp_path: Path) -> None:
    columns = ["source", "label", "mark", "sentence", "comment"]
    (tmp_path / "train.tsv").write_text("x\t1\t\tfirst\tnote\nx\t0\t*\tsecond\n")
    (tmp_path / "dev.tsv").write_text("label\tsentence\n1\tthird\n")
    task = _task(tmp_path, columns=columns, optional_columns=1)
    assert [(e.text, e.label) for e in task.examples("train")] == [("first", 1), ("second", 0)]
    assert [(e.text, e.label) for e in task.examples("dev")] == [("third", 1)]
    (tmp_path / "dev.tsv").write_text("x\t1\t\n")
    with refuses(DataError, "dev.tsv:1", "3 columns", "4 to 5"):
        task.examples("dev")


def test_a_column_may_have_other_names_in_other_files(tmp_path: Path) -> None:
    (tmp_path / "train.tsv").write_text("premise\tverdict\nfirst\t1\n")
    (tmp_path / "dev.tsv").write_text("label\tsentence\n0\tsecond\n")
    task = _task(tmp_path, text_column=["sentence", "premise"], label_column=["verdict", "label"])
    assert [(e.text, e.label) for s in task.splits for e in task.examples(s)] == [("first", 1), ("second", 0)]


def test_json_lines_and_quoted_tables(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"label": 1, "sentence": "tab\\there"}\n\n{"label": "0", "sentence": "b"}\n')
    (tmp_path / "a.csv").write_text('sentence,label\n"two\nlines, one ""row""",0\n\nnext,1\n')
    (tmp_path / "quoted.tsv").write_text('sentence\tlabel\n"a tab\there"\t1\n')
    task = _task(tmp_path, files={"train": "a.jsonl", "dev": "a.csv"})
    assert [(e.text, e.label) for e in task.examples("train")] == [("tab\there", 1), ("b", 0)]
    assert [(e.text, e.label) for e in task.examples("dev")] == [('two\nlines, one "row"', 0), ("next", 1)]
    assert [e.id for e in task.examples("dev")] == ["dev:0", "dev:1"]
    assert task.notes["train"].counts == task.notes["dev"].counts == {"blank lines": 1}
    task = _task(tmp_path, train="quoted.tsv", file_format="quoted_tsv")
    assert [(e.text, e.label) for e in task.examples("train")] == [("a tab\there", 1)]


@pytest.mark.parametrize("name", ["long.tsv", "long.csv", "long.jsonl"])
def test_long_and_empty_texts_are_read_and_the_empty_ones_counted(tmp_path: Path, name: str) -> None:
    rows = [("word " * 40_000, "1"), ("", "0"), ("  ", "1")]
    if name.endswith("jsonl"):
        lines = [json.dumps({"sentence": text, "label": label}) for text, label in rows]
    else:
        lines = [("\t" if name.endswith("tsv") else ",").join(row) for row in [("sentence", "label"), *rows]]
    (tmp_path / name).write_text("\n".join(lines) + "\n")
    task = _task(tmp_path, train=name)
    examples = task.examples("train")
    assert [example.text for example in examples] == [text for text, _ in rows]
    assert task.notes["train"].counts == {"empty texts": 2}
    assert task.notes["train"].first["empty texts"] == f"{tmp_path / name}:{2 + (not name.endswith('jsonl'))}"
    encoded = task.encode(examples, WordTokenizer(), max_length=16, num_segments=1)
    assert (encoded.lengths.tolist(), encoded.num_truncated) == ([16, 2, 2], 1)


def test_ids_of_ones_own_must_be_unique(tmp_path: Path) -> None:
    (tmp_path / "train.tsv").write_text("uid\tsentence\tlabel\na7\tx\t1\nb\ty\t0\na7\tz\t0\n")
    with refuses(DataError, "train.tsv:4", "'a7'", "train.tsv:2"):
        _task(tmp_path, id_column="uid").examples("train")
    task = _task(tmp_path, id_column="uid", bad_rows="skip")
    assert [example.id for example in task.examples("train")] == ["a7", "b"]
    assert sum(task.notes["train"].counts.values()) == 1


def test_only_a_test_split_may_lack_the_labels(tmp_path: Path) -> None:
    (tmp_path / "bare.tsv").write_text("index\tsentence\n0\ta\n1\tb\n")
    task = _task(tmp_path, files={"train": "bare.tsv", "test": "bare.tsv", "test_hard": "bare.tsv"})
    for split in ("test", "test_hard"):
        examples = task.examples(split)
        hidden = [(f"{split}:0", "a", False), (f"{split}:1", "b", False)]
        assert [(e.id, e.text, e.has_gold) for e in examples] == hidden
    with refuses(DataError, "bare.tsv", "'label'", "index, sentence"):
        task.examples("train")


def test_labels_are_found_in_the_training_file(tmp_path: Path) -> None:
    with refuses(DataError, "train.tsv", "task.files.train="):  # when they are needed
        _ = _task(tmp_path, labels=None, label_values=None).labels
    (tmp_path / "dev.tsv").write_text("text\tlabel\na\teggs\n")
    content = "text\tlabel\na\tspam\nb\tham\nc\tspam\nd\t-1\n"
    task = _own(tmp_path, content, dev="dev.tsv")
    assert task.labels == ("ham", "spam")
    assert [example.label for example in task.examples("train")] == [1, 0, 1, None]
    assert task.head.num_labels == 2
    with refuses(DataError, "dev.tsv:2", "'eggs'", "'label'", "ham, spam"):
        task.examples("dev")
    assert _own(tmp_path, "text,label\na,10\nb,9\n", "train.csv").labels == ("9", "10")
    listed = _own(tmp_path, content, labels=["spam", "ham"])
    assert [example.label for example in listed.examples("train")] == [0, 1, 0, None]


def test_the_baseline_is_the_usual_training_label(tmp_path: Path) -> None:
    task = _task(tmp_path)
    train = [TextExample(f"t:{i}", "w", label=int(i < 3)) for i in range(5)]
    examples = [TextExample(f"d:{i}", "w", label=int(i < 1)) for i in range(4)]
    answers = task.baseline(train, examples)
    assert [(answer.name, answer.probabilities) for answer in answers] == [("positive", None)] * 4
    assert task.score(examples, answers) == {"accuracy": 0.25}
    assert answers[0].as_dict() == {"label": "positive", "probability": None, "probabilities": None}


@pytest.mark.parametrize(
    ("name", "content", "names"),
    [
        ("a.tsv", "b\tmaybe\n", ("'maybe'", "'label'", "0, 1", "task.label_values")),
        ("a.tsv", "b\n", ("1 column", "(sentence, label)")),
        ("a.tsv", "a\tb\t1\n", ("3 columns", "(sentence, label)")),
        ("a.tsv", '"a\nb" c\t1\n', ("1 column", "=quoted_tsv")),
        ("a.csv", '"never closed,0\nnext,1\n', ("comma-separated", "quotation marks")),
        ("a.jsonl", "not json\n", ("JSON",)),
        ("a.jsonl", "[1]\n", ("list", "JSON")),
        ("a.jsonl", '{"sentence": ["x"], "label": 1}\n', ("'sentence'", "list")),
        ("a.jsonl", '{"sentence": null, "label": 1}\n', ("text",)),
        ("a.jsonl", '{"text": "x", "label": 1}\n', ("'sentence'", "text, label")),
        ("a.jsonl", '{"sentence": "x"}\n', ("'label'",)),
        ("a.jsonl", '{"sentence": "x", "label": true}\n', ("'true'", "'label'", "0, 1")),
        ("a.jsonl", "[" * 100_000 + "\n", ("JSON",)),
    ],
    ids=range(13),
)
def test_malformed_rows_are_named_by_line_or_left_out(
    name: str, content: str, names: tuple[str, ...], tmp_path: Path
) -> None:
    first = {
        "a.tsv": "sentence\tlabel\nx\t1\n",
        "a.csv": "sentence,label\nx,1\n",
        "a.jsonl": '{"sentence": "x", "label": 1}\n',
    }
    (tmp_path / name).write_text(first[name] + content)
    line = first[name].count("\n") + 1
    with refuses(DataError, f"{name}:{line}", *names, "task.bad_rows=skip" if name == "a.tsv" else ""):
        _task(tmp_path, train=name).examples("train")
    if name == "a.csv":  # rows after an open quotation mark cannot be told apart
        return
    task = _task(tmp_path, train=name, bad_rows="skip")
    examples = task.examples("train")
    ((kind, count),) = task.notes["train"].counts.items()
    assert examples[0].id == "train:0"
    assert len(examples) + count == 1 + content.count("\n")
    assert task.notes["train"].first[kind] == f"{tmp_path}/{name}:{line}"


@pytest.mark.parametrize(
    ("content", "names"),
    [
        ("text\tlabel\na\t1\n", ("train.tsv:1", "'sentence'", "text, label", "task.text_column")),
        ("sentence\tgold\na\t1\n", ("train.tsv:1", "'label'", "sentence, gold", "task.label_column")),
        ("sentence\tlabel\tlabel\na\t1\t0\n", ("train.tsv:1", "'label'", "task.label_column")),
        ("sentence\tlabel\n", ("train.tsv", "examples")),
        ("", ("train.tsv", "examples")),
        (None, ("train.tsv", "data_root", "LMTRANSFER_DATA", "task.files.train=")),
    ],
)
def test_files_without_examples(tmp_path: Path, content: str | None, names: tuple[str, ...]) -> None:
    if content is not None:
        (tmp_path / "train.tsv").write_text(content)
    for bad_rows in ("refuse", "skip"):
        with refuses(DataError, *names):
            _task(tmp_path, bad_rows=bad_rows).examples("train")
    (tmp_path / "train.tsv").write_text("sentence\tlabel\nall\nbroken\n")
    with refuses(DataError, "examples", "2 rows", "train.tsv:2"):
        _task(tmp_path, bad_rows="skip").examples("train")
    with refuses(DataError, "split=test", "toy", "train, dev"):
        _task(tmp_path).examples("test")


def test_hidden_and_dropped_labels(tmp_path: Path) -> None:
    (tmp_path / "train.tsv").write_text("sentence\tlabel\na\t-1\nb\t1\nc\t-\n")
    task = _task(tmp_path, dropped_values=["-"])
    hidden, known = task.examples("train")
    assert (hidden.label, hidden.has_gold, known.label, known.id) == (None, False, 1, "train:1")
    assert list(task.notes["train"].counts.values()) == [1]
    with refuses(DataError, "train:0", "gold"):
        task.score([hidden], [LabelAnswer(0, "negative")])
    named = _task(tmp_path, labels=["-1", "1"], label_values=None, dropped_values=["-"])
    assert [example.label for example in named.examples("train")] == [0, 1]


@pytest.mark.parametrize(
    ("content", "changes", "names"),
    [
        ("text\tlabel\na\tspam\n", {}, ("train.tsv", "'spam'", "task.labels=[")),
        (
            "text\tlabel\n" + "".join(f"a\tt{i}\n" for i in range(30)),
            {},
            ("30 rows", "task.label_column=label", "task.labels"),
        ),
        ("text\tlabel\na\tx\n", {"files": {"dev": "train.tsv"}}, ("task.labels=null", "task.labels=[")),
        ("text\tlabel\na\tx\nb\ty\nc\tz\n", {"metrics": ["f1"]}, ("x, y, z", "task.positive_label")),
        ("text\tlabel\na\tx\nb\ty\n", {"positive_label": "z"}, ("task.positive_label=z", "x, y")),
    ],
)
def test_labels_that_cannot_be_found(
    tmp_path: Path, content: str, changes: dict[str, object], names: tuple[str, ...]
) -> None:
    with refuses((ConfigError, DataError), *names):
        _ = _own(tmp_path, content, **changes).labels


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"labels": ["one"], "label_values": None}, ("task.labels=[one]",)),
        ({"labels": ["a", "a"], "label_values": None}, ("task.labels=[a, a]",)),
        ({"label_values": ["0"]}, ("task.label_values=['0']", "2 labels")),
        ({"labels": None}, ("task.label_values=", "task.labels")),
        ({"positive_label": "good"}, ("task.positive_label=good", "negative, positive")),
        ({"labels": ["a", "b", "c"], "label_values": None, "metrics": ["f1"]}, ("f1", "task.positive_label")),
        ({"metrics": []}, ("task.metrics=[]",)),
        ({"files": {}}, ("task.files", "task.hub")),
        ({"text_column": []}, ("task.text_column",)),
    ],
)
def test_settings_that_cannot_be(tmp_path: Path, changes: dict[str, object], names: tuple[str, ...]) -> None:
    with refuses(ConfigError, *names):
        _task(tmp_path, **changes)


def test_answers_are_the_most_probable_labels(tmp_path: Path) -> None:
    names = ["a", "b", "c"]
    task = _task(tmp_path, labels=names, label_values=None)
    examples = [TextExample(f"x:{i}", "w") for i in range(5000)]
    encoded = task.encode(examples, WordTokenizer(), max_length=8, num_segments=1)
    assert table(encoded.targets).tolist() == [[-1]] * 5000
    logits = np.random.default_rng(0).normal(size=(5000, 3), scale=3).astype(np.float32)
    logits[0] = [900.0, -900.0, 0.0]
    answers = list(task.answers(encoded, logits))
    found = np.array([[answer.probabilities[name] for name in names] for answer in answers])
    np.testing.assert_allclose(found, softmax(logits.astype(np.float64), axis=1), atol=1e-12)
    assert [(answer.label, answer.name) for answer in answers] == [(i, names[i]) for i in found.argmax(1).tolist()]


def test_the_metric_named_first_decides_and_f1_is_of_the_label_named(tmp_path: Path) -> None:
    task = _task(tmp_path, metrics=["f1", "accuracy", "matthews", "macro_f1"], positive_label="negative")
    assert (task.main_metric, task.positive) == ("f1", 0)
    gold, said = np.random.default_rng(1).integers(0, 2, (2, 600))
    examples = [TextExample(f"x:{i}", "w", label=int(label)) for i, label in enumerate(gold)]
    found = task.score(examples, (LabelAnswer(int(label), task.labels[label]) for label in said))
    assert list(found) == list(task.metric_names) == ["f1", "accuracy", "matthews", "macro_f1"]
    assert found["f1"] == pytest.approx(2 * ((gold == 0) & (said == 0)).sum() / ((gold == 0).sum() + (said == 0).sum()))
    assert found["accuracy"] == pytest.approx((gold == said).mean(), abs=1e-12)


def test_hub_labels_are_matched_by_name_not_by_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")

    def hub(label: Any) -> None:
        features = datasets.Features({"sentence": datasets.Value("string"), "label": label})
        rows = {"sentence": ["bad", "good", "?"], "label": [1, 0, -1]}

        def load(name: str, config: str | None, split: str) -> Any:
            assert (name, config, split) == ("some/data", "toy", "validation")
            return datasets.Dataset.from_dict(rows, features=features)

        monkeypatch.setattr(datasets, "load_dataset", load)

    task = _task(tmp_path, hub="some/data", hub_config="toy", hub_splits={"dev": "validation"})
    assert task.origin("dev") == "some/data (toy) validation"
    hub(datasets.ClassLabel(names=["positive", "negative"]))
    assert [(e.text, e.label) for e in task.examples("dev")] == [("bad", 0), ("good", 1), ("?", None)]
    hub(datasets.ClassLabel(names=["yes", "no"]))
    with refuses(DataError, "validation", "row 0", "'no'", "negative, positive"):
        task.examples("dev")
    hub(datasets.Value("int64"))  # plain numbers are treated like the values in files
    assert [e.label for e in task.examples("dev")] == [1, 0, None]
    with refuses(DataError, "split=other", "toy", "train, dev"):
        task.examples("other")

    def fail(*_: object, **__: object) -> None:
        raise ConnectionError("no network")

    monkeypatch.setattr(datasets, "load_dataset", fail)
    with refuses(DataError, "some/data", "no network", "data_root="):
        task.examples("dev")


TEMPLATE_ROWS = [
    {"question": "Who?", "answer": "Ann {question}", "paragraph": "Ann came.", "label": 1},
    {"question": "Where?", "answer": "Here", "paragraph": "Ann came.", "label": "wrong"},
]


def _template_task(folder: Path, rows: list[dict[str, Any]], **changes: Any) -> TemplateClassification:
    (folder / "train.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    settings = {
        "name": "multirc",
        "text": "Question: {question} Answer: {answer}",
        "text_pair": "{paragraph}",
        "labels": ["wrong", "right"],
        "files": {"train": str(folder / "train.jsonl")},
    }
    return TemplateClassification(**{**settings, **changes})


def test_templates_are_filled_and_labels_are_indices_or_names(tmp_path: Path) -> None:
    first, second = _template_task(tmp_path, TEMPLATE_ROWS).examples("train")
    assert (first.text, first.text_pair) == ("Question: Who? Answer: Ann {question}", "Ann came.")
    assert (first.label, second.label) == (1, 0)
    alone = _template_task(tmp_path, TEMPLATE_ROWS, text="{answer}", text_pair=None)
    assert [example.text_pair for example in alone.examples("train")] == [None, None]
    assert not alone.head.pairs


@pytest.mark.parametrize("label", [2, -1, "perhaps"])
def test_other_labels_of_templates_are_refused(tmp_path: Path, label: object) -> None:
    with refuses(DataError, "train.jsonl:1", str(label), "wrong, right"):
        _template_task(tmp_path, [{**TEMPLATE_ROWS[0], "label": label}]).examples("train")


def test_a_template_names_fields_of_the_file(tmp_path: Path) -> None:
    with refuses(ConfigError, "task.text=nothing", "{sentence}"):
        _template_task(tmp_path, TEMPLATE_ROWS, text="nothing")
    with refuses(DataError, "train.jsonl:1", "passage"):
        _template_task(tmp_path, TEMPLATE_ROWS, text="{passage}").examples("train")


def _labeled(path: Path, labels: Sequence[object]) -> str:
    rows = [json.dumps({"text": f"text {place}", "label": label}) for place, label in enumerate(labels)]
    path.write_text("\n".join(rows) + "\n")
    return str(path)


def _of_labels(**settings: Any) -> TextClassification:
    return TextClassification(
        **{"name": "own", "labels": None, "text_column": "text", "label_column": "label"} | settings
    )


@pytest.mark.parametrize(
    ("train", "dev", "labels", "found"),
    [
        (["0.0", "1.0"], ["1", "0"], ("0.0", "1.0"), [1, 0]),
        ([0, 1, 2], [2.0, 0.0, 1.0], ("0", "1", "2"), [2, 0, 1]),
        (["1", "1.0", "2.00", "10.0"], ["1.0", "10", "2"], ("1", "2.00", "10.0"), [0, 2, 1]),
        (["-1.0", "1"], ["-1", "1.0"], ("-1.0", "1"), [0, 1]),
    ],
)
def test_equal_whole_numbers_are_one_label(
    train: list[object], dev: list[object], labels: tuple[str, ...], found: list[int], tmp_path: Path
) -> None:
    files = {"train": _labeled(tmp_path / "t.jsonl", train), "dev": _labeled(tmp_path / "d.jsonl", dev)}
    task = _of_labels(hidden_values=[], **files)
    assert task.labels == labels
    assert [example.label for example in task.examples("dev")] == found
    assert task.notes["dev"].counts[OTHER_SPELLING] == sum(str(value) not in labels for value in dev)
    assert len(task.examples("train")) == len(train)


@pytest.mark.parametrize("labels", [["1.10", "1.1"], ["01", "1"], ["v1.0", "v1"], ["0.5", "0.50"]])
def test_other_numbers_stay_labels_of_their_own(labels: list[str], tmp_path: Path) -> None:
    task = _of_labels(train=_labeled(tmp_path / "t.jsonl", labels * 2))
    assert sorted(task.labels) == sorted(labels)
    assert [task.labels[example.label or 0] for example in task.examples("train")] == labels * 2


def test_labels_that_the_user_lists_stay_apart(tmp_path: Path) -> None:
    task = _of_labels(train=_labeled(tmp_path / "t.jsonl", ["1", "1.0", "1.00"]), labels=["1.0", "1"])
    assert [example.label for example in task.examples("train")] == [1, 0, 1]


def test_a_hidden_label_has_any_spelling(tmp_path: Path) -> None:
    files = {"train": _labeled(tmp_path / "t.jsonl", ["0", "1"]), "test": _labeled(tmp_path / "e.jsonl", [-1.0, "-1"])}
    assert [example.label for example in _of_labels(**files).examples("test")] == [None, None]


@pytest.mark.parametrize(
    ("labels", "mark"),
    [(["a", "b", "a,b"], ","), (["x|y", "x", "y", "z"], "|"), (["good", "bad", "good,really"], None)],
)
def test_joined_labels_are_noted(labels: list[str], mark: str | None, tmp_path: Path) -> None:
    task = _of_labels(train=_labeled(tmp_path / "t.jsonl", labels))
    assert set(task.labels) == set(labels)
    task.examples("train")
    notes = [kind for kind in task.notes["train"].counts if "joined by" in kind]
    assert [f"joined by {mark!r}" in note for note in notes] == [True] * (mark is not None)


def test_a_template_takes_indices_that_pandas_has_written(tmp_path: Path) -> None:
    rows = [{"q": "a", "label": 1.0}, {"q": "b", "label": 0}]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = TemplateClassification(
        name="own", metrics=["accuracy"], text="{q}", labels=["no", "yes"], train=str(tmp_path / "t.jsonl")
    )
    assert [example.label for example in task.examples("train")] == [1, 0]
