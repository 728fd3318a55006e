"""A split of a ``datasets`` name as texts and label indices."""

from __future__ import annotations

from collections.abc import Sequence

from lmtransfer.errors import DataError

Texts = tuple[str, ...]


def read_hub_split(
    name: str, config: str | None, split: str, wanted: Sequence[str], labels: Sequence[str], places: str
) -> list[tuple[Texts, int | None]]:
    """Texts and labels of a split; labels are matched by name, never by number.

    Args:
        name: ``datasets`` name.
        config: its configuration, or None.
        split: its split.
        wanted: the text column or columns, then the label column.
        labels: the task's label names in order.
        places: where a file was looked for before, for the message.

    Raises:
        DataError: it can neither be loaded nor found in the cache, a column is missing, or its label names are others.
    """
    import datasets  # imported here: it is slow to import, and files need none of it
    from datasets.exceptions import DatasetGenerationError

    try:
        table = datasets.load_dataset(name, config, split=split)
    except (OSError, ValueError, KeyError, RuntimeError, ImportError, DatasetGenerationError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise DataError(
            f"no file {places}, and the datasets name {name}{f' ({config})' if config else ''} could not be "
            f"loaded: {reason}. Either set data_root= (or LMTRANSFER_DATA) to a folder that holds the files, or load "
            "the data set once with network access, after which the cache serves it"
        ) from None
    missing = [column for column in wanted if column not in table.column_names]
    if missing:
        raise DataError(f"{name} {split}: no column {', '.join(missing)}; there are {', '.join(table.column_names)}")
    *text_columns, label_column = wanted
    index_of = _index_of(table.features[label_column], labels, f"{name} {split}")
    rows: list[tuple[Texts, int | None]] = []
    columns = [table[column] for column in text_columns]
    for number, (*texts, value) in enumerate(zip(*columns, table[label_column], strict=True)):
        if value not in (-1, None) and value not in index_of:
            raise DataError(f"{name} {split}: row {number} has the label {value!r}, none of {', '.join(labels)}")
        rows.append((tuple(texts), None if value in (-1, None) else index_of[value]))
    return rows


def _index_of(feature: object, labels: Sequence[str], where: str) -> dict[object, int]:
    """Our index of each value that the label column may hold."""
    names = getattr(feature, "names", None)
    if names is None:
        return {label: index for index, label in enumerate(labels)}
    if set(names) != set(labels):
        raise DataError(f"{where}: its labels are {', '.join(names)}; the task's are {', '.join(labels)}")
    return {number: labels.index(label) for number, label in enumerate(names)}
