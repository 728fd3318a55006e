"""Question answering as a task: published formats, the user's files, official scores, and refusals."""

from __future__ import annotations

import json
import lzma
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes.heads import table
from omegaconf import OmegaConf
from support.refusals import refuses

from lmtransfer.config.paths import conf_dir
from lmtransfer.errors import ConfigError, DataError
from lmtransfer.launch.config_files import group_config
from lmtransfer.tasks.answers import SpanAnswer
from lmtransfer.tasks.base import Example
from lmtransfer.tasks.encoded import EncodedExamples
from lmtransfer.tasks.qa.example import QuestionExample, encode_questions
from lmtransfer.tasks.qa.task import NO_SPAN_SCORE, SpanQa, decode_spans
from lmtransfer.tokenizers.words import WordTokenizer

PASSAGE = "Ann ran to the sea. Bob stayed."


def shipped(name: str) -> Any:
    return OmegaConf.create(group_config("task", name, [conf_dir()]))


def qa(name: str, text: str | None, start: int | None = None) -> dict[str, Any]:
    place = PASSAGE.index(text) if text is not None and start is None else start
    return {
        "id": name,
        "question": f"Which {name}?",
        "answers": [] if text is None else [{"text": text, "answer_start": place}],
    }


def squad(*asked: dict[str, Any]) -> dict[str, Any]:
    return {"version": "1.1", "data": [{"title": "t", "paragraphs": [{"context": PASSAGE, "qas": list(asked)}]}]}


def row(name: str, *answers: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"id": name, "question": "Who?", "context": PASSAGE, "answers": list(answers), **more}


def write(path: Path, content: Any) -> str:
    text = "".join(json.dumps(r) + "\n" for r in content) if path.suffix == ".jsonl" else json.dumps(content)
    path.write_text(text, encoding="utf-8")
    return str(path)


def task(**more: Any) -> SpanQa:
    return SpanQa(**{"name": "qa", **more})


def gold_outputs(made: SpanQa, examples: list[Any]) -> tuple[Any, np.ndarray]:
    """Return the outputs of a head that knows all gold answers."""
    encoded = made.encode(examples, WordTokenizer(PASSAGE.split(), lowercase=True), max_length=24, num_segments=2)
    values = table(encoded.targets)
    outputs = np.full((len(values), 4 + len(made.labels)), -5, dtype=np.float32)
    here = values[:, 0] >= 0
    outputs[:, :2] = np.where(here[:, None], values[:, :2], values[:, 3:4])
    outputs[:, 2], outputs[:, 3] = np.where(here, 3, -3), np.where(here, -3, 3)
    for kind in range(len(made.labels)):
        outputs[values[:, 2] == kind, 4 + kind] = 5
    return encoded, outputs


def perfect(made: SpanQa, split: str) -> dict[str, float]:
    examples = made.examples(split)
    encoded, outputs = gold_outputs(made, examples)
    return made.score(encoded.examples, made.answers(encoded, outputs))


def test_squad_1_is_scored_by_its_script(tmp_path: Path) -> None:
    file = write(tmp_path / "dev.json", squad(qa("a", "Ann"), qa("b", "the sea")))
    made = task(files={"dev": file})
    examples = made.examples("dev")
    assert all(isinstance(example, Example) for example in examples)
    assert perfect(made, "dev") == {"f1": 1.0, "exact": 1.0}
    # "ran to the sea" against "the sea": precision 1/3 (without the article), recall 1.
    scores = made.score(examples, [SpanAnswer("ann."), SpanAnswer("ran to the sea")])
    assert scores == pytest.approx({"f1": (1 + 0.5) / 2, "exact": 0.5})
    assert list(scores)[0] == made.main_metric == "f1"
    assert made.baseline(examples, examples) is None


