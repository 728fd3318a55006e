"""Metrics of answers: published scores of published predictions, cases worked out by hand, and slow references."""

from __future__ import annotations

import json
import lzma
import math
import os
import random
import string
from collections.abc import Callable
from fractions import Fraction
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from support.refusals import refuses

from lmtransfer.errors import DataError
from lmtransfer.tasks.metrics.question_answering import (
    agreed_questions,
    check_same_questions,
    coqa_scores,
    exact_match,
    human_f1,
    leave_one_out_max,
    normalize_answer,
    quac_f1,
    quac_scores,
    squad2_scores,
    squad_scores,
    token_f1,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The  Denver\tBroncos ", "denver broncos"),
        ("A.B.C.", "abc"),
        ("well-known", "wellknown"),
        ("an apple, a pear and the Theatre", "apple pear and theatre"),
        ("the, a. AN!", ""),
        ("", ""),
        ("$3,000.50", "300050"),
        ("Gda\u0144sk\u00a0\u2013 \u00c9cole", "gda\u0144sk \u2013 \u00e9cole"),  # no-break space; a dash is not ASCII
        ("\u201cthe end\u201d", "\u201c end\u201d"),
        ("\u00e0 la carte", "\u00e0 la carte"),
        ("the\u2019s", "\u2019s"),  # a typographic apostrophe ends a word, so the article is removed
        ("a's", "as"),  # an ASCII apostrophe does not
        ("\u4e2d\u6587 a\u4e2d", "\u4e2d\u6587 a\u4e2d"),
        ("\u0130", "i\u0307"),
    ],
)
def test_normalized_texts(text: str, expected: str) -> None:
    assert normalize_answer(text) == expected


def _slow_normalize(text: str) -> str:
    """Normalize character by character; runs of letters and digits that are articles become a space."""
    kept = [letter for letter in text.lower() if letter not in string.punctuation]
    parts: list[str] = []
    run = ""
    for letter in [*kept, " "]:
        if letter.isalnum():
            run += letter
            continue
        parts += [" " if run in ("a", "an", "the") else run, letter]
        run = ""
    return " ".join("".join(parts).split())


def _slow_f1(answer: str, reference: str) -> Fraction:
    """Match each word of the answer with one identical word of the reference."""
    answered, left = _slow_normalize(answer).split(), _slow_normalize(reference).split()
    words, common = len(answered) + len(left), 0
    for word in answered:
        if word in left:
            left.remove(word)
            common += 1
    return Fraction(2 * common, words) if words else Fraction(1)


def test_random_texts_agree_with_the_slow_computation() -> None:
    draw = random.Random(0)
    pieces = ["a", "an", "the", "The", "cat", "x", "\u00e9", "7", ".", "-", "'", "\u2019", " ", " ", "\u00a0", "\n"]
    texts = ["".join(draw.choices(pieces, k=draw.randint(0, 12))) for _ in range(400)]
    for answer, reference in zip(texts, texts[1:], strict=False):
        assert normalize_answer(answer) == _slow_normalize(answer)
        assert exact_match(answer, reference) == float(_slow_normalize(answer) == _slow_normalize(reference))
        assert token_f1(answer, reference) == pytest.approx(float(_slow_f1(answer, reference)), abs=1e-15)
        assert token_f1(answer, reference) == token_f1(reference, answer)


@pytest.mark.parametrize(
    ("answer", "reference", "exact", "f1"),
    [
        ("la la land", "La La La!", 0, 2 / 3),  # a word counts as often as it occurs in both
        ("New York City", "York", 0, 1 / 2),
        ("York new", "New York", 0, 1),
        ("the", "...", 1, 1),  # no word is left in either text
        ("", "word", 0, 0),
        ("word", "the", 0, 0),
    ],
)
def test_two_texts(answer: str, reference: str, exact: float, f1: float) -> None:
    assert (exact_match(answer, reference), token_f1(answer, reference)) == (exact, pytest.approx(f1))
    assert token_f1(answer, reference, empty_agree=False) == pytest.approx(f1 if answer != "the" else 0)


