"""Classification of single texts and text pairs, from published files or from the hub."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from typing_extensions import override

from lmtransfer.data.documents import Notes
from lmtransfer.errors import ConfigError
from lmtransfer.tasks.label_checks import check_label, check_labels, list_labels, quote_label, to_nfc
from lmtransfer.tasks.settings import ColumnNames
from lmtransfer.tasks.text.example import TextExample, with_sentences
from lmtransfer.tasks.text.files import HIDDEN_NUMBER, TextRow
from lmtransfer.tasks.text.single_label import Classification
from lmtransfer.tasks.text.task import TextFileTask


class TextClassification(TextFileTask, Classification):
    """Single texts or pairs with one label each, from one file per split or from a ``datasets`` name.

    By default the labels are those in the training file, sorted by size if they are numbers, otherwise alphabetically.

    Raises:
        ConfigError: ``label_values`` and ``labels`` differ in number, or there is neither a file nor a hub name.
    """

    class Settings(Classification.Settings, TextFileTask.Settings):
        """The settings of a classification of texts in tables.

        Attributes:
            label_column: column of the label.
            label_values: values of the labels in the files, in the order of ``labels``; null: the label names.
            phrases: whether the training split holds sentences and their phrases, in which case the held-out part and
                the training part share no sentence.
        """

        label_column: ColumnNames
        label_values: Sequence[str] | None = None
        phrases: bool = False
        hidden_values: Sequence[str] = (HIDDEN_NUMBER,)

    settings: Settings
    gold_setting = "label_column"

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        labels, values, folds = self.settings.labels, self.settings.label_values, self.settings.folds
        if values is not None and (labels is None or len(values) != len(labels)):
            advice = "set task.labels too" if labels is None else f"set one value for each of the {len(labels)} labels"
            raise ConfigError(f"task.label_values={list(values)}: {advice}")
        if self.settings.phrases and folds is not None:
            raise ConfigError(f"task.folds={folds} with task.phrases=true: folds would divide sentences; leave one out")

    def hidden_values(self) -> set[str]:
        """Return the values in the files that mean a hidden label, excluding labels."""
        return set(self.settings.hidden_values) - set(self._label_values or self.settings.labels or ())

    @cached_property
    def _label_values(self) -> list[str] | None:
        values = self.settings.label_values
        return None if values is None else [to_nfc(value, "task.label_values") for value in values]

    @override
    def examples(self, split: str) -> list[TextExample]:
        examples = super().examples(split)
        return with_sentences(examples) if self.settings.phrases and split == "train" else examples

    def discover_labels(self) -> list[str]:
        """Return the labels of the training split, sorted by size if they are numbers, otherwise alphabetically."""
        if "train" not in self.splits:
            raise ConfigError(
                f"task.labels=null: the labels are read from the training file, but task {self.name} has none; list "
                "them in task.labels=[...], or set task.files.train= to a file"
            )
        column, counts = f"task.label_column={self.gold_column}", Counter[str]()
        for row in self.files.rows("train", Notes()):
            if row.gold is not None:  # a row without a label is rejected when the examples are read, with its line
                check_label(row.gold, row.where, column)
                counts[row.gold] += 1
        check_labels(counts, origin=self.origin("train"), items="rows", column=column)
        try:
            return sorted(counts, key=int)
        except ValueError:
            return sorted(counts)

    @cached_property
    def _index_of(self) -> dict[bool, dict[str, int]]:
        """Our index of each label, by the label's name (True) and by its value in the files (False)."""
        return {
            is_name: {value: index for index, value in enumerate(values)}
            for is_name, values in ((True, self.labels), (False, self._label_values or self.labels))
        }

    @override
    def example_of(self, row: TextRow) -> TextExample:
        indices = self._index_of[row.is_label_name]
        if row.gold is not None and row.gold not in indices:
            meaning = "task.labels" if row.is_label_name or self._label_values is None else "task.label_values"
            names = list_labels(list(indices))
            hint = f"; if it stands for a hidden label, set task.hidden_values=[{row.gold}]" * (
                row.gold == HIDDEN_NUMBER
            )
            raise ValueError(
                f"label {quote_label(row.gold)} in column {self.gold_column!r} is not one of {names} ({meaning}{hint})"
            )
        return TextExample(row.id, row.text, row.text_pair, None if row.gold is None else indices[row.gold])
