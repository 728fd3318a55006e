"""Texts with any number of labels each."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Literal

import numpy as np

from lmtransfer.data.documents import Notes
from lmtransfer.data.text_lines import EncodingErrors
from lmtransfer.errors import ConfigError, DataError
from lmtransfer.kept_predictions.scored import Ratio, ScoredExamples, scored_examples
from lmtransfer.metrics.labels import THRESHOLD
from lmtransfer.tasks.answers import LabelSetAnswer
from lmtransfer.tasks.base import Answer
from lmtransfer.tasks.encoded import EncodedExamples
from lmtransfer.tasks.found_labels import check_label, check_labels, listed, short
from lmtransfer.tasks.heads import HeadSpec, MultiLabelSpec
from lmtransfer.tasks.targets import NO_LABEL, LabelSetTargets
from lmtransfer.tasks.text.example import TextExample
from lmtransfer.tasks.text.files import TextColumns, TextRow
from lmtransfer.tasks.text.tables import BadRowsPolicy, TableFormat, TableLayout
from lmtransfer.tasks.text.task import CHUNK, TextFileTask

LabelSetMetric = Literal["micro_f1", "macro_f1", "average_precision"]


class MultiLabel(TextFileTask):
    """Single texts or pairs with any number of labels each, from one file for each split.

    The column of labels holds names between separators (``sport, politics``) or a JSON list (``["sport"]``); in JSON
    lines it may also be a list. An empty column or list means no label. Each label is decided by itself: it is given if
    its probability is above 0.5. Subsets and held-out parts are random; they do not keep the proportions of the labels.

    Args:
        name: the task's name in tables and results.
        labels: names of the labels in order; null: those in the training file, by alphabet.
        text_column: column of the text, or of the first text of a pair.
        label_column: column of the labels.
        files: file of each split, such as ``{train: my/train.tsv}``; several names for one are tried in order.
        train: file of the training split, instead of ``files``.
        dev: file of the dev split, instead of ``files``.
        test: file of the test split, instead of ``files``.
        separator: what separates the names of labels; white space around a name does not count.
        text_pair_column: column of the second text; null: single texts.
        id_column: column of the examples' names; null: names are ``split:number``, from 0.
        columns: names of all columns, for files without a header line.
        file_format: ``tsv`` (no quoting, one row per line), ``quoted_tsv``, ``csv`` or ``jsonl``; null: by the file's
            name.
        bad_rows: ``refuse`` stops at a row that cannot be read; ``skip`` leaves it out and counts it in ``notes``.
        encoding_errors: ``strict`` refuses bytes that are not UTF-8; ``replace`` puts U+FFFD there.
        metrics: names of the metrics; the first is the main one. A verdict by ``average_precision`` does not count the
            sampling of the examples, because no example has a share in it.
        max_length: longest input in tokens, specials included; null: the longest input of the encoder.
        num_train: size of the seeded subset of the training split; null: all of it.
        dev_from_train: fraction of the training examples in the held-out part; null: the dev split is used instead.
        folds: number of folds of the training split for cross-validation, if there is no dev split; null: none.
        data_root: folder that holds the data folders.

    Raises:
        ConfigError: there are fewer than two labels, a label occurs twice, ``separator`` is empty, or there is no file.
            Labels that are found in the data are checked on first use.
    """

    kind = MultiLabelSpec.kind
    baseline_name = "labels of most examples"

    def __init__(
        self,
        *,
        name: str,
        labels: Sequence[str] | None,
        text_column: str | Sequence[str],
        label_column: str | Sequence[str],
        files: Mapping[str, str | Sequence[str] | None] | None = None,
        train: str | None = None,
        dev: str | None = None,
        test: str | None = None,
        separator: str = ",",
        text_pair_column: str | Sequence[str] | None = None,
        id_column: str | None = None,
        columns: Sequence[str] | None = None,
        file_format: TableFormat | None = None,
        bad_rows: BadRowsPolicy = "refuse",
        encoding_errors: EncodingErrors = "strict",
        metrics: Sequence[LabelSetMetric] = ("micro_f1", "macro_f1", "average_precision"),
        max_length: int | None = None,
        num_train: int | None = None,
        dev_from_train: float | None = None,
        folds: int | None = None,
        data_root: str | None = None,
    ) -> None:
        super().__init__(
            name=name, metrics=metrics, max_length=max_length, num_train=num_train, dev_from_train=dev_from_train
        )
        if not separator:
            raise ConfigError("task.separator: is empty; set the character between two labels, such as ','")
        self._separator = separator
        if labels is not None:
            self.labels = _checked([str(label) for label in labels])
        read = TextColumns.of(
            text_column=text_column,
            text_pair_column=text_pair_column,
            id_column=id_column,
            label_column=label_column,
        )
        self.read_from(
            files,
            train=train,
            dev=dev,
            test=test,
            columns=replace(read, gold=replace(read.gold, may_be_list=True)),
            layout=TableLayout(file_format, columns, 0, bad_rows, encoding_errors),
            hub=None,
            hidden_values=(),
            dropped_values=(),
            data_root=data_root,
            folds=folds,
        )
        self._label_column = " or ".join(read.gold.names)

    @cached_property
    def labels(self) -> tuple[str, ...]:  # type: ignore[override]
        """The label names in order."""
        return _checked(self._found_labels())

    def _found_labels(self) -> list[str]:
        """Find the labels of the training split, by alphabet."""
        if "train" not in self.splits:
            raise ConfigError(
                f"task.labels=null: the labels are read from the training file, but task {self.name} has none; list "
                "them in task.labels=[...], or set task.files.train= to a file"
            )
        column, origin = f"task.label_column={self._label_column}", self.origin("train")
        counts, num_rows = Counter[str](), 0
        for row in self.files.rows("train", Notes()):
            num_rows += 1
            for label in self._readable_names(row):
                check_label(label, row.where, column)
                counts[label] += 1
        if len(counts) < 2:
            found = f"only the label {short(next(iter(counts)))}" if counts else "no label"
            raise DataError(
                f"{origin}: {num_rows:,} rows have {found}, but at least two labels are needed; does {column} name the "
                f"column of the labels, and does task.separator={self._separator!r} separate them?"
            )
        check_labels(counts, origin=origin, things="labels of rows", column=column)
        return sorted(counts)

    def _readable_names(self, row: TextRow) -> list[str]:
        """The names of a row; none if they cannot be read, which is refused when the examples are read."""
        try:
            return label_names(row.gold or "", self._separator)
        except ValueError:
            return []

    @property
    def head(self) -> HeadSpec:
        """A head with a decision for each label."""
        return MultiLabelSpec(len(self.labels), self.pairs)

    def gold(self, examples: Sequence[TextExample]) -> LabelSetTargets[np.ndarray]:
        """The sets of labels."""
        given = np.zeros((len(examples), len(self.labels)), dtype=np.int8)
        for row, example in enumerate(examples):
            if example.label_set is None:
                given[row] = NO_LABEL
            else:
                given[row, list(example.label_set)] = 1
        return LabelSetTargets(given)

    def number_of(self, answer: LabelSetAnswer) -> Sequence[float]:
        """The probability of each label."""
        return list(answer.probabilities.values())

    def gold_number(self, example: TextExample) -> Sequence[float] | None:
        """1 for each label that the example has, else 0."""
        if example.label_set is None:
            return None
        return [float(label in example.label_set) for label in range(len(self.labels))]

    def answers(self, encoded: EncodedExamples, outputs: np.ndarray) -> Iterator[LabelSetAnswer]:
        """Yield the labels of each example whose probability is above 0.5.

        Args:
            encoded: N examples.
            outputs: logits, shape (N, number of labels).
        """
        for start in range(0, len(encoded.examples), CHUNK):
            logits = outputs[start : start + CHUNK].astype(np.float64)
            for row in np.exp(-np.logaddexp(0, -logits)).tolist():
                yield self._answer(row)

    def _answer(self, probabilities: Sequence[float]) -> LabelSetAnswer:
        chosen = tuple(label for label, probability in enumerate(probabilities) if probability > THRESHOLD)
        names = tuple(self.labels[label] for label in chosen)
        return LabelSetAnswer(chosen, names, dict(zip(self.labels, probabilities, strict=True)))

    def scored_examples(self, examples: Sequence[TextExample], answers: Sequence[LabelSetAnswer]) -> ScoredExamples:
        """Return, for each example, a decision about each label; see ``Task``."""
        probabilities_NC = np.array([self.number_of(answer) for answer in answers]).reshape(-1, len(self.labels))
        said_NC, gold_NC = probabilities_NC > THRESHOLD, self.gold(examples).labels > 0
        right_N, total_N = (said_NC & gold_NC).sum(1), said_NC.sum(1) + gold_NC.sum(1)
        return scored_examples(
            examples,
            kind="multi_label",
            labels=self.labels,
            predicted=said_NC.reshape(-1).astype(np.int64),
            gold=gold_NC.reshape(-1).astype(np.int64),
            words=np.full(len(examples), len(self.labels)),
            ratios={
                "micro_f1": Ratio(2.0 * right_N, total_N.astype(np.float64)),
                "accuracy": Ratio.mean((said_NC == gold_NC).all(1)),
            },
            confidences=np.where(said_NC, probabilities_NC, 1 - probabilities_NC).reshape(-1),
        )

    def baseline(self, train: Sequence[TextExample], examples: Sequence[TextExample]) -> list[Answer]:
        """Answer every example with the labels of most training examples; probabilities are the labels' shares."""
        return [self._answer((self.gold(train).labels > 0).mean(0).tolist())] * len(examples)

    @cached_property
    def _index_of(self) -> dict[str, int]:
        return {label: index for index, label in enumerate(self.labels)}

    def example_of(self, row: TextRow) -> TextExample:
        """Make the example of a row; see ``TextFileTask``."""
        if row.gold is None:
            return TextExample(row.id, row.text, row.text_pair)
        names = label_names(row.gold, self._separator)
        unknown = next((name for name in names if name not in self._index_of), None)
        if unknown is not None:
            raise ValueError(
                f"label {short(unknown)} in column {self._label_column!r} is not one of {listed(self.labels)} "
                "(task.labels)"
            )
        indices = tuple(sorted(self._index_of[name] for name in names))
        return TextExample(row.id, row.text, row.text_pair, label_set=indices)