def test_one_reference_is_left_out_in_turn() -> None:
    assert leave_one_out_max([0.25]) == 0.25
    assert leave_one_out_max([0.5, 1.0]) == 0.75
    assert leave_one_out_max([0.0, 1.0, 0.5]) == pytest.approx((1 + 0.5 + 1) / 3)
    assert leave_one_out_max([1.0, 0.0, 1.0]) == 1.0
    with refuses(ValueError, "reference"):
        leave_one_out_max([])


def test_questions_and_answers_have_to_match() -> None:
    check_same_questions({"q1": ""}, ["q1"])
    with refuses(DataError, "2 of 3", "answer", "'q1'"):
        check_same_questions({"q2": "x"}, ["q1", "q2", "q3"])
    with refuses(DataError, "1 of 2", "ids", "'q9'"):
        check_same_questions({"q1": "x", "q9": "x"}, ["q1"])
    with refuses(DataError, "question"):
        check_same_questions({}, [])


PEOPLE = ["yes", "Yes.", "Yes, he did", "no"]


@pytest.mark.parametrize(
    ("answer", "references", "exact", "f1"),
    [
        ("yes", PEOPLE, 1.0, 1.0),  # two people say so, and one of them is always left
        ("no", PEOPLE, 3 / 4, 3 / 4),  # without the fourth person, nobody is left to agree with
        ("The white cat", ["white cat"], 1.0, 1.0),
        ("cat", ["white cat"], 0.0, 2 / 3),
        ("the", ["a", "white"], 1 / 2, 1 / 2),  # two empty texts agree
        ("", ["unknown"], 0.0, 0.0),
    ],
)
def test_one_question(answer: str, references: list[str], exact: float, f1: float) -> None:
    assert coqa_scores({"q": answer}, {"q": references}) == {"exact": pytest.approx(exact), "f1": pytest.approx(f1)}


def test_means_over_all_and_by_group() -> None:
    references = {"s1 1": PEOPLE, "s1 2": PEOPLE, "s2 1": ["white cat"]}
    answers = {"s1 1": "no", "s1 2": "he", "s2 1": "cat"}
    groups = {"s1 1": "yes", "s1 2": "span", "s2 1": "span"}
    assert coqa_scores(answers, references, groups=groups) == {
        "exact": pytest.approx((3 / 4) / 3),
        "f1": pytest.approx((3 / 4 + 3 / 8 + 2 / 3) / 3),
        "span_exact": 0.0,
        "span_f1": pytest.approx((3 / 8 + 2 / 3) / 2),
        "yes_exact": pytest.approx(3 / 4),
        "yes_f1": pytest.approx(3 / 4),
    }


def test_coqa_agrees_with_a_slow_computation() -> None:
    draw = random.Random(3)
    texts = ["red", "blue", "red blue", "red blue green", "green grey", "yes", "no"]
    for _ in range(200):
        people, answer = draw.choices(texts, k=draw.randint(2, 5)), draw.choice(texts)
        exact, f1 = Fraction(0), Fraction(0)
        for left_out in range(len(people)):
            words = [set(text.split()) for place, text in enumerate(people) if place != left_out]
            ours = set(answer.split())
            exact += Fraction(int(ours in words), len(people))
            f1 += max(Fraction(2 * len(ours & other), len(ours) + len(other)) for other in words) / len(people)
        expected = {"exact": pytest.approx(float(exact)), "f1": pytest.approx(float(f1))}
        assert coqa_scores({"q": answer}, {"q": people}) == expected


NONE = "CANNOTANSWER"
# The third person's F1 against the others is 2/3, and theirs against each other is 1: human F1 (1 + 1 + 2/3) / 3.
COLOURS = ["red blue", "red blue", "red"]


