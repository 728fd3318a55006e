"""Classification of single texts and of pairs of texts, from published files or from the hub."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from lmtransfer.data.files import find_file
from lmtransfer.errors import ConfigError, DataError
from lmtransfer.metrics.base import Metric
from lmtransfer.metrics.names import MetricName, make_metric
from lmtransfer.tasks.base import Example, HeadKind
from lmtransfer.tasks.encoded import EncodedExamples, encode_texts
from lmtransfer.tasks.hub import read_hub_split
from lmtransfer.tasks.tables import Row, TableFormat, read_rows
from lmtransfer.tokenizers.base import Tokenizer


class Classification:
    """What all classification tasks share: label names, metrics, encoding, and the choice of training examples.

    A task with a source of its own derives from this and gives ``splits`` and ``examples``; one that reads files
    or the hub is a ``TextClassification`` and needs no code.

    Args:
        name: the task's name in tables and results.
        labels: names of the labels in order.
        metrics: names of the metrics; the first is the main one.
        positive_label: the label whose F1 counts; the second one if null.
        max_length: longest input in tokens, specials included; null: what the encoder can read.
        num_train: size of the seeded subset of the training split; null: all of it.
        dev_from_train: fraction of the training examples held out to choose by; null: the dev split chooses.

    Raises:
        ConfigError: fewer than two labels, a label twice, or a ``positive_label`` that is none of them.
    """

    head: HeadKind = "classification"
    splits: tuple[str, ...]

    def __init__(
        self,
        *,
        name: str,
        labels: Sequence[str],
        metrics: Sequence[MetricName] = ("accuracy",),
        positive_label: str | None = None,
        max_length: int | None = None,
        num_train: int | None = None,
        dev_from_train: float | None = None,
    ) -> None:
        self.name = name
        self.labels = tuple(str(label) for label in labels)
        if len(self.labels) < 2 or len(set(self.labels)) != len(self.labels):
            raise ConfigError(f"task.labels={list(self.labels)}: give at least two different names")
        if positive_label is not None and positive_label not in self.labels:
            raise ConfigError(f"task.positive_label={positive_label}: must be one of {', '.join(self.labels)}")
        if not metrics:
            raise ConfigError("task.metrics=[]: name at least one metric; the first decides")
        self.metric_names = tuple(metrics)
        self.main_metric: str = self.metric_names[0]
        self.positive = 1 if positive_label is None else self.labels.index(positive_label)
        self.max_length = max_length
        self.num_train = num_train
        self.dev_from_train = dev_from_train

    def examples(self, split: str) -> list[Example]:
        """All examples of a split."""
        raise NotImplementedError

    def encode(
        self, examples: Sequence[Example], tokenizer: Tokenizer, *, max_length: int, num_segments: int
    ) -> EncodedExamples:
        """Examples as [CLS] text [SEP], or [CLS] a [SEP] b [SEP]; see ``Task.encode``."""
        pairs = [example.text_pair for example in examples]
        return encode_texts(
            [example.id for example in examples],
            [example.text for example in examples],
            [pair for pair in pairs if pair is not None] if pairs and pairs[0] is not None else None,
            [example.label for example in examples],
            tokenizer,
            max_length=max_length,
            num_segments=num_segments,
        )

    def metrics(self) -> list[Metric]:
        """Fresh metrics, the main one first."""
        return [make_metric(name, num_labels=len(self.labels), positive=self.positive) for name in self.metric_names]


class TextClassification(Classification):
    """Single texts or pairs with a label each, from one file a split or from a ``datasets`` name.

    Files come first: a relative path is looked for below ``data_root``, then below the working directory; ``.gz``,
    ``.xz`` and ``.zst`` are read as they are. The hub is asked for splits that have no file at hand.

    Args:
        name: the task's name in tables and results.
        labels: names of the labels in order.
        files: file of each split, such as ``{train: sst2/train.tsv, dev: sst2/dev.tsv}``.
        text_column: column of the text, or of the first text of a pair.
        label_column: column of the label.
        text_pair_column: column of the second text; null: single texts.
        label_values: how the files write the labels, in the order of ``labels``; null: by their names.
        columns: names of all columns, for files without a header line.
        file_format: ``tsv`` (no quoting, one row a line), ``csv`` or ``jsonl``.
        metrics: names of the metrics; the first is the main one.
        positive_label: the label whose F1 counts; the second one if null.
        hub: ``datasets`` name to fall back on; null: files only.
        hub_config: its configuration.
        hub_splits: hub split of each split; by the same name where it says nothing.
        max_length: longest input in tokens, specials included; null: what the encoder can read.
        num_train: size of the seeded subset of the training split; null: all of it.
        dev_from_train: fraction of the training examples held out to choose by; null: the dev split chooses.
        data_root: folder that holds the data folders.

    Raises:
        ConfigError: ``label_values`` and ``labels`` differ in number, or there is neither a file nor a hub name.
    """

    def __init__(
        self,
        *,
        name: str,
        labels: Sequence[str],
        text_column: str,
        label_column: str,
        files: Mapping[str, str | None] | None = None,
        text_pair_column: str | None = None,
        label_values: Sequence[str] | None = None,
        columns: Sequence[str] | None = None,
        file_format: TableFormat = "tsv",
        metrics: Sequence[MetricName] = ("accuracy",),
        positive_label: str | None = None,
        hub: str | None = None,
        hub_config: str | None = None,
        hub_splits: Mapping[str, str] | None = None,
        max_length: int | None = None,
        num_train: int | None = None,
        dev_from_train: float | None = None,
        data_root: str | None = None,
    ) -> None:
        super().__init__(
            name=name,
            labels=labels,
            metrics=metrics,
            positive_label=positive_label,
            max_length=max_length,
            num_train=num_train,
            dev_from_train=dev_from_train,
        )
        values = list(self.labels) if label_values is None else [str(value) for value in label_values]
        if len(values) != len(self.labels):
            raise ConfigError(
                f"task.label_values={values}: must give one value for each of the {len(self.labels)} labels"
            )
        if not files and hub is None:
            raise ConfigError("task.files is empty and task.hub is null: name a file a split, or a datasets name")
        self.files = {split: file for split, file in (files or {}).items() if file is not None}
        self.wanted = [text_column, *([] if text_pair_column is None else [text_pair_column]), label_column]
        self.index_of_value = {value: index for index, value in enumerate(values)}
        self.columns = columns
        self.file_format: TableFormat = file_format
        self.hub, self.hub_config = hub, hub_config
        self.hub_splits = dict(hub_splits or {})
        self.data_root = data_root
        self.splits = tuple(dict.fromkeys([*self.files, *self.hub_splits]))

    def examples(self, split: str) -> list[Example]:
        """All examples of a split, in the order of the source; see ``Task.examples``."""
        if split not in self.splits:
            raise DataError(f"split={split}: task {self.name} has {', '.join(self.splits) or 'no splits'}")
        path = self._file(split)
        if path is not None:
            rows = read_rows(path, self.wanted, file_format=self.file_format, columns=self.columns)
            found = [self._example(split, number, row) for number, row in enumerate(rows)]
            source = str(path)
        elif self.hub is not None:
            hub_split = self.hub_splits.get(split, split)
            places = self._places(split)
            hub_rows = read_hub_split(self.hub, self.hub_config, hub_split, self.wanted, self.labels, places)
            found = [
                Example(f"{split}:{number}", texts[0], texts[1] if len(texts) > 1 else None, label)
                for number, (texts, label) in enumerate(hub_rows)
            ]
            source = f"{self.hub} {hub_split}"
        else:
            raise DataError(
                f"task {self.name}, split {split}: no file {self._places(split)}. Set data_root= or LMTRANSFER_DATA "
                f"to the folder that holds {Path(self.files[split]).parent}, or task.files.{split}= to the file itself"
            )
        if not found:
            raise DataError(f"{source}: holds no examples")
        return found

    def _file(self, split: str) -> Path | None:
        if split not in self.files:
            return None
        for folder in self._folders():
            path = find_file(folder / self.files[split])
            if path is not None:
                return path
        return None

    def _folders(self) -> list[Path]:
        return [*([] if self.data_root is None else [Path(self.data_root)]), Path.cwd()]

    def _places(self, split: str) -> str:
        """Where a split's file was looked for, in words."""
        if split not in self.files:
            return "(none configured)"
        return " or ".join(str(folder / self.files[split]) for folder in self._folders())

    def _example(self, split: str, number: int, row: Row) -> Example:
        *texts, value = row.values
        hidden = value == "-1" and "-1" not in self.index_of_value
        if not hidden and value not in self.index_of_value:
            raise DataError(
                f"{row.where}: label {value!r} in column {self.wanted[-1]!r} is none of "
                f"{', '.join(self.index_of_value)} (task.label_values, for {', '.join(self.labels)})"
            )
        label = None if hidden else self.index_of_value[value]
        return Example(f"{split}:{number}", texts[0], texts[1] if len(texts) > 1 else None, label)
