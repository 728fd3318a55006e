"""User tables in every format: all readers find the rows that pandas, datasets and csv wrote."""

from __future__ import annotations

import csv
import json
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from support.refusals import refuses

from lmtransfer.data.corpora.corpus import FileCorpus
from lmtransfer.data.documents import Notes
from lmtransfer.data.tables import BadRows, ColumnSpec, TableLayout, read_rows
from lmtransfer.errors import ConfigError, DataError
from lmtransfer.inference.embedding_output import open_rows
from lmtransfer.inference.prediction_input import find_input, input_format
from lmtransfer.tasks.settings import LocatedFiles
from lmtransfer.tasks.tagging.task import Tagging
from lmtransfer.tasks.text.classification import TextClassification
from lmtransfer.tasks.text.files import TextReader
from lmtransfer.tasks.text.multi_label import MultiLabel

TEXTS = ['he said "no" twice', "a; b, c | d\te", "two\nlines", '"all of it"', "plain", '5" pipe']
LABELS = ["-1", "0", "1", "0", "-1", "1"]
FRAME = pd.DataFrame({"text": TEXTS, "label": LABELS})
WANTED = [ColumnSpec(("text",), "task.text_column"), ColumnSpec(("label",), "task.label_column")]


def classification(train: Path, **changes: Any) -> TextClassification:
    columns: dict[str, Any] = {"text_column": "text", "label_column": "label", "labels": None, "hidden_values": []}
    return TextClassification(name="own", train=str(train), **{**columns, **changes})


def rows(path: Path, notes: Notes | None = None, **layout: Any) -> list[tuple[str | None, ...]]:
    bad_rows = BadRows("refuse", notes or Notes())
    return [row.values for row in read_rows(path, WANTED, layout=TableLayout(**layout), bad_rows=bad_rows)]


def dataset(frame: pd.DataFrame) -> Any:
    datasets = pytest.importorskip("datasets")
    features = datasets.Features(
        {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["-1", "0", "1"])}
    )
    return datasets.Dataset.from_pandas(frame, preserve_index=False).cast(features)


FORMS: dict[str, Callable[[Path], Any]] = {
    "a.csv": lambda path: FRAME.to_csv(path, index=False),
    "tabs.csv": lambda path: FRAME.to_csv(path, index=False, sep="\t"),
    "pandas.tsv": lambda path: FRAME.to_csv(path, index=False, sep="\t"),
    "all_quoted.tsv": lambda path: FRAME.to_csv(path, index=False, sep="\t", quoting=csv.QUOTE_ALL),
    "commas.tsv.gz": lambda path: FRAME.to_csv(path, index=False, quoting=csv.QUOTE_NONNUMERIC),
    "array.json": lambda path: FRAME.to_json(path, orient="records"),
    "a.parquet": lambda path: FRAME.to_parquet(path, index=False),
    "label_numbers.parquet": lambda path: dataset(FRAME).to_parquet(path),
}


