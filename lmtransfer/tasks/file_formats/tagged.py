"""Sentences with their tags, from JSON, parquet, or a split of a ``datasets`` name.

A row is ``{"words": ["Ann", "ran"], "tags": ["PROPN", "VERB"]}``, with an optional ``id``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from lmtransfer.data.documents import Notes
from lmtransfer.data.tables import BadRows, ColumnSpec, TableLayout, TableRecord, open_table
from lmtransfer.errors import DataError
from lmtransfer.tasks.places import HubSource, load_hub_table


@dataclass(frozen=True, slots=True)
class TaggedSentence:
    """One sentence.

    Attributes:
        source: the sentence's file.
        lines: line number of each word in the file, or its row.
        words: the words.
        tags: tag names, one per word; None if the source has no tags.
        name: the sentence's id in the source, if any.
    """

    source: str
    lines: tuple[int | str, ...]
    words: tuple[str, ...]
    tags: tuple[str, ...] | None
    name: str | None = None

    def where(self, word: int = 0) -> str:
        """Return ``file:line`` of a word, for messages."""
        return f"{self.source}:{self.lines[word]}"


def read_tagged_rows(
    path: Path,
    *,
    file_format: Literal["jsonl", "parquet"],
    words_fields: Sequence[str],
    tags_field: str,
    with_gold: bool,
    notes: Notes,
) -> Iterator[TaggedSentence]:
    """Read the sentences of a file in order, skipping blank lines.

    Args:
        path: the file, plain or compressed.
        file_format: ``jsonl`` (one object per line, or an array) or ``parquet`` (or arrow).
        words_fields: possible names of the field with the words.
        with_gold: whether all sentences must have tags; otherwise a missing or null field means hidden tags.
        notes: counts unusual input in the file.

    Raises:
        DataError: a row is not such an object, or its numbers of tags and words differ; the message has ``file:line``.
    """
    columns = [
        ColumnSpec(tuple(words_fields), "task.word_column", advice="write this field"),
        ColumnSpec((tags_field,), "task.tag_column", required=with_gold, advice="write this field"),
        ColumnSpec(("id",), "id", required=False),
    ]
    bad_rows = BadRows("refuse", notes, "or remove it")
    for record in open_table(path, columns, layout=TableLayout(file_format), bad_rows=bad_rows).records:
        where = record.where
        words = _texts(record, columns[0])
        tags = None
        if record.values.get(tags_field) is not None or with_gold:
            tags = _texts(record, columns[1])
            if len(tags) != len(words):
                raise DataError(f"{where}: {len(words)} words and {len(tags)} tags; give each word one tag")
        name = record.values.get("id")
        source, _, line = where.rpartition(":")
        yield TaggedSentence(source, (line,) * len(words), words, tags, None if name is None else str(name))


def _texts(record: TableRecord, column: ColumnSpec) -> tuple[str, ...]:
    name, where = record.name_of(column), record.where
    if name is None:
        raise DataError(f"{where}: {record.missing_message(column)}")
    texts = record.values[name]
    if isinstance(texts, list) and texts and all(isinstance(text, int) for text in texts):
        raise DataError(
            f"{where}: {name!r} has label numbers, as Dataset.to_json writes them: write names in their place "
            f"(dataset.features[{name!r}].feature.names), or use Dataset.to_parquet, which keeps the names"
        )
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str) and text for text in texts):
        raise DataError(f"{where}: {name!r} must be a list of texts: at least one, and none may be empty")
    return tuple(texts)


def read_tagged_hub(
    source: HubSource, split: str, *, words_column: str, tags_column: str, places: str
) -> Iterator[TaggedSentence]:
    """Read the sentences of a split; tags stored as numbers are replaced with their names in the data set.

    Args:
        split: our name of the split.
        tags_column: column of the tags; if all tags are -1, they are hidden.
        places: where a file has already been searched for, for the message.

    Raises:
        DataError: the split can neither be loaded nor found in the cache, a column is missing, a sentence has no words,
            or its numbers of tags and words differ.
    """
    table = load_hub_table(source, split, places=places)
    origin = source.origin(split)
    missing = [column for column in (words_column, tags_column) if column not in table.column_names]
    if missing:
        raise DataError(
            f"{origin}: no column {', '.join(missing)}; the columns are {', '.join(table.column_names)}. Set "
            "task.hub_columns to the columns of the words and of the tags"
        )
    tag_names = getattr(getattr(table.features[tags_column], "feature", None), "names", None)
    for row, (words, values) in enumerate(zip(table[words_column], table[tags_column], strict=True)):
        if not words or len(words) != len(values):
            raise DataError(f"{origin}:{row}: {len(words)} words, but {len(values)} tags")
        hidden = all(value in (-1, None) for value in values)
        absent = [value for value in values if value is None or (isinstance(value, int) and value < 0)]
        if absent and not hidden:
            raise DataError(
                f"{origin}:{row}: {absent[0]} stands for a hidden tag, but other words have tags: give "
                "all words of a sentence tags, or none of them"
            )
        tags = None if hidden else tuple(str(value) if tag_names is None else tag_names[value] for value in values)
        yield TaggedSentence(origin, (row,) * len(words), tuple(words), tags)
