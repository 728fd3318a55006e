"""SQuAD's metrics: the published scores of published predictions, small cases by hand, the sweep by brute force."""

from __future__ import annotations

import json
import lzma
import math
import os
import random
from pathlib import Path
from typing import Any

import pytest
from support.refusals import refuses

from lmtransfer.errors import DataError
from lmtransfer.tasks.metrics.question_answering import squad2_scores, squad_scores

needs_data = pytest.mark.skipif("LMTRANSFER_DATA" not in os.environ, reason="LMTRANSFER_DATA names no data folder")


def _read(path: Path) -> Any:
    with lzma.open(path, "rt", encoding="utf-8") as file:
        return json.load(file)


def _references(path: Path) -> dict[str, list[str]]:
    return {
        question["id"]: [answer["text"] for answer in question["answers"]]
        for article in _read(path)["data"]
        for paragraph in article["paragraphs"]
        for question in paragraph["qas"]
    }


@pytest.mark.data
@needs_data
def test_published_scores_of_version_1() -> None:
    folder = Path(os.environ["LMTRANSFER_DATA"]) / "squad"
    references = _references(folder / "dev-v1.1.json.xz")
    scores = squad_scores(_read(folder / "predictions-v1.1-bert.json.xz"), references)
    assert len(references) == 10_570
    assert {name: f"{100 * score:.2f}" for name, score in scores.items()} == {"exact": "86.21", "f1": "92.20"}


@pytest.mark.data
@needs_data
def test_published_scores_of_version_2() -> None:
    folder = Path(os.environ["LMTRANSFER_DATA"]) / "squad"
    references = _references(folder / "dev-v2.0.json.xz")
    answers = _read(folder / "predictions-v2.0-bert.json.xz")
    scores = squad2_scores(answers, references)
    assert f"{100 * scores['exact']:.2f} {100 * scores['f1']:.2f}" == "78.74 81.78"
    unanswerable = [question for question, texts in references.items() if not texts]
    assert (len(references), len(unanswerable)) == (11_873, 5_945)
    # An unanswerable question is right where the file has no answer, by either measure.
    silent = sum(answers[question] == "" for question in unanswerable) / 5_945
    assert scores["NoAns_exact"] == scores["NoAns_f1"] == pytest.approx(silent)
    for name in ("exact", "f1"):
        whole = (5_928 * scores[f"HasAns_{name}"] + 5_945 * scores[f"NoAns_{name}"]) / 11_873
        assert scores[name] == pytest.approx(whole)


def test_version_1_takes_the_best_reference() -> None:
    references = {
        "q1": ["Denver Broncos", "the Broncos", "Denver Broncos"],
        "q2": ["1066"],
        "q3": ["New York City"],
        "q4": ["the"],
    }
    answers = {"q1": "Broncos!", "q2": "1065", "q3": "York", "q4": "an"}
    # q1: exact by its second reference. q3: precision 1, recall 1/3. q4: both empty once normalised, which matches
    # exactly but has no word in common.
    assert squad_scores(answers, references) == {"exact": pytest.approx(2 / 4), "f1": pytest.approx((1 + 0.5) / 4)}


def test_version_1_refuses_what_it_cannot_score() -> None:
    with refuses(DataError, "1 of 2", "'q2'"):
        squad_scores({"q1": "x"}, {"q1": ["x"], "q2": ["x"]})
    with refuses(DataError, "'q1'", "gold", "squad2"):
        squad_scores({"q1": ""}, {"q1": []})


REFERENCES = {"q1": ["red cat", "cat"], "q2": ["blue", "The"], "q3": ["the"], "q4": [], "q5": []}
ANSWERS = {"q1": "red", "q2": "blue", "q3": "", "q4": "", "q5": "grey"}


def test_version_2_without_odds() -> None:
    # q1: F1 2/3 against "red cat". q3: the only reference is an article, so no answer is right.
    assert squad2_scores(ANSWERS, REFERENCES, threshold=-1) == {
        "exact": pytest.approx(3 / 5),
        "HasAns_exact": pytest.approx(2 / 3),
        "NoAns_exact": pytest.approx(1 / 2),
        "f1": pytest.approx((2 / 3 + 1 + 1 + 1 + 0) / 5),
        "HasAns_f1": pytest.approx((2 / 3 + 1 + 1) / 3),
        "NoAns_f1": pytest.approx(1 / 2),
    }


