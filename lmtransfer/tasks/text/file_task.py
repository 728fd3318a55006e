"""The base classes of tasks with one file per split: any file, and JSON lines."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any

from typing_extensions import override

from lmtransfer.data.documents import Notes
from lmtransfer.data.tables import BadRows, TableLayout, open_table
from lmtransfer.errors import ConfigError, DataError
from lmtransfer.tasks.base import Task
from lmtransfer.tasks.file_formats.json_document import JsonNode
from lmtransfer.tasks.settings import FileSettings, TaskSettings


class FileTask(Task):
    """A task with one file per split.

    Raises:
        ConfigError: there is no file.
    """

    class Settings(TaskSettings, FileSettings):
        """The settings of a task with files."""

    settings: Settings

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.files = self.settings.located_files(task=self.name)
        self.splits = self.files.splits
        if not self.splits:
            raise ConfigError("task.files is empty: set a file for each split (task.files.train=...)")

    def origin(self, split: str) -> str:
        """Return the file from which a split is read."""
        return str(self.files.require(split))


class JsonLinesTask(FileTask):
    """A task with examples built from JSON objects, one per line of a file."""

    @abstractmethod
    def examples_of(self, row: JsonNode, name: str) -> Iterator[Any]:
        """Yield the examples of a row.

        Args:
            name: ``split:number``.

        Raises:
            DataError: the object is not in the published format; the message has ``file:line``.
        """

    @override
    def examples(self, split: str) -> list[Any]:
        path, bad_rows = self.files.require(split), BadRows("refuse", Notes(), "or remove it")
        examples: list[Any] = []
        for record in open_table(path, [], layout=TableLayout("jsonl"), bad_rows=bad_rows).records:
            examples += self.examples_of(JsonNode(record.values, None, record.where), f"{split}:{record.number}")
        if not examples:
            raise DataError(f"{path}: contains no examples")
        return examples
