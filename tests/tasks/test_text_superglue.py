"""SuperGLUE's tasks in their published formats, and answers that compare the choices of a text."""

from __future__ import annotations

import json
import string
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes.tasks import WordTokenizer, bert
from omegaconf import OmegaConf
from sklearn.metrics import f1_score
from support.nodes import build
from support.refusals import refuses

from lmtransfer.config.paths import conf_dir
from lmtransfer.data.documents import Notes
from lmtransfer.errors import ConfigError, DataError
from lmtransfer.launch.config_files import group_config
from lmtransfer.tasks.answers import ChoiceAnswer, LabelAnswer
from lmtransfer.tasks.heads import LabelTargets
from lmtransfer.tasks.source import TaskSource
from lmtransfer.tasks.text.superglue import Copa
from lmtransfer.transfer.method import TransferMethod
from lmtransfer.transfer.scoring import evaluate

WIC = {"word": "place", "sentence1": "Do you want to come over to my place later?", "sentence2": "A political system "
       "with no place for the less prominent groups.", "idx": 0, "label": False, "start1": 31, "start2": 27, "end1": 36,
       "end2": 32, "version": 1.1}  # fmt: skip
WSC = {"text": "Mark told Pete many lies about himself, which he believed.", "idx": 0, "label": True,
       "target": {"span1_index": 0, "span1_text": "Mark", "span2_index": 6, "span2_text": "himself,"}}  # fmt: skip
MULTIRC = {
    "idx": 0, "version": 1.1,
    "passage": {"text": "Ann went home. It rained.", "questions": [
        {"question": "Who went home?", "idx": 0, "answers": [{"text": "Ann", "idx": 0, "label": 1},
                                                             {"text": "Bob", "idx": 1, "label": 0}]},
        {"question": "What fell?", "idx": 1, "answers": [{"text": "Rain", "idx": 2, "label": 1},
                                                         {"text": "Snow", "idx": 3, "label": 0},
                                                         {"text": "Water", "idx": 4, "label": 1}]},
    ]},
}  # fmt: skip
PASSAGE = "The UN met in Geneva.\n@highlight\nThe United Nations met; UN news from Geneva"
RECORD = {
    "source": "Daily mail", "idx": 0,
    "passage": {"text": PASSAGE, "entities": [{"start": 4, "end": 5}, {"start": 14, "end": 19},
                                              {"start": 37, "end": 50}, {"start": 57, "end": 58}]},
    "qas": [
        {"idx": 0, "query": "The @placeholder spoke", "answers": [{"start": 4, "end": 5, "text": "UN"},
                                                                  {"start": 37, "end": 50, "text": "United Nations"}]},
        {"idx": 1, "query": "It met in @placeholder", "answers": [{"start": 14, "end": 19, "text": "Geneva"}]},
    ],
}  # fmt: skip

COPA = [
    {"premise": "I fell.", "choice1": "It rained.", "choice2": "I slipped.", "question": "cause", "idx": 0, "label": 1},
    {"premise": "I ran.", "choice1": "I sweated.", "choice2": "I slept.", "question": "effect", "idx": 1, "label": 0},
    {"premise": "It rang.", "choice1": "I woke.", "choice2": "I slept.", "question": "effect", "idx": 2, "label": 0},
]


def hidden(value: Any) -> Any:
    """Return a row as in the published test files, without labels and answers."""
    if isinstance(value, dict):
        gone = {"label"} if "question" in value else {"label", "answers"}  # MultiRC's test file contains the answers
        return {key: hidden(item) for key, item in value.items() if key not in gone}
    return [hidden(item) for item in value] if isinstance(value, list) else value


def made(name: str, folder: Path, *rows: dict[str, Any]) -> Any:
    for split, kept in (("train", rows), ("val", rows), ("test", [hidden(row) for row in rows])):
        path = folder / name / f"{split}.jsonl"
        path.parent.mkdir(exist_ok=True)
        path.write_text("".join(json.dumps(row) + "\n" for row in kept))
    return build(OmegaConf.create(group_config("task", name, [conf_dir()])), data_root=str(folder))


def test_words_in_context_are_marked(tmp_path: Path) -> None:
    task = made("wic", tmp_path, WIC, {**WIC, "label": True})
    first, second = task.examples("train")
    assert first.text == "Do you want to come over to my *place* later?"
    assert first.text_pair == "A political system with no *place* for the less prominent groups."
    assert [task.labels[example.label] for example in (first, second)] == ["different", "same"]
    assert [example.has_gold for example in task.examples("test")] == [False, False]
    with refuses(DataError, "train.jsonl:1", "start1", "90 to 36"):
        made("wic", tmp_path, {**WIC, "start1": 90}).examples("train")


def test_winograd_schemas_ask_about_the_pronoun(tmp_path: Path) -> None:
    (example,) = made("wsc", tmp_path, WSC).examples("train")
    assert example.text == 'Does "himself," refer to "Mark" in this passage?'
    assert (example.text_pair, example.label) == (WSC["text"], 1)
    with refuses(DataError, "train.jsonl:1", "label", "'maybe'", "true or false"):
        made("wsc", tmp_path, {**WSC, "label": "maybe"}).examples("train")