@pytest.mark.parametrize("name", FORMS)
def test_every_form_has_the_same_rows_for_everyone(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    FORMS[name](path)
    task = classification(path)
    assert task.labels == ("-1", "0", "1")
    found = task.examples("train")
    assert [(example.text, task.labels[example.label or 0]) for example in found] == list(
        zip(TEXTS, LABELS, strict=True)
    )
    documents = ["\n".join(line.strip() for line in text.split("\n")) for text in TEXTS]
    corpus = FileCorpus(path=str(path), split_unit="document", validation_fraction=0)
    assert [document.text for document in corpus.documents()] == documents
    source = find_input(str(path))
    settings: dict[str, Any] = {"text_column": None, "encoding_errors": "strict", "group": 4}
    opened = open_rows(
        source, input_format(None, source, TextReader("embed", owner="embed"), Notes()), Notes(), **settings
    )
    assert [text for window in opened.windows for text in window.texts] == TEXTS


@pytest.mark.parametrize("texts", [['He said " no .', 'the "man" sat', '"Yes," he said'], ['"Hello."', "plain"]])
def test_quotation_marks_of_published_files_stay(texts: list[str], tmp_path: Path) -> None:
    path, notes = tmp_path / "glue.tsv", Notes()
    path.write_text("text\tlabel\n" + "".join(f"{text}\t0\n" for text in texts))
    expected = pd.read_csv(path, sep="\t", quoting=csv.QUOTE_NONE, dtype=str)
    assert [text for text, _ in rows(path, notes)] == list(expected["text"]) == texts
    assert len(notes.counts) == (texts[0] == '"Hello."')  # only if both interpretations are possible
    marks = pd.read_csv(path, sep="\t", quoting=csv.QUOTE_NONE, dtype=str, header=None)
    assert len(marks) == len(texts) + 1


def test_a_row_that_begins_with_a_mark_does_not_swallow_the_next_ones(tmp_path: Path) -> None:
    path = tmp_path / "glue.tsv"
    path.write_text('text\tlabel\n"We left\t0\nplain\t1\n"\t0\n')
    assert rows(path) == [('"We left', "0"), ("plain", "1"), ('"', "0")]


def test_the_separator_is_said_and_can_be_set(tmp_path: Path) -> None:
    path, notes = tmp_path / "a.csv", Notes()
    path.write_text("text;label\nx,y;1\n")
    assert rows(path, notes) == [("x,y", "1")]
    assert ["semicolons" in kind for kind in notes.counts] == [True]
    path.write_text("label;text,text\nb;x;1\n")
    assert classification(path, delimiter=";", text_column="text,text", labels=["a", "b"], bad_rows="skip").files
    with refuses(DataError, "a.csv:2", "3 columns"):
        classification(path, delimiter=";", text_column="text,text", labels=["a", "b"]).examples("train")
    with refuses(DataError, "a.csv:1", "'body'", "label, text,text"):
        classification(path, text_column="body", delimiter=";", labels=["a", "b"]).examples("train")
    with refuses(ConfigError, "task.delimiter=ab"):
        classification(path, delimiter="ab")


@pytest.mark.parametrize(
    ("content", "names"),
    [
        ('[{"text": "a"},\n {"text": "b"}', ("x.json:2", "cut short")),
        ('[{"text": "a"}\n {"text": "b"}]', ("x.json:2", "not expected")),
        ('[{"text": "a"},\n {"text": }]', ("x.json:2",)),
        ('[{"text": "a"}]\n[1]', ("x.json:2", "not expected")),
        ('["a", "b"]', ("x.json:1, item 1", "str")),
        ('{"rows": [{"text": "a", "label": 1}]}', ("x.json:1", "'rows'")),
        (FRAME.to_json(), ("x.json:1", "lines=True")),
        ('{\n "text": "a",\n "label": "b"\n}', ("x.json:1", "lines=True")),
    ],
)
def test_json_that_is_no_table_of_rows(content: str, names: tuple[str, ...], tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text(content)
    with refuses(DataError, *names):
        list(FileCorpus(path=str(path)).documents())
    with refuses(DataError, "x.json"):
        classification(path, labels=["a", "b"]).examples("train")


def test_a_table_without_the_text_column_is_not_read_as_lines(tmp_path: Path) -> None:
    for name, content in (("a.csv", "id;body\n1;x\n"), ("a.json", '[{"id": 1, "body": "x"}]')):
        (tmp_path / name).write_text(content)
        with refuses(DataError, f"{name}:1", "id, body", "corpus.text_field", "corpus.format=text"):
            list(FileCorpus(path=str(tmp_path / name)).documents())
        assert len(list(FileCorpus(path=str(tmp_path / name), format="text").documents())) > 0


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", "text,label\na,x\nb,\nc,y\nd,\n"),
        ("a.jsonl", '{"text": "a", "label": null}\n{"text": "b", "label": "x"}\n'),
    ],
)
def test_rows_without_a_label_are_counted_and_can_be_left_out(name: str, content: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(content)
    frame = pd.read_csv(path) if name == "a.csv" else pd.read_json(path, lines=True)
    missing = int(frame["label"].isna().sum())
    with refuses(DataError, f"{missing} of {len(frame)} rows", "'label'", "task.bad_rows=skip"):
        classification(path, labels=["x", "y"]).examples("train")
    task = classification(path, labels=["x", "y"], bad_rows="skip", test=str(path))
    assert [example.text for example in task.examples("train")] == list(frame["text"][frame["label"].notna()])
    assert list(task.notes["train"].counts.values()) == [missing]
    assert sum(not example.has_gold for example in task.examples("test")) == missing


def test_labels_in_two_unicode_forms_are_one(tmp_path: Path) -> None:
    composed, path = "na\u00efve", tmp_path / "train.csv"
    decomposed = unicodedata.normalize("NFD", composed)
    path.write_text(f"text,label\na,{composed}\nb,other\nc,{decomposed}\n", encoding="utf-8")
    task = classification(path)
    assert task.labels == (composed, "other")
    assert [example.label for example in task.examples("train")] == [0, 1, 0]
    assert ["NFC" in kind for kind in task.notes["train"].counts] == [True]
    assert classification(path, labels=["other", decomposed]).labels == ("other", composed)


MATRIX = np.array([[1, 0, 1], [0, 1, 0], [1, 1, 0], [0, 0, 0], [0, 0, 1]])
VECTORS: dict[str, tuple[Callable[[Path], Any], dict[str, Any]]] = {
    "lists.jsonl": (
        lambda path: pd.DataFrame({"text": list("abcde"), "labels": MATRIX.tolist()}).to_json(path, orient="records"),
        {"label_column": "labels"},
    ),
    "floats.json": (
        lambda path: pd.DataFrame({"text": list("abcde"), "labels": MATRIX.astype(float).tolist()}).to_json(
            path, orient="records", lines=True
        ),
        {"label_column": "labels"},
    ),
    "numpy.csv": (
        lambda path: pd.DataFrame({"text": list("abcde"), "labels": list(MATRIX)}).to_csv(path, index=False),
        {"label_column": "labels"},
    ),
    "columns.csv": (
        lambda path: pd.DataFrame({"text": list("abcde"), **dict(zip("xyz", MATRIX.T, strict=True))}).to_csv(path),
        {"label_column": ["x", "y", "z"]},
    ),
    "columns.parquet": (
        lambda path: pd.DataFrame({"text": list("abcde"), **dict(zip("xyz", MATRIX.T > 0, strict=True))}).to_parquet(
            path
        ),
        {"label_column": ["x", "y", "z"]},
    ),
    "objects.jsonl": (
        lambda path: path.write_text(
            "".join(
                json.dumps({"text": text, "labels": dict(zip("xyz", row, strict=True))}) + "\n"
                for text, row in zip("abcde", MATRIX.tolist(), strict=True)
            )
        ),
        {"label_column": "labels"},
    ),
}


@pytest.mark.parametrize("name", VECTORS)
def test_indicators_are_read_as_one_number_for_each_label(name: str, tmp_path: Path) -> None:
    write, settings = VECTORS[name]
    write(tmp_path / name)
    task = MultiLabel(name="m", labels=None, text_column="text", train=str(tmp_path / name), **settings)
    assert len(task.labels) == 3
    np.testing.assert_array_equal(task.gold(task.examples("train")).labels, MATRIX)
    is_vector = settings["label_column"] == "labels" and not name.startswith("objects")
    assert task.labels == tuple("012" if is_vector else "xyz")
    assert any("label_form=names" in kind for kind in task.notes["train"].counts) == is_vector


def test_lists_of_names_stay_names(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    pd.DataFrame({"text": list("abc"), "labels": [["1", "0"], ["0"], ["1"]]}).to_csv(path, index=False)
    task = MultiLabel(name="m", labels=None, text_column="text", label_column="labels", train=str(path))
    assert [example.label_set for example in task.examples("train")] == [(0, 1), (0,), (1,)]
    path.write_text('text,labels\na,"1,0"\nb,"0,1"\n')
    for form, expected in (("names", [(0, 1), (0, 1)]), (None, [(0,), (1,)])):
        settings: dict[str, Any] = {"label_column": "labels", "label_form": form, "train": str(path)}
        task = MultiLabel(name="m", labels=None, text_column="text", **settings)
        assert [example.label_set for example in task.examples("train")] == expected
    path.write_text("text,x,y\na,1,0\nb,2,0\n")
    task = MultiLabel(name="m", labels=None, text_column="text", label_column=["x", "y"], train=str(path))
    with refuses(DataError, "a.csv:3", "'x'", "'2'"):
        task.examples("train")
    with refuses(DataError, "a.csv:1", "x, y", "also z"):
        MultiLabel(name="m", labels=None, text_column="text", label_column=["x", "y", "z"], train=str(path)).examples(
            "train"
        )


SPANS = {
    "BIO": ["B-PER I-PER O B-LOC B-LOC", "O O B-ORG I-ORG I-ORG", "B-PER O O B-PER I-PER"],
    "IOB1": ["I-PER I-PER O I-LOC B-LOC", "O O I-ORG I-ORG I-ORG", "I-PER O O I-PER I-PER"],
    "BIOES": ["B-PER E-PER O S-LOC S-LOC", "O O B-ORG I-ORG E-ORG", "S-PER O O B-PER E-PER"],
}


@pytest.mark.parametrize("name", SPANS)
@pytest.mark.parametrize("form", ["conll2003", "json"])
def test_span_tags_are_recognised_and_scored_as_by_seqeval(name: str, form: str, tmp_path: Path) -> None:
    seqeval = pytest.importorskip("seqeval.metrics")
    gold = [tags.split() for tags in SPANS[name]]
    if form == "json":
        path = tmp_path / "train.json"
        path.write_text(json.dumps([{"tokens": [f"w{i}" for i in range(5)], "tags": tags} for tags in gold], indent=1))
    else:
        path = tmp_path / "train.txt"
        sentences = ("".join(f"w{i} NN I-NP {tag}\n" for i, tag in enumerate(tags)) for tags in gold)
        path.write_text("-DOCSTART- -X- -X- O\n\n" + "\n".join(sentences))
    task = Tagging(name="own", train=str(path), file_format="jsonl" if form == "json" else "conll")
    examples = task.examples("train")
    assert task.main_metric == "f1"
    assert any(f"({name})" in kind and "task.scheme" in kind for kind in task.notes["train"].counts)
    assert any("4 columns" in kind for kind in task.notes["train"].counts) == (form == "conll2003")
    rng = np.random.default_rng(0)
    for _ in range(5):
        predicted = [[int(rng.choice([tag, rng.integers(len(task.labels))])) for tag in e.tags or ()] for e in examples]
        named = [[task.labels[tag] for tag in tags] for tags in predicted]
        score = task.score(examples, [task._answer(tags) for tags in predicted])["f1"]
        assert score == pytest.approx(seqeval.f1_score(gold, named))


def test_tags_of_words_stay_words(tmp_path: Path) -> None:
    for tags in ("DET NOUN", "O X-Y", "I S"):
        path = tmp_path / "train.conll"
        path.write_text("".join(f"w\t{tag}\n" for tag in tags.split()))
        assert Tagging(name="own", train=str(path)).scheme == "words"
    with refuses(ConfigError, "task.scheme=null"):
        _ = Tagging(name="own", test=str(path)).scheme


def test_a_missing_file_says_what_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.csv").write_text("text,label\na,x\nb,y\n")
    dataset(FRAME).save_to_disk(tmp_path / "both/validation")
    located = LocatedFiles(files={"train": ["trian.csv"], "dev": ["both"]}, data_root=None, task="own")
    assert located.find("train") is None
    for split, names in (("train", ("train.csv", "task.train=")), ("dev", ("folder", "both/validation", "(task.dev)"))):
        assert not [name for name in names if name not in str(located.missing_error(split))]
    with refuses(DataError, "split=dev", "task.dev=", "task.folds="):
        classification(Path("train.csv")).examples("dev")
