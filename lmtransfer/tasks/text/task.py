"""The base of all tasks about single texts and pairs of texts: encoding, metrics, and the source of the examples."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import numpy as np

from lmtransfer.config.types import Count, LargeCount, Name, OpenShare
from lmtransfer.data.tables import TableLayout
from lmtransfer.errors import ConfigError, DataError
from lmtransfer.tasks.base import Task
from lmtransfer.tasks.encoded import EncodedExamples
from lmtransfer.tasks.folds import check_folds
from lmtransfer.tasks.metrics.labels import metric_value
from lmtransfer.tasks.places import HubSource
from lmtransfer.tasks.targets import Targets
from lmtransfer.tasks.text.encoding import encode_texts
from lmtransfer.tasks.text.example import TextExample
from lmtransfer.tasks.text.files import SplitFiles, TextColumns, TextFiles, TextRow
from lmtransfer.tasks.text.reader import TextReader
from lmtransfer.tokenizers.base import Tokenizer

#: Number of examples whose outputs become answers at once, so that memory does not grow with the set.
CHUNK = 4096


class TextTask(Task):
    """A task with one answer for each text or pair of texts; the metrics use the answer as a number or as numbers.

    Args:
        name: the task's name in tables and results.
        metrics: names of the metrics; the first is the main one.
        max_length: longest input in tokens, specials included; null: the longest input of the encoder.
        num_train: size of the seeded subset of the training split; null: all of it.
        dev_from_train: fraction of the training examples in the held-out part; null: the dev split is used instead.

    Raises:
        ConfigError: there is no metric.
    """

    #: Kind of the head.
    kind: ClassVar[str]
    #: Whether each example has two texts.
    pairs: bool = False

    def __init__(
        self,
        *,
        name: Name,
        metrics: Sequence[str],
        max_length: Count | None,
        num_train: LargeCount | None,
        dev_from_train: OpenShare | None,
    ) -> None:
        if not metrics:
            raise ConfigError("task.metrics=[]: set at least one metric; the first one is the main metric")
        self.name = name
        self.metric_names = tuple(metrics)
        self.main_metric = self.metric_names[0]
        self.max_length, self.num_train, self.dev_from_train = max_length, num_train, dev_from_train

    @abstractmethod
    def gold(self, examples: Sequence[TextExample]) -> Targets[np.ndarray]:
        """Return the gold answers; hidden ones have the value for a hidden answer."""

    @abstractmethod
    def number_of(self, answer: Any) -> float | Sequence[float]:
        """Return an answer as the metrics use it: a number, or one number for each label."""

    def gold_number(self, example: TextExample) -> float | Sequence[float] | None:
        """Return the gold answer in the same form; None if it is hidden."""
        return example.score if example.label is None else example.label

    @property
    def positive(self) -> int:
        """Index of the label whose F1 counts."""
        return 1

    def encode(
        self, examples: Sequence[TextExample], tokenizer: Tokenizer, *, max_length: int, num_segments: int
    ) -> EncodedExamples:
        """Encode examples as [CLS] text [SEP], or [CLS] a [SEP] b [SEP]; see ``Task.encode``."""
        targets = self.gold(examples)
        return encode_texts(examples, targets, tokenizer, max_length=max_length, num_segments=num_segments)

    def score(self, examples: Sequence[TextExample], answers: Iterable[Any]) -> dict[str, float]:
        """Compute the metrics, the main one first; see ``Task.score``.

        Raises:
            DataError: an example has no gold answer.
        """
        pairs = list(zip(map(self.number_of, answers), map(self._known_gold, examples), strict=True))
        predicted, gold = (np.array([pair[side] for pair in pairs], dtype=np.float64) for side in (0, 1))
        return {name: metric_value(name, predicted, gold, positive=self.positive) for name in self.metric_names}

    def _known_gold(self, example: TextExample) -> float | Sequence[float]:
        gold = self.gold_number(example)
        if gold is None:
            raise DataError(f"{example.id} has no gold answer (as in published test files), so it cannot be scored")
        return gold

    def reader(self) -> TextReader:
        """Return a reader of single texts; see ``Task``."""
        return TextReader(self.kind, who=f"task {self.name}")


class TextFileTask(TextTask):
    """A task whose texts come from one file for each split, or from a ``datasets`` name.

    Attributes:
        files: the source of the texts.
        notes: for each split that was read: empty texts and left-out rows, with the first place of each.
    """

    files: TextFiles

    def read_from(
        self,
        files: SplitFiles | None,
        *,
        columns: TextColumns,
        layout: TableLayout,
        hub: HubSource | None,
        hidden_values: Iterable[str],
        dropped_values: Iterable[str],
        data_root: str | None,
        folds: int | None = None,
        **splits: str | None,
    ) -> None:
        """Set the source of the examples, with the arguments of ``TextFiles``; ``splits`` override single ``files``.

        Args:
            files: file of each split, or several names for it.
            columns: the columns that are read.
            layout: format of the files.
            hub: the data set on the hub for splits without a file; None: files only.
            hidden_values: values in the files that mean a hidden gold answer.
            dropped_values: values in the files that mean no gold answer.
            data_root: folder that holds the data folders.
            folds: number of folds of the training split; None: no cross-validation.
            splits: file of each split, instead of ``files``.

        Raises:
            ConfigError: there is neither a file nor a hub name, or the folds do not fit the splits.
        """
        named = {split: file for split, file in splits.items() if file is not None}
        self.files = TextFiles(
            task=self.name,
            files={**(files or {}), **named},
            columns=columns,
            layout=layout,
            hidden_values=hidden_values,
            dropped_values=dropped_values,
            hub=hub,
            data_root=data_root,
        )
        self.splits, self.notes = self.files.splits, self.files.notes
        check_folds(folds, splits=self.splits, num_train=self.num_train)
        self.folds = folds
        self.pairs = columns.text_pair is not None

    @abstractmethod
    def example_of(self, row: TextRow) -> TextExample:
        """Make the example of a row.

        Raises:
            ValueError: the gold answer cannot be used.
        """

    def origin(self, split: str) -> str:
        """Return the file or the hub split from which a split is read; see ``TextFiles.origin``."""
        return self.files.origin(split)

    def examples(self, split: str) -> list[TextExample]:
        """Read all examples of a split, in the order of the source; see ``Task.examples``."""
        return self.files.examples(split, self.example_of)

    def reader(self) -> TextReader:
        """Return a reader of texts or pairs in the columns of the task's own files; see ``Task``."""
        columns, layout = self.files.columns, self.files.layout
        return TextReader(self.kind, who=f"task {self.name}", columns=columns, layout=layout)