def test_answers_are_examples_and_questions_are_matched(tmp_path: Path) -> None:
    task = made("multirc", tmp_path, MULTIRC, MULTIRC)
    examples = task.examples("train")
    assert [example.id for example in examples[:5]] == [f"train:0.{n}" for n in ("0.0", "0.1", "1.0", "1.1", "1.2")]
    assert (examples[1].text, examples[1].text_pair) == ("Ann went home. It rained.", "Who went home? Bob")
    assert {example.group for example in examples} == {"Ann went home. It rained."}
    assert [example.has_gold for example in task.examples("test")] == [False] * 10
    rng = np.random.default_rng(0)
    gold = [example.label for example in examples]
    for _ in range(20):
        said = rng.integers(0, 2, len(examples)).tolist()
        answers = [LabelAnswer(label, task.labels[label]) for label in said]
        by_question = defaultdict(list)
        for example, label in zip(examples, said, strict=True):
            by_question[example.id.rpartition(".")[0]].append(label == example.label)
        found = task.score(examples, answers)
        assert list(found) == ["f1", "exact_match"]
        assert found["f1"] == pytest.approx(f1_score(gold, said, zero_division=0.0))
        assert found["exact_match"] == pytest.approx(np.mean([all(right) for right in by_question.values()]))
        kept = task.scored_examples(examples, answers)
        assert kept.ratios["exact_match"].value() == pytest.approx(found["exact_match"])


def test_entities_fill_the_gap_and_any_right_spelling_counts(tmp_path: Path) -> None:
    task = made("record", tmp_path, RECORD)
    first, second = task.examples("train")
    assert first.choices == ("The UN spoke", "The Geneva spoke", "The United Nations spoke")
    assert (first.right_choices, second.right_choices) == ({0, 2}, {1})
    assert first.text == "The UN met in Geneva. The United Nations met; UN news from Geneva"
    encoded = task.encode([first, second], WordTokenizer(), max_length=40, num_segments=2)
    assert LabelTargets.of(encoded.targets).labels.tolist() == [1, 0, 1, 0, 1, 0]

    def scores(*choices: int) -> dict[str, float]:
        answers = [ChoiceAnswer(choice, "") for choice in choices]
        found: dict[str, float] = task.score([first, second], answers)
        kept = task.scored_examples([first, second], answers)
        assert {name: ratio.value() for name, ratio in kept.ratios.items()} == found
        return found

    assert scores(0, 1) == scores(2, 1) == {"f1": 1.0, "exact_match": 1.0}
    assert scores(1, 2) == {"f1": 0.0, "exact_match": 0.0}
    assert scores(0, 0) == {"f1": 0.5, "exact_match": 0.5}
    assert [answer.choice for answer in task.baseline([], [first, second])] == [0, 0]  # "UN" twice, before "Geneva"
    assert [example.has_gold for example in task.examples("test")] == [False, False]
    gapless = {**RECORD, "qas": [{**RECORD["qas"][0], "query": "no gap"}]}  # type: ignore[index]
    with refuses(DataError, "train.jsonl:1", "qas[0].query", "@placeholder"):
        made("record", tmp_path, gapless).examples("train")
    other = {**RECORD, "qas": [{**RECORD["qas"][0], "answers": [{"text": "NATO"}]}]}  # type: ignore[index]
    with refuses(DataError, "train.jsonl:1", "'NATO'", "entity"):
        made("record", tmp_path, other).examples("train")


ARTICLES = ("a", "an", "the")


def _official_f1(said: str, gold: str) -> float:
    """The F1 of the official script of ReCoRD 1.0: 0 if no word is shared, so also if neither text has a word."""
    words, gold_words = (
        [
            word
            for word in "".join(c for c in text.lower() if c not in string.punctuation).split()
            if word not in ARTICLES
        ]
        for text in (said, gold)
    )
    num = sum((Counter(words) & Counter(gold_words)).values())
    return 2 * num / (len(words) + len(gold_words)) if num else 0.0


@pytest.mark.parametrize(
    "entities", [["The", "A", "Bob", "Bob Ray"], ["--", "?!", "The Who", "Who"], ["An", "an", "U.S."]]
)
def test_entities_without_words_score_as_in_the_official_script(tmp_path: Path, entities: list[str]) -> None:
    text = ", ".join(entities)
    starts = [text.index(entity) for entity in entities]
    spans = [{"start": start, "end": start + len(e) - 1} for start, e in zip(starts, entities, strict=True)]
    qas = [{"query": "@placeholder left", "answers": [{"text": entity}]} for entity in entities]
    task = made("record", tmp_path, {"passage": {"text": text, "entities": spans}, "qas": qas})
    examples = task.examples("train")
    for place, said in enumerate(entities):
        found = task.score(examples, [ChoiceAnswer(place, "")] * len(entities))
        assert found["f1"] == pytest.approx(np.mean([_official_f1(said, gold) for gold in entities]))
        plain = [" ".join(word for word in gold.lower().strip("-?!").replace(".", "").split() if word not in ARTICLES)
                 for gold in entities]  # fmt: skip
        assert found["exact_match"] == pytest.approx(np.mean([plain[place] == gold for gold in plain]))


