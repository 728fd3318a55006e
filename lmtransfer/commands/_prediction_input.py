"""What a user wants answered, as examples of the run's task: one line, a table's row, a JSON object or a file.

One function a kind of head; each takes lines lazily, and hands what is no example to ``refuse``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from lmtransfer.commands._prediction_lines import InputLines, InputSource
from lmtransfer.commands._prediction_stream import Given, OnError
from lmtransfer.data.documents import Notes, clean
from lmtransfer.data.files import plain_name
from lmtransfer.errors import ConfigError, DataError
from lmtransfer.scoring.mask_text import MASK
from lmtransfer.tasks.base import Example, HeadKind, Task
from lmtransfer.tasks.classification import TextClassification
from lmtransfer.tasks.formats.answer_places import BadAnswersPolicy
from lmtransfer.tasks.formats.conll import read_conll
from lmtransfer.tasks.formats.conllu import read_conllu
from lmtransfer.tasks.formats.coqa import read_coqa
from lmtransfer.tasks.formats.json_document import JsonNode
from lmtransfer.tasks.formats.quac import read_quac
from lmtransfer.tasks.formats.squad import read_squad
from lmtransfer.tasks.question_answering import SpanQa
from lmtransfer.tasks.question_example import QuestionExample
from lmtransfer.tasks.regression import TextRegression
from lmtransfer.tasks.tables import BadRows, Column, TableFormat, TableLayout, rows_of_lines
from lmtransfer.tasks.tagged_example import TaggedExample
from lmtransfer.tasks.tagging import Tagging
from lmtransfer.tasks.text_example import TextExample
from lmtransfer.tasks.text_files import TextColumns

InputFormat = Literal["lines", "tsv", "quoted_tsv", "csv", "jsonl", "conll", "conllu", "squad", "quac", "coqa"]
#: What answers: a head, or the head of a pretrained run that predicts hidden tokens.
Kind = HeadKind | Literal["fill_mask"]

SEPARATOR = "[SEP]"
_TEXT_FORMATS: tuple[InputFormat, ...] = ("lines", "tsv", "quoted_tsv", "csv", "jsonl")
FORMATS: dict[Kind, tuple[InputFormat, ...]] = {
    "classification": _TEXT_FORMATS,
    "regression": _TEXT_FORMATS,
    "fill_mask": _TEXT_FORMATS,
    "tagging": ("lines", "jsonl", "conll", "conllu"),
    "span": ("lines", "jsonl", "squad", "quac", "coqa"),
}
_OF_SUFFIX: dict[str, InputFormat] = {
    ".txt": "lines",
    ".tsv": "tsv",
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".conll": "conll",
    ".conllu": "conllu",
    ".json": "squad",
}
_FILE_ONLY = ("conll", "conllu", "squad", "quac", "coqa")


@dataclass(frozen=True, slots=True)
class Reading:
    """How input is read.

    Attributes:
        task: the run's task; None for fill-mask.
        file_format: how it is written.
        columns: names given by the user: ``text_column``, ``text_pair_column``, ``id_column``.
        on_error: what becomes of what is no example.
        refuse: takes it, said in one message with ``file:line``.
        notes: where odd things are counted.
    """

    task: Task | None
    file_format: InputFormat
    columns: dict[str, str]
    on_error: OnError
    refuse: Callable[[str], None]
    notes: Notes

    @property
    def kind(self) -> Kind:
        """What answers."""
        return "fill_mask" if self.task is None else self.task.head.kind


def input_format(given: str | None, source: InputSource, task: Task | None) -> InputFormat:
    """The format of the input.

    Args:
        given: what the user says; None: by the file's name.
        source: the file; what arrives as it is read has lines unless the user says more.
        task: the run's task; None for fill-mask.

    Raises:
        ConfigError: it cannot be told, or the task reads no such files.
    """
    kind: Kind = "fill_mask" if task is None else task.head.kind
    known = FORMATS[kind]
    if given is not None:
        found = next((name for name in known if name == given), None)
        why = f"format={given}"
    elif source.arrives or source.path is None:
        return "lines"
    else:
        suffix = Path(plain_name(source.path)).suffix.lower()
        found, why = _OF_SUFFIX.get(suffix), f"input={source.name}: its name does not say how it is written"
        if suffix == ".json" and isinstance(task, SpanQa) and task.file_format != "jsonl":
            found = task.file_format
    if found is None or found not in known:
        raise ConfigError(f"{why}: {kind} reads {', '.join(known)}; set format= to one of these")
    if source.arrives and found in _FILE_ONLY:
        raise ConfigError(f"format={found}: is read from a file; what arrives through a pipe may be lines, or jsonl")
    return found


def read_examples(lines: InputLines, reading: Reading) -> Iterator[Given]:
    """The examples of an input, each as soon as it is read.

    Raises:
        DataError: what is no example, where errors stop; a table without the columns.
    """
    if reading.columns and (reading.kind in ("tagging", "span") or reading.file_format == "lines"):
        raise ConfigError(f"{next(iter(reading.columns))}: there are no columns in format={reading.file_format}")
    if reading.file_format == "lines":
        return _each_line(lines, reading, lambda line, where, name: _of_line(line, where, name, reading))
    if reading.kind == "tagging":
        return _tagged(lines, reading)
    if reading.kind == "span":
        return _questions(lines, reading)
    return _table(lines, reading)


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
    if reads_pairs(task):
        return TextExample(name, *two_texts(text, "two texts"))
    if SEPARATOR in text:
        reader = "a pretrained run" if task is None else f"task {task.name}"
        raise ValueError(f"{reader} reads one text, and there is a {SEPARATOR}")
    if task is None:
        _check_mask(text)
    return TextExample(name, text)


def two_texts(line: str, what: str) -> tuple[str, str]:
    """The two texts of a line: with ``[SEP]`` between them and white space around it, or with a tab.

    Args:
        line: as given.
        what: what the texts are, for the message.

    Raises:
        ValueError: there are not two of them.
    """
    marked = SEPARATOR in line
    parts = [part.strip() for part in line.split(SEPARATOR)] if marked else line.split("\t")
    if len(parts) != 2 or not all(part.strip() for part in parts):
        found = sum(bool(part.strip()) for part in parts)
        raise ValueError(f"{what} are expected with {SEPARATOR} or a tab between them; there are {found} texts")
    return parts[0], parts[1]


def reads_pairs(task: Task | None) -> bool:
    """Whether a task is about two texts."""
    return isinstance(task, (TextClassification, TextRegression)) and task.columns.text_pair is not None


def _each_line(
    lines: InputLines, reading: Reading, example_of: Callable[[str, str, str], Example], *, pass_blank: bool = False
) -> Iterator[Given]:
    """One example a line; ``example_of`` makes it of the line, its place and its name, or says by an error why not."""
    number = -1
    for line_number, line in lines.numbered:
        where = f"{lines.name}:{line_number}"
        if pass_blank and not line.strip():
            reading.notes.add("blank lines, passed over", where)
            continue
        number += 1
        try:
            example = example_of(line, where, str(number))
        except ValueError as problem:
            reading.refuse(f"{where}: {problem}")
        except DataError as error:
            reading.refuse(str(error))
        else:
            yield where, example


def _check_mask(text: str) -> None:
    if MASK not in text:
        raise ValueError(f"there is no {MASK}; write one where a piece is to be guessed")


@dataclass(frozen=True, slots=True)
class _RefusedRows(BadRows):
    """Rows that cannot be read go where all that is no example goes."""

    refuse: Callable[[str], None]

    def found(self, kind: str, where: str, problem: str) -> None:
        """Refuse a row; see ``BadRows.found``."""
        self.refuse(f"{where}: {problem}")


def _table(lines: InputLines, reading: Reading) -> Iterator[Given]:
    """Single texts or pairs, a row each; further columns, such as labels, are not looked at."""
    columns, layout = _columns(reading)
    wanted = [column for column in (columns.text, columns.text_pair, columns.id) if column is not None]
    layout = replace(layout, file_format=_table_format(reading.file_format))
    bad_rows = _RefusedRows("refuse", reading.notes, reading.refuse)
    num_texts = 1 if columns.text_pair is None else 2
    for row in rows_of_lines(lines.numbered, lines.name, wanted, layout=layout, bad_rows=bad_rows):
        texts = [clean(text or "", row.where, reading.notes) for text in row.values[:num_texts]]
        if not all(text.strip() for text in texts):
            reading.refuse(f"{row.where}: the text is empty")
            continue
        if reading.task is None:
            try:
                _check_mask(texts[0])
            except ValueError as problem:
                reading.refuse(f"{row.where}: {problem}")
                continue
        second = texts[1] if num_texts == 2 else None
        yield row.where, TextExample(row.values[-1] or str(row.number), texts[0], second)


def _table_format(file_format: InputFormat) -> TableFormat:
    formats: tuple[TableFormat, ...] = ("tsv", "quoted_tsv", "csv", "jsonl")
    return next(name for name in formats if name == file_format)


def _columns(reading: Reading) -> tuple[TextColumns, TableLayout]:
    """The columns that the user names, else those of the task's own files; with an optional ``id``."""
    task, given = reading.task, reading.columns
    columns, layout = (
        TextColumns.of(text_column=("text", "sentence"), text_pair_column=None, id_column=None, label_column="label"),
        TableLayout(),
    )
    if isinstance(task, (TextClassification, TextRegression)):
        columns, layout = task.columns, task.layout
    if "text_pair_column" in given and columns.text_pair is None:
        raise ConfigError(f"text_pair_column={given['text_pair_column']}: the run reads single texts")
    own_id = columns.id.names if columns.id is not None else ("id",)
    return TextColumns(
        text=_column("text_column", given, columns.text.names),
        text_pair=None if columns.text_pair is None else _column("text_pair_column", given, columns.text_pair.names),
        gold=columns.gold,
        id=replace(_column("id_column", given, own_id), required="id_column" in given),
    ), layout


def _column(setting: str, given: dict[str, str], names: tuple[str, ...]) -> Column:
    return Column((given[setting],) if setting in given else names, setting)


def _tagged(lines: InputLines, reading: Reading) -> Iterator[Given]:
    """Sentences: JSON lines with ``words``, or files with a word a line."""
    task, path = reading.task, lines.path
    assert isinstance(task, Tagging)
    same = task.file_format == reading.file_format
    if reading.file_format == "jsonl":
        field = str(task.word_column) if same else "words"
        yield from _each_line(
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
        yield from _each_line(lines, reading, _question, pass_blank=True)
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
