"""SQuAD's files, and what all documents of questions have in common: positions, ids, offsets, and damage."""

from __future__ import annotations

import gzip
import json
import lzma
from pathlib import Path
from typing import Any

import pytest
from support.refusals import refuses

from lmtransfer.errors import DataError
from lmtransfer.tasks.file_formats.json_document import load_json
from lmtransfer.tasks.file_formats.squad import list_ids, read_squad
from lmtransfer.tasks.qa.example import GoldSpan

PASSAGE = "Ann met Bob in Kyiv. Then Ann left."


def qa(name: str, *answers: tuple[str, int], question: str = "Who?", **others: Any) -> dict[str, Any]:
    given = [{"text": text, "answer_start": start} for text, start in answers]
    return {"id": name, "question": question, "answers": given, **others}


def document(*qas: dict[str, Any], context: str = PASSAGE) -> dict[str, Any]:
    return {"version": "v2.0", "data": [{"title": "T", "paragraphs": [{"context": context, "qas": list(qas)}]}]}


def written(folder: Path, value: Any, name: str = "dev.json") -> Path:
    path = folder / name
    path.write_text(value if isinstance(value, str) else json.dumps(value), encoding="utf-8")
    return path


def test_questions_with_without_and_with_hidden_answers(tmp_path: Path) -> None:
    hidden = qa("c")
    del hidden["answers"]
    plausible = {"is_impossible": True, "plausible_answers": [{"text": "Bob", "answer_start": 8}]}
    path = written(tmp_path, document(qa("a", ("Bob", 8), ("Ann", 26)), qa("b", **plausible), hidden, qa("d")))
    read = read_squad(path, bad_answers="refuse")
    assert [example.id for example in read.examples] == ["a", "b", "c", "d"]
    assert read.examples[0].answers == (GoldSpan("Bob", 8, 11), GoldSpan("Ann", 26, 29))
    assert [example.answers for example in read.examples[1:]] == [(), None, ()]
    assert {example.passage for example in read.examples} == {PASSAGE}


@pytest.mark.parametrize(
    ("wrong", "names"),
    [
        (("Bob", 7), ["answer_start=7", "' Bo'", "'Bob'"]),
        (("Bob", 900), ["answer_start=900", "passage", "'Bob'"]),
        (("left.", -5), ["answer_start=-5", "passage", "'left.'"]),
        ((" ", 3), ["' '", "empty"]),
    ],
    ids=["misplaced", "after the passage", "before the passage", "empty"],
)
def test_misplaced_answers_are_refused_or_set_aside(tmp_path: Path, wrong: tuple[str, int], names: list[str]) -> None:
    path = written(tmp_path, document(qa("a", wrong, ("Ann", 0)), qa("b", wrong), qa("c", ("Bob", 8))))
    with refuses(DataError, str(path), "2 of 4", "task.bad_answers=skip") as refused:
        read_squad(path, bad_answers="refuse")
    lines = str(refused.value).splitlines()
    for question in ("question a:", "question b:"):
        assert any(all(name in line for name in (question, *names)) for line in lines)

    read = read_squad(path, bad_answers="skip")
    assert [example.id for example in read.examples] == ["a", "c"]
    reference = () if wrong[0] == " " else (GoldSpan(wrong[0]),)
    assert read.examples[0].answers == (GoldSpan("Ann", 0, 3), *reference)
    assert (read.bad_answers, read.skipped_questions) == (("a", "b"), ("b",))


def test_many_misplaced_answers_make_a_short_message(tmp_path: Path) -> None:
    path = written(tmp_path, document(*(qa(f"q{number}", ("Bob", 0)) for number in range(1234))))
    with refuses(DataError, "1,234 of 1,234", "1,231 more") as refused:
        read_squad(path, bad_answers="refuse")
    assert str(refused.value).count("\n") == 5
    assert list_ids([f"q{number}" for number in (1, 1, 2, 3, 4)], most=2) == "q1, q2 and 2 more"


def test_ids_differ(tmp_path: Path) -> None:
    both = document(qa("a", ("Ann", 0)))
    both["data"] += document(qa("b", ("Ann", 0)), qa("a", ("Bob", 8)))["data"]
    places = ("data[1].paragraphs[0].qas[1]", "data[0].paragraphs[0].qas[0]")
    with refuses(DataError, *places, "question a"):
        read_squad(written(tmp_path, both), bad_answers="skip")


def changed(key: str, value: Any) -> dict[str, Any]:
    return document({**qa("a", ("Ann", 0)), key: value})