def test_squad_2_has_a_threshold_and_says_what_the_best_one_gives(tmp_path: Path) -> None:
    file = write(tmp_path / "dev.json", squad(qa("a", "Ann"), qa("b", None), qa("c", None)))
    made = task(files={"dev": file}, no_answer=True)
    examples = made.examples("dev")
    assert perfect(made, "dev")["f1"] == 1.0
    # The odds are 2, 3 and 4: with a threshold of 0 no question is answered; with 2, all answers are right.
    answers = [SpanAnswer("", best="Ann", null_score=2.0 + i) for i in range(3)]
    scores = made.score(examples, answers)
    assert scores["f1"] == scores["exact"] == pytest.approx(2 / 3)
    assert scores["best_f1"] == scores["best_exact"] == 1.0
    assert scores["best_f1_thresh"] == 2.0
    assert scores["NoAns_f1"] == 1.0
    assert scores["HasAns_f1"] == 0.0
    at_two = task(files={"dev": file}, no_answer=True, null_threshold=2.0)
    assert at_two.score(examples, answers)["f1"] == 1.0
    baseline = made.baseline(examples, examples)
    assert baseline is not None
    assert made.score(examples, baseline)["f1"] == pytest.approx(2 / 3)  # type: ignore[arg-type]


def quac() -> dict[str, Any]:
    def turn(number: int, text: str, *others: str) -> dict[str, Any]:
        context = f"{PASSAGE} CANNOTANSWER"
        found = [{"text": t, "answer_start": context.index(t)} for t in (text, *others)]
        return {"id": f"C_1_q#{number}", "question": f"What {number}?", "followup": "y", "yesno": "x",
                "orig_answer": found[0], "answers": found}  # fmt: skip

    qas = [turn(0, "Ann ran"), turn(1, "CANNOTANSWER"), turn(2, "Bob stayed", "stayed")]
    paragraph = {"id": "C_1", "context": f"{PASSAGE} CANNOTANSWER", "qas": qas}
    return {"data": [{"title": "t", "section_title": "s", "background": "b", "paragraphs": [paragraph]}]}


def test_quac_reads_dialogues_and_is_scored_by_its_script(tmp_path: Path) -> None:
    made = task(
        files={"dev": write(tmp_path / "val.json", quac())}, file_format="quac", no_answer=True, history_turns=1
    )
    examples = made.examples("dev")
    scores = perfect(made, "dev")
    assert scores["heq_q"] == scores["heq_d"] == scores["unanswerable"] == 1.0
    # "Bob stayed" is compared with each of two references alone: F1 1, and 2/3 with "stayed".
    assert scores["f1"] == pytest.approx((1 + 1 + (1 + 2 / 3) / 2) / 3)
    tokenizer = WordTokenizer(["what", "0", "1", "2", "ann", "ran", "?"], lowercase=True)
    encoded = made.encode(examples, tokenizer, max_length=40, num_segments=2)
    assert tokenizer.decode(encoded.tokens_T[encoded.offsets[1] :][:9]) == "[CLS] what 0 ? ann ran what 1 ?"
    baseline = made.baseline(examples, examples)
    assert baseline is not None
    assert made.score(examples, baseline)["f1"] == pytest.approx(1 / 3)  # type: ignore[arg-type]


def coqa() -> dict[str, Any]:
    said = [
        ("Ann", "Ann ran to the sea."),
        ("yes", "Ann ran to the sea."),
        ("unknown", "unknown"),
        ("he stayed", "Bob stayed."),
    ]
    answers = []
    for number, (text, evidence) in enumerate(said, start=1):
        start = PASSAGE.find(evidence)
        end = start + len(evidence) if start >= 0 else -1
        answers.append(
            {"turn_id": number, "input_text": text, "span_text": evidence, "span_start": start, "span_end": end}
        )
    questions = [{"turn_id": number, "input_text": f"What {number}?"} for number in range(1, 5)]
    return {"version": "1.0", "data": [{"id": "s1", "source": "mctest", "story": PASSAGE, "questions": questions,
                                        "answers": answers}]}  # fmt: skip


def test_coqa_has_yes_no_and_unknown(tmp_path: Path) -> None:
    made = task(
        files={"dev": write(tmp_path / "dev.json", coqa())}, file_format="coqa", labels=["no", "unknown", "yes"]
    )
    examples = made.examples("dev")
    assert [example.kind for example in examples] == [None, 2, 1, None]
    encoded, outputs = gold_outputs(made, examples)
    answers = list(made.answers(encoded, outputs))
    assert [answer.text for answer in answers] == ["Ann", "yes", "unknown", "stayed"]
    scores = made.score(examples, answers)
    # A span can express one of the two words of "he stayed": F1 2/3.
    assert scores["f1"] == scores["mctest_f1"] == pytest.approx((3 + 2 / 3) / 4)
    assert made.baseline(examples[1:2], examples) == [SpanAnswer("yes", kind="yes")] * 4


