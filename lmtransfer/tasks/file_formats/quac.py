"""QuAC's files: dialogues about a section of an encyclopedia, in a JSON document like SQuAD's.

Source: Choi et al., "QuAC: Question Answering in Context" (2018), https://quac.ai.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from lmtransfer.errors import DataError
from lmtransfer.tasks.file_formats.json_document import JsonNode, load_json
from lmtransfer.tasks.file_formats.squad import BadAnswersPolicy, QuestionFile, Questions
from lmtransfer.tasks.metrics.question_answering import NO_ANSWER
from lmtransfer.tasks.qa.example import GoldSpan, QuestionExample, Turn

MARKS: Final = ("yesno", "followup")
"""Other labels of a question: affirmation (y, n, or x for neither), and whether to follow up (y, m for maybe, n)."""

_TURN_MARK = "_q#"


def read_quac(path: Path, *, bad_answers: BadAnswersPolicy = "refuse") -> QuestionFile:
    """Read a file of dialogues.

    - The word ``CANNOTANSWER`` that ends each context is not part of the passage; this does not change offsets.
    - The first answer is ``orig_answer``, with which the dialogue continues; the other ``answers`` follow in order.
      (The file repeats ``orig_answer`` in ``answers``; here it occurs once.)
    - If nobody has an answer, ``answers`` is empty (``()``). If people disagree, each person without an answer adds
      ``GoldSpan("CANNOTANSWER")`` without a span, because the official scorer counts them.
    - The history is all earlier turns with the text of their ``orig_answer``, which is empty if hidden.
    - Identical dialogues are read once.
    - ``yesno`` and ``followup`` are in the metadata. Titles and background are not read.
    - Skipped answers, which are not at their ``answer_start``, come last; see ``Questions``.
    """
    questions = Questions(path, bad_answers)
    dialogues: set[str] = set()
    for article in load_json(path).field("data").items():
        for dialogue in article.field("paragraphs").items():
            content = json.dumps(dialogue.value, sort_keys=True)
            if content in dialogues:
                continue
            dialogues.add(content)
            passage = _passage(dialogue.field("context"))
            history: tuple[Turn, ...] = ()
            for question_node in dialogue.field("qas").items():
                question_id = questions.begin(question_node)
                if _TURN_MARK not in question_id:
                    raise DataError(
                        f"{question_node.where}: the id must be <dialogue>{_TURN_MARK}<turn>, because HEQ-D is "
                        "computed over dialogues"
                    )
                question = question_node.field("question").nonblank_text()
                texts = _texts(question_node)
                questions.examples.append(
                    QuestionExample(
                        question_id,
                        question,
                        passage,
                        None if texts is None else _answers(texts, passage, question_id, questions),
                        history,
                        metadata=tuple(
                            (mark, node.text()) for mark in MARKS if (node := question_node.get(mark)) is not None
                        ),
                    )
                )
                history = (*history, Turn(question, texts[0][0] if texts else ""))
    return questions.as_file()


def _passage(context: JsonNode) -> str:
    passage = context.nonblank_text().rstrip().removesuffix(NO_ANSWER).rstrip()
    if not passage:
        raise DataError(f"{context.where}: the context contains only {NO_ANSWER}; add the text, or remove the dialogue")
    return passage


def _texts(question_node: JsonNode) -> list[tuple[str, int]] | None:
    """Return the text and first character of each answer, ``orig_answer`` first; None if answers are hidden."""
    first, others = question_node.get("orig_answer"), question_node.get("answers")
    if first is None and others is None:
        return None
    original = _answer(question_node.field("orig_answer"))
    texts = [_answer(answer) for answer in question_node.field("answers").items()]
    if original in texts:
        texts.remove(original)
    return [original, *texts]


def _answer(node: JsonNode) -> tuple[str, int]:
    return node.field("text").text(), node.field("answer_start").number()


def _answers(
    texts: Iterable[tuple[str, int]], passage: str, question_id: str, questions: Questions
) -> tuple[GoldSpan, ...]:
    """Return a question's gold answers; empty if the question is left out."""
    gold_answers: list[GoldSpan] = []
    bad: list[GoldSpan] = []
    for text, start in texts:
        if text == NO_ANSWER:
            questions.num_answers += 1
            gold_answers.append(GoldSpan(NO_ANSWER))
            continue
        gold = questions.gold(question_id, text, start, passage)
        if gold is not None:
            (bad if gold.start is None else gold_answers).append(gold)
    if not gold_answers:
        questions.skipped.append(question_id)
        return ()
    spans = (*gold_answers, *bad)
    return () if all(gold.text == NO_ANSWER for gold in spans) else spans
