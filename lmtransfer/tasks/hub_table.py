"""A split of a ``datasets`` name as the library has it."""

from __future__ import annotations

from typing import Any

from lmtransfer.errors import DataError
from lmtransfer.tasks.hub import HubSource


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
        raise DataError(
            f"no file {places}, and the datasets name {source.name} could not be loaded: {reason}. Either set "
            "data_root= (or LMTRANSFER_DATA) to a folder that holds the files, or load the data set once with network "
            "access, after which the cache serves it"
        ) from None
