"""SQuAD's files: one JSON document of articles, their paragraphs, and questions about each.

Sources: Rajpurkar et al., "SQuAD: 100,000+ Questions for Machine Comprehension of Text" (2016), version 1.1; Rajpurkar
et al., "Know What You Don't Know: Unanswerable Questions for SQuAD" (2018), version 2.0;
https://rajpurkar.github.io/SQuAD-explorer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lmtransfer.errors import DataError
from lmtransfer.tasks.formats.answer_places import AnswerPlaces, BadAnswersPolicy, bad_answer_lines
from lmtransfer.tasks.formats.json_document import JsonNode, UniqueIds, load_json
from lmtransfer.tasks.qa.example import GoldSpan, QuestionExample


@dataclass(frozen=True, slots=True, kw_only=True)
class SquadCounts:
    """What was met in a file.

    Attributes:
        num_passages: paragraphs.
        num_questions: all of them, also those left out.
        num_unanswerable: questions that have no answer.
        num_hidden: questions without ``answers``.
        num_answers: gold answers of all questions, bad ones included.
        bad_answers: id of the question of each answer that is not where the file says.
        left_out: ids of the questions that are left out, having no other answer.
    """

    num_passages: int
    num_questions: int
    num_unanswerable: int
    num_hidden: int
    num_answers: int
    bad_answers: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """The counts in words."""
        lines = [
            f"{self.num_questions:,} questions about {self.num_passages:,} passages, {self.num_answers:,} gold answers"
        ]
        if self.num_unanswerable:
            lines.append(f"{self.num_unanswerable:,} questions have no answer")
        if self.num_hidden:
            lines.append(f"the answers of {self.num_hidden:,} questions are hidden")
        return lines + bad_answer_lines(self.bad_answers, self.left_out)


@dataclass(frozen=True, slots=True)
class SquadFile:
    """The questions of a file, in its order, and what was met there."""

    examples: list[QuestionExample]
    counts: SquadCounts

    @classmethod
    def of(cls, examples: Sequence[QuestionExample], places: AnswerPlaces, *, num_passages: int) -> SquadFile:
        """What is left of all the questions that were read.

        Raises:
            DataError: answers are bad and refused.
        """
        places.settle()
        left_out = frozenset(places.left_out)
        kept = [example for example in examples if example.id not in left_out]
        return cls(
            kept,
            SquadCounts(
                num_passages=num_passages,
                num_questions=len(examples),
                num_unanswerable=sum(example.answers == () for example in kept),
                num_hidden=sum(example.answers is None for example in kept),
                num_answers=places.num_answers,
                bad_answers=tuple(places.bad),
                left_out=tuple(places.left_out),
            ),
        )


def read_squad(path: Path, *, bad_answers: BadAnswersPolicy = "refuse") -> SquadFile:
    """Read a file of version 1.1 or 2.0, or of another set in this format.

    A question with ``is_impossible``, or with an empty list of answers where the file has no such key, has no answer;
    its ``plausible_answers`` are not read. A question without ``answers`` is a hidden one. Answers stay in their order,
    except that bad ones which are skipped go last.

    Args:
        path: the file, plain or compressed.
        bad_answers: what becomes of answers that are not at their ``answer_start``; see ``AnswerPlaces``.

    Raises:
        DataError: not JSON, a key that is missing or of the wrong kind, an empty question or passage, an id that is
            given twice, ``is_impossible`` that contradicts the answers, or bad answers that are refused.
    """
    ids, places = UniqueIds(), AnswerPlaces(path, bad_answers)
    examples: list[QuestionExample] = []
    num_passages = 0
    for article in load_json(path).field("data").items():
        for paragraph in article.field("paragraphs").items():
            num_passages += 1
            passage = paragraph.field("context").filled_text()
            for asked in paragraph.field("qas").items():
                question_id = asked.field("id").name()
                asked.question = question_id
                ids.add(question_id, asked)
                question = asked.field("question").filled_text()
                answers = _answers(asked, passage, question_id, places)
                examples.append(QuestionExample(question_id, question, passage, answers))
    return SquadFile.of(examples, places, num_passages=num_passages)


def _answers(asked: JsonNode, passage: str, question_id: str, places: AnswerPlaces) -> tuple[GoldSpan, ...] | None:
    """Gold answers of a question; of one that is left out there are none."""
    flag, given = asked.maybe("is_impossible"), asked.maybe("answers")
    impossible = None if flag is None else flag.truth()
    if given is None:
        return () if impossible else None
    items = given.items()
    if impossible is not None and impossible == bool(items):
        raise DataError(
            f"{asked.where}: is_impossible is {str(impossible).lower()} and there are {len(items)} answers; correct "
            "one of them"
        )
    golds = [
        places.gold(question_id, answer.field("text").text(), answer.field("answer_start").number(), passage)
        for answer in items
    ]
    return places.kept(question_id, golds)
