"""The output of ``predict``: standard output without delay, or a file that is either complete or absent."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, TextIO

from lmtransfer.errors import ConfigError, DataError, RunDirectoryError
from lmtransfer.system.durable import remove, write_text
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

Write = Callable[[Sequence[dict[str, Any]]], None]

SubmissionKind = Literal["glue", "squad"]


@contextmanager
def open_output(name: str, *, overwrite: bool) -> Iterator[Write]:
    """Provide a function that writes objects as JSON lines.

    A file is written as ``<output>.partial`` and renamed at the end. After an error, the partial file keeps the
    predictions made so far; it is deleted if it is empty or if writing failed.
    """
    if name == STANDARD_OUTPUT:
        yield _writer(sys.stdout, "standard output")
        return
    path = check_output_path(name, overwrite=overwrite)
    partial = path.with_name(f"{path.name}.partial")
    try:
        stream = partial.open("w", encoding="utf-8", newline="\n")
    except OSError as error:
        raise RunDirectoryError(f"output={name}: {partial} cannot be written ({error.strerror})") from None
    try:
        try:
            yield _writer(stream, str(path))
        finally:
            with naming(path):
                stream.close()
    except BaseException as error:
        has_failed = isinstance(error, OSError) and error.filename == str(path)
        if has_failed or not partial.stat().st_size:
            remove(partial)
        raise
    partial.replace(path)


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


def _writer(stream: TextIO, name: str) -> Write:
    """Return a function that writes and flushes a group of objects, so that a reader gets them without delay."""
    plain_ascii = (stream.encoding or "").lower().replace("-", "") != "utf8"

    def write(lines: Sequence[dict[str, Any]]) -> None:
        with naming(name):
            for line in lines:
                stream.write(json_line(line, ascii_only=plain_ascii) + "\n")
            stream.flush()

    return write


def json_line(line: dict[str, Any], *, ascii_only: bool = False) -> str:
    """Convert an object to one line of JSON."""
    try:
        return json.dumps(line, ensure_ascii=ascii_only, allow_nan=False)
    except ValueError:
        raise DataError(
            f"{line.get('id')}: the prediction has values that are not finite, so the weights are unusable; check "
            "whether training diverged"
        ) from None


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
