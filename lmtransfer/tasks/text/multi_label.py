"""Multi-label tasks: texts with any number of labels."""

from __future__ import annotations

import ast
import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
from typing_extensions import override

from lmtransfer.data.documents import Notes
from lmtransfer.errors import ConfigError, DataError
from lmtransfer.tasks.answers import LabelSetAnswer
from lmtransfer.tasks.base import Answer
from lmtransfer.tasks.encoded import EncodedExamples
from lmtransfer.tasks.heads import NO_LABEL, HeadSpec, LabelSetTargets, MultiLabelSpec
from lmtransfer.tasks.label_checks import (
    OTHER_SPELLING,
    check_label,
    check_labels,
    check_names,
    check_training_file,
    find_label,
    index_labels,
    joining_mark,
    list_labels,
    merge_spellings,
    quote_label,
    to_nfc,
)
from lmtransfer.tasks.metrics.labels import THRESHOLD
from lmtransfer.tasks.metrics.scored_examples import Ratio, ScoredExamples, scored_examples
from lmtransfer.tasks.settings import ColumnNames
from lmtransfer.tasks.text.example import TextExample
from lmtransfer.tasks.text.files import TextColumns, TextRow
from lmtransfer.tasks.text.task import CHUNK, TextFileTask

#: Characters that may join labels, besides the separator.
_MARKS = "|;,/ "
LabelForm = Literal["names", "vectors"]
LabelSetMetric = Literal["micro_f1", "macro_f1", "average_precision"]


