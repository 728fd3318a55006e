"""Whole rows of tables, with all their columns, and their conversion to texts, JSON objects and arrow tables."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from lmtransfer.data.documents import Notes, clean

if TYPE_CHECKING:
    import pyarrow as pa

#: A row as the file has it: the cells of a line of delimited text, a JSON object, or one row of a parquet file.
Row: TypeAlias = "Sequence[str] | Mapping[str, Any] | pa.RecordBatch"


@dataclass(frozen=True, slots=True)
class TableColumns:
    """The columns of a table, and how the file separates them.

    Attributes:
        names: the names; None if each row has its own, as in JSON.
        schema: names and types of the columns of a parquet file; None for all other formats.
        delimiter: the character between the columns of delimited text; None for all other formats.
        is_quoted: whether quotation marks enclose fields; in delimited text without them, every mark is text.
        has_mark: whether the file begins with a byte order mark.
    """

    names: tuple[str, ...] | None
    schema: pa.Schema | None = None
    delimiter: str | None = None
    is_quoted: bool = True
    has_mark: bool = False

    @property
    def shared_names(self) -> list[str]:
        """The names that several columns have."""
        names = self.names or ()
        return [name for name in dict.fromkeys(names) if names.count(name) > 1]


def as_object(row: Row, columns: TableColumns) -> dict[str, Any]:
    """Return a row as an object; the column names must be distinct."""
    if isinstance(row, Mapping):
        return dict(row)
    if isinstance(row, Sequence):
        return dict(zip(columns.names or (), row, strict=False))
    return {name: None if _is_nan(value) else value for name, value in row.to_pylist()[0].items()}


def as_texts(row: Row, columns: TableColumns, notes: Notes, where: str) -> list[str | None]:
    """Return the cells of a row as texts; None for a missing value. Values other than texts become JSON."""
    names = columns.names or ()
    if isinstance(row, Mapping):
        return [_as_text(row.get(name), notes, where) for name in names]
    if isinstance(row, Sequence):
        return [*row, *[""] * (len(names) - len(row))]
    return [_as_text(column[0].as_py(), notes, where) for column in row.columns]


def as_arrow(rows: Sequence[tuple[str, Row | None]], columns: TableColumns, notes: Notes) -> pa.Table:
    """Return rows, each with its place for messages, as an arrow table, in which None is a row without values.

    The columns of a parquet file keep their types; all others are strings.
    """
    import pyarrow as pa

    schema = arrow_schema(columns)
    if columns.schema is not None:
        nothing = pa.RecordBatch.from_pylist([dict.fromkeys(schema.names)], schema=schema)
        batches = [nothing if row is None else cast("pa.RecordBatch", row) for _, row in rows]
        return pa.Table.from_batches([batch.replace_schema_metadata() for batch in batches], schema)
    texts = [[None] * len(schema) if row is None else as_texts(row, columns, notes, where) for where, row in rows]
    arrays = [pa.array(column, pa.large_string()) for column in zip(*texts, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema)


def arrow_schema(columns: TableColumns) -> pa.Schema:
    """Return the columns of ``as_arrow``."""
    import pyarrow as pa

    if columns.schema is not None:
        return columns.schema.remove_metadata()
    return pa.schema([(name, pa.large_string()) for name in columns.names or ()])


def _as_text(value: Any, notes: Notes, where: str) -> str | None:
    if value is None or _is_nan(value):
        return None
    if not isinstance(value, str):
        is_json = isinstance(value, bool | int | float | list | dict)
        value = json.dumps(value, ensure_ascii=False, default=str) if is_json else str(value)
    return clean(value, where, notes)


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)
