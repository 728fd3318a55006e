"""Files of labelled data that are empty, torn, of another format, or say what cannot be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.bad_input import Answer, Case, check

START = (
    "finetune",
    "init=runs/pretrain/base",
    "train.epochs=null",
    "train.steps=2",
    "name=x",
    "task.dev_from_train=0.2",
)
HEADER = b"label\ttext\n"
ROWS = b"".join(b"%s\tbal %d\n" % (label, k) for k in range(20) for label in (b"good", b"bad"))
JSON_ROWS = b"".join(
    b'{"label": "%s", "text": "bal %d"}\n' % (label, k) for k in range(20) for label in (b"good", b"bad")
)
SCORES = b"score\ttext\n" + b"".join(b"%d.5\tbal %d\n" % (k % 3, k) for k in range(40))
TAGS = b"".join(b"bal\tA\nkit\tB\n%d\tA\n\n" % k for k in range(20))
QUESTIONS = b"".join(
    b'{"id": "%d", "question": "bal kit", "context": "bal bam kit kis %d", "answers": [{"text": "bam", "start": 4}]}\n'
    % (k, k)
    for k in range(30)
)


def texts(content: bytes, *names: str, file: str = "a.tsv", split: str = "train", more: tuple[str, ...] = ()) -> Case:
    """A file of a classification task; the other split is good."""
    splits = {"train": "good.tsv", "dev": "good.tsv", split: file}
    words = (f"task.{name}={value}" for name, value in splits.items())
    files = {"good.tsv": HEADER + ROWS, file: content}
    return Case((*START, "task=text_classification", *words, *more), (file, *names), files)


def scores(row: bytes, *names: str, content: bytes = SCORES) -> Case:
    """A file of a regression task that ends with a row."""
    words = ("task=regression", "task.train=a.tsv", "task.dev=a.tsv")
    return Case((*START, *words), ("a.tsv", *names), {"a.tsv": content + row})


def tags(content: bytes, *names: str, file: str = "a.conll", more: tuple[str, ...] = ()) -> Case:
    """A file of a tagging task."""
    words = ("task=tagging", f"task.files.train={file}", f"task.files.dev={file}")
    return Case((*START, *words, *more), names, {file: content})


def spans(content: Any, *names: str, file: str = "a.json", task: str = "span_qa", more: tuple[str, ...] = ()) -> Case:
    """A file of questions: bytes, or what is written as JSON."""
    of_split = "task" if task == "span_qa" else "task.files"
    words = (f"task={task}", f"{of_split}.train={file}", f"{of_split}.dev={file}")
    return Case(
        (*START, *words, *more), names, {file: content if isinstance(content, bytes) else json.dumps(content).encode()}
    )


def squad(*asked: dict[str, Any], context: str = "bal bam kit kis") -> dict[str, Any]:
    """A document in SQuAD's format."""
    return {"version": "1.1", "data": [{"title": "t", "paragraphs": [{"context": context, "qas": list(asked)}]}]}


def one(start: Any = 4, text: str = "bam", **more: Any) -> dict[str, Any]:
    """A question with an answer."""
    return {"id": "q1", "question": "bal kit", "answers": [{"text": text, "answer_start": start}], **more}


def quac(**more: Any) -> dict[str, Any]:
    """A dialogue of one question in QuAC's format."""
    answer = {"text": "bam", "answer_start": 4}
    asked = {"id": "d_q#0", "question": "bal", "answers": [answer], "orig_answer": answer, **more}
    paragraph = {"context": "bal bam kit CANNOTANSWER", "id": "d", "qas": [asked]}
    return {"data": [{"title": "t", "paragraphs": [paragraph]}]}


def coqa(**more: Any) -> dict[str, Any]:
    """A conversation of one question in CoQA's format; ``more`` changes the answer."""
    answer = {"turn_id": 1, "input_text": "bam", "span_start": 4, "span_end": 7, "span_text": "bam", **more}
    story = {"id": "s", "source": "x", "story": "bal bam kit", "questions": [{"turn_id": 1, "input_text": "bal"}]}
    return {"data": [{**story, "answers": [answer]}]}


