"""SQuAD's files: a JSON document of articles, their paragraphs, and questions about each paragraph.

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
from lmtransfer.tasks.file_formats.json_document import JsonNode, UniqueIds, load_json
from lmtransfer.tasks.places import HubSource, load_hub_table
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


#: Maximum length of a row; a longer first line is a document.
_LONGEST_ROW = 1 << 20
_COLUMNS: Final = ("id", "question", "context", "answers")


def read_span_rows(path: Path, *, bad_answers: BadAnswersPolicy) -> QuestionFile:
    """Read the questions of a file in order, skipping blank lines.

    Args:
        path: the file, plain or compressed, or a ``datasets.save_to_disk`` folder.
        bad_answers: what to do with answers that are not at their ``start``, or not in the context at all; see
            ``AnswerPlaces``. Skipped answers go last.
    """
    columns = [ColumnSpec((name,), "task.train", required=False) for name in _COLUMNS]
    layout = TableLayout("parquet" if format_by_name(path) == "parquet" else "jsonl")
    table = open_table(path, columns, layout=layout, bad_rows=BadRows("refuse", Notes(), "or remove it"))
    return _read((_row(record) for record in table.records), path, bad_answers)


def holds_rows(path: Path) -> bool:
    """Whether a JSON file holds rows of questions, on lines or in an array, but not a document in SQuAD's format."""
    line = next((line for _, line in read_lines(path) if line.strip()), "")
    try:
        first = json.loads(line) if len(line) < _LONGEST_ROW else {}
    except (ValueError, RecursionError):
        return line.lstrip().startswith("[")
    return isinstance(first, list) or "question" in first


def read_span_hub(source: HubSource, split: str, *, bad_answers: BadAnswersPolicy, places: str) -> QuestionFile:
    """Read a split of SQuAD, or of a set with the same columns, from the hub.

    Args:
        source: the data set on the hub, with the columns ``id``, ``question``, ``context`` and ``answers`` (lists
            ``text`` and ``answer_start``).
        split: our name of the split.
        bad_answers: see ``read_span_rows``.
        places: where a file has already been searched for, for the message.

    Raises:
        DataError: the split can neither be loaded nor found in the cache, a column is missing, or bad answers are
            rejected.
    """
    table, origin = load_hub_table(source, split, places=places), source.origin(split)
    missing = [column for column in _COLUMNS if column not in table.column_names]
    if missing:
        raise DataError(f"{origin}: no column {', '.join(missing)}; the columns are {', '.join(table.column_names)}")
    columns = zip(*(table[column] for column in _COLUMNS), strict=True)
    return _read((_hub_row(row, f"{origin}, row {n}") for n, row in enumerate(columns)), Path(origin), bad_answers)


def _hub_row(row: tuple[Any, ...], where: str) -> JsonNode:
    *texts, answers = row
    answer_list = None if answers is None else _list_answers(answers, where)
    return JsonNode(dict(zip(_COLUMNS, [*texts, answer_list], strict=True)), None, where)


def _read(rows: Iterable[JsonNode], origin: Path, bad_answers: BadAnswersPolicy) -> QuestionFile:
    ids, places = UniqueIds(), AnswerPlaces(origin, bad_answers)
    examples: list[QuestionExample] = []
    passages: dict[str, str] = {}  # one copy of each passage, shared by many questions
    for row in rows:
        question_id = row.field("id").name()
        row.question = question_id
        ids.add(question_id, row)
        question, passage = row.field("question").nonblank_text(), row.field("context").nonblank_text()
        passage = passages.setdefault(passage, passage)
        examples.append(
            QuestionExample(question_id, question, passage, _row_answers(row, passage, question_id, places))
        )
    return QuestionFile.of(examples, places)


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


def _row_answers(row: JsonNode, passage: str, question_id: str, places: AnswerPlaces) -> tuple[GoldSpan, ...] | None:
    """Return a question's gold answers; empty if the question is left out."""
    answers = row.get("answers")
    if answers is None or answers.value is None:
        return None
    return places.select(question_id, (_answer(node, passage, question_id, places) for node in answers.items()))


def _answer(node: JsonNode, passage: str, question_id: str, places: AnswerPlaces) -> GoldSpan | None:
    text, start = node.field("text").text(), node.get("start")
    if start is not None and start.value is not None:
        return places.gold(question_id, text, start.number(), passage)
    if text.strip() and text not in passage:
        places.num_answers += 1
        places.add_problem(question_id, f"the answer {text[:60]!r} does not occur in the context")
        return GoldSpan(text)
    return places.gold(question_id, text, passage.find(text), passage)