def test_version_2_answers_above_the_threshold_count_as_none() -> None:
    odds = {"q1": 0.1, "q2": 0.9, "q3": 0.95, "q4": 0.2, "q5": 0.5}
    scores = squad2_scores(ANSWERS, REFERENCES, null_odds=odds, threshold=0.5)
    # q5's odds are at the threshold, not above. q2 and q3 have an answer, so silence is wrong there, also for q3.
    assert scores["exact"] == pytest.approx(1 / 5)
    assert scores["f1"] == pytest.approx((2 / 3 + 1) / 5)
    assert scores["NoAns_exact"] == pytest.approx(1 / 2)
    assert squad2_scores(ANSWERS, REFERENCES, null_odds=odds, threshold=0.49)["NoAns_exact"] == 1.0
    # Answered from the least odds on, the sums of F1 are: none 2, q1 2.67, q4 2.67, q5 1.67, q2 2.67, q3 3.67.
    assert (scores["best_f1"], scores["best_f1_thresh"]) == (pytest.approx((2 + 2 / 3 - 1 + 2) / 5), 0.95)
    # And of exact matches: 2, 2, 2, 1, 2, 3.
    assert (scores["best_exact"], scores["best_exact_thresh"]) == (pytest.approx(3 / 5), 0.95)


def test_groups_without_questions_have_no_entry() -> None:
    assert set(squad2_scores({"q": ""}, {"q": []})) == {"exact", "f1", "NoAns_exact", "NoAns_f1"}
    assert set(squad2_scores({"q": ""}, {"q": ["x"]})) == {"exact", "f1", "HasAns_exact", "HasAns_f1"}


def test_the_best_threshold_is_that_of_trying_each() -> None:
    draw = random.Random(1)
    for _ in range(30):
        questions = [f"q{place}" for place in range(draw.randint(1, 12))]
        references = {question: draw.choice([[], ["one two"]]) for question in questions}
        answers = {question: draw.choice(["one two", "one", "three", ""]) for question in questions}
        odds = {question: draw.uniform(-5, 5) for question in questions}
        f1_of = {"one two": 1.0, "one": 2 / 3, "three": 0.0, "": 0.0}
        scores = squad2_scores(answers, references, null_odds=odds)
        for name in ("exact", "f1"):
            tried = {}
            for threshold in [-math.inf, *odds.values()]:
                total = 0.0
                for question in questions:
                    answer = answers[question] if odds[question] <= threshold else ""
                    f1 = f1_of[answer] if references[question] else float(answer == "")
                    total += f1 if name == "f1" else float(f1 == 1)
                tried[threshold] = total / len(questions)
            assert scores[f"best_{name}"] == pytest.approx(max(tried.values()))
            again = squad2_scores(answers, references, null_odds=odds, threshold=scores[f"best_{name}_thresh"])
            assert again[name] == pytest.approx(max(tried.values()))


def test_where_it_is_best_to_answer_nothing() -> None:
    scores = squad2_scores({"q1": "x", "q2": "x"}, {"q1": [], "q2": []}, null_odds={"q1": 0.3, "q2": 0.2})
    assert (scores["best_exact"], scores["best_exact_thresh"]) == (1.0, 0.0)
    scores = squad2_scores({"q1": "x", "q2": "x"}, {"q1": [], "q2": []}, null_odds={"q1": -3.0, "q2": 2.0})
    assert scores["best_exact"] == 1.0
    assert scores["best_exact_thresh"] < -3.0


def test_odds_have_to_be_numbers_for_each_question() -> None:
    with refuses(DataError, "1 of 1", "odds", "'q'"):
        squad2_scores({"q": ""}, {"q": []}, null_odds={})
    with refuses(DataError, "odds", "'q'", "number"):
        squad2_scores({"q": ""}, {"q": []}, null_odds={"q": math.nan})
