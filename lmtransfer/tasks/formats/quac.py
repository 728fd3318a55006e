"""QuAC's files: dialogues about a section of an encyclopedia, in a JSON document like SQuAD's.

Source: Choi et al., "QuAC: Question Answering in Context" (2018), https://quac.ai.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lmtransfer.errors import DataError
from lmtransfer.metrics.quac import NO_ANSWER
from lmtransfer.tasks.formats.answer_places import AnswerPlaces, BadAnswersPolicy, bad_answer_lines, listed
from lmtransfer.tasks.formats.json_document import JsonNode, UniqueIds, load_json
from lmtransfer.tasks.qa.example import GoldSpan, QuestionExample, Turn

MARKS: Final = ("yesno", "followup")
"""Further labels of a question: whether it affirms (y, n, x: neither), and whether to ask on (y, m: maybe, n)."""

_TURN_MARK = "_q#"


@dataclass(frozen=True, slots=True, kw_only=True)
class QuacCounts:
    """What was met in a file.

    Attributes:
        num_dialogues: dialogues.
        num_repeated: dialogues beyond these that are others word for word, ids and all, and so not read again.
        num_questions: all of them, also those left out.
        num_unanswerable: questions whose first answer is that there is none.
        num_disputed: those of them to which somebody else gives an answer.
        num_hidden: questions without answers.
        num_answers: answers of all questions, bad ones and those that there is none included.
        marks: how often each mark has each value, as ``("yesno", "y", 12)``.
        added: ids of the questions whose ``orig_answer`` is none of their ``answers``, and so one more reference.
        bad_answers: id of the question of each answer that is not where the file says.
        left_out: ids of the questions that are left out, having no other answer.
    """

    num_dialogues: int
    num_questions: int
    num_unanswerable: int
    num_disputed: int
    num_hidden: int
    num_answers: int
    num_repeated: int = 0
    marks: tuple[tuple[str, str, int], ...] = ()
    added: tuple[str, ...] = ()
    bad_answers: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """The counts in words."""
        lines = [
            f"{self.num_questions:,} questions in {self.num_dialogues:,} dialogues, {self.num_answers:,} gold answers"
        ]
        if self.num_repeated:
            lines.append(f"{self.num_repeated:,} dialogues that are there again, word for word, are left out")
        if self.num_unanswerable:
            lines.append(
                f"{self.num_unanswerable:,} questions have no answer ({NO_ANSWER}); to {self.num_disputed:,} of them "
                "somebody else gives one"
            )
        if self.num_hidden:
            lines.append(f"the answers of {self.num_hidden:,} questions are hidden")
        for mark in MARKS:
            values = [f"{value} {count:,}" for name, value, count in self.marks if name == mark]
            if values:
                lines.append(f"{mark}: {', '.join(values)}")
        if self.added:
            lines.append(
                f"{len(self.added):,} questions have an orig_answer that is none of their answers; it counts as one "
                f"more reference: {listed(self.added)}"
            )
        return lines + bad_answer_lines(self.bad_answers, self.left_out)


@dataclass(frozen=True, slots=True)
class QuacFile:
    """The questions of a file, in its order, and what was met there."""

    examples: list[QuestionExample]
    counts: QuacCounts


def read_quac(path: Path, *, bad_answers: BadAnswersPolicy = "refuse") -> QuacFile:
    """Read a file of dialogues.

    - The word ``CANNOTANSWER`` that ends each context is no part of the passage; offsets are not touched by that.
    - The first answer is ``orig_answer``, the one that the dialogue went on from; the other ``answers`` follow in their
      order. (As references they are a set: the file lists ``orig_answer`` among them, and it is here once as well.)
    - Where nobody has an answer there is none (``()``). Where people disagree, those who have none stand among the
      others as ``GoldSpan("CANNOTANSWER")`` without a span, since the official scorer counts them.
    - The history is all earlier turns, each with the text of its ``orig_answer``; empty where that is hidden.
    - A dialogue that is there twice, word for word, is read once.
    - ``yesno`` and ``followup`` are ``marks``. Titles and background are not read.

    Args:
        path: the file, plain or compressed.
        bad_answers: what becomes of answers that are not at their ``answer_start``; see ``AnswerPlaces``. Skipped ones
            go last.

    Raises:
        DataError: not JSON, a key that is missing or of the wrong kind, an empty question or passage, an id that is
            given twice or does not name dialogue and turn (``<dialogue>_q#<turn>``), or bad answers that are refused.
    """
    ids, places = UniqueIds(), AnswerPlaces(path, bad_answers)
    examples: list[QuestionExample] = []
    added: list[str] = []
    dialogues: set[str] = set()
    num_repeated = 0
    for article in load_json(path).field("data").items():
        for dialogue in article.field("paragraphs").items():
            content = json.dumps(dialogue.value, sort_keys=True)
            if content in dialogues:
                num_repeated += 1
                continue
            dialogues.add(content)
            passage = _passage(dialogue.field("context"))
            history: tuple[Turn, ...] = ()
            for asked in dialogue.field("qas").items():
                question_id = asked.field("id").name()
                asked.question = question_id
                ids.add(question_id, asked)
                if _TURN_MARK not in question_id:
                    raise DataError(f"{asked.where}: the id must be <dialogue>{_TURN_MARK}<turn>: HEQ-D is by dialogue")
                question = asked.field("question").filled_text()
                texts = _texts(asked, question_id, added)
                examples.append(
                    QuestionExample(
                        question_id,
                        question,
                        passage,
                        None if texts is None else _answers(texts, passage, question_id, places),
                        history,
                        marks=tuple((mark, node.text()) for mark in MARKS if (node := asked.maybe(mark)) is not None),
                    )
                )
                history = (*history, Turn(question, texts[0][0] if texts else ""))
    places.settle()
    left_out = frozenset(places.left_out)
    kept = [example for example in examples if example.id not in left_out]
    disputed = [example for example in kept if example.answers and example.answers[0].text == NO_ANSWER]
    return QuacFile(
        kept,
        QuacCounts(
            num_dialogues=len(dialogues),
            num_repeated=num_repeated,
            num_questions=len(examples),
            num_unanswerable=len(disputed) + sum(example.answers == () for example in kept),
            num_disputed=len(disputed),
            num_hidden=sum(example.answers is None for example in examples),
            num_answers=places.num_answers,
            marks=_mark_counts(examples),
            added=tuple(added),
            bad_answers=tuple(places.bad),
            left_out=tuple(places.left_out),
        ),
    )


def _passage(context: JsonNode) -> str:
    passage = context.filled_text().rstrip().removesuffix(NO_ANSWER).rstrip()
    if not passage:
        raise DataError(f"{context.where}: holds nothing but {NO_ANSWER}; give it a text, or remove the dialogue")
    return passage


def _texts(asked: JsonNode, question_id: str, added: list[str]) -> list[tuple[str, int]] | None:
    """Text and first character of each answer, ``orig_answer`` first; None where they are hidden."""
    first, others = asked.maybe("orig_answer"), asked.maybe("answers")
    if first is None and others is None:
        return None
    original = _answer(asked.field("orig_answer"))
    texts = [_answer(answer) for answer in asked.field("answers").items()]
    if original in texts:
        texts.remove(original)
    else:
        added.append(question_id)
    return [original, *texts]


def _answer(node: JsonNode) -> tuple[str, int]:
    return node.field("text").text(), node.field("answer_start").number()


def _answers(
    texts: Iterable[tuple[str, int]], passage: str, question_id: str, places: AnswerPlaces
) -> tuple[GoldSpan, ...]:
    """Gold answers of a question; of one that is left out there are none."""
    golds: list[GoldSpan] = []
    bad: list[GoldSpan] = []
    for text, start in texts:
        if text == NO_ANSWER:
            places.num_answers += 1
            golds.append(GoldSpan(NO_ANSWER))
            continue
        gold = places.gold(question_id, text, start, passage)
        if gold is not None:
            (bad if gold.start is None else golds).append(gold)
    if not golds:
        places.left_out.append(question_id)
        return ()
    kept = (*golds, *bad)
    return () if all(gold.text == NO_ANSWER for gold in kept) else kept


def _mark_counts(examples: Iterable[QuestionExample]) -> tuple[tuple[str, str, int], ...]:
    counts = Counter(mark for example in examples for mark in example.marks)
    return tuple((name, value, count) for (name, value), count in sorted(counts.items()))
