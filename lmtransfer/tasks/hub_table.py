"""A split of a ``datasets`` name as the library has it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lmtransfer.errors import DataError


@dataclass(frozen=True, slots=True)
class HubSource:
    """Where a task is on the hub.

    Attributes:
        name: ``datasets`` name.
        config: its configuration, or None.
        splits: hub split of each split; by the same name where it says nothing.
    """

    name: str
    config: str | None = None
    splits: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, name: str | None, config: str | None, splits: Mapping[str, str] | None) -> HubSource | None:
        """As the settings of a task say; None without a name."""
        return None if name is None else cls(name, config, dict(splits or {}))

    def origin(self, split: str) -> str:
        """What a split is called, in words."""
        config = f" ({self.config})" if self.config else ""
        return f"{self.name}{config} {self.splits.get(split, split)}"


def load_hub_table(source: HubSource, split: str, *, places: str) -> Any:
    """The table of a split: ``column_names``, ``features``, and a column by its name.

    Args:
        source: where it is.
        split: our name of the split.
        places: where a file was looked for before, for the message.

    Raises:
        DataError: it can neither be loaded nor found in the cache.
    """
    import datasets  # imported here: it is slow to import, and files need none of it
    from datasets.exceptions import DatasetGenerationError

    try:
        return datasets.load_dataset(source.name, source.config, split=source.splits.get(split, split))
    except (OSError, ValueError, KeyError, RuntimeError, ImportError, DatasetGenerationError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        config = f" ({source.config})" if source.config else ""
        raise DataError(
            f"no file {places}, and the datasets name {source.name}{config} could not be loaded: {reason}. Either set "
            "data_root= (or LMTRANSFER_DATA) to a folder that holds the files, or load the data set once with network "
            "access, after which the cache serves it"
        ) from None
