"""The settings of tasks: how examples are used, and where they come from, in folders or on the hub.

Each task class has its own ``Settings`` model, composed of these models and the task's own fields. The fields are the
keyword arguments of the class and the keys of its ``_target_`` node in a config.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import pydantic

from lmtransfer.config.types import Count, DataFile, Folder, Folds, HubName, LargeCount, Name, OpenShare
from lmtransfer.data.corpora.hub import check_dataset_folder, reason_of_failure
from lmtransfer.data.files import EncodingErrors, describe_splits, explain_irregular, find_data
from lmtransfer.data.tables import BadRowsPolicy, TableFormat, TableLayout, delimiter_of
from lmtransfer.errors import ConfigError, DataError
from lmtransfer.system import door

#: A column name, or several alternatives, of which the first one in the file is used.
ColumnNames: TypeAlias = str | Sequence[str]


@dataclass(frozen=True, slots=True)
class HubSource:
    """A task's data set on the hub; ``splits`` maps our names of splits to the hub's where they differ."""

    name: str
    config: str | None = None
    splits: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.name} ({self.config})" if self.config else self.name

    def origin(self, split: str) -> str:
        """Describe a split, for messages."""
        return f"{self} {self.splits.get(split, split)}"

    def load(self, split: str, *, places: str, columns: Sequence[str] = (), advice: str = "") -> Any:
        """Load the table of a split: ``column_names``, ``features``, and the columns, keyed by name.

        Args:
            places: the places already searched for a file, for the message.
            columns: the columns that the table must have.
            advice: what to do if a column is missing, for the message.

        Raises:
            DataError: the split can be neither loaded nor found in the cache; the metadata of a local data set refers
                to files outside its folder; or a column is missing.
        """
        with hub_access(self, places=places):
            import datasets  # imported here because the import is slow and tasks with files do not need it

            table = datasets.load_dataset(self.name, self.config, split=self.splits.get(split, split))
        missing = [column for column in columns if column not in table.column_names]
        if missing:
            raise DataError(
                f"{self.origin(split)}: no column named {' or '.join(missing)}; the columns are "
                f"{', '.join(table.column_names)}{advice}"
            )
        return table


@contextmanager
def hub_access(source: HubSource, *, places: str) -> Iterator[None]:
    """Check the data set if it is a local folder, and replace errors of ``datasets`` with a DataError."""
    from datasets.exceptions import DatasetGenerationError

    try:
        with door.requesting(source.name):
            if Path(source.name).is_dir():
                check_dataset_folder(Path(source.name))
            yield
    except door.Refused:
        raise
    except (OSError, ValueError, KeyError, RuntimeError, ImportError, DatasetGenerationError) as error:
        raise DataError(
            f"no file {places}, and the data set {source} could not be loaded from the hub: "
            f"{reason_of_failure(error)}. Either choose the folder that contains the files with data_root=<folder> or "
            "LMTRANSFER_DATA, or load the data set once with network access; later it is read from the cache"
        ) from None


class LocatedFiles:
    """One file per split, searched for below ``data_root`` and then below the working directory, or else the hub.

    If a plain file is missing, its ``.gz``, ``.xz`` or ``.zst`` version is used. A file may also be a folder written by
    ``datasets.save_to_disk``.

    Args:
        files: alternative file names of each split, tried in order; messages show the first. A split without a name
            has no file.
        task: the task's name, for messages.
        hub: the data set for splits without a local file; None if only files are used.
        has_folds: whether folds of the training split can replace the task's dev split, for messages.
    """

    def __init__(
        self,
        *,
        files: Mapping[str, Sequence[str]],
        data_root: str | None,
        task: str,
        hub: HubSource | None = None,
        has_folds: bool = False,
    ) -> None:
        empty = [split for split, names in files.items() if "" in names]
        if empty:
            raise ConfigError([f"task.{split} (or task.files.{split}) is empty; set a file or null" for split in empty])
        self._files = {split: tuple(names) for split, names in files.items() if names}
        self._folders = [*([] if data_root is None else [Path(data_root)]), Path.cwd()]
        self._task, self._has_folds = task, has_folds
        self.hub = hub
        self.splits = tuple(dict.fromkeys([*self._files, *(hub.splits if hub else ())]))

    def find(self, split: str) -> Path | None:
        """Find the file of a split; None if it is not on this machine."""
        paths = (path for name in self._files.get(split, ()) for path in self._paths(name))
        return next((file for file in map(find_data, paths) if file is not None), None)

    def locate(self, split: str) -> Path | HubSource:
        """Find the file of a split, or else the data set on the hub.

        Raises:
            DataError: the split does not exist, or its file is not on this machine and there is no data set.
        """
        path = self.find(split)
        if path is not None:
            return path
        if self.hub is None or split not in self.splits:
            raise self.missing_error(split)
        return self.hub

    def origin(self, split: str) -> str:
        """Return the file or hub split from which a split is read; raises the errors of ``locate``."""
        source = self.locate(split)
        return source.origin(split) if isinstance(source, HubSource) else str(source)

    def _paths(self, name: str) -> list[Path]:
        """Return the paths to search for a file; a single one if its name is absolute."""
        return list(dict.fromkeys(folder / name for folder in self._folders))

    def places(self, split: str) -> str:
        """List the paths to search for a split's file, for messages."""
        if split not in self._files:
            return "(none configured)"
        return " or ".join(map(str, self._paths(self._files[split][0])))

    def missing_error(self, split: str) -> DataError:
        """Return the error for a missing file, if there is no other source either."""
        if self.hub is not None:
            return DataError(f"split={split}: task {self._task} has the splits {', '.join(self.splits)}")
        if split not in self._files:
            instead = ""
            if split == "dev" and "train" in self._files:
                folds = ", or set task.folds=5 to score each fifth of the training file with a run trained on the rest"
                instead = folds * self._has_folds + ", or final=true to train a model without a score"
            return DataError(
                f"split={split}: task {self._task} has files for {', '.join(self._files) or 'no split'}; set "
                f"task.{split}=<file> or task.files.{split}=<file>{instead}"
            )
        file = self._files[split][0]
        if (irregular := explain_irregular(self._paths(file))) is not None:
            return DataError(f"task.{split}={file}: {irregular}")
        problem = f"task {self._task}, split {split}: no file {self.places(split)}"
        for path in self._paths(file):
            if path.is_dir():
                problem_with_folder = describe_splits(path) or "is a folder; name a file in it"
                return DataError(f"{problem}: {path} {problem_with_folder} (task.{split})")
            names = (
                [sibling.name for sibling in path.parent.iterdir()]
                if path.parent.is_dir() and door.allows(path.parent)
                else []
            )
            similar = difflib.get_close_matches(path.name, names, n=1, cutoff=0.6)
            if similar:
                problem += f". Did you mean {Path(file).with_name(similar[0])}?"
                break
        problem, folder = problem if problem.endswith("?") else f"{problem}.", Path(file).parent
        if folder == Path():
            return DataError(
                f"{problem} Set task.{split}=<file> or task.files.{split}=<file>, relative to data_root "
                "(LMTRANSFER_DATA) or to the folder where the command is started"
            )
        return DataError(
            f"{problem} Choose the folder that contains {folder} with data_root=<folder> or LMTRANSFER_DATA, or set "
            f"task.files.{split}=<file>"
        )