def test_own_rows_and_squads_format_are_read_alike(tmp_path: Path) -> None:
    rows = [
        row("a", {"text": "Ann", "start": 0}),
        row("b", {"text": "stayed"}),
        row("c"),
        {key: value for key, value in row("d").items() if key != "answers"},
    ]
    made = task(train=write(tmp_path / "t.jsonl", rows), file_format="jsonl", no_answer=True)
    examples = made.examples("train")
    starts = [0, PASSAGE.index("stayed"), (), None]
    assert [example.answers and example.answers[0].start for example in examples] == starts
    assert [example.has_gold for example in examples] == [True, True, True, False]
    assert examples[0].passage is examples[2].passage
    other = task(train=write(tmp_path / "t.json", squad(qa("a", "Ann"))), file_format="jsonl")
    assert other.examples("train")[0].answers == examples[0].answers


def test_a_split_may_have_several_files(tmp_path: Path) -> None:
    first, second = write(tmp_path / "1.json", squad(qa("a", "Ann"))), tmp_path / "2.json"
    write(second, squad(qa("b", "Bob")))
    (tmp_path / "2.json.xz").write_bytes(lzma.compress(second.read_bytes()))
    second.unlink()
    made = task(files={"train": [first, "2.json"], "dev": None}, data_root=str(tmp_path))
    assert made.splits == ("train",)
    assert [example.id for example in made.examples("train")] == ["a", "b"]
    again = write(tmp_path / "3.json", squad(qa("a", "Ann")))
    for files in ([first, again], [first, first]):
        with refuses(DataError, Path(files[1]).name, "id a", "1.json"):
            task(files={"train": files}).examples("train")


def test_bad_answers_are_refused_or_counted_by_name(tmp_path: Path) -> None:
    asked = [qa("good", "Ann"), qa("bad", "Ann", 3)]
    file = write(tmp_path / "t.json", squad(*asked))
    with refuses(DataError, "question bad", "answer_start=3", "'Ann'"):
        task(train=file).examples("train")
    rows = [row("good", {"text": "Ann", "start": 0}, {"text": "Bob", "start": 1}), row("bad", {"text": "Zoe"})]
    own = write(tmp_path / "t.jsonl", rows)
    with refuses(DataError, "2 of 3", "question good", "question bad", "'Zoe'", "task.bad_answers=skip"):
        task(train=own, file_format="jsonl").examples("train")
    for made, count in (
        (task(train=file, bad_answers="skip"), 1),
        (task(train=own, file_format="jsonl", bad_answers="skip"), 2),
    ):
        assert [example.id for example in made.examples("train")] == ["good"]
        counts = made.notes["train"].counts
        assert sorted(counts.values()) == sorted([count, 1])
        assert all("bad" in first for first in made.notes["train"].first.values())


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("{", ("t.jsonl:2", "JSON")),
        ("[]", ("t.jsonl:2", "object")),
        (json.dumps({"id": "b"}), ("t.jsonl:2", "question b", "'question'")),
        (json.dumps(row("b", context="")), ("t.jsonl:2", "question b", ": context", "''")),
        (json.dumps(row("b", answers="Ann")), ("t.jsonl:2", "question b", ": answers", "list")),
        (json.dumps(row("b", {"start": 0})), ("t.jsonl:2", "question b", "answers[0]", "'text'")),
        (json.dumps(row("a")), ("t.jsonl:2", "t.jsonl:1")),
        (json.dumps(row("b")), ("question b", "task.no_answer=true")),
    ],
)
def test_malformed_rows_are_refused_with_their_line(tmp_path: Path, line: str, names: tuple[str, ...]) -> None:
    file = tmp_path / "t.jsonl"
    file.write_text(json.dumps(row("a", {"text": "Ann"})) + "\n" + line + "\n")
    with refuses(DataError, *names):
        task(train=str(file), file_format="jsonl").examples("train")


