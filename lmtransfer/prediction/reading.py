"""How the input of ``predict`` is read: its format, what becomes of what is no example, one example a line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from lmtransfer.data.documents import Notes
from lmtransfer.data.files import plain_name
from lmtransfer.errors import ConfigError, DataError
from lmtransfer.prediction.lines import InputLines, InputSource
from lmtransfer.prediction.stream import Given, OnError
from lmtransfer.tasks.base import Example, Task
from lmtransfer.tasks.qa.task import SpanQa

InputFormat = Literal["lines", "tsv", "quoted_tsv", "csv", "jsonl", "conll", "conllu", "squad", "quac", "coqa"]
#: What answers: a head, or the head of a pretrained run that predicts hidden tokens.
Kind = str

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


def kind_of(task: Task | None) -> Kind:
    """What answers: the task's head, or without a task the head of a pretrained run."""
    return "fill_mask" if task is None else task.head.kind


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
        return kind_of(self.task)


def input_format(given: str | None, source: InputSource, task: Task | None) -> InputFormat:
    """The format of the input.

    Args:
        given: what the user says; None: by the file's name.
        source: the file; what arrives as it is read has lines unless the user says more.
        task: the run's task; None for fill-mask.

    Raises:
        ConfigError: it cannot be told, or the task reads no such files.
    """
    kind = kind_of(task)
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


def each_line(
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
