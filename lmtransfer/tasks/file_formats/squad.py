"""Questions in SQuAD's format (a JSON document of articles, paragraphs and questions), in rows, and on the hub.

Sources: Rajpurkar et al., "SQuAD: 100,000+ Questions for Machine Comprehension of Text" (2016), version 1.1; Rajpurkar
et al., "Know What You Don't Know: Unanswerable Questions for SQuAD" (2018), version 2.0;
https://rajpurkar.github.io/SQuAD-explorer.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from lmtransfer.data.documents import Notes
from lmtransfer.data.files import read_lines
from lmtransfer.data.tables import BadRows, ColumnSpec, TableLayout, TableRecord, format_by_name, open_table
from lmtransfer.errors import DataError
from lmtransfer.tasks.file_formats.json_document import JsonNode, load_json
from lmtransfer.tasks.qa.example import GoldSpan, QuestionExample
from lmtransfer.tasks.settings import HubSource

BadAnswersPolicy = Literal["refuse", "skip"]

_MOST_PROBLEMS = 3
_MOST_CHARACTERS = 60


@dataclass(frozen=True, slots=True)
class QuestionFile:
    """The usable questions of a file, in order, and the question id of each bad answer."""

    examples: list[QuestionExample]
    bad_answers: tuple[str, ...] = ()
    skipped_questions: tuple[str, ...] = ()  # ids of the questions left out because they have no other answer


class Questions:
    """Collects the questions of a file, and checks their ids and the offsets of their answers.

    Args:
        path: the file, for messages.
        policy: with ``refuse``, bad answers are an error. With ``skip``, they are not used for training, but their
            texts remain references (no official metric uses offsets), and questions with only bad answers are left out.
    """

    def __init__(self, path: Path, policy: BadAnswersPolicy) -> None:
        self.examples: list[QuestionExample] = []
        self.skipped: list[str] = []
        self.num_answers = 0
        self._path, self._policy = path, policy
        self._bad_answers: list[str] = []
        self._problems: list[str] = []
        self._nodes: dict[str, JsonNode] = {}

    def begin(self, node: JsonNode, question: str | None = None) -> str:
        """Return the id of a question (by default the field ``id``), and add it to messages about the node."""
        question = node.field("id").name() if question is None else question
        node.question = question
        other = self._nodes.setdefault(question, node)
        if other is not node:
            raise DataError(
                f"{node.where}: {other.where} has the same id. Answers are matched to questions by id: give each "
                "question a unique id, or remove one of the two"
            )
        return question

    def gold(self, question: str, text: str, start: int, passage: str) -> GoldSpan | None:
        """Return an answer with its span, or without a span if the text is not at ``start``; None if it is empty."""
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
        """Return a question's nonempty answers, those without a span last; empty if the question is left out."""
        answers = list(gold_answers)
        spans = sorted((gold for gold in answers if gold is not None), key=lambda gold: gold.start is None)
        if answers and (not spans or spans[0].start is None):
            self.skipped.append(question)
            return ()
        return tuple(spans)

    def add_problem(self, question: str, problem: str) -> None:
        """Record a bad answer."""
        self._bad_answers.append(question)
        if len(self._problems) < _MOST_PROBLEMS:
            self._problems.append(f"  question {question}: {problem}")

    def as_file(self) -> QuestionFile:
        """Return the usable questions, and the ids of the bad answers' questions.

        Raises:
            DataError: there are bad answers and the policy is ``refuse``; the message names the first ones.
        """
        if self._bad_answers and self._policy == "refuse":
            further = len(self._bad_answers) - len(self._problems)
            raise DataError(
                f"{self._path}: {len(self._bad_answers):,} of {self.num_answers:,} gold answers are not at their "
                "offsets:\n"
                + "\n".join(self._problems)
                + (f"\n  and {further:,} more" if further else "")
                + "\nCorrect the offsets (they count characters from 0), or set task.bad_answers=skip: then these "
                "answers are not used for training, and questions without another answer are left out"
            )
        skipped = frozenset(self.skipped)
        remaining = [example for example in self.examples if example.id not in skipped]
        return QuestionFile(remaining, tuple(self._bad_answers), tuple(self.skipped))


def list_ids(ids: Iterable[str], *, most: int = 10) -> str:
    """List distinct ids for a message, naming only the first: ``a, b, c and 4 more``."""
    distinct = list(dict.fromkeys(ids))
    further = len(distinct) - most
    return ", ".join(distinct[:most]) + (f" and {further:,} more" if further > 0 else "")


def _short(text: str) -> str:
    return repr(text if len(text) <= _MOST_CHARACTERS else text[: _MOST_CHARACTERS - 3] + "...")


def read_squad(path: Path, *, bad_answers: BadAnswersPolicy = "refuse") -> QuestionFile:
    """Read a file of version 1.1 or 2.0, or of another set in this format.

    A question has no answer if ``is_impossible`` is true or, without that key, if ``answers`` is empty;
    ``plausible_answers`` are ignored. If ``answers`` is missing, the answers are hidden. Answers keep their order,
    except that skipped bad answers come last.
    """
    questions = Questions(path, bad_answers)
    for article in load_json(path).field("data").items():
        for paragraph in article.field("paragraphs").items():
            passage = paragraph.field("context").nonblank_text()
            for question_node in paragraph.field("qas").items():
                question_id = questions.begin(question_node)
                question = question_node.field("question").nonblank_text()
                answers = _answers(question_node, passage, question_id, questions)
                questions.examples.append(QuestionExample(question_id, question, passage, answers))
    return questions.as_file()