def label_names(text: str, separator: str) -> list[str]:
    """Return the names in a column of labels.

    Args:
        text: names between separators, or a JSON list of them; empty for no label.
        separator: what separates names; a space stands for any white space.

    Raises:
        ValueError: the list is not JSON or holds something else than names, a name is empty, or a name occurs twice.
    """
    if text.lstrip().startswith("["):
        try:
            given = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"the labels {short(text)} begin with [ but are not a JSON list ({error})") from None
        if not all(isinstance(name, str | int) and not isinstance(name, bool) for name in given):
            raise ValueError(f"the labels {short(text)} must be a list of names")
        names = [str(name) for name in given]
    else:
        parts = text.split(None if separator.isspace() else separator) if text.strip() else []
        names = [part.strip() for part in parts]
    if not all(name.strip() for name in names):
        raise ValueError(f"the labels {short(text)} contain an empty name")
    twice = next((name for name, count in Counter(names).items() if count > 1), None)
    if twice is not None:
        raise ValueError(f"the label {short(twice)} occurs twice in {short(text)}")
    return names


def _checked(labels: Sequence[str]) -> tuple[str, ...]:
    if len(labels) < 2 or len(set(labels)) != len(labels):
        raise ConfigError(f"task.labels=[{listed(labels)}]: there must be at least two different names")
    return tuple(labels)