@pytest.mark.parametrize(
    ("people", "human", "answers"),
    [
        # "red" has F1 2/3, 2/3, 1: without the third person 2/3, otherwise 1. "blue" has 2/3 whoever is left out.
        (COLOURS, 8 / 9, {"red": 8 / 9, "blue": 2 / 3, "Red, blue": 1}),
        (["red", "blue"], 0, {"red": 1 / 2}),
        (["red"], 1, {"": 0}),
        (["red", "Red."], 1, {}),
        (["the", "a"], 0, {}),  # without words, nothing is in common
        (["red blue"], 1, {"blue": 2 / 3}),
        ([NONE], 1, {"": 1, "cannotanswer": 0}),  # the scorer compares this text as it is written
        ([""], 1, {NONE: 1}),
        ([], 1, {"": 1}),
        (["", "red", "red"], 1, {"red": 1}),
        ([NONE, "red"], 1, {NONE: 1, "red": 0}),  # half of the people without an answer decide
        ([NONE, "red", "red"], 1, {NONE: 0, "red": 1}),
        ([NONE, "red", "blue"], 0, {"red": 1 / 2}),
        ([NONE, "red", NONE], 1, {}),
    ],
)
def test_quac_compares_answers_and_people(people: list[str], human: float, answers: dict[str, float]) -> None:
    assert human_f1(people) == pytest.approx(human)
    assert {answer: quac_f1(answer, people) for answer in answers} == pytest.approx(answers)


def test_reaching_the_human_f1_does_not_depend_on_rounding() -> None:
    for references in permutations(COLOURS):
        scores = quac_scores({"q": "red"}, {"q": references}, dialogues={"q": "d"})
        assert scores["heq_q"] == scores["heq_d"] == 1.0


def test_two_dialogues_on_paper() -> None:
    references = {
        "d1_q#0": COLOURS,
        "d1_q#1": ["red", "blue"],  # people disagree, so this counts only in the unfiltered F1
        "d2_q#0": [NONE, NONE, "red"],
        "d2_q#1": COLOURS,
        "d3_q#0": ["one", "two"],  # a dialogue in which no question counts
    }
    answers = {"d1_q#0": "red", "d1_q#1": "red", "d2_q#0": NONE, "d2_q#1": "blue", "d3_q#0": "three"}
    dialogues = {question: question.split("_q#")[0] for question in references}
    assert quac_scores(answers, references, dialogues=dialogues) == {
        "f1": pytest.approx((8 / 9 + 1 + 2 / 3) / 3),
        "unfiltered_f1": pytest.approx((8 / 9 + 0.5 + 1 + 2 / 3 + 0) / 5),
        "heq_q": pytest.approx(2 / 3),
        "heq_d": pytest.approx(2 / 3),
        "human_f1": pytest.approx((8 / 9 + 1 + 8 / 9) / 3),
        "unanswerable": 1.0,
    }


def test_questions_at_the_least_human_f1_count() -> None:
    references = {"half": ["red blue", "red green"], "third": ["red blue green", "red grey pink"]}
    assert agreed_questions(references, min_f1=0.5) == ["half"]
    assert agreed_questions(references, min_f1=0.3) == ["half", "third"]
    # One common word of 2 and 3 for each of three people: an F1 of exactly 0.4, which the default accepts.
    assert agreed_questions({"edge": ["red blue", "red green grey", "blue pink black"]}) == ["edge"]
    with refuses(DataError, "2 questions", "F1", "0.6"):
        agreed_questions(references, min_f1=0.6)


