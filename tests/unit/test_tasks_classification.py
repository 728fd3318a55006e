from __future__ import annotations

import gzip
import lzma
import os
from collections import Counter
from pathlib import Path

import pytest
from omegaconf import OmegaConf
from task_fakes import WordTokenizer

from lmtransfer.config.build import build
from lmtransfer.config.paths import conf_dir
from lmtransfer.errors import ConfigError, DataError
from lmtransfer.tasks.base import Task
from lmtransfer.tasks.classification import TextClassification

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


def test_quotes_are_text_and_rows_are_lines(tmp_path: Path) -> None:
    (tmp_path / "train.tsv").write_text(SST2)
    task = _task(tmp_path)
    assert isinstance(task, Task)
    examples = task.examples("train")
    assert len(examples) == SST2.count("\n") - 1
    assert [example.text for example in examples] == ['a "bare quote ', '"another one', "  it 's fine"]
    assert [example.label for example in examples] == [1, 0, 1]
    assert [example.id for example in examples] == ["train:0", "train:1", "train:2"]


def test_unusual_line_separators_do_not_split_rows(tmp_path: Path) -> None:
    (tmp_path / "train.tsv").write_bytes("sentence\tlabel\r\na\u2028b\x85c\t1\r\n".encode())
    examples = _task(tmp_path).examples("train")
    assert [(example.text, example.label) for example in examples] == [("a\u2028b\x85c", 1)]


@pytest.mark.parametrize(("suffix", "compress"), [(".gz", gzip.compress), (".xz", lzma.compress)])
def test_a_compressed_file_stands_in(tmp_path: Path, suffix: str, compress) -> None:
    (tmp_path / f"train.tsv{suffix}").write_bytes(compress(SST2.encode()))
    assert len(_task(tmp_path).examples("train")) == 3


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("sentence\tlabel\na\t1\nb\tmaybe\n", r"train.tsv:3: label 'maybe' in column 'label' is none of 0, 1"),
        ("sentence\tlabel\na\t1\nb\n", r"train.tsv:3: 1 columns where 2 are expected \(sentence, label\)"),
        ("sentence\tlabel\na\tb\t1\n", r"train.tsv:2: 3 columns where 2"),
        ("text\tlabel\na\t1\n", r"train.tsv:1: no column 'sentence'; there are text, label"),
        ("sentence\tlabel\n", r"train.tsv: holds no examples"),
        ("", r"train.tsv: holds no examples"),
    ],
)
def test_malformed_files_are_named_by_line(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "train.tsv").write_text(content)
    with pytest.raises(DataError, match=message):
        _task(tmp_path).examples("train")


def test_bad_bytes_are_named_by_line(tmp_path: Path) -> None:
    (tmp_path / "train.tsv").write_bytes(b"sentence\tlabel\nfine\t1\ncaf\xe9\t0\n")
    with pytest.raises(DataError, match=r"train.tsv:3: not UTF-8"):
        _task(tmp_path).examples("train")


def test_a_missing_split_names_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="split=test: task toy has train, dev"):
        _task(tmp_path).examples("test")


def test_a_missing_file_names_where_it_was_looked_for_and_the_keys(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no file .*train\.tsv.*data_root=.*LMTRANSFER_DATA.*task\.files\.train="):
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


def test_json_lines_and_quoted_csv(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"label": 1, "sentence": "tab\\there"}\n')
    (tmp_path / "a.csv").write_text('sentence,label\n"two\nlines, one row",0\nnext,1\n')
    task = _task(tmp_path, files={"train": "a.jsonl"}, file_format="jsonl")
    assert [(e.text, e.label) for e in task.examples("train")] == [("tab\there", 1)]
    task = _task(tmp_path, files={"train": "a.csv"}, file_format="csv")
    assert [(e.text, e.label) for e in task.examples("train")] == [("two\nlines, one row", 0), ("next", 1)]
    (tmp_path / "a.jsonl").write_text('{"sentence": "x", "label": 1}\nnot json\n')
    with pytest.raises(DataError, match=r"a\.jsonl:2: not a JSON object"):
        _task(tmp_path, files={"train": "a.jsonl"}, file_format="jsonl").examples("train")


def test_hidden_gold_labels_are_none(tmp_path: Path) -> None:
    (tmp_path / "train.tsv").write_text("sentence\tlabel\na\t-1\n")
    assert _task(tmp_path).examples("train")[0].label is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"labels": ["one"], "label_values": None}, "at least two"),
        ({"labels": ["a", "a"], "label_values": None}, "different names"),
        ({"label_values": ["0"]}, "one value for each of the 2 labels"),
        ({"positive_label": "good"}, "must be one of negative, positive"),
        ({"metrics": []}, "at least one metric"),
        ({"files": {}}, "task.files is empty"),
    ],
)
def test_settings_that_cannot_be(tmp_path: Path, changes: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        _task(tmp_path, **changes)


def test_the_metric_named_first_decides(tmp_path: Path) -> None:
    task = _task(tmp_path, metrics=["f1", "accuracy"], positive_label="negative")
    assert task.main_metric == "f1"
    assert [metric.name for metric in task.metrics()] == ["f1", "accuracy"]
    assert task.metrics()[0].positive == 0


class _HubTable:
    """What of a hub data set is used."""

    def __init__(self, columns: dict[str, list[object]], names: list[str]) -> None:
        self.columns = columns
        self.column_names = list(columns)
        self.features = {name: None for name in columns}
        self.features["label"] = type("ClassLabel", (), {"names": names})()

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
    table.features["label"] = type("ClassLabel", (), {"names": ["yes", "no"]})()
    with pytest.raises(DataError, match="its labels are yes, no; the task's are negative, positive"):
        task.examples("dev")


def test_an_unreachable_hub_is_one_error_that_names_both_ways(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")

    def load(*_: object, **__: object) -> None:
        raise ConnectionError("no network")

    monkeypatch.setattr(datasets, "load_dataset", load)
    with pytest.raises(DataError, match=r"some/data.*no network.*data_root="):
        _task(tmp_path, hub="some/data").examples("dev")


@pytest.mark.data
@pytest.mark.skipif("LMTRANSFER_DATA" not in os.environ, reason="LMTRANSFER_DATA names no data folder")
def test_sst2_has_its_published_counts() -> None:
    node = OmegaConf.load(conf_dir() / "task" / "sst2.yaml")
    task = build(node, data_root=os.environ["LMTRANSFER_DATA"])
    counts = {split: Counter(task.labels[e.label] for e in task.examples(split)) for split in task.splits}
    assert counts["train"] == {"negative": 29_780, "positive": 37_569}
    assert counts["dev"] == {"negative": 428, "positive": 444}
    assert counts["test"] == {"negative": 912, "positive": 909}
