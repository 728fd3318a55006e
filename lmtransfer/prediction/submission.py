"""Write the answers to a split in the file format of its leaderboard."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from lmtransfer.errors import ConfigError
from lmtransfer.prediction.output import STANDARD_OUTPUT, free_place
from lmtransfer.system.durable import write_text
from lmtransfer.tasks.base import Example, Task
from lmtransfer.tasks.submissions import (
    check_complete,
    glue_lines,
    glue_table,
    no_answer_probabilities,
    squad_predictions,
)

SubmissionKind = Literal["glue", "squad"]


class Submission:
    """The official file of a split's predictions.

    Args:
        kind: "glue" or "squad".
        task: the task.
        split: split of the task.
        output: the file, or a folder in which it gets its official name.
        overwrite: whether an existing file may be replaced.

    Raises:
        ConfigError: the task has no such submission.
        RunDirectoryError: the file exists already, or its folder does not exist.
    """

    def __init__(self, kind: SubmissionKind, task: Task, split: str, output: str, *, overwrite: bool) -> None:
        self.kind, self.task, self.split = kind, task, split
        self._labels = list(task.labels)
        if output == STANDARD_OUTPUT:
            raise ConfigError("submission= needs output=: a file, or a folder in which it gets its official name")
        if kind == "glue":
            official = glue_table(task.name, split, self._labels).file
        else:
            _check_spans(task)
            official = "predictions.json"
        in_folder = output.endswith("/") or Path(output).expanduser().is_dir()
        if in_folder:
            Path(output).expanduser().mkdir(parents=True, exist_ok=True)
            output = str(Path(output) / official)
        self.path = free_place(output, overwrite=overwrite)
        self.odds_path: Path | None = None
        if kind == "squad" and task.no_answer:
            self.odds_path = free_place(str(self.path.with_suffix("")) + ".na_prob.json", overwrite=overwrite)

    def write(self, examples: Sequence[Example], answers: Sequence[Any]) -> list[Path]:
        """Write the answers to all examples of the split; returns the paths of the written files.

        Raises:
            DataError: rows are missing, or ids are not unique.
        """
        ids = [example.id for example in examples]
        if self.kind == "glue":
            check_complete(ids, self.split)
            table = glue_table(self.task.name, self.split, self._labels)
            lines = glue_lines(table, answers)
            write_text(self.path, "\n".join(lines) + "\n")
            return [self.path]
        write_text(self.path, json.dumps(squad_predictions(ids, answers)) + "\n")
        if self.odds_path is None:
            return [self.path]
        write_text(self.odds_path, json.dumps(no_answer_probabilities(ids, answers)) + "\n")
        return [self.path, self.odds_path]


def _check_spans(task: Task) -> None:
    if task.head.kind != "span" or task.labels:
        what = f"{task.head.kind} task" if task.head.kind != "span" else "task with other answers than spans"
        raise ConfigError(f"submission=squad: {task.name} is a {what}; its submissions do not have the format of SQuAD")