@pytest.mark.parametrize(
    ("more", "names"),
    [
        ({"files": {}}, ("task.files", "task.files.train=")),
        ({"stride": 0}, ("task.stride: 0",)),
        ({"max_answer_tokens": 0, "history_turns": -1}, ("task.max_answer_tokens: 0", "task.history_turns: -1")),
        ({"labels": ["yes"]}, ("task.labels=['yes']",)),
        ({"file_format": "coqa"}, ("task.labels=", "[yes, no, unknown]", "coqa")),
        ({"file_format": "coqa", "labels": ["yes", "no", "unknown"], "no_answer": True}, ("task.no_answer=true",)),
        ({"file_format": "quac", "hub": "quac"}, ("task.hub=quac",)),
    ],
)
def test_settings_that_do_not_fit_are_refused(more: dict[str, Any], names: tuple[str, ...]) -> None:
    with refuses(ConfigError, *names):
        task(**{"files": {"train": "t.json"}, **more})
    with refuses(DataError, "t.json", "task.train="):
        task(files={"train": "t.json"}).examples("train")
    with refuses(DataError, "split=dev"):
        task(files={"train": "t.json"}).examples("dev")


class Table(dict[str, list[Any]]):
    """A table like those of ``datasets``."""

    @property
    def column_names(self) -> list[str]:
        return list(self)


def test_the_hub_serves_splits_without_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    answers = [{"text": ["Ann"], "answer_start": [0]}, {"text": [], "answer_start": []}]
    columns = Table(id=["a", "b"], title=["", ""], context=[PASSAGE] * 2, question=["Who?"] * 2, answers=answers)

    def load_dataset(name: str, config: str | None, *, split: str) -> Table:
        assert (name, config, split) == ("org/squad", None, "validation")
        return columns

    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    made = task(hub="org/squad", hub_splits={"train": "train", "dev": "validation"}, no_answer=True)
    examples = made.examples("dev")
    assert [example.answers and example.answers[0].text for example in examples] == ["Ann", ()]
    del columns["answers"]
    with refuses(DataError, "column named answers"):
        made.examples("dev")


WORDS = ["ann", "bob", "ran", "to", "the", "sea", "and", "back", "in", "two", "days"]
LONGEST = 4
KINDS = ("yes", "no")


def encode(passages: list[str], max_length: int = 14) -> EncodedExamples:
    examples = [QuestionExample(f"q{i}", "ann ran", passage) for i, passage in enumerate(passages)]
    return encode_questions(
        examples, WordTokenizer(WORDS, lowercase=True), max_length=max_length, num_segments=2, stride=3
    )


def random_passages(rng: np.random.Generator) -> list[str]:
    return ["  ".join(rng.choice(WORDS, rng.integers(1, 30))) for _ in range(6)]


def best_of_window(starts: np.ndarray, ends: np.ndarray, first: int, stop: int) -> tuple[int, int, float]:
    """Return the output of a head for a window: the best legal span."""
    legal = [(i, j) for i in range(first, stop) for j in range(i, min(i + LONGEST, stop))]
    start, end = max(legal, key=lambda span: starts[span[0]] + ends[span[1]])
    return start, end, float(starts[start] + ends[end])


@pytest.mark.parametrize("seed", range(5))
def test_the_answer_is_the_best_span_of_all_windows(seed: int) -> None:
    rng = np.random.default_rng(seed)
    encoded = encode(random_passages(rng))
    # Quarters, so that float32 sums are exact.
    logits = [rng.integers(-40, 40, (2, length)) / 4 for length in encoded.lengths]
    outputs = np.zeros((len(encoded), 4), dtype=np.float32)
    for sequence, (starts, ends) in enumerate(logits):
        first, stop = table(encoded.targets)[sequence, 3:]
        outputs[sequence, :3] = best_of_window(starts, ends, first, stop)
        outputs[sequence, 3] = starts[0] + ends[0]
    threshold = float(rng.integers(-8, 8)) / 4
    answers = list(decode_spans(encoded, outputs, labels=(), no_answer=True, threshold=threshold))
    assert len(answers) == len(encoded.examples)
    for number, (example, answer) in enumerate(zip(encoded.examples, answers, strict=True)):
        every: list[tuple[float, str]] = []
        nulls = []
        for sequence in np.flatnonzero(encoded.owners == number):
            starts, ends = logits[sequence]
            tokens = encoded.tokens_T[encoded.offsets[sequence] : encoded.offsets[sequence + 1]]
            first = tokens.tolist().index(2) + 1
            for i in range(first, len(tokens) - 1):
                for j in range(i, min(i + LONGEST, len(tokens) - 1)):
                    text = "  ".join(WORDS[token - 4] for token in tokens[i : j + 1])
                    every.append((float(starts[i] + ends[j]), text))
            nulls.append(float(starts[0] + ends[0]))
        score = max(every)[0]
        assert answer.score == score
        assert answer.null_score == min(nulls)
        assert (score, answer.best) in every
        if min(nulls) - score > threshold:
            assert (answer.text, answer.start, answer.end) == ("", None, None)
        else:
            assert answer.text == answer.best == example.passage[answer.start : answer.end]
    spans = decode_spans(encoded, outputs, labels=(), no_answer=False, threshold=threshold)
    assert [answer.text for answer in spans] == [answer.best for answer in answers]


