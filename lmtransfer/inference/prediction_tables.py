"""Writers of the user's rows with predictions, as delimited text, JSON lines or parquet, a group of rows at a time."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, Final, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from lmtransfer.data.documents import Notes
from lmtransfer.data.files import BYTE_ORDER_MARKS
from lmtransfer.data.table_rows import TableColumns, arrow_schema, as_arrow, as_object, as_texts
from lmtransfer.errors import ConfigError, DataError
from lmtransfer.inference.prediction_input import JsonObject, Prediction
from lmtransfer.tasks.answers import AnswerColumns, Cells

#: The suffixes of JSON lines.
JSON_SUFFIXES: Final = (".jsonl", ".ndjson")
#: The column of the errors with ``on_error=skip``.
ERROR = "error"
#: What makes a cell need quotation marks, besides the delimiter.
_SPECIAL = re.compile(r'["\r\n]|^\s|\s$')
#: A row group of a parquet file is written at this many rows or bytes.
_GROUP_ROWS, _GROUP_BYTES = 1 << 14, 1 << 24


@dataclass(frozen=True, slots=True)
class OutputTable:
    """A table that is to be written.

    Attributes:
        columns: the columns of the input.
        answers: the columns of the predictions.
        prefix: the text before the names of the predictions' columns.
        has_errors: whether rows may have an error in place of a prediction.
    """

    columns: TableColumns
    answers: AnswerColumns
    prefix: str
    has_errors: bool

    @property
    def cells(self) -> Cells:
        """The added columns of all formats but JSON."""
        errors: Cells = {ERROR: ("string", (ERROR,))} if self.has_errors else {}
        return {self.prefix + name: cell for name, cell in {**self.answers.cells, **errors}.items()}

    @property
    def keys(self) -> dict[str, str]:
        """The added keys of JSON, by the keys of the predictions."""
        return {key: self.prefix + key for key in self.answers.keys}

    def check(self, suffix: str) -> None:
        """Raise an error if the columns of the input do not fit a file with this suffix."""
        names, is_json = self.columns.names or (), suffix in JSON_SUFFIXES
        self.check_new(names, list(self.keys.values() if is_json else self.cells))
        if self.columns.shared_names and suffix in (*JSON_SUFFIXES, ".parquet"):
            raise ConfigError(
                f"{self.columns.shared_names[0]!r} is the name of several columns of the input, which {suffix} does "
                "not allow; rename the columns, or write the output as .csv or .tsv"
            )

    def check_new(self, names: Sequence[str], new: Sequence[str]) -> None:
        """Raise an error if the input has a column with the name of a new one."""
        if taken := [name for name in new if name in names]:
            prefix = "model_" if self.prefix == "predicted_" else "predicted_"
            raise ConfigError(
                f"the input already has a column {taken[0]!r}, and predict would add one of that name; set "
                f"column_prefix={prefix} to add {prefix + taken[0].removeprefix(self.prefix)!r} instead"
            )


class Writer(Protocol):
    """Writes rows with their predictions."""

    def write(self, predictions: Sequence[Prediction]) -> None:
        """Write consecutive rows."""
        ...

    def close(self) -> None:
        """Write what remains, but leave the file open."""
        ...


class _JsonWriter:
    """Writes one object per line: the row, then the keys of the prediction."""

    def __init__(self, file: BinaryIO, table: OutputTable, notes: Notes) -> None:
        self._file, self._table = file, table
        self._new = {**table.keys, ERROR: table.prefix + ERROR}

    def write(self, predictions: Sequence[Prediction]) -> None:
        for prediction in predictions:
            line = prediction.line
            row = {"id": line["id"]}
            if prediction.row is not None:
                row = as_object(prediction.row, self._table.columns)
            answer = {new: line[key] for key, new in self._new.items() if key in line}
            self._table.check_new(tuple(row), tuple(answer))
            json_line({"id": line["id"], **answer})  # raises an error if the prediction is not finite
            text = json_line(row | answer, allow_nan=True)
            self._file.write(text.encode("utf-8") + b"\n")
        self._file.flush()

    def close(self) -> None:
        pass


class _TextWriter:
    """Writes delimited text, with the delimiter and the quoting of the input if it has the same format.

    Cells come back as they are in the input; quotation marks enclose those that need them.
    """

    def __init__(self, file: BinaryIO, table: OutputTable, notes: Notes, *, delimiter: str) -> None:
        self._file, self._table, self._notes = file, table, notes
        own = table.columns.delimiter
        self._delimiter = own if own is not None and delimiter == "," and own != "\t" else delimiter
        self._is_quoted = not (own == delimiter == "\t") or table.columns.is_quoted
        self._cells = table.cells
        names = table.columns.names or ()
        if table.columns.has_mark:
            file.write("\ufeff".encode())
            notes.remove(BYTE_ORDER_MARKS)
        self._write_row([*names, *self._cells], "the header")

    def write(self, predictions: Sequence[Prediction]) -> None:
        columns = self._table.columns
        for prediction in predictions:
            row: Sequence[str | None] = [None] * len(columns.names or ())
            if prediction.row is not None:
                row = as_texts(prediction.row, columns, self._notes, prediction.where)
            answer = [_format(_value(prediction.line, path)) for _, path in self._cells.values()]
            self._write_row([*("" if cell is None else cell for cell in row), *answer], prediction.where)
        self._file.flush()

    def close(self) -> None:
        pass

    def _write_row(self, cells: Sequence[str], where: str) -> None:
        if self._is_quoted:
            cells = [self._quote(cell) for cell in cells]
        elif any(mark in cell for cell in cells for mark in "\t\n"):
            raise DataError(
                f"{where}: a cell of the output has a tab or a line end, which tab-separated values without quotation "
                "marks cannot hold; write the output as .csv"
            )
        if len(cells) == 1 and not cells[0]:
            cells = ['""']
        self._file.write((self._delimiter.join(cells) + "\n").encode("utf-8"))

    def _quote(self, cell: str) -> str:
        if self._delimiter not in cell and not _SPECIAL.search(cell):
            return cell
        return '"' + cell.replace('"', '""') + '"'


class _ParquetWriter:
    """Writes parquet; the columns of a parquet input keep their types, and all others are strings."""

    def __init__(self, file: BinaryIO, table: OutputTable, notes: Notes) -> None:
        self._columns, self._cells, self._notes = table.columns, table.cells, notes
        schema = arrow_schema(table.columns)
        self._types = [pa.string() if kind == "json" else pa.type_for_alias(kind) for kind, _ in self._cells.values()]
        for name, kind in zip(self._cells, self._types, strict=True):
            schema = schema.append(pa.field(name, kind))
        self._schema = schema
        self._writer = pq.ParquetWriter(file, schema)
        self._pending: list[pa.Table] = []

    def write(self, predictions: Sequence[Prediction]) -> None:
        rows = as_arrow([(item.where, item.row) for item in predictions], self._columns, self._notes)
        answers = []
        for kind, (cell_type, path) in zip(self._types, self._cells.values(), strict=True):
            values = [_value(item.line, path) for item in predictions]
            if cell_type == "json":
                values = [None if value is None else json.dumps(value, ensure_ascii=False) for value in values]
            answers.append(pa.array(values, kind))
        self._pending.append(pa.Table.from_arrays([*rows.columns, *answers], schema=self._schema).combine_chunks())
        if (
            sum(table.num_rows for table in self._pending) >= _GROUP_ROWS
            or sum(table.nbytes for table in self._pending) >= _GROUP_BYTES
        ):
            self._write_group()

    def close(self) -> None:
        self._write_group()
        self._writer.close()

    def _write_group(self) -> None:
        pending, self._pending = self._pending, []
        if pending:
            self._writer.write_table(pa.concat_tables(pending).combine_chunks())


def _value(line: JsonObject, path: Sequence[str]) -> Any:
    """Return the value to which keys lead in a prediction; None if it is missing."""
    value: Any = line
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _format(value: Any) -> str:
    """Return the value of a cell of delimited text; numbers have the precision of float32."""
    if value is None:
        return ""
    value = _shorten(value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _shorten(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.7g}")
    if isinstance(value, list):
        return [_shorten(item) for item in value]
    return {key: _shorten(item) for key, item in value.items()} if isinstance(value, dict) else value


def _text_writer(delimiter: str) -> Callable[[BinaryIO, OutputTable, Notes], Writer]:
    return lambda file, table, notes: _TextWriter(file, table, notes, delimiter=delimiter)


#: The writer for each suffix of an output file.
WRITERS: Final[Mapping[str, Callable[[BinaryIO, OutputTable, Notes], Writer]]] = {
    ".csv": _text_writer(","),
    ".tsv": _text_writer("\t"),
    **dict.fromkeys(JSON_SUFFIXES, _JsonWriter),
    ".parquet": _ParquetWriter,
}


def json_line(line: dict[str, Any], *, ascii_only: bool = False, allow_nan: bool = False) -> str:
    """Convert an object to one line of JSON."""
    try:
        text = json.dumps(line, ensure_ascii=ascii_only, allow_nan=allow_nan, default=str)
        text.encode("utf-8")
    except UnicodeEncodeError:  # half of a surrogate pair, as JSON may have it
        return json_line(line, ascii_only=True, allow_nan=allow_nan)
    except ValueError:
        raise DataError(
            f"{line.get('id')}: the prediction has values that are not finite, so the weights are unusable; check "
            "whether training diverged"
        ) from None
    return text
