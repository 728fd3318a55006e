"""A split of a ``datasets`` name that holds lists of words and lists of tags."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from lmtransfer.errors import DataError
from lmtransfer.tasks.formats.tagged_sentence import TaggedSentence
from lmtransfer.tasks.hub import HubSource


def read_tagged_hub(
    source: HubSource, split: str, *, words_column: str, tags_column: str, places: str
) -> Iterator[TaggedSentence]:
    """The sentences of a split; tags that are stored as numbers are given by the names that come with them.

    Args:
        source: where it is.
        split: our name of the split.
        words_column: column of the words.
        tags_column: column of the tags; -1 throughout stands for hidden ones.
        places: where a file was looked for before, for the message.

    Raises:
        DataError: it can neither be loaded nor found in the cache, a column is missing, or a sentence has no words or
            another number of tags.
    """
    table = _load(source, split, places)
    origin = source.origin(split)
    missing = [column for column in (words_column, tags_column) if column not in table.column_names]
    if missing:
        raise DataError(
            f"{origin}: no column {', '.join(missing)}; there are {', '.join(table.column_names)}. Set "
            "task.hub_columns to those of the words and of the tags"
        )
    tag_names = getattr(getattr(table.features[tags_column], "feature", None), "names", None)
    for row, (words, values) in enumerate(zip(table[words_column], table[tags_column], strict=True)):
        if not words or len(words) != len(values):
            raise DataError(f"{origin}:{row}: {len(words)} words and {len(values)} tags")
        hidden = all(value in (-1, None) for value in values)
        tags = None if hidden else tuple(str(value) if tag_names is None else tag_names[value] for value in values)
        yield TaggedSentence(origin, (row,) * len(words), tuple(words), tags)


def _load(source: HubSource, split: str, places: str) -> Any:
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
