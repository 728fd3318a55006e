"""The base classes of tasks about single texts and text pairs: encoding, metrics, and the source of the examples."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from typing_extensions import override

from lmtransfer.data.documents import Notes
from lmtransfer.data.tables import BadRows, TableLayout, open_table
from lmtransfer.errors import ConfigError, DataError
from lmtransfer.tasks.base import Task
from lmtransfer.tasks.encoded import EncodedExamples
from lmtransfer.tasks.file_formats.json_document import JsonNode
from lmtransfer.tasks.heads import Targets
from lmtransfer.tasks.metrics.labels import metric_value
from lmtransfer.tasks.settings import FileSettings, TaskSettings, TextTableSettings
from lmtransfer.tasks.subsets import check_folds
from lmtransfer.tasks.text.example import TextExample, encode_texts
from lmtransfer.tasks.text.files import TextColumns, TextFiles, TextReader, TextRow
from lmtransfer.tokenizers.base import Tokenizer

#: Number of outputs to convert to answers at a time, so that memory does not grow with the data set.
CHUNK = 4096


class TextTask(Task):
    """A task with one answer per text or pair, which the metrics treat as one or more numbers."""

    class Settings(TaskSettings):
        """The settings of a task about texts.

        Attributes:
            metrics: names of the metrics; the first is the main one.
        """

        metrics: Sequence[str]

    settings: Settings
    kind: ClassVar[str]  # kind of the head
    pairs: bool = False  # whether each example has two texts

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        if not self.settings.metrics:
            raise ConfigError("task.metrics=[]: list at least one metric; the first one is the main metric")
        self.metric_names = tuple(self.settings.metrics)
        self.main_metric = self.metric_names[0]

    @abstractmethod
    def gold(self, examples: Sequence[TextExample]) -> Targets[np.ndarray]:
        """Return the gold answers as targets, with a placeholder for hidden ones."""

    @abstractmethod
    def number_of(self, answer: Any) -> float | Sequence[float]:
        """Convert an answer to the form that metrics need: a number, or one number per label."""

    def gold_number(self, example: TextExample) -> float | Sequence[float] | None:
        """Return the gold answer in the same form; None if hidden."""
        return example.score if example.label is None else example.label

    @property
    def positive(self) -> int:
        """Index of the positive class, for which F1 is computed."""
        return 1

    @override
    def encode(
        self, examples: Sequence[TextExample], tokenizer: Tokenizer, *, max_length: int, num_segments: int
    ) -> EncodedExamples:
        """Encode examples as [CLS] text [SEP], or [CLS] a [SEP] b [SEP]."""
        targets = self.gold(examples)
        return encode_texts(examples, targets, tokenizer, max_length=max_length, num_segments=num_segments)

    @override
    def score(self, examples: Sequence[TextExample], answers: Iterable[Any]) -> dict[str, float]:
        pairs = list(zip(map(self.number_of, answers), map(self._known_gold, examples), strict=True))
        predicted, gold = (np.array([pair[side] for pair in pairs], dtype=np.float64) for side in (0, 1))
        return {name: metric_value(name, predicted, gold, positive=self.positive) for name in self.metric_names}

    def _known_gold(self, example: TextExample) -> float | Sequence[float]:
        gold = self.gold_number(example)
        if gold is None:
            raise DataError(f"{example.id} has no gold answer (published test files hide it), so it cannot be scored")
        return gold

    @override
    def reader(self) -> TextReader:
        """Return a reader for single texts."""
        return TextReader(self.kind, owner=f"task {self.name}")


class TextFileTask(TextTask):
    """A task with texts from one file per split, or from the hub."""

    class Settings(TextTask.Settings, TextTableSettings):
        """The settings of a task with texts in tables."""

    settings: Settings
    gold_setting: ClassVar[str]  # the setting that names the column of the gold answers

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.files = TextFiles(self.settings, self.text_columns(), hidden_values=self.hidden_values(), task=self.name)
        self.splits, self.notes = self.files.located.splits, self.files.notes
        self.folds = self.settings.folds
        check_folds(self.folds, splits=self.splits, num_train=self.num_train)
        self.pairs = self.files.columns.text_pair is not None

    def text_columns(self) -> TextColumns:
        """Return the columns to read."""
        return TextColumns.of(self.settings, gold=self.gold_setting)

    def hidden_values(self) -> Collection[str]:
        """Return the values that mark a hidden gold answer in the files."""
        return self.settings.hidden_values

    @property
    def gold_column(self) -> str:
        """Names of the gold answer's column, for messages."""
        return " or ".join(self.files.columns.gold.names)

    @abstractmethod
    def example_of(self, row: TextRow) -> TextExample:
        """Build the example of a row; raise ValueError if the gold answer cannot be used."""

    @override
    def origin(self, split: str) -> str:
        return self.files.located.origin(split)

    @override
    def examples(self, split: str) -> list[TextExample]:
        return self.files.examples(split, self.example_of)

    @override
    def reader(self) -> TextReader:
        """Return a reader for texts or pairs in the columns of the task's own files."""
        columns, layout = self.files.columns, self.files.layout
        return TextReader(self.kind, owner=f"task {self.name}", columns=columns, layout=layout)


class FileTask(Task):
    """A task with one file per split."""

    class Settings(TaskSettings, FileSettings):
        """The settings of a task with files."""

    settings: Settings

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.files = self.settings.located_files(task=self.name)
        self.splits = self.files.splits

    @override
    def origin(self, split: str) -> str:
        return self.files.origin(split)


class JsonLinesTask(FileTask):
    """A task whose files have a JSON object on each line."""

    @abstractmethod
    def examples_of(self, row: JsonNode, name: str) -> Iterator[Any]:
        """Yield the examples of a row (``name``: ``split:index``); raise DataError if the row is malformed."""

    @override
    def examples(self, split: str) -> list[Any]:
        path, bad_rows = Path(self.origin(split)), BadRows("refuse", Notes(), "or remove it")
        examples: list[Any] = []
        for record in open_table(path, [], layout=TableLayout("jsonl"), bad_rows=bad_rows).records:
            examples += self.examples_of(JsonNode(record.values, None, record.where), f"{split}:{record.number}")
        if not examples:
            raise DataError(f"{path}: there are no examples")
        return examples
