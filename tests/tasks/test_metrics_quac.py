"""QuAC's metrics, worked by hand."""

from __future__ import annotations

import random
from fractions import Fraction
from itertools import permutations

import pytest
from support.refusals import refuses

from lmtransfer.errors import DataError
from lmtransfer.tasks.metrics.question_answering import agreed_questions, human_f1, quac_f1, quac_scores

NONE = "CANNOTANSWER"
# The third person agrees with the others at 2/3, they with each other at 1: human F1 (1 + 1 + 2/3) / 3 = 8/9.
COLOURS = ["red blue", "red blue", "red"]


def test_people_are_compared_with_each_other() -> None:
    assert human_f1(COLOURS) == pytest.approx(8 / 9)
    assert human_f1(["red", "blue"]) == 0.0
    assert human_f1(["red"]) == 1.0
    assert human_f1(["red", "Red."]) == 1.0
    assert human_f1(["the", "a"]) == 0.0  # without a word left there is nothing in common


def test_an_answer_is_compared_with_all_but_one() -> None:
    # "red" has F1 2/3, 2/3, 1: without the third, 2/3; without another, 1.
    assert quac_f1("red", COLOURS) == pytest.approx(8 / 9)
    # "blue" has 2/3, 2/3, 0, whomever one leaves out 2/3.
    assert quac_f1("blue", COLOURS) == pytest.approx(2 / 3)
    assert quac_f1("Red, blue", COLOURS) == 1.0
    assert quac_f1("red", ["red", "blue"]) == 0.5
    assert quac_f1("blue", ["red blue"]) == pytest.approx(2 / 3)


def test_half_of_the_people_without_answer_decide() -> None:
    assert quac_f1(NONE, [NONE, "red"]) == 1.0
    assert quac_f1("red", [NONE, "red"]) == 0.0
    assert quac_f1(NONE, [NONE, "red", "red"]) == 0.0
    assert quac_f1("red", [NONE, "red", "red"]) == 1.0
    assert quac_f1("red", [NONE, "red", "blue"]) == 0.5
    assert human_f1([NONE, "red", NONE]) == 1.0
    assert human_f1([NONE, "red", "blue"]) == 0.0


def test_empty_texts_mean_no_answer() -> None:
    assert quac_f1("", [NONE]) == quac_f1(NONE, [""]) == quac_f1("", []) == 1.0
    assert quac_f1("", ["red"]) == 0.0
    assert quac_f1("red", ["", "red", "red"]) == 1.0
    assert quac_f1("cannotanswer", [NONE]) == 0.0  # the scorer knows that text only as it is written


def test_reaching_the_human_f1_does_not_depend_on_rounding() -> None:
    for references in permutations(COLOURS):
        scores = quac_scores({"q": "red"}, {"q": references}, dialogues={"q": "d"})
        assert scores["heq_q"] == scores["heq_d"] == 1.0


def test_two_dialogues_on_paper() -> None:
    references = {
        "d1_q#0": COLOURS,
        "d1_q#1": ["red", "blue"],  # people disagree: only in the unfiltered F1
        "d2_q#0": [NONE, NONE, "red"],
        "d2_q#1": COLOURS,
        "d3_q#0": ["one", "two"],  # a dialogue of which no question counts
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
    # Twice 1 word in common of 2 and 3, for each of three people: exactly 0.4, which the default lets in.
    assert agreed_questions({"edge": ["red blue", "red green grey", "blue pink black"]}) == ["edge"]
    with refuses(DataError, "2 questions", "F1", "0.6"):
        agreed_questions(references, min_f1=0.6)


def test_random_questions_agree_with_a_slow_computation() -> None:
    draw = random.Random(2)
    # Texts of different words, so that F1 is twice the common words over all words.
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


def test_each_question_needs_its_dialogue_and_answer() -> None:
    with refuses(DataError, "1 of 1", "dialogue", "'q'"):
        quac_scores({"q": "x"}, {"q": ["x"]}, dialogues={})
    with refuses(DataError, "1 of 1", "answer", "'q'"):
        quac_scores({}, {"q": ["x"]}, dialogues={"q": "d"})