def test_quac_agrees_with_a_slow_computation() -> None:
    draw = random.Random(2)
    # Texts of distinct words, so that F1 is twice the number of common words divided by the number of all words.
    texts = ["red", "blue", "red blue", "red blue green", "green grey", NONE, NONE]

    def f1(one: str, other: str) -> Fraction:
        left, right = set(one.split()), set(other.split())
        return Fraction(2 * len(left & right), len(left) + len(right))

    def mean(values: list[Fraction]) -> Fraction:
        return sum(values, Fraction(0)) / len(values)

    for _ in range(200):
        references = draw.choices(texts, k=draw.randint(1, 5))
        answer = draw.choice(texts)
        spans = [text for text in references if text != NONE]
        people = spans if len(spans) > references.count(NONE) else [NONE]
        others = [people[:place] + people[place + 1 :] or people for place in range(len(people))]
        expected = mean([max(f1(answer, text) for text in rest) for rest in others])
        human = mean([max(f1(own, text) for text in rest) for own, rest in zip(people, others, strict=True)])
        assert quac_f1(answer, references) == pytest.approx(float(expected))
        assert human_f1(references) == pytest.approx(float(human))
        if abs(human - Fraction(2, 5)) > Fraction(1, 1000):
            counted = {"q": references} | {"sure": ["red"]}
            scores = quac_scores({"q": answer, "sure": "blue"}, counted, dialogues={"q": "1", "sure": "2"})
            assert scores["heq_q"] == (float(expected >= human) / 2 if human >= 0.4 else 0.0)
            assert scores["heq_d"] == float(expected >= human or human < 0.4) / 2


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
    # An unanswerable question is right if the file has no answer, by both metrics.
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
    # q1: exact match with the second reference. q3: precision 1, recall 1/3. q4: both texts are empty after
    # normalization, which is an exact match without a common word.
    assert squad_scores(answers, references) == {"exact": pytest.approx(2 / 4), "f1": pytest.approx((1 + 0.5) / 4)}


REFERENCES = {"q1": ["red cat", "cat"], "q2": ["blue", "The"], "q3": ["the"], "q4": [], "q5": []}
ANSWERS = {"q1": "red", "q2": "blue", "q3": "", "q4": "", "q5": "grey"}


def test_version_2_without_odds() -> None:
    # q1: F1 2/3 against "red cat". q3: the only reference is an article, so an empty answer is right.
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
    # q5's odds are at the threshold, not above. q2 and q3 are answerable, so empty answers are wrong, also for q3.
    assert scores["exact"] == pytest.approx(1 / 5)
    assert scores["f1"] == pytest.approx((2 / 3 + 1) / 5)
    assert scores["NoAns_exact"] == pytest.approx(1 / 2)
    assert squad2_scores(ANSWERS, REFERENCES, null_odds=odds, threshold=0.49)["NoAns_exact"] == 1.0
    # Adding answers by increasing odds, the sums of F1 are: none 2, q1 2.67, q4 2.67, q5 1.67, q2 2.67, q3 3.67.
    assert (scores["best_f1"], scores["best_f1_thresh"]) == (pytest.approx((2 + 2 / 3 - 1 + 2) / 5), 0.95)
    # The sums of exact matches are 2, 2, 2, 1, 2, 3.
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


@pytest.mark.parametrize(
    ("score", "names"),
    [
        (lambda: coqa_scores({"q": "x"}, {"q": []}), ("'q'", "gold", "'unknown'")),
        (lambda: coqa_scores({"q": "x"}, {"q": ["x"]}, groups={}), ("1 of 1", "group", "'q'")),
        (lambda: coqa_scores({}, {"q": ["x"]}), ("1 of 1", "answer", "'q'")),
        (lambda: quac_scores({"q": "x"}, {"q": ["x"]}, dialogues={}), ("1 of 1", "dialogue", "'q'")),
        (lambda: quac_scores({}, {"q": ["x"]}, dialogues={"q": "d"}), ("1 of 1", "answer", "'q'")),
        (lambda: squad_scores({"q1": "x"}, {"q1": ["x"], "q2": ["x"]}), ("1 of 2", "'q2'")),
        (lambda: squad_scores({"q1": ""}, {"q1": []}), ("'q1'", "gold", "squad2")),
        (lambda: squad2_scores({"q": ""}, {"q": []}, null_odds={}), ("1 of 1", "odds", "'q'")),
        (lambda: squad2_scores({"q": ""}, {"q": []}, null_odds={"q": math.nan}), ("odds", "'q'", "number")),
    ],
)
def test_what_cannot_be_scored(score: Callable[[], object], names: tuple[str, ...]) -> None:
    with refuses(DataError, *names):
        score()