def _answers(
    question_node: JsonNode, passage: str, question_id: str, questions: Questions
) -> tuple[GoldSpan, ...] | None:
    """Return a question's gold answers; empty if the question is left out."""
    flag, answers = question_node.get("is_impossible"), question_node.get("answers")
    impossible = None if flag is None else flag.boolean()
    if answers is None:
        return () if impossible else None
    items = answers.items()
    if impossible is not None and impossible == bool(items):
        raise DataError(
            f"{question_node.where}: is_impossible is {str(impossible).lower()}, but the number of answers is "
            f"{len(items)}; correct this entry"
        )
    gold_answers = [
        questions.gold(question_id, answer.field("text").text(), answer.field("answer_start").number(), passage)
        for answer in items
    ]
    return questions.select(question_id, gold_answers)


#: Maximum length of a row in characters; a longer first line is a document.
_LONGEST_ROW = 1 << 20
_COLUMNS: Final = ("id", "question", "context", "answers")


def read_span_rows(path: Path, *, bad_answers: BadAnswersPolicy) -> QuestionFile:
    """Read the questions of a file in order, skipping blank lines.

    Args:
        bad_answers: what to do with answers that are not at their ``start``, or not in the context at all; see
            ``Questions``. Skipped answers come last.
    """
    columns = [ColumnSpec((name,), "task.train", required=False) for name in _COLUMNS]
    layout = TableLayout("parquet" if format_by_name(path) == "parquet" else "jsonl")
    table = open_table(path, columns, layout=layout, bad_rows=BadRows("refuse", Notes(), "or remove it"))
    return _read((_row(record) for record in table.records), path, bad_answers)


def holds_rows(path: Path) -> bool:
    """Whether a JSON file contains rows of questions, on lines or in an array, not a document in SQuAD's format."""
    line = next((line for _, line in read_lines(path) if line.strip()), "")
    try:
        first = json.loads(line) if len(line) < _LONGEST_ROW else {}
    except (ValueError, RecursionError):
        return line.lstrip().startswith("[")
    return isinstance(first, list) or "question" in first


def read_span_hub(source: HubSource, split: str, *, bad_answers: BadAnswersPolicy, places: str) -> QuestionFile:
    """Read a split of SQuAD, or of a data set with the same columns, from the hub.

    The columns are ``id``, ``question``, ``context`` and ``answers`` (lists ``text`` and ``answer_start``).
    """
    table, origin = source.load(split, places=places, columns=_COLUMNS), source.origin(split)
    columns = zip(*(table[column] for column in _COLUMNS), strict=True)
    return _read((_hub_row(row, f"{origin}, row {n}") for n, row in enumerate(columns)), Path(origin), bad_answers)


def _hub_row(row: tuple[Any, ...], where: str) -> JsonNode:
    *texts, answers = row
    answer_list = None if answers is None else _list_answers(answers, where)
    return JsonNode(dict(zip(_COLUMNS, [*texts, answer_list], strict=True)), None, where)


def _read(rows: Iterable[JsonNode], origin: Path, bad_answers: BadAnswersPolicy) -> QuestionFile:
    questions = Questions(origin, bad_answers)
    passages: dict[str, str] = {}  # one copy of each passage, shared by many questions
    for row in rows:
        question_id = questions.begin(row)
        question, passage = row.field("question").nonblank_text(), row.field("context").nonblank_text()
        passage = passages.setdefault(passage, passage)
        answers = _row_answers(row, passage, question_id, questions)
        questions.examples.append(QuestionExample(question_id, question, passage, answers))
    return questions.as_file()


def _row(record: TableRecord) -> JsonNode:
    values = dict(record.values)
    if isinstance(answers := values.get("answers"), dict):
        values["answers"] = _list_answers(answers, record.where)
    return JsonNode(values, None, record.where)


def _list_answers(answers: dict[str, Any], where: str) -> list[dict[str, Any]]:
    """Convert the two lists in which ``datasets`` stores a question's answers into one object per answer."""
    texts, starts = answers.get("text"), answers.get("answer_start")
    if not isinstance(texts, list) or not isinstance(starts, list) or len(texts) != len(starts):
        raise DataError(f"{where}: answers must have two lists of the same length, 'text' and 'answer_start'")
    return [{"text": text, "start": start} for text, start in zip(texts, starts, strict=True)]


def _row_answers(row: JsonNode, passage: str, question_id: str, questions: Questions) -> tuple[GoldSpan, ...] | None:
    """Return a question's gold answers; empty if the question is left out."""
    answers = row.get("answers")
    if answers is None or answers.value is None:
        return None
    return questions.select(question_id, (_answer(node, passage, question_id, questions) for node in answers.items()))


def _answer(node: JsonNode, passage: str, question_id: str, questions: Questions) -> GoldSpan | None:
    text, start = node.field("text").text(), node.get("start")
    if start is not None and start.value is not None:
        return questions.gold(question_id, text, start.number(), passage)
    if text.strip() and text not in passage:
        questions.num_answers += 1
        questions.add_problem(question_id, f"the answer {text[:60]!r} does not occur in the context")
        return GoldSpan(text)
    return questions.gold(question_id, text, passage.find(text), passage)
