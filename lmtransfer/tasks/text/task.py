"""What all tasks about single texts and pairs of texts share: encoding, metrics, and where the examples come from."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any, ClassVar

import numpy as np

from lmtransfer.errors import ConfigError, DataError
from lmtransfer.metrics.base import Metric
from lmtransfer.metrics.names import MetricName, make_metric
from lmtransfer.tasks.base import Task
from lmtransfer.tasks.encoded import EncodedExamples
from lmtransfer.tasks.heads import Targets
from lmtransfer.tasks.places import HubSource
from lmtransfer.tasks.text.encoding import encode_texts
from lmtransfer.tasks.text.example import TextExample
from lmtransfer.tasks.text.files import SplitFiles, TextColumns, TextFiles, TextRow
from lmtransfer.tasks.text.reader import TextReader
from lmtransfer.tasks.text.tables import TableLayout
from lmtransfer.tokenizers.base import Tokenizer

#: Answers that are taken in at once; memory does not grow with the set.
CHUNK = 4096


class TextTask(Task):
    """One answer a text, or a pair of texts, that is a number to the metrics.

    Args:
        name: the task's name in tables and results.
        metrics: names of the metrics; the first is the main one.
        max_length: longest input in tokens, specials included; null: what the encoder can read.
        num_train: size of the seeded subset of the training split; null: all of it.
        dev_from_train: fraction of the training examples held out to choose by; null: the dev split chooses.

    Raises:
        ConfigError: there is no metric.
    """

    #: Of the head that answers.
    kind: ClassVar[str]
    #: Whether each example is two texts.
    pairs: bool = False

    def __init__(
        self,
        *,
        name: str,
        metrics: Sequence[MetricName],
        max_length: int | None,
        num_train: int | None,
        dev_from_train: float | None,
    ) -> None:
        if not metrics:
            raise ConfigError("task.metrics=[]: name at least one metric; the first decides")
        self.name = name
        self.metric_names = tuple(metrics)
        self.main_metric = str(self.metric_names[0])
        self.max_length, self.num_train, self.dev_from_train = max_length, num_train, dev_from_train

    @abstractmethod
    def gold(self, examples: Sequence[TextExample]) -> Targets[np.ndarray]:
        """The gold answers, those that are hidden too."""

    @abstractmethod
    def number_of(self, answer: Any) -> float:
        """What the metrics are told of an answer."""

    @property
    def positive(self) -> int:
        """Index of the label whose F1 counts."""
        return 1

    def metrics(self) -> list[Metric]:
        """Fresh metrics, the main one first."""
        return [make_metric(name, num_labels=len(self.labels), positive=self.positive) for name in self.metric_names]

    def encode(
        self, examples: Sequence[TextExample], tokenizer: Tokenizer, *, max_length: int, num_segments: int
    ) -> EncodedExamples:
        """Examples as [CLS] text [SEP], or [CLS] a [SEP] b [SEP]; see ``Task.encode``."""
        targets = self.gold(examples)
        return encode_texts(examples, targets, tokenizer, max_length=max_length, num_segments=num_segments)

    def score(self, examples: Sequence[TextExample], answers: Iterable[Any]) -> dict[str, float]:
        """The metrics, the main one first; see ``Task.score``.

        Raises:
            DataError: an example has no gold answer.
        """
        metrics = self.metrics()
        pairs = zip(map(self.number_of, answers), map(_gold, examples), strict=True)
        while chunk := list(islice(pairs, CHUNK)):
            said, gold = np.array(chunk, dtype=np.float64).T
            for metric in metrics:
                metric.update(said, gold)
        return {metric.name: metric.compute() for metric in metrics}

    def reader(self) -> TextReader:
        """Single texts; see ``Task``."""
        return TextReader(self.kind, who=f"task {self.name}")


class TextFileTask(TextTask):
    """A task whose texts come from one file a split, or from a ``datasets`` name.

    Attributes:
        files: where they come from.
        notes: of each split that was read: empty texts, and what was left out, with the first place of each.
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
        **splits: str | None,
    ) -> None:
        """Say where the examples come from; as of ``TextFiles``, the file of a split also under the split's own name.

        Raises:
            ConfigError: there is neither a file nor a hub name.
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
        self.pairs = columns.text_pair is not None

    @abstractmethod
    def example_of(self, row: TextRow) -> TextExample:
        """The example of a row.

        Raises:
            ValueError: the gold answer cannot be used.
        """

    def origin(self, split: str) -> str:
        """The file or the hub split that a split is read from; see ``TextFiles.origin``."""
        return self.files.origin(split)

    def examples(self, split: str) -> list[TextExample]:
        """All examples of a split, in the order of the source; see ``Task.examples``."""
        return self.files.examples(split, self.example_of)

    def reader(self) -> TextReader:
        """Texts or pairs in the columns of the task's own files; see ``Task``."""
        columns, layout = self.files.columns, self.files.layout
        return TextReader(self.kind, who=f"task {self.name}", columns=columns, layout=layout)


def _gold(example: TextExample) -> float:
    gold = example.score if example.label is None else example.label
    if gold is None:
        raise DataError(f"{example.id} has no gold answer (as in published test files), so it cannot be scored")
    return gold
