from __future__ import annotations

import gzip
import json
import lzma
import math
from pathlib import Path

import numpy as np
import pytest
from fakes.heads import table
from fakes.tasks import WordTokenizer
from support.refusals import refuses

from lmtransfer.errors import ConfigError, DataError
from lmtransfer.tasks.answers import LabelAnswer
from lmtransfer.tasks.base import Task
from lmtransfer.tasks.heads import ClassificationSpec
from lmtransfer.tasks.text.classification import TextClassification
from lmtransfer.tasks.text.example import TextExample

SST2 = 'sentence\tlabel\na "bare quote \t1\n"another one\t0\n  it \'s fine\t1\n'


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
    """A task on a file of a user's own, whose labels are found in it."""
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
    assert [example.text for example in examples] == ['a "bare quote ', '"another one', "  it 's fine"]
    assert [example.label for example in examples] == [1, 0, 1]
    assert [example.id for example in examples] == ["train:0", "train:1", "train:2"]
    assert task.origin("train") == str(tmp_path / "train.tsv")


def test_unusual_line_separators_do_not_split_rows(tmp_path: Path) -> None:
    (tmp_path / "train.tsv").write_bytes("sentence\tlabel\r\na\u2028b\x85c\t1\r\n".encode())
    examples = _task(tmp_path).examples("train")
    assert [(example.text, example.label) for example in examples] == [("a\u2028b\x85c", 1)]


@pytest.mark.parametrize(("suffix", "compress"), [(".gz", gzip.compress), (".xz", lzma.compress)])
def test_a_compressed_file_stands_in(tmp_path: Path, suffix: str, compress) -> None:
    (tmp_path / f"train.tsv{suffix}").write_bytes(compress(SST2.encode()))
    assert len(_task(tmp_path).examples("train")) == 3


def test_several_names_of_a_file_are_tried_in_order(tmp_path: Path) -> None:
    task = _task(tmp_path, files={"train": ["mine/train.tsv", "THEIRS/train.tsv"], "dev": "dev.tsv"})
    for folder, expected in (("THEIRS", "THEIRS"), ("mine", "mine")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "train.tsv").write_text(SST2)
        assert task.origin("train") == str(tmp_path / expected / "train.tsv")
        assert len(task.examples("train")) == 3


BAD_ROWS = {
    "sentence\tlabel\na\t1\nb\tmaybe\n": ("train.tsv:3", "'maybe'", "'label'", "0, 1", "task.label_values"),
    "sentence\tlabel\na\t1\nb\n": ("train.tsv:3", "1 column", "(sentence, label)"),
    "sentence\tlabel\na\tb\t1\nb\t0\n": ("train.tsv:2", "3 columns", "(sentence, label)"),
    'sentence\tlabel\n"a\nb" c\t1\nb\t0\n': ("train.tsv:2", "1 column", "=quoted_tsv"),
}


@pytest.mark.parametrize(("content", "names"), BAD_ROWS.items())
def test_malformed_rows_are_named_by_line(tmp_path: Path, content: str, names: tuple[str, ...]) -> None:
    (tmp_path / "train.tsv").write_text(content)
    with refuses(DataError, *names, "task.bad_rows=skip"):
        _task(tmp_path).examples("train")


@pytest.mark.parametrize("content", BAD_ROWS)
def test_malformed_rows_are_left_out_and_counted_on_request(tmp_path: Path, content: str) -> None:
    (tmp_path / "train.tsv").write_text(content)
    task = _task(tmp_path, bad_rows="skip")
    rows = content.split("\n")[1:-1]
    numbers = [int(example.id.removeprefix("train:")) for example in task.examples("train")]
    assert [len(rows[number].split("\t")) for number in numbers] == [2] * len(numbers)
    ((kind, count),) = task.notes["train"].counts.items()
    assert count == len(rows) - len(numbers) > 0
    assert task.notes["train"].first[kind].startswith(f"{tmp_path}/train.tsv:")


