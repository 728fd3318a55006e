"""The settings of tasks: how examples are used, and where they come from.

Each task class has its own ``Settings`` model, composed of these models and the task's own fields. A task is
constructed with the fields as keyword arguments, which are also the keys of ``_target_`` nodes in a config.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import pydantic

from lmtransfer.config.types import Count, Folder, Folds, LargeCount, Name, OpenShare
from lmtransfer.data.files import EncodingErrors
from lmtransfer.data.tables import BadRowsPolicy, TableFormat, TableLayout, delimiter_of
from lmtransfer.tasks.places import HubSource, LocatedFiles

#: A column name, or several possible names, of which the first that the file has is used.
ColumnNames: TypeAlias = str | Sequence[str]


class _Settings(pydantic.BaseModel):
    """The base of all task settings."""

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")


class TaskSettings(_Settings):
    """Settings that every task has.

    Attributes:
        name: the task's name in tables and results.
        max_length: maximum input length in tokens, including special tokens; null: the encoder's maximum.
        num_train: size of the seeded subset of the training split; null: the whole split.
        dev_from_train: fraction of the training examples in the held-out part; null: the dev split is used instead.
    """

    name: Name
    max_length: Count | None = None
    num_train: LargeCount | None = None
    dev_from_train: OpenShare | None = None


class FileSettings(_Settings):
    """The files that hold the examples.

    Files take precedence over the hub. A relative path starts at ``data_root`` or, failing that, at the working
    directory. ``.gz``, ``.xz`` and ``.zst`` files are read directly.

    Attributes:
        files: file of each split, such as ``{train: sst2/train.tsv}``; alternative names are tried in order.
        train: file of the training split, instead of ``files``.
        dev: file of the dev split, instead of ``files``.
        test: file of the test split, instead of ``files``.
        data_root: folder that holds the data folders.
    """

    files: Mapping[str, str | Sequence[str] | None] | None = None
    train: str | Sequence[str] | None = None
    dev: str | Sequence[str] | None = None
    test: str | Sequence[str] | None = None
    data_root: Folder | None = None

    def file_names(self) -> dict[str, tuple[str, ...]]:
        """Return the possible file names of each split, empty if the split has no file."""
        own = {"train": self.train, "dev": self.dev, "test": self.test}
        files = {**(self.files or {}), **{split: file for split, file in own.items() if file is not None}}
        return {split: (file,) if isinstance(file, str) else tuple(file or ()) for split, file in files.items()}

    def located_files(self, *, task: str) -> LocatedFiles:
        """Locate the files for the task with this name."""
        return LocatedFiles(files=self.file_names(), data_root=self.data_root, task=task)


class HubDatasetSettings(_Settings):
    """The data set on the hub, for splits without a local file.

    Attributes:
        hub: ``datasets`` name; null: files only.
        hub_config: the data set's configuration.
        hub_splits: hub name of each split; an unlisted split has the same name.
    """

    hub: str | None = None
    hub_config: str | None = None
    hub_splits: Mapping[str, str] | None = None

    def hub_source(self) -> HubSource | None:
        """Return the data set; None if only files are used."""
        return None if self.hub is None else HubSource(self.hub, self.hub_config, dict(self.hub_splits or {}))


class TextTableSettings(FileSettings, HubDatasetSettings):
    """Tables of texts or pairs of texts, from one file per split or from the hub.

    A column may have several possible names, of which the first one in the file is used, so that one task can read
    splits from different sources. A split whose name begins with ``test`` may lack the gold answers, as in published
    test sets.

    Attributes:
        text_column: column of the text, or of the first text of a pair.
        text_pair_column: column of the second text; null: the examples are single texts.
        id_column: column of the examples' names; null: names are ``split:number``, from 0.
        hidden_values: values in the files that mean a hidden answer, such as -1 in GLUE.
        dropped_values: values in the files that mean no answer; such rows are skipped and counted in ``notes``.
        columns: names of all columns, for files without a header line.
        optional_columns: how many of the last ``columns`` a row may lack.
        file_format: ``tsv`` (no quoting, one row per line), ``quoted_tsv``, ``csv``, ``jsonl`` (or an array of objects)
            or ``parquet`` (or arrow); null: decided by the file's name, and by its quotation marks if it is
            tab-separated.
        delimiter: the character between columns, or ``tab``; null: the separator with which the first line names the
            columns.
        bad_rows: ``refuse`` stops at an unreadable row; ``skip`` skips it and counts it in ``notes``.
        encoding_errors: ``strict`` rejects bytes that are not UTF-8; ``replace`` replaces them with U+FFFD.
        folds: number of folds of the training split for cross-validation, if there is no dev split; null: no folds.
    """

    text_column: ColumnNames
    text_pair_column: ColumnNames | None = None
    id_column: str | None = None
    hidden_values: Sequence[str] = ()
    dropped_values: Sequence[str] = ()
    columns: Sequence[str] | None = None
    optional_columns: int = 0
    file_format: TableFormat | None = None
    delimiter: str | None = None
    bad_rows: BadRowsPolicy = "refuse"
    encoding_errors: EncodingErrors = "strict"
    folds: Folds | None = None

    def layout(self) -> TableLayout:
        """Return the files' format."""
        return TableLayout(
            file_format=self.file_format,
            columns=self.columns,
            optional_columns=self.optional_columns,
            bad_rows=self.bad_rows,
            encoding_errors=self.encoding_errors,
            delimiter=delimiter_of(self.delimiter, "task.delimiter"),
        )