class MultiLabel(TextFileTask):
    """Single texts or pairs with any number of labels each, from one file per split.

    The label column contains names with separators (``sport, politics``), a list of names (``["sport"]``), a vector
    with 1 or 0 for each label (``[1, 0, 1]``; without ``labels``, label names are indices), or a JSON object
    (``{"sport": 1}``); or each label has its own column. An empty column or list means no label. Labels are predicted
    independently, each if its probability is above 0.5. Samples and held-out examples are random and do not preserve
    the proportions of the labels.
    """

    kind = MultiLabelSpec.kind
    baseline_name = "labels of most examples"

    class Settings(TextFileTask.Settings):
        """The settings of a task with sets of labels.

        Attributes:
            labels: names of the labels in order; null: the labels in the training file, in alphabetical order or in the
                order of the columns.
            label_column: column of the labels. Several names are either alternatives, or one column per label with 1
                or 0.
            label_form: ``names``, or ``vectors`` with 1 or 0 for each label; null: vectors if all rows have the same
                number (two or more) of values, all 0 or 1.
            separator: the text between label names; white space around a name is ignored.
            metrics: names of the metrics; the first is the main one. A verdict by ``average_precision`` does not
                account for the sampling of examples, because the metric is not a sum over examples.
        """

        labels: Sequence[str] | None
        label_column: ColumnNames
        label_form: LabelForm | None = None
        separator: str = ","
        metrics: Sequence[LabelSetMetric] = ("micro_f1", "macro_f1", "average_precision")

    settings: Settings
    gold_setting = "label_column"
    _joined_by: str | None = None

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        if not self.settings.separator:
            raise ConfigError("task.separator: is empty; set the character between two labels, such as ','")
        if self.settings.labels is not None:
            self.labels = check_names([to_nfc(label, "task.labels") for label in self.settings.labels])
        self._form = self.settings.label_form or "names"
        self._forms: dict[str, LabelForm] = {}

    def text_columns(self) -> TextColumns:
        """Return the columns to read; the label column may contain lists, or be several columns."""
        columns = super().text_columns()
        return replace(columns, gold=replace(columns.gold, may_be_list=True, per_label=True))

    @cached_property
    @override
    def labels(self) -> tuple[str, ...]:  # type: ignore[override]
        return check_names(self._discover_labels())

    def _discover_labels(self) -> list[str]:
        """Return the labels of the training split."""
        check_training_file(self.splits, self.name)
        column, origin = f"task.label_column={self.gold_column}", self.origin("train")
        if self._form_of("train") == "vectors":
            first = next(cells for row in self.files.rows("train", Notes()) if (cells := self._cells(row)))
            return [str(number) for number in range(len(first))]
        counts, num_rows, has_several = Counter[str](), 0, False
        for row in self.files.rows("train", Notes()):
            num_rows += 1
            cells = self._cells(row)
            if isinstance(cells, dict):
                return list(cells)
            has_several = has_several or len(cells or ()) > 1
            for label in cells or ():
                check_label(label, row.where, column)
                counts[label] += 1
        labels = merge_spellings(counts)
        if not has_several:
            self._joined_by = joining_mark(labels, _MARKS.replace(self.settings.separator, ""), alone=" ")
        if len(labels) < 2:
            kinds = f"only the label {quote_label(next(iter(labels)))}" if labels else "no label"
            raise DataError(
                f"{origin}: {num_rows:,} rows have {kinds}, but at least two labels are needed; does {column} name the "
                f"label column, and does task.separator={self.settings.separator!r} separate the labels?"
            )
        check_labels(labels, origin=origin, items="labels of rows", column=column)
        return sorted(labels)

    def _cells(self, row: TextRow) -> Cells:
        """Parse the labels of a row; None if they are unreadable, which is reported when the examples are read."""
        try:
            return None if row.gold is None else label_cells(row.gold, self.settings.separator)
        except ValueError:
            return None

    def _form_of(self, split: str) -> LabelForm:
        """Return whether the labels of a split are names or vectors."""
        if self.settings.label_form is not None:
            return self.settings.label_form
        if split not in self._forms:
            lengths: set[int] = set()
            for row in self.files.rows(split, Notes()):
                cells = self._cells(row)
                lengths.add(len(cells) if isinstance(cells, list) and set(cells) <= {"0", "1"} else 0)
                if len(lengths) > 1:
                    break
            is_vector = len(lengths) == 1 and max(lengths) > 1
            self._forms[split] = "vectors" if is_vector else "names"
        return self._forms[split]

    @override
    def examples(self, split: str) -> list[TextExample]:
        self._form = self._form_of(split)
        examples = super().examples(split)
        if split == "train" and self._joined_by is not None:
            kind = f"labels that look joined by {self._joined_by!r} (task.separator={self._joined_by!r} divides them)"
            self.notes[split].add(kind, self.origin(split))
        if self._form == "vectors" and self.settings.label_form is None:
            kind = "rows whose labels were read as vectors with 1 or 0 for each label (label_form=names reads names)"
            self.notes[split].add(kind, self.origin(split), len(examples))
        return examples

    @property
    def head(self) -> HeadSpec:
        """A head with a binary decision for each label."""
        return MultiLabelSpec(len(self.labels), self.pairs)

    @override
    def gold(self, examples: Sequence[TextExample]) -> LabelSetTargets[np.ndarray]:
        labels = np.zeros((len(examples), len(self.labels)), dtype=np.int8)
        for row, example in enumerate(examples):
            if example.label_set is None:
                labels[row] = NO_LABEL
            else:
                labels[row, list(example.label_set)] = 1
        return LabelSetTargets(labels)

    def number_of(self, answer: LabelSetAnswer) -> Sequence[float]:
        """Return the probability of each label."""
        return list(answer.probabilities.values())

    def gold_number(self, example: TextExample) -> Sequence[float] | None:
        """Return 1 for each label of the example and 0 for each other label."""
        if example.label_set is None:
            return None
        return [float(label in example.label_set) for label in range(len(self.labels))]

    @override
    def answers(self, encoded: EncodedExamples, outputs: np.ndarray) -> Iterator[LabelSetAnswer]:
        """Yield the labels of each example whose probability is above 0.5."""
        for start in range(0, len(encoded.examples), CHUNK):
            logits = outputs[start : start + CHUNK].astype(np.float64)
            for row in np.exp(-np.logaddexp(0, -logits)).tolist():
                yield self._answer(row)

    def _answer(self, probabilities: Sequence[float]) -> LabelSetAnswer:
        labels = tuple(label for label, probability in enumerate(probabilities) if probability > THRESHOLD)
        names = tuple(self.labels[label] for label in labels)
        return LabelSetAnswer(labels, names, dict(zip(self.labels, probabilities, strict=True)))

    @override
    def scored_examples(self, examples: Sequence[TextExample], answers: Sequence[LabelSetAnswer]) -> ScoredExamples:
        """Return one binary decision per label for each example."""
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
        """Predict the labels that most training examples have; the probabilities are the labels' shares."""
        return [self._answer((self.gold(train).labels > 0).mean(0).tolist())] * len(examples)

    @cached_property
    def _index_of(self) -> dict[str, int]:
        return index_labels(self.labels)

    @override
    def example_of(self, row: TextRow) -> TextExample:
        if row.gold is None:
            return TextExample(row.id, row.text, row.text_pair)
        names = self._names(label_cells(row.gold, self.settings.separator), row.gold)
        found = {name: find_label(name, self._index_of) for name in names}
        unknown = next((name for name, index in found.items() if index is None), None)
        if unknown is not None:
            mark = joining_mark([*self.labels, unknown], _MARKS, alone=_MARKS)
            hint = "" if mark is None else f"; task.separator={mark!r} would divide it"
            raise ValueError(
                f"label {quote_label(unknown)} in column {self.gold_column!r} is not one of {list_labels(self.labels)} "
                f"(task.labels{hint})"
            )
        indices = tuple(sorted({index for index in found.values() if index is not None}))
        if any(name != self.labels[index] for name, index in found.items() if index is not None):
            row.notes.add(OTHER_SPELLING, row.where)
        return TextExample(row.id, row.text, row.text_pair, label_set=indices)

    def _names(self, cells: list[str] | dict[str, bool], text: str) -> list[str]:
        """Return the names of a row's labels."""
        if isinstance(cells, dict):
            return [name for name, has_label in cells.items() if has_label]
        if self._form == "vectors":
            if len(cells) != len(self.labels) or not set(cells) <= {"0", "1"}:
                raise ValueError(
                    f"the labels {quote_label(text)} must be {len(self.labels)} numbers, 1 or 0 for each of "
                    f"{list_labels(self.labels)} (task.labels), or names with task.label_form=names"
                )
            return [label for label, cell in zip(self.labels, cells, strict=True) if cell == "1"]
        if not all(cells):
            raise ValueError(f"the labels {quote_label(text)} contain an empty name")
        twice = next((name for name, count in Counter(cells).items() if count > 1), None)
        if twice is not None:
            raise ValueError(f"the label {quote_label(twice)} occurs twice in {quote_label(text)}")
        return cells