@pytest.mark.parametrize(
    ("content", "names"),
    [
        ("text\tlabel\na\t1\n", ("train.tsv:1", "'sentence'", "text, label", "task.text_column")),
        ("sentence\tgold\na\t1\n", ("train.tsv:1", "'label'", "sentence, gold", "task.label_column")),
        ("sentence\tlabel\tlabel\na\t1\t0\n", ("train.tsv:1", "'label'", "task.label_column")),
        ("sentence\tlabel\n", ("train.tsv", "examples")),
        ("", ("train.tsv", "examples")),
    ],
)
def test_malformed_files_are_refused_whatever_becomes_of_rows(
    tmp_path: Path, content: str, names: tuple[str, ...]
) -> None:
    (tmp_path / "train.tsv").write_text(content)
    for bad_rows in ("refuse", "skip"):
        with refuses(DataError, *names):
            _task(tmp_path, bad_rows=bad_rows).examples("train")


def test_a_file_without_a_usable_row_says_what_became_of_them(tmp_path: Path) -> None:
    (tmp_path / "train.tsv").write_text("sentence\tlabel\nall\nbroken\n")
    with refuses(DataError, "examples", "2 rows", "train.tsv:2"):
        _task(tmp_path, bad_rows="skip").examples("train")


def test_bad_bytes_are_named_by_line_or_replaced(tmp_path: Path) -> None:
    (tmp_path / "train.tsv").write_bytes(b"sentence\tlabel\nfine\t1\ncaf\xe9\t0\n")
    with refuses(DataError, "train.tsv:3", "UTF-8", "task.encoding_errors"):
        _task(tmp_path).examples("train")
    task = _task(tmp_path, encoding_errors="replace")
    assert task.examples("train")[1].text == "caf\ufffd"
    assert sum(task.notes["train"].counts.values()) == 1


def test_a_missing_split_names_those_there_are(tmp_path: Path) -> None:
    with refuses(DataError, "split=test", "toy", "train, dev"):
        _task(tmp_path).examples("test")


def test_a_missing_file_names_where_it_was_looked_for_and_the_keys(tmp_path: Path) -> None:
    with refuses(DataError, "train.tsv", "data_root=", "LMTRANSFER_DATA", "task.files.train="):
        _task(tmp_path).examples("train")


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
    with refuses(ConfigError, "task.text_column"):
        _task(tmp_path, text_column=[])


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


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("not json", ("a.jsonl:2", "JSON")),
        ("[1]", ("a.jsonl:2", "list", "JSON")),
        ('{"sentence": ["x"], "label": 1}', ("a.jsonl:2", "'sentence'", "list")),
        ('{"sentence": null, "label": 1}', ("a.jsonl:2", "text")),
        ('{"text": "x", "label": 1}', ("a.jsonl:2", "'sentence'", "text, label")),
        ('{"sentence": "x"}', ("a.jsonl:2", "'label'")),
        ('{"sentence": "x", "label": true}', ("a.jsonl:2", "'true'", "'label'", "0, 1")),
        ("[" * 100_000, ("a.jsonl:2", "JSON")),
    ],
)
def test_malformed_json_lines(tmp_path: Path, line: str, names: tuple[str, ...]) -> None:
    (tmp_path / "a.jsonl").write_text('{"sentence": "x", "label": 1}\n' + line + "\n")
    with refuses(DataError, *names):
        _task(tmp_path, train="a.jsonl").examples("train")
    assert len(_task(tmp_path, train="a.jsonl", bad_rows="skip").examples("train")) == 1