class _Settings(pydantic.BaseModel):
    """The base of all task settings."""

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")


class TaskSettings(_Settings):
    """The settings that every task has.

    Attributes:
        name: the task's name in tables and results.
        max_length: maximum input length in tokens, including special tokens; null: the encoder's maximum.
        num_train: number of training examples, sampled by seed with the same label proportions; null: all.
        dev_from_train: share of the training examples held out to choose checkpoints and learning rates; null: the dev
            split is used for this.
    """

    name: Name
    max_length: Count | None = None
    num_train: LargeCount | None = None
    dev_from_train: OpenShare | None = None


class FileSettings(_Settings):
    """The files that contain the examples.

    Files take precedence over the hub. Relative paths are searched for below ``data_root``, then below the working
    directory. Compressed files (``.gz``, ``.xz``, ``.zst``) are read directly.

    Attributes:
        files: file of each split, such as ``{train: sst2/train.tsv}``, also of additional splits
            (+task.files.other=my/other.tsv); alternative names are tried in order.
        train: file of the training split, instead of ``files``; tables may be tsv, csv, JSON (objects on lines or in an
            array), parquet, or a folder from datasets.save_to_disk, also compressed (.gz, .xz, .zst).
        dev: file of the dev split, instead of ``files``.
        test: file of the test split, instead of ``files``; the answers may be missing if the file is only for
            prediction.
        data_root: folder that contains the tasks' data folders.
    """

    files: Mapping[str, DataFile | Sequence[DataFile] | None] | None = None
    train: DataFile | Sequence[DataFile] | None = None
    dev: DataFile | Sequence[DataFile] | None = None
    test: DataFile | Sequence[DataFile] | None = None
    data_root: Folder | None = None

    def file_names(self) -> dict[str, tuple[str, ...]]:
        """Return the alternative file names of each split, empty if the split has no file."""
        own = {"train": self.train, "dev": self.dev, "test": self.test}
        files = {**(self.files or {}), **{split: file for split, file in own.items() if file is not None}}
        return {split: (file,) if isinstance(file, str) else tuple(file or ()) for split, file in files.items()}

    def located_files(self, *, task: str) -> LocatedFiles:
        """Locate the data of the task with this name.

        Raises:
            ConfigError: there is neither a file nor a data set on the hub.
        """
        hub = self.hub_source() if isinstance(self, HubDatasetSettings) else None
        located = LocatedFiles(
            files=self.file_names(),
            data_root=self.data_root,
            task=task,
            hub=hub,
            has_folds="folds" in type(self).model_fields,
        )
        if not located.splits:
            also = isinstance(self, HubDatasetSettings)
            raise ConfigError(
                f"task.files is empty{' and task.hub is null' * also}: set a file for each split "
                f"(task.files.train=<file>){', or a data set on the hub with its splits (task.hub)' * also}"
            )
        return located


