"""Read a split of a ``datasets`` name as rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from lmtransfer.errors import DataError
from lmtransfer.tasks.places import HubSource, load_hub_table
from lmtransfer.tasks.text.tables import Column, Row


@dataclass(frozen=True, slots=True)
class HubRows:
    """The rows of a split.

    Attributes:
        named: for each wanted column, whether the hub stores label numbers. They are replaced by label names, so that
            labels are matched by name, never by number.
        rows: rows in the same form as from a file.
    """

    named: tuple[bool, ...]
    rows: Iterator[Row]


def read_hub_rows(source: HubSource, split: str, wanted: Sequence[Column], *, places: str) -> HubRows:
    """Read the wanted columns of a split.

    Args:
        source: the data set on the hub.
        split: our name of the split.
        wanted: the columns to return.
        places: where a file was searched before, for the message.

    Raises:
        DataError: the split can neither be loaded nor found in the cache, or a column is missing.
    """
    table = load_hub_table(source, split, places=places)
    where = source.origin(split)
    found = [_column(column, table.column_names, where) for column in wanted]
    labels = [None if name is None else getattr(table.features[name], "names", None) for name in found]
    columns = [
        [None] * len(table) if name is None else _texts(table[name], names)
        for name, names in zip(found, labels, strict=True)
    ]
    return HubRows(
        named=tuple(names is not None for names in labels),
        rows=(Row(n, f"{where}, row {n}", values) for n, values in enumerate(zip(*columns, strict=True))),
    )


def _column(column: Column, names: Sequence[str], where: str) -> str | None:
    name = next((name for name in column.names if name in names), None)
    if name is None and column.required:
        raise DataError(
            f"{where}: no column {column}; the columns are {', '.join(names)}. Set {column.setting} to one of these"
        )
    return name


def _texts(values: Iterable[Any], labels: Sequence[str] | None) -> list[str | None]:
    """Return values as text, label numbers as names (-1, a hidden label, stays -1); None for a missing value."""
    if labels is None:
        return [None if value is None else str(value) for value in values]
    return [None if value is None else str(value) if value < 0 else labels[value] for value in values]
