"""The location of a task's data, in folders or on the hub, and reports of missing data."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lmtransfer.data.corpora.hub import check_dataset_folder
from lmtransfer.data.files import describe_splits, find_data
from lmtransfer.errors import ConfigError, DataError


class LocatedFiles:
    """One file per split, searched for below ``data_root`` and then below the working directory.

    If the plain file is missing, its ``.gz``, ``.xz`` or ``.zst`` form is used. A file may also be a
    ``datasets.save_to_disk`` folder.

    Args:
        files: possible file names of each split, tried in order; messages show the first. A split without a name has no
            file.
    """

    def __init__(self, *, files: Mapping[str, Sequence[str]], data_root: str | None, task: str) -> None:
        empty = [split for split, names in files.items() if "" in names]
        if empty:
            raise ConfigError([f"task.{split}, task.files.{split}: is empty; set a file or null" for split in empty])
        self._files = {split: tuple(names) for split, names in files.items() if names}
        self._folders = [*([] if data_root is None else [Path(data_root)]), Path.cwd()]
        self._task = task

    @property
    def splits(self) -> tuple[str, ...]:
        """Names of the splits that have a file."""
        return tuple(self._files)

    def find(self, split: str) -> Path | None:
        """Find the file of a split; None if it is not on this machine."""
        paths = (path for name in self._files.get(split, ()) for path in self._paths(name))
        return next((file for file in map(find_data, paths) if file is not None), None)

    def require(self, split: str) -> Path:
        """Find the file of a split."""
        path = self.find(split)
        if path is None:
            raise self.missing_error(split)
        return path

    def _paths(self, name: str) -> list[Path]:
        """Return the paths to search for a file; a single one if its name is absolute."""
        return list(dict.fromkeys(folder / name for folder in self._folders))

    def places(self, split: str) -> str:
        """List the paths to search for a split's file, for messages."""
        if split not in self._files:
            return "(none configured)"
        return " or ".join(map(str, self._paths(self._files[split][0])))

    def missing_error(self, split: str, *, has_folds: bool = False) -> DataError:
        """Return the error for a missing file, if there is no other source either.

        Args:
            has_folds: whether folds of the training split can replace the task's dev split.
        """
        if split not in self._files:
            folds = ", or set task.folds=5 to score each fifth of the training file with a run trained on the rest"
            folds *= has_folds and split == "dev" and "train" in self._files
            return DataError(
                f"split={split}: task {self._task} has files for {', '.join(self._files) or 'no split'}; set "
                f"task.{split}= or task.files.{split}= to a file{folds}"
            )
        file = self._files[split][0]
        problem = f"task {self._task}, split {split}: no file {self.places(split)}"
        for path in self._paths(file):
            if path.is_dir():
                problem_with_folder = describe_splits(path) or "is a folder; name a file in it"
                return DataError(f"{problem}: {path} {problem_with_folder} (task.{split}=)")
            names = [sibling.name for sibling in path.parent.iterdir()] if path.parent.is_dir() else []
            similar = difflib.get_close_matches(path.name, names, n=1, cutoff=0.6)
            if similar:
                problem += f". Did you mean {Path(file).with_name(similar[0])}?"
                break
        problem, folder = problem if problem.endswith("?") else f"{problem}.", Path(file).parent
        if folder == Path():
            return DataError(
                f"{problem} Set task.{split}= or task.files.{split}= to the path of the file, from the folder where "
                "the command was started or from data_root= (LMTRANSFER_DATA)"
            )
        return DataError(
            f"{problem} Set data_root= or LMTRANSFER_DATA to the folder that contains {folder}, or "
            f"task.files.{split}= to the file itself"
        )


@dataclass(frozen=True, slots=True)
class HubSource:
    """A task's data set on the hub.

    Attributes:
        splits: hub name of each split; an unlisted split has the same name.
    """

    name: str
    config: str | None = None
    splits: Mapping[str, str] = field(default_factory=dict)

    def origin(self, split: str) -> str:
        """Describe a split, for messages."""
        config = f" ({self.config})" if self.config else ""
        return f"{self.name}{config} {self.splits.get(split, split)}"


def load_hub_table(source: HubSource, split: str, *, places: str) -> Any:
    """Load the table of a split: ``column_names``, ``features``, and each column by name.

    Raises:
        DataError: the split can neither be loaded nor found in the cache, or a local folder names files outside it.
    """
    import datasets  # imported here because the import is slow and tasks with files do not need it
    from datasets.exceptions import DatasetGenerationError

    if Path(source.name).is_dir():
        check_dataset_folder(Path(source.name))
    try:
        return datasets.load_dataset(source.name, source.config, split=source.splits.get(split, split))
    except (OSError, ValueError, KeyError, RuntimeError, ImportError, DatasetGenerationError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        config = f" ({source.config})" if source.config else ""
        raise DataError(
            f"no file {places}, and the datasets name {source.name}{config} could not be loaded: {reason}. Either set "
            "data_root= (or LMTRANSFER_DATA) to a folder that contains the files, or load the data set once with "
            "network access; from then on it is read from the cache"
        ) from None