class HubDatasetSettings(_Settings):
    """The data set on the hub, for splits without a local file.

    Attributes:
        hub: name of the data set, such as ``nyu-mll/glue``; null: files only.
        hub_config: the data set's configuration.
        hub_splits: the hub's name of each split; an unlisted split has the same name.
    """

    hub: HubName | None = None
    hub_config: str | None = None
    hub_splits: Mapping[str, str] | None = None

    def hub_source(self) -> HubSource | None:
        """Return the data set; None if only files are used."""
        return None if self.hub is None else HubSource(self.hub, self.hub_config, dict(self.hub_splits or {}))


class TextTableSettings(FileSettings, HubDatasetSettings):
    """Tables of texts or pairs of texts, from one file per split or from the hub.

    A column may have alternative names, of which the first one in the file is used, so that a task can read splits from
    different sources. A split whose name begins with ``test`` may lack the gold answers, as published test sets do.

    Attributes:
        text_column: column of the text, or of the first text of a pair; or a list of alternative names such as [text,
            sentence], of which the first in a file is used.
        text_pair_column: column of the second text; null: the examples are single texts.
        id_column: column with the ids of examples in predictions; null: ids are ``split:row``, counted from 0.
        hidden_values: values in the files that mark a hidden answer, such as -1 in GLUE.
        dropped_values: values in the files that mark a missing answer; such rows are skipped and counted in ``notes``.
        columns: names of all columns, for files without a header line.
        optional_columns: number of columns at the end of ``columns`` that a row may lack.
        file_format: ``tsv`` (no quoting, one row per line), ``quoted_tsv``, ``csv``, ``jsonl`` (or an array of objects)
            or ``parquet`` (or arrow); null: decided by the file's name and, if it is tab-separated, by its quotation
            marks.
        delimiter: the character between columns, or ``tab``; null: the separator in the first line, which names the
            columns.
        bad_rows: ``refuse``: stop at a row that cannot be read; ``skip``: skip and count such rows.
        encoding_errors: ``strict`` rejects bytes that are not UTF-8; ``replace`` replaces them with U+FFFD.
        folds: number of folds of the training file for cross-validation without a dev file, such as 5; each example is
            scored once, by a model trained on the other folds; null: no folds.
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
