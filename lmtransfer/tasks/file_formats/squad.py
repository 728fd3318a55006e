"""SQuAD's files: one JSON document of articles, their paragraphs, and questions about each.

Sources: Rajpurkar et al., "SQuAD: 100,000+ Questions for Machine Comprehension of Text" (2016), version 1.1; Rajpurkar
et al., "Know What You Don't Know: Unanswerable Questions for SQuAD" (2018), version 2.0;
https://rajpurkar.github.io/SQuAD-explorer.
"""

from __future__ import annotations

from pathlib import Path

from lmtransfer.errors import DataError
from lmtransfer.tasks.file_formats.answer_places import AnswerPlaces, BadAnswersPolicy, QuestionFile
from lmtransfer.tasks.file_formats.json_document import JsonNode, UniqueIds, load_json
from lmtransfer.tasks.qa.example import GoldSpan, QuestionExample


def read_squad(path: Path, *, bad_answers: BadAnswersPolicy = "refuse") -> QuestionFile:
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
    for article in load_json(path).field("data").items():
        for paragraph in article.field("paragraphs").items():
            passage = paragraph.field("context").filled_text()
            for asked in paragraph.field("qas").items():
                question_id = asked.field("id").name()
                asked.question = question_id
                ids.add(question_id, asked)
                question = asked.field("question").filled_text()
                answers = _answers(asked, passage, question_id, places)
                examples.append(QuestionExample(question_id, question, passage, answers))
    return QuestionFile.of(examples, places)


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
