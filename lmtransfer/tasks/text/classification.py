"""Classification of single texts and of pairs of texts, from published files or from the hub."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Literal

from lmtransfer.config.types import Count, DropoutProb, Folder, Folds, LargeCount, Name, OpenShare
from lmtransfer.data.documents import Notes
from lmtransfer.data.tables import BadRowsPolicy, TableFormat, TableLayout
from lmtransfer.data.text_lines import EncodingErrors
from lmtransfer.errors import ConfigError
from lmtransfer.tasks.found_labels import check_label, check_labels, in_nfc, listed, short
from lmtransfer.tasks.places import HubSource
from lmtransfer.tasks.text.example import TextExample, with_sentences
from lmtransfer.tasks.text.files import HIDDEN_NUMBER, TextColumns, TextRow
from lmtransfer.tasks.text.single_label import Classification, LabelMetric
from lmtransfer.tasks.text.task import TextFileTask


class TextClassification(TextFileTask, Classification):
    """Single texts or pairs with one label each, from one file for each split or from a ``datasets`` name.

    Files come first: a relative path is searched below ``data_root``, then below the working directory. ``.gz``,
    ``.xz`` and ``.zst`` files are read directly. Splits without a file on this machine are loaded from the hub. A
    column may have several possible names, of which the first one in the file is used, so that one task can read splits
    from different sources. A split whose name begins with ``test`` may lack the label column, as in published tests.

    Args:
        name: the task's name in tables and results.
        labels: names of the labels in order; null: those in the training file, numbers by size, others by alphabet.
        files: file of each split, such as ``{train: sst2/train.tsv}``; several names for one are tried in order.
        train: file of the training split, instead of ``files``.
        dev: file of the dev split, instead of ``files``.
        test: file of the test split, instead of ``files``.
        text_column: column of the text, or of the first text of a pair.
        text_pair_column: column of the second text; null: single texts.
        label_column: column of the label.
        id_column: column of the examples' names; null: names are ``split:number``, from 0.
        label_values: values of the labels in the files, in the order of ``labels``; null: the names of the labels.
        hidden_values: values in the files that mean a hidden label, unless they are labels themselves; -1 in GLUE's.
        dropped_values: values in the files that mean no label; such rows are left out and counted in ``notes``.
        columns: names of all columns, for files without a header line.
        optional_columns: how many of the last ``columns`` a row may lack.
        file_format: ``tsv`` (no quoting, one row per line), ``quoted_tsv``, ``csv``, ``jsonl`` (or an array of objects)
            or ``parquet`` (or arrow); null: by the file's name, and by its quotation marks if it is tab-separated.
        delimiter: the character between columns, or ``tab``; null: the one with which the first line names the columns.
        phrases: the training split holds sentences and their phrases; then the held-out part and the training part
            share no sentence.
        bad_rows: ``refuse`` stops at a row that cannot be read; ``skip`` leaves it out and counts it in ``notes``.
        encoding_errors: ``strict`` refuses bytes that are not UTF-8; ``replace`` puts U+FFFD there.
        metrics: names of the metrics; the first is the main one.
        positive_label: the label whose F1 counts; null: the second of two.
        hub: ``datasets`` name for splits without a file; null: files only.
        hub_config: its configuration.
        hub_splits: hub name of each split.
        max_length: longest input in tokens, specials included; null: the longest input of the encoder.
        num_train: size of the seeded subset of the training split; null: all of it.
        dev_from_train: fraction of the training examples in the held-out part; null: the dev split is used instead.
        class_weights: weight of each label in the training loss, by name (1 for labels that are not named); balanced:
            each label has the same total weight; null: all 1.
        label_smoothing: share of each training target that is spread evenly over all labels, 0 to 1 (Szegedy et al.
            2016, section 7).
        folds: number of folds of the training split for cross-validation, if there is no dev split; null: none.
        data_root: folder that holds the data folders.

    Raises:
        ConfigError: ``label_values`` and ``labels`` differ in number, or there is neither a file nor a hub name.
    """

    def __init__(
        self,
        *,
        name: Name,
        labels: Sequence[str] | None,
        text_column: str | Sequence[str],
        label_column: str | Sequence[str],
        files: Mapping[str, str | Sequence[str] | None] | None = None,
        train: str | None = None,
        dev: str | None = None,
        test: str | None = None,
        text_pair_column: str | Sequence[str] | None = None,
        id_column: str | None = None,
        label_values: Sequence[str] | None = None,
        hidden_values: Sequence[str] = ("-1",),
        dropped_values: Sequence[str] = (),
        columns: Sequence[str] | None = None,
        optional_columns: int = 0,
        file_format: TableFormat | None = None,
        delimiter: str | None = None,
        phrases: bool = False,
        bad_rows: BadRowsPolicy = "refuse",
        encoding_errors: EncodingErrors = "strict",
        metrics: Sequence[LabelMetric] = ("accuracy",),
        positive_label: str | None = None,
        hub: str | None = None,
        hub_config: str | None = None,
        hub_splits: Mapping[str, str] | None = None,
        max_length: Count | None = None,
        num_train: LargeCount | None = None,
        dev_from_train: OpenShare | None = None,
        class_weights: Literal["balanced"] | Mapping[str, float] | None = None,
        label_smoothing: DropoutProb = 0.0,
        folds: Folds | None = None,
        data_root: Folder | None = None,
    ) -> None:
        super().__init__(
            name=name,
            labels=labels,
            metrics=metrics,
            positive_label=positive_label,
            max_length=max_length,
            num_train=num_train,
            dev_from_train=dev_from_train,
            class_weights=class_weights,
            label_smoothing=label_smoothing,
        )
        if label_values is not None and (labels is None or len(label_values) != len(labels)):
            wanted = "task.labels too" if labels is None else f"one value for each of the {len(labels)} labels"
            raise ConfigError(f"task.label_values={list(label_values)}: give {wanted}")
        self._label_values = None
        if label_values is not None:
            self._label_values = [in_nfc(str(value), "task.label_values") for value in label_values]
        self.read_from(
            files,
            train=train,
            dev=dev,
            test=test,
            columns=TextColumns.of(
                text_column=text_column,
                text_pair_column=text_pair_column,
                id_column=id_column,
                label_column=label_column,
            ),
            layout=TableLayout.of_task(file_format, columns, optional_columns, bad_rows, encoding_errors, delimiter),
            hub=HubSource.of(hub, hub_config, hub_splits),
            hidden_values=set(hidden_values) - set(self._label_values or labels or ()),
            dropped_values=dropped_values,
            data_root=data_root,
            folds=folds,
        )
        if phrases and folds is not None:
            raise ConfigError(f"task.folds={folds} with task.phrases=true: phrases of a sentence cannot be divided")
        self.phrases = phrases
        self._label_column = " or ".join([label_column] if isinstance(label_column, str) else label_column)

    def examples(self, split: str) -> list[TextExample]:
        """Read all examples of a split, in the order of the source; see ``Task.examples``."""
        examples = super().examples(split)
        return with_sentences(examples) if self.phrases and split == "train" else examples

    def discover_labels(self) -> list[str]:
        """Find the labels of the training split: numbers by size, others by alphabet."""
        if "train" not in self.splits:
            raise ConfigError(
                f"task.labels=null: the labels are read from the training file, but task {self.name} has none; list "
                "them in task.labels=[...], or set task.files.train= to a file"
            )
        column, counts = f"task.label_column={self._label_column}", Counter[str]()
        for row in self.files.rows("train", Notes()):
            if row.gold is not None:  # a row without a label is refused when the examples are read, with its line
                check_label(row.gold, row.where, column)
                counts[row.gold] += 1
        check_labels(counts, origin=self.origin("train"), things="rows", column=column)
        try:
            return sorted(counts, key=int)
        except ValueError:
            return sorted(counts)

    @cached_property
    def _index_of(self) -> dict[bool, dict[str, int]]:
        """Our index of each label, by its own name (True) and by its value in the files (False)."""
        return {
            named: {value: index for index, value in enumerate(values)}
            for named, values in ((True, self.labels), (False, self._label_values or self.labels))
        }

    def example_of(self, row: TextRow) -> TextExample:
        """Make the example of a row; see ``TextFileTask``."""
        known = self._index_of[row.named]
        if row.gold is not None and row.gold not in known:
            meaning = "task.labels" if row.named or self._label_values is None else "task.label_values"
            shown = listed(list(known))
            hint = f"; if it stands for a hidden label, set task.hidden_values=[{row.gold}]" * (
                row.gold == HIDDEN_NUMBER
            )
            raise ValueError(
                f"label {short(row.gold)} in column {self._label_column!r} is not one of {shown} ({meaning}{hint})"
            )
        return TextExample(row.id, row.text, row.text_pair, None if row.gold is None else known[row.gold])
