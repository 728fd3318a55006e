"""The user's own questions, from JSON (one object per line, or an array of objects) or parquet.

An object is ``{"id": "q1", "question": "Who?", "context": "Ann ran.", "answers": [...]}``. Each answer is ``{"text":
"Ann", "start": 0}``; without ``start``, it is the first occurrence of the text in the context. An empty list marks a
question without an answer; if ``answers`` is missing, they are hidden. The format in which ``datasets`` stores SQuAD is
also supported, from the hub and from files.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from lmtransfer.data.documents import Notes
from lmtransfer.data.tables import BadRows, ColumnSpec, TableLayout, TableRecord, format_by_name, open_table
from lmtransfer.data.text_lines import read_lines
from lmtransfer.errors import DataError
from lmtransfer.tasks.file_formats.answer_places import AnswerPlaces, BadAnswersPolicy, QuestionFile
from lmtransfer.tasks.file_formats.json_document import JsonNode, UniqueIds
from lmtransfer.tasks.places import HubSource, load_hub_table
from lmtransfer.tasks.qa.example import GoldSpan, QuestionExample

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
        examples.append(QuestionExample(question_id, question, passage, _answers(row, passage, question_id, places)))
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


def _answers(row: JsonNode, passage: str, question_id: str, places: AnswerPlaces) -> tuple[GoldSpan, ...] | None:
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
