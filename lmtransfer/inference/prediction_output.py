"""The output of ``predict``: standard output without delay, or a file that is either complete or absent."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Literal, TextIO

from lmtransfer.data.documents import Notes
from lmtransfer.errors import ConfigError, RunDirectoryError
from lmtransfer.inference.prediction_input import Prediction, Write, partial_path
from lmtransfer.inference.prediction_tables import JSON_SUFFIXES, WRITERS, OutputTable, Writer, json_line
from lmtransfer.system.durable import flush, remove, write_text
from lmtransfer.system.machine import naming
from lmtransfer.tasks.base import Example, Task
from lmtransfer.tasks.submissions import (
    check_complete,
    glue_lines,
    glue_table,
    no_answer_probabilities,
    squad_predictions,
)

STANDARD_OUTPUT = "-"

SubmissionKind = Literal["glue", "squad"]


@contextmanager
def open_output(name: str, *, overwrite: bool, table: OutputTable, notes: Notes) -> Iterator[Write]:
    """Provide a function that writes predictions.

    Standard output gets the predictions as JSON lines. A file gets the rows of the input with the predictions; it is
    written as ``<output>.partial`` and renamed at the end. After an error, the partial file keeps the predictions made
    so far; it is deleted if there are none or if writing failed.
    """
    if name == STANDARD_OUTPUT:
        yield write_lines(sys.stdout)
        return
    path = check_output_path(name, overwrite=overwrite)
    table.check(path.suffix.lower())
    partial = partial_path(path)
    try:
        stream = partial.open("wb")
    except OSError as error:
        raise RunDirectoryError(f"output={name}: {partial} cannot be written ({error.strerror})") from None
    num_written = 0
    writer: Writer | None = None

    def write(predictions: Sequence[Prediction]) -> None:
        nonlocal num_written
        assert writer is not None
        with naming(path):
            writer.write(predictions)
        num_written += len(predictions)

    try:
        try:
            with naming(path):
                writer = WRITERS[path.suffix.lower()](stream, table, notes)
            yield write
        finally:
            with naming(path), closing(stream):
                if writer is not None:
                    writer.close()
        with naming(path):
            flush(partial)
    except BaseException as error:
        has_failed = isinstance(error, OSError) and error.filename == str(path)
        if has_failed or not num_written:
            remove(partial)
        raise
    partial.replace(path)
    flush(path.parent)


def check_output_path(name: str, *, overwrite: bool) -> Path:
    """Check that ``output=`` can be written, and return its path."""
    path = Path(name).expanduser()
    if path.is_dir():
        raise RunDirectoryError(f"output={name}: this is a folder; choose a file in it")
    if path.exists() and not overwrite:
        raise RunDirectoryError(f"output={name}: the file already exists; choose another file, or set overwrite=true")
    if not path.parent.is_dir():
        raise RunDirectoryError(f"output={name}: the folder {path.parent} does not exist; create it first")
    return path


def check_output_format(name: str) -> None:
    """Check that the suffix of ``output=`` names a format."""
    if name != STANDARD_OUTPUT and Path(name).suffix.lower() not in WRITERS:
        raise ConfigError(f"output={name}: the file name must end in {', '.join(WRITERS)}, which decides the format")


def needs_names(name: str) -> bool:
    """Whether the output needs the names of all columns before the first row."""
    return name != STANDARD_OUTPUT and Path(name).suffix.lower() not in JSON_SUFFIXES


def write_lines(stream: TextIO) -> Write:
    """Return a function that writes and flushes predictions as JSON lines, so that a reader gets them without delay."""
    plain_ascii = (stream.encoding or "").lower().replace("-", "") != "utf8"

    def write(predictions: Sequence[Prediction]) -> None:
        with naming("standard output"):
            for prediction in predictions:
                stream.write(json_line(prediction.line, ascii_only=plain_ascii) + "\n")
            stream.flush()

    return write


class SubmissionFile:
    """The official submission file for a split's predictions.

    Args:
        output: the file, or a folder in which the file gets its official name.
    """

    def __init__(self, kind: SubmissionKind, task: Task, split: str, output: str, *, overwrite: bool) -> None:
        self.kind, self.task, self.split = kind, task, split
        self._labels = list(task.labels)
        if output == STANDARD_OUTPUT:
            raise ConfigError(
                "submission: set output=<file>, or output=<folder>, in which the file gets its official name"
            )
        if kind == "glue":
            official = glue_table(task.name, split, self._labels).file
        else:
            _check_spans(task)
            official = "predictions.json"
        in_folder = output.endswith("/") or Path(output).expanduser().is_dir()
        if in_folder:
            Path(output).expanduser().mkdir(parents=True, exist_ok=True)
            output = str(Path(output) / official)
        self.path = check_output_path(output, overwrite=overwrite)
        self.no_answer_path: Path | None = None
        if kind == "squad" and task.no_answer:
            self.no_answer_path = check_output_path(
                str(self.path.with_suffix("")) + ".na_prob.json", overwrite=overwrite
            )

    def write(self, examples: Sequence[Example], answers: Sequence[Any]) -> list[Path]:
        """Write the predictions for all examples of the split, and return the paths of the files."""
        ids = [example.id for example in examples]
        if self.kind == "glue":
            check_complete(ids, self.split)
            table = glue_table(self.task.name, self.split, self._labels)
            lines = glue_lines(table, answers)
            write_text(self.path, "\n".join(lines) + "\n")
            return [self.path]
        write_text(self.path, json.dumps(squad_predictions(ids, answers)) + "\n")
        if self.no_answer_path is None:
            return [self.path]
        write_text(self.no_answer_path, json.dumps(no_answer_probabilities(ids, answers)) + "\n")
        return [self.path, self.no_answer_path]


def _check_spans(task: Task) -> None:
    if task.head.kind != "span" or task.labels:
        what = f"{task.head.kind} task" if task.head.kind != "span" else "task with answers that are not spans"
        raise ConfigError(
            f"submission=squad: SQuAD's format has only spans, but {task.name} is a {what}; leave submission out"
        )
