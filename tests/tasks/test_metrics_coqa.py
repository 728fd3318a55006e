"""CoQA's metrics, worked by hand."""

from __future__ import annotations

import random
from fractions import Fraction

import pytest
from support.refusals import refuses

from lmtransfer.errors import DataError
from lmtransfer.tasks.metrics.question_answering import coqa_scores

PEOPLE = ["yes", "Yes.", "Yes, he did", "no"]


@pytest.mark.parametrize(
    ("answer", "references", "exact", "f1"),
    [
        ("yes", PEOPLE, 1.0, 1.0),  # two people say it, so one is always left
        ("no", PEOPLE, 3 / 4, 3 / 4),  # nobody is left to agree with when the fourth one is out
        ("he", PEOPLE, 0.0, 3 / 8),  # 1/2 against the third, whenever that one is in
        ("yes he", PEOPLE, 0.0, (4 / 5 * 3 + 2 / 3) / 4),
        ("The white cat", ["white cat"], 1.0, 1.0),
        ("cat", ["white cat"], 0.0, 2 / 3),
        ("the", ["a", "white"], 1 / 2, 1 / 2),  # two empty texts agree
        ("unknown", ["unknown", "unknown", "unknown", "red"], 1.0, 1.0),
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


def test_random_questions_agree_with_a_slow_computation() -> None:
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


def test_refuses_what_it_cannot_score() -> None:
    with refuses(DataError, "'q'", "gold", "'unknown'"):
        coqa_scores({"q": "x"}, {"q": []})
    with refuses(DataError, "1 of 1", "group", "'q'"):
        coqa_scores({"q": "x"}, {"q": ["x"]}, groups={})
    with refuses(DataError, "1 of 1", "answer", "'q'"):
        coqa_scores({}, {"q": ["x"]})