CASES: dict[str, Case] = {
    # tables
    "tsv.empty": texts(b"", "rows"),
    "tsv.no_text_column": texts(b"label\tbody\ngood\tx\n", "a.tsv:1", "task.text_column"),
    "tsv.no_header": texts(ROWS, "a.tsv:1", "task.columns"),
    "tsv.one_label": texts(HEADER + ROWS.replace(b"bad", b"good"), "'good'", "task.labels"),
    "tsv.no_label": texts(HEADER + ROWS + b"\tbal\n", "a.tsv:42", "1 of 41 rows", "bad_rows=skip"),
    "tsv.huge_label": texts(HEADER + ROWS + b"g" * 1_000_000 + b"\tbal\n", "a.tsv:42", "1,000,000 characters"),
    "tsv.a_label_a_row": texts(
        HEADER + b"".join(b"l%d\tbal\n" % k for k in range(50)), "50 rows", "task.label_column"
    ),
    "tsv.dev_of_other_labels": texts(HEADER + ROWS + b"ugly\tbal\n", "a.tsv:42", "'ugly'", split="dev"),
    "tsv.not_utf8": texts(HEADER + ROWS + b"good\tcaf\xe9\n", "a.tsv:42", "UTF-8"),
    "tsv.utf16": texts((HEADER + ROWS).decode().encode("utf-16"), "a.tsv", "iconv -f UTF-16"),
    "tsv.id_twice": texts(
        b"id\tlabel\ttext\n1\tgood\ta\n1\tbad\tb\n", "a.tsv:3", "'1'", "a.tsv:2", more=("task.id_column=id",)
    ),
    "tsv.commas": texts(b"label,text\ngood,bal\n", "'good'", "two labels"),
    "jsonl.torn": texts(JSON_ROWS + b'{"label": "good", "te', "a.jsonl:41", file="a.jsonl"),
    "jsonl.no_text": texts(JSON_ROWS + b'{"label": "good"}\n', "a.jsonl:41", "text", file="a.jsonl"),
    "jsonl.nan": texts(JSON_ROWS + b'{"label": NaN, "text": "a"}\n', "a.jsonl:41", "'label'", "nan", file="a.jsonl"),
    "jsonl.deep": texts(JSON_ROWS + b'{"label": ' + b"[" * 100_000 + b"\n", "a.jsonl:41", file="a.jsonl"),
    "jsonl.json": texts(b'[\n {"label": "good", "text": "a"},\n {"label": 1', "a.json:3", "cut short", file="a.json"),
    "jsonl.tsv": texts(HEADER + ROWS, "a.jsonl:1", file="a.jsonl"),
    # scores
    **{f"score.{row.decode()}": scores(row + b"\tbal\n", "a.tsv:42", "score")
       for row in (b"nan", b"1e39", b"good", b"", b"1,5")},
    "pair.single_texts": Case(
        (*START, "task=text_pair", "task.train=a.tsv", "task.dev=a.tsv"),
        ("a.tsv:1", "column"),
        {"a.tsv": HEADER + ROWS},
    ),
    # tags
    "tags.one": tags(TAGS.replace(b"B", b"A"), "a.conll", "'A'", "task.labels"),
    "tags.no_column": tags(b"bal\nkit\n\n", "a.conll:1", "task.tag_column"),
    "tags.not_spans": tags(TAGS, "a.conll:1", "task.scheme", more=("task.scheme=bio",)),
    "tags.other_labels": tags(TAGS, "a.conll:1", "'A'", "X, Y", more=("task.labels=[X,Y]",)),
    "tags.jsonl_as_columns": tags(
        b'{"words": ["bal"], "tags": ["A"]}\n', "a.jsonl", "task.file_format=jsonl", file="a.jsonl"
    ),
    **{f"tags.jsonl.{name}": tags(line + b"\n", "a.jsonl:1", *names, file="a.jsonl", more=("task.file_format=jsonl",))
       for name, line, *names in (
           ("lengths", b'{"words": ["bal", "kit"], "tags": ["A"]}', "2 words", "1 tag"),
           ("key", b'{"forms": ["bal"], "tags": ["A"]}', "task.word_column"),
           ("text", b'{"words": "bal", "tags": ["A"]}', "list"),
           ("numbers", b'{"words": ["bal"], "tags": [2]}', "label indices"),
       )},
    **{f"tags.conllu.{name}": tags(line, "a.conllu:1", *names, file="a.conllu", more=("task.file_format=conllu",))
       for name, line, *names in (
           ("nine_columns", b"1\tbal\tbal\tA\tA\t_\t0\tx\t_\n\n", "9 columns"),
           ("numbers", b"2\tbal\tbal\tA\tA\t_\t0\tx\t_\t_\n\n", "'2'", " 1 "),
           ("no_tag", b"1\tbal\tbal\t_\tA\t_\t0\tx\t_\t_\n\n", "'bal'"),
       )},
    # questions
    "squad.outside": spans(squad(one(400)), "a.json", "question q1", "answer_start=400", "task.bad_answers"),
    "squad.fraction": spans(squad(one(1.5)), "a.json", "answer_start", "1.5"),
    "squad.twice": spans(squad(one(), one()), "a.json", "q1", "id"),
    "squad.impossible": spans(squad(one(answers=[], is_impossible=True)), "a.json", "q1", "task.no_answer=true"),
    "squad.no_id": spans(squad({"question": "a", "answers": []}), "a.json", "'id'"),
    "squad.key_twice": spans(b'{"data": [], "data": []}', "a.json", "'data'"),
    "squad.torn": spans(b'{"data": [{"title": "t",\n "par', "a.json:2"),
    "squad.half_a_character": spans(squad(one(), context="bal \ud83d"), "a.json", "surrogate"),
    "squad.jsonl": spans(QUESTIONS, "a.jsonl:2", ".jsonl", file="a.jsonl", task="squad"),
    "rows.twice": spans(QUESTIONS + QUESTIONS[: QUESTIONS.index(b"\n") + 1], "a.jsonl:31", "id", file="a.jsonl"),
    "rows.start_is_text": spans(
        QUESTIONS + b'{"id": "z", "question": "a", "context": "bal", "answers": [{"text": "bal", "start": "0"}]}\n',
        *("a.jsonl:31", "start", '"0"'),
        file="a.jsonl",
    ),
    "rows.twice_named": spans(QUESTIONS, "a.jsonl", " id 0 ", file="a.jsonl", more=("task.train=[a.jsonl,a.jsonl]",)),
    "quac.turn": spans(quac(id="d1"), "a.json", "_q#", task="quac"),
    "quac.outside": spans(quac(answers=[{"text": "kis", "answer_start": 99}]), "a.json", "d_q#0", task="quac"),
    "coqa.outside": spans(coqa(span_end=99), "a.json", "question s:1", task="coqa"),
}  # fmt: skip


@pytest.mark.parametrize("name", list(CASES))
def test_a_bad_file_is_named(name: str, world: Path, answer: Answer) -> None:
    check(CASES[name], world, answer)


@pytest.mark.parametrize(
    "content",
    [
        (HEADER + ROWS).replace(b"\n", b"\r\n"),
        b"\xef\xbb\xbf" + HEADER + ROWS,
        HEADER + b"\n" + ROWS + b"\n\n",
        HEADER + ROWS.replace(b"bal", b"b\0al"),
    ],
    ids=["lines of Windows", "byte order mark", "blank lines", "NUL in texts"],
)
def test_what_means_the_same_is_read(content: bytes, world: Path, answer: Answer) -> None:
    (world / "a.tsv").write_bytes(content)
    words = ("task=text_classification", "task.train=a.tsv", "task.dev=a.tsv", "hardware.threads=1")
    status, said = answer(*START, *words)
    assert status == 0, said
    assert "32 training examples" in said
