"""QuAC's files."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from support.refusals import refuses

from lmtransfer.errors import DataError
from lmtransfer.tasks.file_formats.quac import read_quac
from lmtransfer.tasks.qa.example import GoldSpan, Turn

PASSAGE = "Ann met Bob in Kyiv. Then Ann left."
NONE = ("CANNOTANSWER", 36)


def qa(turn: int, original: tuple[str, int], *others: tuple[str, int], **changes: Any) -> dict[str, Any]:
    answers = [{"text": text, "answer_start": start} for text, start in (*others, original)]
    asked = {"id": f"C_1_q#{turn}", "question": f"Who {turn}?", "yesno": "x", "followup": "m"}
    return {**asked, "answers": answers, "orig_answer": answers[-1], **changes}


def written(folder: Path, *qas: dict[str, Any], context: str = PASSAGE + " CANNOTANSWER") -> Path:
    paragraph = {"id": "C_1", "context": context, "qas": list(qas)}
    path = folder / "val.json"
    path.write_text(json.dumps({"data": [{"title": "T", "background": "", "paragraphs": [paragraph]}]}))
    return path


def test_dialogues_with_history_marks_and_disagreement(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        qa(0, ("Bob", 8), ("Ann", 0), ("Bob", 8), yesno="y"),
        qa(1, NONE, NONE, followup="n"),
        qa(2, NONE, ("Ann", 26)),
        qa(3, ("Kyiv", 15), NONE),
    )
    read = read_quac(path, bad_answers="refuse")
    first, second, third, fourth = read.examples
    assert {example.passage for example in read.examples} == {PASSAGE}
    assert first.answers == (GoldSpan("Bob", 8, 11), GoldSpan("Ann", 0, 3), GoldSpan("Bob", 8, 11))
    assert second.answers == ()
    assert third.answers == (GoldSpan("CANNOTANSWER"), GoldSpan("Ann", 26, 29))
    assert fourth.answers == (GoldSpan("Kyiv", 15, 19), GoldSpan("CANNOTANSWER"))
    assert first.history == ()
    assert fourth.history == (
        Turn("Who 0?", "Bob"),
        Turn("Who 1?", "CANNOTANSWER"),
        Turn("Who 2?", "CANNOTANSWER"),
    )
    assert [example.metadata[0][1] for example in read.examples] == ["y", "x", "x", "x"]
    assert second.metadata == (("yesno", "x"), ("followup", "n"))


def test_hidden_answers(tmp_path: Path) -> None:
    hidden = [{"id": f"C_1_q#{turn}", "question": "Who?"} for turn in range(2)]
    read = read_quac(written(tmp_path, *hidden))
    assert [example.answers for example in read.examples] == [None, None]
    assert read.examples[1].history == (Turn("Who?", ""),)
    assert read.examples[1].metadata == ()


def test_an_original_answer_of_its_own_is_one_more_reference(tmp_path: Path) -> None:
    read = read_quac(written(tmp_path, qa(0, ("Bob", 8), orig_answer={"text": "Ann", "answer_start": 26})))
    assert read.examples[0].answers == (GoldSpan("Ann", 26, 29), GoldSpan("Bob", 8, 11))


def test_misplaced_answers_are_refused_or_set_aside(tmp_path: Path) -> None:
    path = written(tmp_path, qa(0, ("Bob", 1)), qa(1, ("Bob", 2), ("Ann", 0), NONE), qa(2, ("Bob", 3), NONE))
    with refuses(DataError, str(path), "3 of 6", "C_1_q#0", "answer_start=1", "'nn '", "'Bob'"):
        read_quac(path, bad_answers="refuse")
    read = read_quac(path, bad_answers="skip")
    assert [example.answers for example in read.examples] == [
        (GoldSpan("Ann", 0, 3), GoldSpan("CANNOTANSWER"), GoldSpan("Bob")),
        (GoldSpan("CANNOTANSWER"), GoldSpan("Bob")),
    ]
    assert read.examples[0].history == (Turn("Who 0?", "Bob"),)
    assert read.skipped_questions == ("C_1_q#0",)
    assert len(read.bad_answers) == 3


@pytest.mark.parametrize(
    ("asked", "names"),
    [
        ([qa(0, ("Bob", 8), id="C_1:0")], ("qas[0]", "C_1:0", "<dialogue>_q#<turn>")),
        ([qa(0, ("Bob", 8), question="")], ("qas[0].question", "C_1_q#0", "empty")),
        ([qa(0, ("Bob", 8)), qa(0, ("Bob", 8))], ("qas[1]", "qas[0]", "C_1_q#0")),
        ([qa(0, ("Bob", 8), followup=3)], ("qas[0].followup", "C_1_q#0", "text", " 3")),
        ([{"id": "C_1_q#0", "question": "Who?", "answers": []}], ("'orig_answer'", "id, question, answers")),
        (
            [{"id": "C_1_q#0", "question": "Who?", "orig_answer": {"text": "Ann", "answer_start": 0}}],
            ("'answers'", "id, question, orig_answer"),
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_what_is_malformed_is_named(tmp_path: Path, asked: list[dict[str, Any]], names: tuple[str, ...]) -> None:
    with refuses(DataError, "val.json", *names):
        read_quac(written(tmp_path, *asked), bad_answers="skip")


def test_passages_without_text_or_mark(tmp_path: Path) -> None:
    with refuses(DataError, "data[0].paragraphs[0].context", "CANNOTANSWER"):
        read_quac(written(tmp_path, context=" CANNOTANSWER"))
    read = read_quac(written(tmp_path, qa(0, ("left.", 30)), context=PASSAGE))
    assert read.examples[0].passage == PASSAGE


def test_the_published_sample(data_root: Path, tmp_path: Path) -> None:
    # The sample contains a dialogue twice, with the same ids; it is read once, unless the copies differ.
    sample = data_root / "quac_sample" / "quac_sample.json"
    once = read_quac(sample, bad_answers="refuse")
    assert len(once.examples) == 6

    document = json.loads(sample.read_text(encoding="utf-8"))
    document["data"][1]["paragraphs"][0]["qas"][5]["followup"] = "m"
    path = tmp_path / "altered.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    places = ("data[1].paragraphs[0].qas[0]", "data[0].paragraphs[0].qas[0]")
    with refuses(DataError, *places, "C_ec865aa8cf664d4d879ed364dd7048ed_1_q#0"):
        read_quac(path, bad_answers="refuse")

    document = json.loads(sample.read_text(encoding="utf-8"))
    for asked in document["data"][1]["paragraphs"][0]["qas"]:
        asked["id"] = "D" + asked["id"]
    path = tmp_path / "val.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    read = read_quac(path, bad_answers="refuse")
    published = [asked for article in document["data"] for asked in article["paragraphs"][0]["qas"]]
    assert len(read.examples) == len(published) == 12
    for example, asked in zip(read.examples, published, strict=True):
        assert example.id == asked["id"]
        assert example.answers is not None
        assert example.answers[0].text == asked["orig_answer"]["text"]
        assert sorted(gold.text for gold in example.answers) == sorted(answer["text"] for answer in asked["answers"])
        assert all(example.passage[gold.start : gold.end] == gold.text for gold in example.answers)
        assert example.passage.endswith("signaling the birth of hip hop.")
    assert [len(example.history) for example in read.examples] == [*range(6)] * 2
    marks = Counter(mark for example in read.examples for mark in example.metadata)
    assert marks == {
        ("followup", "m"): 6,
        ("followup", "n"): 2,
        ("followup", "y"): 4,
        ("yesno", "x"): 10,
        ("yesno", "y"): 2,
    }