@pytest.mark.parametrize(
    ("value", "names"),
    [
        (changed("question", " \n"), ("qas[0].question (question a)", "empty")),
        (changed("question", None), ("qas[0].question (question a)", "text", "null")),
        (changed("question", "half \ud83d"), ("qas[0].question (question a)", "character 5", "\\ud83d")),
        (changed("id", ""), ("qas[0].id", "empty")),
        (changed("id", True), ("qas[0].id", "text", "true")),
        (changed("answers", None), ("qas[0].answers (question a)", "list", "null")),
        (changed("answers", ["Ann"]), ("answers[0] (question a)", "object", '"Ann"')),
        (changed("answers", [{"text": "Ann"}]), ("answers[0] (question a)", "'answer_start'", "text")),
        (changed("answers", [{"text": "Ann", "answer_start": "0"}]), ("answers[0].answer_start", "number", '"0"')),
        (changed("is_impossible", True), ("qas[0] (question a)", "is_impossible", "true", "number of answers is 1")),
        (changed("is_impossible", "no"), ("qas[0].is_impossible (question a)", "true", "false", '"no"')),
        (
            document(qa("a", is_impossible=False)),
            ("qas[0] (question a)", "is_impossible", "false", "number of answers is 0"),
        ),
        (document(qa("a"), context=""), ("paragraphs[0].context", "empty")),
        ({"data": {"title": "T"}}, ("data", "list", '{"title": "T"}')),
        ({"dota": []}, ("'data'", "dota")),
        ([1], ("object", "[1]")),
        ('{"data": [],\n "data": []}', ("'data'", "data, data")),
        ('{"data": [\n  {"title": oops}]}', ("dev.json:2:13", "JSON", "Expecting value")),
        ('{"data": []}\n{"data": []}', ("dev.json:2:1", "JSON", "Extra data", ".jsonl")),
        ('{"data": [', ("dev.json:1:11", "JSON")),
        (" ", ("JSON", "empty")),
        ("[" * 200_000, ("JSON",)),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_what_is_malformed_is_named(tmp_path: Path, value: Any, names: tuple[str, ...]) -> None:
    path = written(tmp_path, value)
    with refuses(DataError, *names) as refused:
        read_squad(path, bad_answers="skip")
    assert str(refused.value).startswith(str(path))


def test_bytes_that_are_not_utf8(tmp_path: Path) -> None:
    path = tmp_path / "dev.json"
    path.write_bytes(b'{"data":\n "caf\xe9"}')
    with refuses(DataError, "dev.json:2", "UTF-8", "byte 6", "e9 22 7d"):
        load_json(path)


def test_compressed_files_marks_and_foreign_characters(tmp_path: Path) -> None:
    passage = "\U0001f600 Caf\u00e9 \u4e2d\u6587 \ufeff end"
    raw = b"\xef\xbb\xbf" + json.dumps(document(qa("a", ("\u4e2d\u6587", 7)), context=passage)).encode()
    read = []
    for suffix, pack in ((".json", bytes), (".json.gz", gzip.compress), (".json.xz", lzma.compress)):
        path = tmp_path / f"dev{suffix}"
        path.write_bytes(pack(raw))
        read.append(read_squad(path).examples)
    assert read[0] == read[1] == read[2]
    assert read[0][0].answers == (GoldSpan("\u4e2d\u6587", 7, 9),)
    (tmp_path / "cut.json.xz").write_bytes(lzma.compress(raw)[:-20])
    with refuses(DataError, "cut.json.xz", "end-of-stream"):  # from lzma's message about a truncated file
        read_squad(tmp_path / "cut.json.xz")


@pytest.mark.parametrize(
    ("name", "num_passages", "num_questions", "num_unanswerable", "num_answers"),
    [  # as published; for SQuADShifts only the number of questions (Miller et al. 2020, https://arxiv.org/abs/2004.14444)
        ("squad/dev-v1.1.json.xz", 2067, 10570, 0, 34726),
        ("squad/dev-v2.0.json.xz", 1204, 11873, 5945, 20302),
        ("squadshifts/new_wiki_v1.0.json.xz", None, 7938, 0, None),
    ],
)
def test_published_files(
    data_root: Path,
    name: str,
    num_passages: int | None,
    num_questions: int,
    num_unanswerable: int,
    num_answers: int | None,
) -> None:
    read = read_squad(data_root / name, bad_answers="refuse")
    assert len(read.examples) == num_questions
    assert sum(example.answers == () for example in read.examples) == num_unanswerable
    assert all(example.has_gold for example in read.examples)
    if num_passages is not None:
        assert len({example.passage for example in read.examples}) == num_passages
    if num_answers is not None:
        assert sum(len(example.answers or ()) for example in read.examples) == num_answers
    for example in read.examples:
        for gold in example.answers or ():
            assert example.passage[gold.start : gold.end] == gold.text