#: The labels of a row: names, the digits of a vector, or whether the row has each label; None if hidden or unreadable.
Cells = list[str] | dict[str, bool] | None
_TRUTHS = {"1": True, "0": False, "1.0": True, "0.0": False, "true": True, "false": False, "": False}


def label_cells(text: str, separator: str) -> list[str] | dict[str, bool]:
    """Split the labels of a row into names or digits; for a JSON object, return whether the row has each label.

    Args:
        text: names or digits with separators; a list of them, as written by JSON, Python or numpy; or a JSON object
            with 1 or 0 for each label. Empty for no label.
        separator: the text between names; a space stands for any white space.
    """
    text = text.strip()
    if text.startswith("{"):
        return _truths(text)
    if not text.startswith("["):
        return [part.strip() for part in text.split(None if separator.isspace() else separator)] if text else []
    if _NUMPY_VECTOR.fullmatch(text):
        values: Any = [float(number) for number in text[1:-1].split()]
    else:
        try:
            values = json.loads(text)
        except (ValueError, RecursionError) as error:
            values = _python_list(text)
            if values is None:
                raise ValueError(
                    f"the labels {quote_label(text)} begin with [ but are not a JSON list ({error})"
                ) from None
    names = []
    for value in values:
        number = int(value) if isinstance(value, bool) or (isinstance(value, float) and value.is_integer()) else value
        if not isinstance(number, str | int):
            raise ValueError(f"the labels {quote_label(text)} must be a list of names, or of 0 and 1")
        names.append(str(number).strip())
    return names


#: ``[1 0 1]`` and ``[1. 0. 1.]``
_NUMPY_VECTOR = re.compile(r"\[\s*[01]\.?(?:\s+[01]\.?)*\s*\]")
#: Maximum length of a Python list to parse.
_LONGEST_LIST = 1 << 14


def _python_list(text: str) -> list[Any] | None:
    """Parse a list as Python and pandas write it (``['a', 'b']``); None if the text is not a list."""
    if len(text) > _LONGEST_LIST or text.count("[") > 1 or "(" in text:
        return None
    try:
        values = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None
    return values if isinstance(values, list) else None


def _truths(text: str) -> dict[str, bool]:
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the labels {quote_label(text)} begin with {{ but are not a JSON object ({error})") from None
    truths = {}
    for name, value in values.items():
        truth = _TRUTHS.get("" if value is None else str(value).lower())
        if truth is None:
            raise ValueError(
                f"the label {quote_label(name)} is {quote_label(str(value))}, but must be 1 (the text has it) or 0"
            )
        truths[name] = truth
    return truths