def test_broken_quotation_is_named_by_the_line_where_the_row_starts(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('sentence,label\nfine,1\n"never closed,0\nnext,1\n')
    with refuses(DataError, "a.csv:3", "comma-separated", "quotation marks"):
        _task(tmp_path, train="a.csv").examples("train")


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


def test_hidden_gold_labels_are_none(tmp_path: Path) -> None:
    (tmp_path / "train.tsv").write_text("sentence\tlabel\na\t-1\n")
    task = _task(tmp_path)
    (example,) = task.examples("train")
    assert (example.label, example.has_gold) == (None, False)
    with refuses(DataError, "train:0", "gold"):
        task.score([example], [LabelAnswer(0, "negative")])


def test_minus_one_may_be_a_label(tmp_path: Path) -> None:
    (tmp_path / "train.tsv").write_text("sentence\tlabel\na\t-1\n")
    assert _task(tmp_path, labels=["-1", "1"], label_values=None).examples("train")[0].label == 0


def test_rows_without_any_answer_are_left_out_and_counted(tmp_path: Path) -> None:
    (tmp_path / "train.tsv").write_text("sentence\tlabel\na\t-\nb\t1\n")
    task = _task(tmp_path, dropped_values=["-"])
    assert [(e.id, e.text) for e in task.examples("train")] == [("train:1", "b")]
    assert list(task.notes["train"].counts.values()) == [1]


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
    task = _own(tmp_path, "text\tlabel\na\tspam\nb\tham\nc\tspam\nd\t-1\n")
    assert task.labels == ("ham", "spam")
    assert [example.label for example in task.examples("train")] == [1, 0, 1, None]
    assert task.head.num_labels == 2
    assert _own(tmp_path, "text,label\na,10\nb,9\n", "train.csv").labels == ("9", "10")


def test_found_labels_are_read_lazily_and_given_ones_win(tmp_path: Path) -> None:
    task = _task(tmp_path, labels=None, label_values=None)
    with refuses(DataError, "train.tsv", "task.files.train="):
        _ = task.labels
    stored = _own(tmp_path, "text\tlabel\na\tspam\nb\tham\n", labels=["spam", "ham"])
    assert stored.labels == ("spam", "ham")
    assert [example.label for example in stored.examples("train")] == [0, 1]


def test_a_label_of_dev_that_training_lacks_is_refused(tmp_path: Path) -> None:
    (tmp_path / "dev.tsv").write_text("text\tlabel\na\teggs\n")
    task = _own(tmp_path, "text\tlabel\na\tspam\nb\tham\n", dev="dev.tsv")
    with refuses(DataError, "dev.tsv:2", "'eggs'", "'label'", "ham, spam"):
        task.examples("dev")


@pytest.mark.parametrize(
    ("content", "changes", "error", "names"),
    [
        ("text\tlabel\na\tspam\n", {}, DataError, ("train.tsv", "'spam'", "task.labels=[")),
        (
            "text\tlabel\n" + "".join(f"a\tt{i}\n" for i in range(30)),
            {},
            DataError,
            ("30 rows", "task.label_column=label", "task.labels"),
        ),
        ("text\tlabel\na\tx\n", {"files": {"dev": "train.tsv"}}, ConfigError, ("task.labels=null", "task.labels=[")),
        ("text\tlabel\na\tx\nb\ty\nc\tz\n", {"metrics": ["f1"]}, ConfigError, ("x, y, z", "task.positive_label")),
        ("text\tlabel\na\tx\nb\ty\n", {"positive_label": "z"}, ConfigError, ("task.positive_label=z", "x, y")),
    ],
)
def test_labels_that_cannot_be_found(
    tmp_path: Path, content: str, changes: dict[str, object], error: type[Exception], names: tuple[str, ...]
) -> None:
    with refuses(error, *names):
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
    ],
)
def test_settings_that_cannot_be(tmp_path: Path, changes: dict[str, object], names: tuple[str, ...]) -> None:
    with refuses(ConfigError, *names):
        _task(tmp_path, **changes)


def test_the_metric_named_first_decides(tmp_path: Path) -> None:
    task = _task(tmp_path, metrics=["f1", "accuracy"], positive_label="negative")
    assert (task.main_metric, task.metric_names, task.positive) == ("f1", ("f1", "accuracy"), 0)


def _logits(num: int, num_labels: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(num, num_labels), scale=3).astype(np.float32)


def test_answers_are_the_most_probable_labels(tmp_path: Path) -> None:
    names = ["a", "b", "c"]
    task = _task(tmp_path, labels=names, label_values=None)
    examples = [TextExample(f"x:{i}", "w") for i in range(5000)]
    encoded = task.encode(examples, WordTokenizer(), max_length=8, num_segments=1)
    assert table(encoded.targets).tolist() == [[-1]] * 5000
    logits = _logits(5000, 3)
    logits[0] = [900.0, -900.0, 0.0]
    answers = list(task.answers(encoded, logits))
    assert len(answers) == 5000
    for row, answer in zip(logits.tolist(), answers, strict=True):
        total = sum(math.exp(value - max(row)) for value in row)
        expected = {name: math.exp(value - max(row)) / total for name, value in zip(names, row, strict=True)}
        assert answer.probabilities == pytest.approx(expected, abs=1e-12)
        assert answer.name == names[answer.label] == max(expected, key=lambda name: expected[name])


