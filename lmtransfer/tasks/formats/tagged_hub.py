"""A split of a ``datasets`` name that holds lists of words and lists of tags."""

from __future__ import annotations

from collections.abc import Iterator

from lmtransfer.errors import DataError
from lmtransfer.tasks.formats.tagged_sentence import TaggedSentence
from lmtransfer.tasks.hub_table import HubSource, load_hub_table


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
    table = load_hub_table(source, split, places=places)
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
