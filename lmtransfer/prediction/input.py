"""What a user wants answered, as examples of the run's task: one line, a table's row, a JSON object or a file.

One function a kind of head (for texts: ``_prediction_texts``); each takes lines lazily, and hands what is no example to
``refuse``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

from lmtransfer.data.documents import Notes, clean
from lmtransfer.errors import ConfigError, DataError
from lmtransfer.prediction.lines import InputLines
from lmtransfer.prediction.reading import Reading, each_line
from lmtransfer.prediction.stream import Given
from lmtransfer.prediction.texts import text_of_line, texts_of_table, two_texts
from lmtransfer.tasks.base import Example, Task
from lmtransfer.tasks.formats.answer_places import BadAnswersPolicy
from lmtransfer.tasks.formats.conll import read_conll
from lmtransfer.tasks.formats.conllu import read_conllu
from lmtransfer.tasks.formats.coqa import read_coqa
from lmtransfer.tasks.formats.json_document import JsonNode
from lmtransfer.tasks.formats.quac import read_quac
from lmtransfer.tasks.formats.squad import read_squad
from lmtransfer.tasks.qa.example import QuestionExample
from lmtransfer.tasks.qa.task import SpanQa
from lmtransfer.tasks.tagging.tagged_example import TaggedExample
from lmtransfer.tasks.tagging.task import Tagging


def read_examples(lines: InputLines, reading: Reading) -> Iterator[Given]:
    """The examples of an input, each as soon as it is read.

    Raises:
        DataError: what is no example, where errors stop; a table without the columns.
        ConfigError: columns are named that there cannot be.
    """
    if reading.columns and (reading.kind in ("tagging", "span") or reading.file_format == "lines"):
        raise ConfigError(f"{next(iter(reading.columns))}: there are no columns in format={reading.file_format}")
    if reading.file_format == "lines":
        return each_line(lines, reading, lambda line, where, name: _of_line(line, where, name, reading))
    if reading.kind == "tagging":
        return _tagged(lines, reading)
    if reading.kind == "span":
        return _questions(lines, reading)
    return texts_of_table(lines, reading)


def one_example(text: str, task: Task | None) -> Example:
    """The example of ``text=``.

    Raises:
        ConfigError: it is no text, or no two texts where the task reads two.
    """
    notes = Notes()
    ignored = Reading(task, "lines", {}, "stop", lambda problem: None, notes)
    try:
        return _of_line(text, "text", "text", ignored)
    except ValueError as problem:
        raise ConfigError(f"text={text[:60]}: {problem}") from None


def _of_line(line: str, where: str, name: str, reading: Reading) -> Example:
    """The example of one line.

    Raises:
        ValueError: it is none.
    """
    if not line.strip():
        raise ValueError("the line is empty")
    task = reading.task
    if isinstance(task, SpanQa):
        question, passage = two_texts(line, "a question and a passage")
        return QuestionExample(name, question, passage)
    text = clean(line, where, reading.notes)
    if isinstance(task, Tagging):
        return TaggedExample(name, tuple(text.split()))
    return text_of_line(text, name, task)


def _tagged(lines: InputLines, reading: Reading) -> Iterator[Given]:
    """Sentences: JSON lines with ``words``, or files with a word a line."""
    task, path = reading.task, lines.path
    assert isinstance(task, Tagging)
    same = task.file_format == reading.file_format
    if reading.file_format == "jsonl":
        field = str(task.word_column) if same else "words"
        yield from each_line(
            lines, reading, lambda line, where, name: _words(line, where, name, field), pass_blank=True
        )
        return
    assert path is not None
    if reading.file_format == "conllu":
        sentences = read_conllu(path, tag_column="upos", with_gold=False, notes=reading.notes)
    else:
        word, tag = (int(task.word_column), int(task.tag_column)) if same else (1, 2)
        sentences = read_conll(path, word_column=word, tag_column=tag, with_gold=False, notes=reading.notes)
    for number, sentence in enumerate(sentences):
        yield sentence.where(), TaggedExample(sentence.name or str(number), sentence.words)


def _words(line: str, where: str, name: str, field: str) -> TaggedExample:
    row = _object(line, where)
    words = tuple(word.filled_text() for word in row.field(field).items())
    if not words:
        raise DataError(f"{where}: {field!r} holds no words")
    return TaggedExample(_name(row, name), words)


def _questions(lines: InputLines, reading: Reading) -> Iterator[Given]:
    """Questions: JSON lines with ``question`` and ``context``, or files in a published format; answers are not used."""
    if reading.file_format == "jsonl":
        yield from each_line(lines, reading, _question, pass_blank=True)
        return
    assert lines.path is not None
    policy: BadAnswersPolicy = "refuse" if reading.on_error == "stop" else "skip"
    if reading.file_format == "quac":
        read = read_quac(lines.path, bad_answers=policy)
        examples, left_out = read.examples, read.counts.left_out
    elif reading.file_format == "coqa":
        kinds = () if reading.task is None else reading.task.labels
        of_coqa = read_coqa(lines.path, bad_answers=policy, kinds=kinds)
        examples, left_out = of_coqa.examples, of_coqa.counts.left_out
    else:
        of_squad = read_squad(lines.path, bad_answers=policy)
        examples, left_out = of_squad.examples, of_squad.counts.left_out
    for example in examples:
        yield f"{lines.name} (question {example.id})", replace(example, answers=None, kind=None)
    for question in left_out:
        reading.refuse(f"{lines.name} (question {question}): its gold answer is not where the file says")


def _question(line: str, where: str, name: str) -> QuestionExample:
    row = _object(line, where)
    question, passage = row.field("question").filled_text(), row.field("context").filled_text()
    return QuestionExample(_name(row, name), question, passage)


def _object(line: str, where: str) -> JsonNode:
    try:
        return JsonNode(json.loads(line), None, where)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: not a JSON object ({error})") from None


def _name(row: JsonNode, otherwise: str) -> str:
    given = row.maybe("id")
    return otherwise if given is None else given.name()