def test_scores_equal_their_definitions(tmp_path: Path) -> None:
    task = _task(tmp_path, metrics=["f1", "accuracy", "matthews", "macro_f1"])
    rng = np.random.default_rng(1)
    gold, said = rng.integers(0, 2, 6000), rng.integers(0, 2, 6000)
    said = np.where(rng.random(6000) < 0.6, gold, said)
    examples = [TextExample(f"x:{i}", "w", label=int(label)) for i, label in enumerate(gold)]
    answers = (LabelAnswer(int(label), task.labels[label]) for label in said)
    found = task.score(examples, answers)

    def f1(label: int) -> float:
        true = sum(g == s == label for g, s in zip(gold, said, strict=True))
        precision, recall = true / (said == label).sum(), true / (gold == label).sum()
        return 2 * precision * recall / (precision + recall)

    assert list(found) == ["f1", "accuracy", "matthews", "macro_f1"]
    assert found["f1"] == pytest.approx(f1(1), abs=1e-12)
    assert found["macro_f1"] == pytest.approx((f1(0) + f1(1)) / 2, abs=1e-12)
    assert found["accuracy"] == pytest.approx((gold == said).mean(), abs=1e-12)
    assert found["matthews"] == pytest.approx(np.corrcoef(gold, said)[0, 1], abs=1e-12)


def test_the_baseline_is_the_usual_training_label(tmp_path: Path) -> None:
    task = _task(tmp_path)
    train = [TextExample(f"t:{i}", "w", label=int(i < 3)) for i in range(5)]
    examples = [TextExample(f"d:{i}", "w", label=int(i < 1)) for i in range(4)]
    answers = task.baseline(train, examples)
    assert [(answer.name, answer.probabilities) for answer in answers] == [("positive", None)] * 4
    assert task.score(examples, answers) == {"accuracy": 0.25}
    assert answers[0].as_dict() == {"label": "positive", "probabilities": None}


class _HubTable:
    """What of a hub data set is used."""

    def __init__(self, columns: dict[str, list[object]], names: list[str] | None) -> None:
        self.columns = columns
        self.column_names = list(columns)
        self.features = {name: None for name in columns}
        self.features["label"] = type("ClassLabel", (), {"names": names})()

    def __len__(self) -> int:
        return len(self.columns["label"])

    def __getitem__(self, name: str) -> list[object]:
        return self.columns[name]


def test_hub_labels_are_matched_by_name_not_by_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    table = _HubTable({"sentence": ["bad", "good", "?"], "label": [1, 0, -1]}, ["positive", "negative"])
    asked: list[tuple[object, ...]] = []

    def load(name: str, config: str | None, split: str) -> _HubTable:
        asked.append((name, config, split))
        return table

    monkeypatch.setattr(datasets, "load_dataset", load)
    task = _task(tmp_path, hub="some/data", hub_config="toy", hub_splits={"dev": "validation"})
    assert [(e.text, e.label) for e in task.examples("dev")] == [("bad", 0), ("good", 1), ("?", None)]
    assert asked == [("some/data", "toy", "validation")]
    assert task.origin("dev") == "some/data (toy) validation"
    table.features["label"] = type("ClassLabel", (), {"names": ["yes", "no"]})()
    with refuses(DataError, "validation", "row 0", "'no'", "negative, positive"):
        task.examples("dev")
    table.features["label"] = None  # plain numbers: as the files write them
    assert [e.label for e in task.examples("dev")] == [1, 0, None]


def test_an_unreachable_hub_is_one_error_that_names_both_ways(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")

    def load(*_: object, **__: object) -> None:
        raise ConnectionError("no network")

    monkeypatch.setattr(datasets, "load_dataset", load)
    with refuses(DataError, "some/data", "no network", "data_root="):
        _task(tmp_path, hub="some/data").examples("dev")
