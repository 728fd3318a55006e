"""A check of gold answers for wrong offsets, which either rejects them in one message or skips and lists them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from lmtransfer.errors import DataError
from lmtransfer.tasks.qa.example import GoldSpan, QuestionExample

BadAnswersPolicy = Literal["refuse", "skip"]

_MOST_PROBLEMS = 3
_MOST_CHARACTERS = 60


class AnswerPlaces:
    """A check of the offsets of answers, which records the bad answers.

    Args:
        path: the file, for messages.
        policy: with ``refuse``, ``report`` raises an error. With ``skip``, bad answers are not used for training, but
            their texts remain references (no official metric uses offsets), and a question with only bad answers is
            left out.

    Attributes:
        bad_answers: question id of each bad answer.
        skipped_questions: ids of the questions that are left out.
        num_answers: number of answers, including bad ones.
    """

    def __init__(self, path: Path, policy: BadAnswersPolicy) -> None:
        self.bad_answers: list[str] = []
        self.skipped_questions: list[str] = []
        self.num_answers = 0
        self._path = path
        self._policy = policy
        self._problems: list[str] = []

    def gold(self, question: str, text: str, start: int, passage: str) -> GoldSpan | None:
        """Return an answer with its span, or without one if the text is not at ``start``; None if the text is empty.

        Args:
            start: first character of the answer, according to the file.
            passage: the passage that it quotes.
        """
        self.num_answers += 1
        if not text.strip():
            self.add_problem(question, f"the answer {text!r} is empty")
            return None
        end = start + len(text)
        if start < 0 or passage[start:end] != text:
            position = f"marks {_short(passage[start:end])}" if 0 <= start < len(passage) else "is outside the passage"
            self.add_problem(question, f"answer_start={start} {position}; the answer is {_short(text)}")
            return GoldSpan(text)
        return GoldSpan(text, start, end)

    def select(self, question: str, gold_answers: Iterable[GoldSpan | None]) -> tuple[GoldSpan, ...]:
        """Return a question's usable answers, those without a span last; empty if the question is left out.

        Args:
            gold_answers: results of ``gold``.
        """
        answers = list(gold_answers)
        spans = sorted((gold for gold in answers if gold is not None), key=lambda gold: gold.start is None)
        if answers and (not spans or spans[0].start is None):
            self.skipped_questions.append(question)
            return ()
        return tuple(spans)

    def add_problem(self, question: str, problem: str) -> None:
        """Record a bad answer.

        Args:
            problem: the problem, for the message.
        """
        self.bad_answers.append(question)
        if len(self._problems) < _MOST_PROBLEMS:
            self._problems.append(f"  question {question}: {problem}")

    def report(self) -> None:
        """Report the bad answers after the whole file has been read.

        Raises:
            DataError: there are bad answers and the policy is ``refuse``; the message names the first ones.
        """
        if not self.bad_answers or self._policy == "skip":
            return
        further = len(self.bad_answers) - len(self._problems)
        raise DataError(
            f"{self._path}: {len(self.bad_answers):,} of {self.num_answers:,} gold answers are not at their offsets:\n"
            + "\n".join(self._problems)
            + (f"\n  and {further:,} more" if further else "")
            + "\nCorrect the offsets (they count characters from 0), or set task.bad_answers=skip: then these answers "
            "are not used for training, and questions without another answer are left out"
        )


@dataclass(frozen=True, slots=True)
class QuestionFile:
    """The questions in a file, in order, and the ids of bad answers.

    Attributes:
        examples: the questions, except those left out.
        bad_answers: question id of each answer that is not where the file says.
        skipped_questions: ids of the questions left out because they have no other answer.
    """

    examples: list[QuestionExample]
    bad_answers: tuple[str, ...] = ()
    skipped_questions: tuple[str, ...] = ()

    @classmethod
    def of(cls, examples: Iterable[QuestionExample], places: AnswerPlaces) -> QuestionFile:
        """Collect the questions that are not left out."""
        places.report()
        skipped_questions = frozenset(places.skipped_questions)
        remaining = [example for example in examples if example.id not in skipped_questions]
        return cls(remaining, tuple(places.bad_answers), tuple(places.skipped_questions))


def list_ids(ids: Iterable[str], *, most: int = 10) -> str:
    """List distinct ids for a message, naming only the first: ``a, b, c and 4 more``.

    Args:
        ids: ids in order.
        most: maximum number of ids to name.
    """
    distinct = list(dict.fromkeys(ids))
    further = len(distinct) - most
    return ", ".join(distinct[:most]) + (f" and {further:,} more" if further > 0 else "")


def _short(text: str) -> str:
    return repr(text if len(text) <= _MOST_CHARACTERS else text[: _MOST_CHARACTERS - 3] + "...")
