"""SQuAD's files: a JSON document of articles, their paragraphs, and questions about each paragraph.

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

    A question has no answer if ``is_impossible`` is true, or if its list of answers is empty and the file lacks that
    key; ``plausible_answers`` are ignored. If ``answers`` is missing, the answers are hidden. Answers keep their order,
    except that skipped bad answers go last.

    Args:
        path: the file, plain or compressed.
        bad_answers: what to do with answers that are not at their ``answer_start``; see ``AnswerPlaces``.
    """
    ids, places = UniqueIds(), AnswerPlaces(path, bad_answers)
    examples: list[QuestionExample] = []
    for article in load_json(path).field("data").items():
        for paragraph in article.field("paragraphs").items():
            passage = paragraph.field("context").nonblank_text()
            for question_node in paragraph.field("qas").items():
                question_id = question_node.field("id").name()
                question_node.question = question_id
                ids.add(question_id, question_node)
                question = question_node.field("question").nonblank_text()
                answers = _answers(question_node, passage, question_id, places)
                examples.append(QuestionExample(question_id, question, passage, answers))
    return QuestionFile.of(examples, places)


def _answers(
    question_node: JsonNode, passage: str, question_id: str, places: AnswerPlaces
) -> tuple[GoldSpan, ...] | None:
    """Return a question's gold answers; empty if the question is left out."""
    flag, answers = question_node.get("is_impossible"), question_node.get("answers")
    impossible = None if flag is None else flag.boolean()
    if answers is None:
        return () if impossible else None
    items = answers.items()
    if impossible is not None and impossible == bool(items):
        raise DataError(
            f"{question_node.where}: is_impossible is {str(impossible).lower()}, but there are {len(items)} answers; "
            "correct the question"
        )
    gold_answers = [
        places.gold(question_id, answer.field("text").text(), answer.field("answer_start").number(), passage)
        for answer in items
    ]
    return places.select(question_id, gold_answers)
