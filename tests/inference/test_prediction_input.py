"""From lines to examples to predictions in order, without a model."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from support.refusals import refuses

from lmtransfer.data.documents import Notes
from lmtransfer.errors import ConfigError, DataError
from lmtransfer.inference.prediction import MaskedTexts
from lmtransfer.inference.prediction_input import (
    Prediction,
    PredictionsInOrder,
    find_input,
    input_file,
    input_format,
    read_example,
    stream_lines,
)
from lmtransfer.tasks.input_files import InputRow, Reader
from lmtransfer.tasks.qa.task import SpanQa
from lmtransfer.tasks.tagging.task import Tagging
from lmtransfer.tasks.text.classification import TextClassification

SINGLE = TextClassification(
    name="single", labels=["no", "yes"], text_column=["sentence", "text"], label_column="label", files={"train": "x"}
)
PAIR = TextClassification(
    name="pair",
    labels=["a", "b"],
    text_column="one",
    text_pair_column="two",
    label_column="label",
    files={"train": "x"},
)
TAGS = Tagging(name="tags", scheme="words", labels=["X", "Y"], files={"train": "x"})
SPANS = SpanQa(name="spans", files={"train": "x"})


EMPTY = {"asked": None}


def given(
    path: Path, reader: Reader, answers: PredictionsInOrder, *, file_format: str | None = None, **columns: str
) -> Iterator[InputRow]:
    """Return the rows of a file."""
    source = find_input(str(path))
    form = input_format(file_format, source, reader, Notes())
    return reader.read(input_file(source, form, columns, answers, Notes())).rows


def lines_of(predictions: Sequence[Prediction]) -> list[dict[str, Any]]:
    return [prediction.line for prediction in predictions]


def answered(
    path: Path, task: Any, *, on_error: Any = "skip", group: int = 2, file_format: str | None = None, **columns: str
) -> list[dict[str, Any]]:
    """Return the predictions of a run that only repeats its input."""
    written: list[dict[str, Any]] = []

    def echo(examples: Sequence[Any]) -> list[dict[str, Any]]:
        assert len(examples) <= group
        return [{"id": example.id, "asked": example} for example in examples]

    notes = Notes()
    answers = PredictionsInOrder(empty=EMPTY, group=group, on_error=on_error, notes=notes)
    rows = given(path, task.reader(), answers, file_format=file_format, **columns)
    answers.predict_all(rows, echo, lambda predictions: written.extend(lines_of(predictions)))
    assert answers.num_inputs == len(written)
    assert sum(notes.counts.values()) == sum(line.get("asked", "error") is None for line in written)
    return written


def texts(lines: list[dict[str, Any]]) -> list[Any]:
    """Return the texts of each line, its error, or None if its prediction is empty."""
    return [line.get("error") or (line["asked"] and (line["asked"].text, line["asked"].text_pair)) for line in lines]


def names_all(error: str, *names: str) -> bool:
    return all(name in error for name in names)


def test_lines_of_single_texts_and_of_pairs(tmp_path: Path) -> None:
    path = tmp_path / "in.txt"
    path.write_text('a "smart" film, no?\n\nb\tc\n')
    lines = answered(path, SINGLE)
    assert [line["id"] for line in lines] == ["0", "1", "2"]
    assert texts(lines) == [('a "smart" film, no?', None), None, ("b\tc", None)]
    path.write_text("a [SEP] b\na\tb\nonly one\na [SEP] b [SEP] c\n [SEP] b\n")
    found = texts(answered(path, PAIR))
    assert found[:2] == [("a", "b"), ("a", "b")]
    for error, line, number in zip(found[2:], (3, 4, 5), (1, 3, 1), strict=True):
        assert names_all(error, f"{path}:{line}", "[SEP]", f"{number} text")


def test_tables_by_the_tasks_columns_or_by_those_that_the_user_names(tmp_path: Path) -> None:
    path = tmp_path / "in.tsv"
    path.write_text('index\tsentence\tlabel\n7\ta "quote\tnone of ours\n8\t \tx\n9\tb\n10\tc\ty\n')
    lines = answered(path, SINGLE)
    assert texts(lines)[0] == ('a "quote', None)
    assert texts(lines)[1] is None
    assert names_all(texts(lines)[2], f"{path}:4", "2 columns", " 3 ", "index, sentence, label")
    assert [line["id"] for line in lines] == ["0", "1", "2", "3"]
    named = answered(path, SINGLE, id_column="index", text_column="label")
    assert [(line["id"], line["asked"].text) for line in named if "asked" in line] == [
        ("7", "none of ours"),
        ("8", "x"),
        ("10", "y"),
    ]
    with refuses(DataError, "in.tsv:1", "'body'", "index, sentence, label", "text_column"):
        answered(path, SINGLE, text_column="body")
    csv = tmp_path / "in.csv"
    csv.write_text('id,one,two\nq1,"a, ""b""\nmore",c\n,d,e\n')
    lines = answered(csv, PAIR)
    assert texts(lines) == [('a, "b"\nmore', "c"), ("d", "e")]
    assert [line["id"] for line in lines] == ["q1", "1"]
    rows = tmp_path / "in.jsonl"
    rows.write_text('{"text": "a", "id": 5}\n{"text": ["a"]}\n{"text"\n')
    lines = answered(rows, SINGLE)
    assert [line["id"] for line in lines] == ["5", "1", "2"]
    assert names_all(lines[1]["error"], f"{rows}:2", "'text'", "list")
    assert names_all(lines[2]["error"], f"{rows}:3", "JSON")


def test_sentences_to_be_tagged(tmp_path: Path) -> None:
    path = tmp_path / "in.txt"
    path.write_text("Ann  ran\tfar .\n  \n")
    lines = answered(path, TAGS)
    assert lines[0]["asked"].words == ("Ann", "ran", "far", ".")
    assert lines[1] == {"id": "1", "asked": None}
    rows = tmp_path / "in.jsonl"
    rows.write_text('{"words": ["a b", "c"], "id": "s"}\n\n{"words": []}\n{"forms": ["a"]}\n{"words": ["a", " "]}\n')
    lines = answered(rows, TAGS)
    assert (lines[0]["id"], lines[0]["asked"].words) == ("s", ("a b", "c"))
    assert lines[1] == {"id": "1", "asked": None}
    named = ((f"{rows}:4", "'words'", "forms"), (f"{rows}:5", "words[1]", "empty"))
    for line, names in zip(lines[2:], named, strict=True):
        assert names_all(line["error"], *names)
    conll = tmp_path / "in.conll"
    conll.write_text("Ann\tZ\nran\tZ\n\nfar\tZ\n")
    assert [line["asked"].words for line in answered(conll, TAGS)] == [("Ann", "ran"), ("far",)]


def test_questions(tmp_path: Path) -> None:
    path = tmp_path / "in.txt"
    path.write_text("Who ran? [SEP]  Ann ran.\nWho?\t Bob did.\nWho?\n")
    lines = answered(path, SPANS)
    assert [(line["asked"].question, line["asked"].passage) for line in lines[:2]] == [
        ("Who ran?", "Ann ran."),
        ("Who?", " Bob did."),
    ]
    assert names_all(lines[2]["error"], f"{path}:3", "question", "passage", "[SEP]", "1 text")
    rows = tmp_path / "in.jsonl"
    row = {"id": "q", "question": "Who?", "context": "Ann.", "answers": [{"text": "Bob", "start": 7}]}
    rows.write_text(f'{json.dumps(row)}\n{{"question": "Who?", "context": ""}}\n')
    lines = answered(rows, SPANS)
    assert (lines[0]["id"], lines[0]["asked"].answers) == ("q", None)
    assert lines[1] == {"id": "1", "asked": None}
    squad = tmp_path / "in.json"
    good = {"id": "a", "question": "Who?", "answers": [{"text": "Ann", "answer_start": 0}]}
    bad = {"id": "b", "question": "Who?", "answers": [{"text": "Ann", "answer_start": 3}]}
    squad.write_text(json.dumps({"data": [{"paragraphs": [{"context": "Ann ran.", "qas": [bad, good]}]}]}))
    lines = answered(squad, SPANS)
    assert [line["id"] for line in lines if "asked" in line] == ["a"]
    (error,) = [line["error"] for line in lines if "error" in line]
    assert names_all(error, str(squad), "question b")
    with pytest.raises(DataError):
        answered(squad, SPANS, on_error="stop")


def test_what_comes_before_a_mistake_is_answered_whatever_the_group(tmp_path: Path) -> None:
    path = tmp_path / "in.txt"
    path.write_text("a\nb\nc\nd [SEP] e\nf\n")
    for group in (1, 2, 3, 9):
        written: list[Prediction] = []
        answers = PredictionsInOrder(empty=EMPTY, group=group, on_error="stop", notes=Notes())
        with refuses(DataError, "in.txt:4", "[SEP]", "on_error=skip"):
            answers.predict_all(
                given(path, SINGLE.reader(), answers),
                lambda examples: [{"id": example.id} for example in examples],
                written.extend,
            )
        assert lines_of(written) == [{"id": "0"}, {"id": "1"}, {"id": "2"}]


def test_one_that_cannot_be_answered_does_not_take_its_group_with_it() -> None:
    def answer(examples: Sequence[Any]) -> list[dict[str, Any]]:
        if any(example.text == "bad" for example in examples):
            raise DataError("too long")
        return [{"id": example.id} for example in examples]

    written: list[Prediction] = []
    answers = PredictionsInOrder(empty=EMPTY, group=9, on_error="skip", notes=Notes())
    rows = [
        InputRow(f"f:{number}", "text", read_example(text, SINGLE.reader()), {"text": text})
        for number, text in enumerate(["a", "bad", "c"])
    ]
    answers.predict_all(rows, answer, written.extend)
    assert [prediction.row for prediction in written] == [{"text": "a"}, {"text": "bad"}, {"text": "c"}]
    assert lines_of(written) == [{"id": "text"}, {"id": "text", "error": "f:1: too long"}, {"id": "text"}]
    assert answers.num_errors == 1


class Pipe:
    """A stream that returns one piece at a time."""

    def __init__(self, *pieces: bytes) -> None:
        self.pieces = list(pieces)

    def read1(self, size: int, /) -> bytes:
        return self.pieces.pop(0) if self.pieces else b""


def test_lines_arrive_as_soon_as_they_end() -> None:
    happened: list[Any] = []
    pipe = Pipe(b"\xef\xbb\xbfone\r\ntwo\n", b"th", b"r\xc3", b"\xa9e\nfour\xe2\x80\xa8\n\nlast")
    for line in stream_lines(pipe, "it", "strict", Notes(), lambda: happened.append("wait")):
        happened.append(line)
    wait = "wait"
    assert happened == [
        wait,
        (1, "one"),
        (2, "two"),
        wait,
        wait,
        wait,
        (3, "thr\xe9e"),
        (4, "four\u2028"),
        (5, ""),
        wait,
        (6, "last"),
    ]
    assert list(stream_lines(io.BytesIO(b""), "it", "strict", Notes(), lambda: None)) == []
    with refuses(DataError, "it:2", "UTF-8"):
        list(stream_lines(Pipe(b"a\n\xff\n"), "it", "strict", Notes(), lambda: None))


def test_what_cannot_be_told_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "in.dat"
    path.write_text("x\n")
    with refuses(ConfigError, f"input={path}", "classification", "text, tsv", "format="):
        input_format(None, find_input(str(path)), SINGLE.reader(), Notes())
    with refuses(ConfigError, "format=squad", "classification", "text, tsv"):
        input_format("squad", find_input(str(path)), SINGLE.reader(), Notes())
    with refuses(ConfigError, "format=squad", "pipe", "text", "jsonl"):
        input_format("squad", find_input("-"), SPANS.reader(), Notes())
    assert input_format(None, find_input("-"), SPANS.reader(), Notes()) == "text"
    with refuses(DataError, f"input={tmp_path / 'none.tsv'}"):
        find_input(str(tmp_path / "none.tsv"))
    with refuses(ConfigError, "text=a b", "[SEP]", "1 text"):
        read_example("a b", PAIR.reader())
    with refuses(ConfigError, "text=a [SEP] b", "task single"):
        read_example("a [SEP] b", SINGLE.reader())
    with refuses(ConfigError, "text=a b", "[MASK]"):
        read_example("a b", MaskedTexts())