@pytest.mark.parametrize(
    ("name", "row"), [("wic", WIC), ("wsc", WSC), ("multirc", MULTIRC), ("record", RECORD), ("copa", COPA[0])]
)
def test_a_learner_is_scored(name: str, row: dict[str, Any], tmp_path: Path) -> None:
    task = made(name, tmp_path, *[row] * 4)
    encoded = task.encode(task.examples("dev"), WordTokenizer(), max_length=32, num_segments=2)
    learner = TransferMethod(freeze="full").learner(bert(), head=task.head, seed=0)
    found = evaluate(learner, task, TaskSource(encoded), keep=True)
    assert next(iter(found.metrics)) == task.main_metric
    assert all(0 <= value <= 1 for key, value in found.metrics.items() if key != "loss")
    assert found.answers is not None
    assert len(found.answers) == len(encoded.examples)
    assert (found.calibration is None) == (name in ("record", "copa"))  # because answers compare several rows


def test_the_group_has_the_eight_tasks() -> None:
    tasks = group_config("task", "superglue", [conf_dir()])["tasks"]
    assert Counter(tasks) == Counter(["boolq", "cb", "copa", "multirc", "record", "superglue_rte", "wic", "wsc"])
    assert all((conf_dir() / "task" / f"{task}.yaml").is_file() for task in tasks)


def test_published_files_are_read(tmp_path: Path) -> None:
    task = made("copa", tmp_path, *COPA)
    first, second, _ = task.examples("train")
    assert first.text == "I fell. What was the cause of this?"
    assert second.text == "I ran. What happened as a result?"
    assert (first.choices, first.right_choices) == (("It rained.", "I slipped."), {1})
    assert [example.has_gold for example in task.examples("test")] == [False] * 3
    with refuses(DataError, "train.jsonl"):
        made("copa", tmp_path).examples("train")
    with refuses(ConfigError, "task.files"):
        Copa(name="copa", files={})


def test_each_choice_is_a_pair_and_the_answer_compares_them(tmp_path: Path) -> None:
    task = made("copa", tmp_path, *COPA)
    examples = task.examples("train")
    encoded = task.encode(examples, WordTokenizer(), max_length=32, num_segments=2)
    assert encoded.owners.tolist() == [0, 0, 1, 1, 2, 2]
    assert LabelTargets.of(encoded.targets).labels.tolist() == [0, 1, 1, 0, 1, 0]
    outputs = np.array([[5, 1], [5, 2], [0, 3], [0, 3], [1, 0], [0, 9]], dtype=np.float32)
    answers = list(task.answers(encoded, outputs))
    assert [answer.choice for answer in answers] == [1, 0, 1]  # the first of two equal choices
    assert answers[0].text == "I slipped."
    assert answers[0].probabilities == pytest.approx((1 / (1 + np.e), np.e / (1 + np.e)))
    assert task.score(examples, answers) == {"accuracy": pytest.approx(2 / 3)}
    kept = task.scored_examples(examples, answers)
    assert kept.predicted.tolist() == [1, 0, 1]
    assert kept.gold.tolist() == [1, 0, 0]
    assert {answer.choice for answer in task.baseline(examples, examples)} == {0}  # type: ignore[attr-defined]
    part = encoded.select(np.array([2, 0]))
    assert part.owners.tolist() == [0, 0, 1, 1]
    hidden = task.encode(task.examples("test"), WordTokenizer(), max_length=32, num_segments=2)
    assert set(LabelTargets.of(hidden.targets).labels.tolist()) == {-1}


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"question": "why"}, ("train.jsonl:1", "question", "'why'", "cause", "effect")),
        ({"label": 2}, ("train.jsonl:1", "label", "2", "choice2")),
        ({"choice2": " "}, ("train.jsonl:1", "choice2")),
    ],
)
def test_rows_that_are_no_examples(changes: dict[str, object], names: tuple[str, ...], tmp_path: Path) -> None:
    task = made("copa", tmp_path, {**COPA[0], **changes})
    with refuses(DataError, *names):
        task.examples("train")


def test_lines_of_users(tmp_path: Path) -> None:
    reader = made("copa", tmp_path, *COPA).reader()
    example = reader.parse_line("I ran. [SEP] I slept. [SEP] I sweated. [SEP] I sang.", "x:1", "0", Notes())
    assert (example.text, example.choices) == ("I ran.", ("I slept.", "I sweated.", "I sang."))
    for line in ("I ran.", "I ran. [SEP] I slept.", "I ran. [SEP] [SEP] I sang.", " [SEP] a [SEP] b"):
        with refuses(ValueError, "[SEP]"):
            reader.parse_line(line, "x:1", "0", Notes())
