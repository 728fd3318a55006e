"""The files of a task's splits: where they are looked for, and what is said where they are not."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from lmtransfer.data.files import find_file
from lmtransfer.errors import ConfigError, DataError


class LocatedFiles:
    """One file a split, looked for below ``data_root`` and then below the working directory.

    ``.gz``, ``.xz`` and ``.zst`` are found where the plain file is named.

    Args:
        files: file of each split; null: it has none.
        data_root: folder that holds the data folders.
        task: the task's name, for messages.

    Raises:
        ConfigError: a file without a name.
    """

    def __init__(self, *, files: Mapping[str, str | None], data_root: str | None, task: str) -> None:
        empty = [split for split, file in files.items() if file == ""]
        if empty:
            raise ConfigError([f"task.{split}, task.files.{split}: is empty; name a file, or null" for split in empty])
        self._files = {split: file for split, file in files.items() if file is not None}
        self._folders = [*([] if data_root is None else [Path(data_root)]), Path.cwd()]
        self._task = task

    @property
    def splits(self) -> tuple[str, ...]:
        """Names of the splits that have a file."""
        return tuple(self._files)

    def find(self, split: str) -> Path | None:
        """The file of a split, or None where there is none at hand."""
        if split not in self._files:
            return None
        found = (find_file(folder / self._files[split]) for folder in self._folders)
        return next((path for path in found if path is not None), None)

    def places(self, split: str) -> str:
        """Where a split's file is looked for, in words."""
        if split not in self._files:
            return "(none configured)"
        return " or ".join(str(folder / self._files[split]) for folder in self._folders)

    def missing(self, split: str) -> DataError:
        """What to say where the file is not at hand and nothing else serves."""
        if split not in self._files:
            return DataError(
                f"split={split}: task {self._task} has {', '.join(self._files) or 'no files'}; "
                f"name a file by task.files.{split}="
            )
        return DataError(
            f"task {self._task}, split {split}: no file {self.places(split)}. Set data_root= or LMTRANSFER_DATA to the "
            f"folder that holds {Path(self._files[split]).parent}, or task.files.{split}= to the file itself"
        )