def turned(encoded: EncodedExamples, outputs: np.ndarray) -> tuple[EncodedExamples, np.ndarray]:
    """Return the same examples with the windows of each example in reverse order."""
    order = np.concatenate([np.flatnonzero(encoded.owners == i)[::-1] for i in range(len(encoded.examples))])
    examples = tuple(replace(example, window_starts=example.window_starts[::-1]) for example in encoded.examples)
    targets = encoded.targets.map(lambda values: values[order])
    return replace(encoded, examples=examples, targets=targets), outputs[order]


@pytest.mark.parametrize("seed", range(5))
def test_the_order_of_windows_changes_nothing(seed: int) -> None:
    rng = np.random.default_rng(seed)
    encoded = encode(random_passages(rng))
    outputs = np.zeros((len(encoded), 6), dtype=np.float32)
    for sequence, (first, stop) in enumerate(table(encoded.targets)[:, 3:]):
        start, end = np.sort(rng.integers(first, stop, 2))
        scores = rng.integers(0, 2), rng.integers(0, 3), *rng.integers(-3, 2, 2)  # many scores are equal
        outputs[sequence] = [start, end, *scores]
    for no_answer in (True, False):
        answers = [
            list(decode_spans(*given, labels=KINDS, no_answer=no_answer))
            for given in ((encoded, outputs), turned(encoded, outputs))
        ]
        assert answers[0] == answers[1]


def test_of_equal_spans_the_first_and_shortest_is_the_answer() -> None:
    encoded = encode(["ann  bob ran to the sea and back in two days"])
    assert len(encoded) > 1
    outputs = np.array([[5, 7, 1.0, 0.0]] * len(encoded), dtype=np.float32)
    assert next(decode_spans(encoded, outputs, labels=(), no_answer=False)).text == "bob ran to"
    outputs = np.array([[4, 4 + (i == 0), 1.0, 0.0] for i in range(len(encoded))], dtype=np.float32)
    assert next(decode_spans(encoded, outputs, labels=(), no_answer=False)).text == "ann  bob"


def test_another_kind_is_answered_where_a_window_has_it_above_a_span() -> None:
    encoded = encode(["ann bob", "ann bob", "ann bob"])
    outputs = np.array([[4, 4, 9, 0, -1, -2], [4, 4, 9, 0, 1, 2], [4, 4, 0, 9, 1, -2]], dtype=np.float32)
    answers = list(decode_spans(encoded, outputs, labels=KINDS, no_answer=True))
    assert [(answer.text, answer.kind, answer.start) for answer in answers] == [
        ("ann", None, 0),
        ("no", "no", None),
        ("yes", "yes", None),
    ]
    assert [answer.best for answer in answers] == ["ann"] * 3


def test_offsets_are_those_of_the_original_passage() -> None:
    passage = "  Ann\u00a0 RAN,to\nthe  Sea! "
    encoded = encode([passage], 64)
    outputs = np.array([[5, 9, 1, 0]], dtype=np.float32)
    answer = next(decode_spans(encoded, outputs, labels=(), no_answer=False))
    assert answer.text == passage[answer.start : answer.end] == "RAN,to\nthe  Sea"
    assert answer.as_dict()["start"] == passage.index("RAN")


@pytest.mark.parametrize("row", [[-1, -1, 0, 0], [3, 4, 9, 0], [4, 6, 9, 0], [5, 4, 9, 0], [4, 4, -np.inf, 0]])
def test_no_legal_span_is_an_empty_answer(row: list[float]) -> None:
    encoded = encode(["ann bob"])
    answer = next(decode_spans(encoded, np.array([row], dtype=np.float32), labels=(), no_answer=False))
    assert answer == SpanAnswer("", score=NO_SPAN_SCORE)
    assert json.loads(json.dumps(answer.as_dict(), allow_nan=False))["answer"] == ""
