"""Saved predictions as parquet files: one row per example, with its gold answer and the run's answer.

``pandas.read_parquet`` reads them: ``id``, ``gold``, ``answer`` (label, list of labels or tags, score, or text),
``probability`` of the answer (a list for tags and for label sets), ``start`` of a span, ``class``; then ``key``,
``group`` and ``length``, which match and group examples across runs, and each example's contribution to the metrics as
``score/<metric>`` and ``weight/<metric>``. Identical predictions give identical bytes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from typing_extensions import TypedDict

from lmtransfer.data.declared_sizes import TooLarge, most_unpacked, read_parquet
from lmtransfer.errors import RunDirectoryError
from lmtransfer.system.durable import staged_folder
from lmtransfer.system.printable import printable, printable_values
from lmtransfer.system.safe_files import open_regular, parse_json
from lmtransfer.tasks.metrics.scored_examples import (
    MOST_ID_BYTES,
    MOST_TEXT_BYTES,
    Kind,
    Predictions,
    Ratio,
    ScoredExamples,
)

#: The predictions folder in a run directory.
FOLDER = "predictions"
#: The folder in a run directory whose ``FOLDER`` holds the predictions of its baselines.
BASELINES = "baselines"
#: Predictions with more examples or more answers than this are not kept.
MOST_EXAMPLES, MOST_ANSWERS = 500_000, 10_000_000
#: Upper bounds on the unpacked size of a file, the number of labels and the size of a number; larger ones are rejected.
_MOST_BYTES, _MOST_LABELS, _LARGEST = 1 << 30, 10_000, 1e15
#: Number of examples that are unpacked at once.
_ROWS = 1 << 16
_FORMAT, _SUFFIX, _ABOUT = 2, ".parquet", b"lmtransfer"
_DAMAGED = (OSError, ValueError, KeyError, TypeError, RuntimeError, pa.ArrowException)

_ABOUT_RUN = ("task", "split", "main_metric", "seed", "pretraining_seed", "is_control", "baseline")
_TEXT, _NUMBER, _PROBABILITY = pa.string(), pa.float64(), pa.float32()
#: Types of gold answers and answers; minimal pairs have no answers.
_ANSWER_TYPES: dict[Kind, pa.DataType] = {
    "classification": _TEXT,
    "multi_label": pa.list_(_TEXT),
    "tagging": pa.list_(_TEXT),
    "regression": _NUMBER,
    "span": _TEXT,
}
#: Columns with an entry for each example, in every file.
_OF_EXAMPLES = {"id": _TEXT, "class": _TEXT, "key": pa.uint64(), "group": pa.int64(), "length": pa.int64()}
_NULLABLE = ("class", "start")


class _Format(TypedDict):
    format: int


class _About(TypedDict):
    task: str
    split: str
    main_metric: str
    seed: int | None
    pretraining_seed: int | None
    is_control: bool
    baseline: str
    kind: Kind
    labels: list[str]
    class_names: list[str]
    positive: int
    metrics: list[str]


def is_kept(examples: ScoredExamples) -> bool:
    """Whether there are few enough predictions to keep."""
    return len(examples) <= MOST_EXAMPLES and len(examples.predicted) <= MOST_ANSWERS


def write_predictions(run: Path, predictions: Mapping[str, Predictions]) -> None:
    """Write predictions, by file name without suffix, into a run directory; either all files or none are replaced."""
    with staged_folder(run / FOLDER) as folder:
        for name, content in predictions.items():
            (folder / f"{name}{_SUFFIX}").write_bytes(_pack(content))


def read_predictions(path: Path) -> Predictions:
    """Read the predictions in a file."""
    try:
        return _unpack(path)
    except (RunDirectoryError, *_DAMAGED) as error:
        reason = getattr(error, "strerror", None) or str(error).removeprefix(f"{path}: ") or type(error).__name__
        raise RunDirectoryError(
            f"{path}: cannot read the predictions ({printable(reason)[:200]}); delete the file to continue without "
            "predictions, or score the run again with lmtransfer evaluate"
        ) from error


def prediction_files(run: Path) -> list[Path]:
    """List the prediction files of a run, its seeds, its control and its baselines, in path order."""
    roots = (run, run / "control")
    members = [folder for root in roots for name in ("seed-*", "pretraining-*/seed-*") for folder in root.glob(name)]
    folders = (*roots, *members, run / BASELINES)
    files = {file for folder in folders for file in (folder / FOLDER).glob(f"*{_SUFFIX}")}
    return sorted(files, key=lambda file: _natural(file.relative_to(run).as_posix()))


def file_name(predictions: Predictions, *, alone: bool) -> str:
    """Return a file name without suffix: ``dev``, or ``test-control-seed-1`` if there are several files."""
    parts = [predictions.split]
    if not alone:
        parts += ["control"] if predictions.is_control else []
        parts += [predictions.baseline] if predictions.baseline else []
        parts += [] if predictions.pretraining_seed is None else [f"pretraining-{predictions.pretraining_seed}"]
        parts += [] if predictions.seed is None else [f"seed-{predictions.seed}"]
    return re.sub(r"[^\w.-]+", "-", "-".join(parts)).strip(".") or "predictions"


def _natural(name: str) -> list[tuple[int, int, str]]:
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in re.split(r"(\d+)", name) if part]


def _pack(predictions: Predictions) -> bytes:
    examples = predictions.examples
    about = {
        "format": _FORMAT,
        **{name: getattr(predictions, name) for name in _ABOUT_RUN},
        "kind": examples.kind,
        "labels": examples.labels,
        "class_names": examples.class_names,
        "positive": examples.positive,
        "metrics": list(examples.ratios),
    }
    classes = [examples.class_names[index] if index >= 0 else None for index in examples.classes.tolist()]
    columns: dict[str, Any] = {
        "id": list(examples.ids),
        "class": classes,
        "key": examples.keys,
        "group": examples.clusters,
        "length": examples.lengths,
    }
    if examples.kind in _ANSWER_TYPES:
        columns["gold"] = _answers(examples, examples.gold, examples.gold_answers)
        columns["answer"] = _answers(examples, examples.predicted, examples.answers)
    if len(examples.confidences):
        rounded = examples.confidences.astype(np.float16).astype(np.float32)
        columns["probability"] = _in_lists(examples, rounded) if _has_lists(examples.kind) else rounded
    if len(examples.starts):
        columns["start"] = [None if start < 0 else start for start in examples.starts.tolist()]
    for name, ratio in examples.ratios.items():
        columns |= {f"score/{name}": ratio.parts, f"weight/{name}": ratio.counts}
    types = {**_types(examples.kind, examples.ratios), "probability": _probability(examples.kind), "start": pa.int64()}
    schema = pa.schema([(name, types[name]) for name in columns], metadata={_ABOUT: json.dumps(about).encode()})
    target = pa.BufferOutputStream()
    pq.write_table(pa.table(columns, schema), target, compression="zstd", write_statistics=False)
    return bytes(target.getvalue())


def _has_lists(kind: Kind) -> bool:
    """Whether an example has several answers: a tag per word, or a decision per label."""
    return kind in ("tagging", "multi_label")


def _probability(kind: Kind) -> pa.DataType:
    return pa.list_(_PROBABILITY) if _has_lists(kind) else _PROBABILITY


def _types(kind: Kind, metrics: Sequence[str] | Mapping[str, Any]) -> dict[str, pa.DataType]:
    answers = dict.fromkeys(("gold", "answer"), _ANSWER_TYPES[kind]) if kind in _ANSWER_TYPES else {}
    shares = {f"{part}/{metric}": _NUMBER for metric in metrics for part in ("score", "weight")}
    return {**_OF_EXAMPLES, **answers, **shares}


def _answers(examples: ScoredExamples, numbers: np.ndarray, texts: Sequence[str]) -> Any:
    if examples.kind == "span":
        return list(texts)
    if examples.kind == "regression":
        return numbers
    names = np.array(examples.labels, dtype=object)
    if examples.kind == "classification":
        return names[numbers]
    if examples.kind == "tagging":
        return _in_lists(examples, names[numbers])
    return [names[row > 0] for row in numbers.reshape(len(examples), len(names))]


def _in_lists(examples: ScoredExamples, values: np.ndarray) -> list[np.ndarray]:
    return np.split(values, examples.offsets[1:-1]) if len(examples) else []


def _unpack(path: Path) -> Predictions:
    with open_regular(path, error=RunDirectoryError) as (opened, size), pq.ParquetFile(opened) as file:
        described = (file.metadata.metadata or {}).get(_ABOUT)
        if described is None:
            raise ValueError("it was not written by lmtransfer")
        source = f"{path}: description"
        if parse_json(described, _Format, source=source, error=RunDirectoryError)["format"] != _FORMAT:
            raise ValueError("it was written by another version of lmtransfer")
        about: _About = printable_values(parse_json(described, _About, source=source, error=RunDirectoryError))
        _check_size(file.metadata)
        kind, metrics = about["kind"], about["metrics"]
        types = _types(kind, metrics)
        optional = {"probability": _probability(kind), "start": pa.int64()}
        types |= {name: optional[name] for name in optional if name in file.schema_arrow.names}
        _check_columns(file.schema_arrow, types)
        most = min(_MOST_BYTES, most_unpacked(size))
        try:
            batches = list(read_parquet(file, opened, size, list(types), rows=_ROWS, most=most))
        except TooLarge:
            raise ValueError(f"it unpacks to more than {most:,} bytes") from None
        empty = file.schema_arrow.empty_table().select(list(types))
        table = pa.Table.from_batches(batches).combine_chunks() if batches else empty
    columns = {name: _column(table, name) for name in types}
    none = np.zeros(0, dtype=np.int64)
    gold, offsets = _numbers(kind, columns.get("gold", []), about["labels"])
    predicted, answer_offsets = _numbers(kind, columns.get("answer", []), about["labels"])
    if not np.array_equal(offsets, answer_offsets):
        raise ValueError("gold and answer have different numbers of entries")
    probabilities = columns.get("probability", none)
    examples = ScoredExamples(
        kind=kind,
        labels=tuple(about["labels"]),
        ids=_strings(columns["id"], MOST_ID_BYTES),
        keys=columns["key"],
        clusters=columns["group"],
        lengths=columns["length"],
        predicted=predicted,
        gold=gold,
        offsets=offsets if len(offsets) else np.zeros(table.num_rows + 1, dtype=np.int64),
        ratios={name: Ratio(columns[f"score/{name}"], columns[f"weight/{name}"]) for name in metrics},
        classes=_places(columns["class"], about["class_names"]),
        answers=_strings(columns["answer"], MOST_TEXT_BYTES) if kind == "span" else (),
        gold_answers=_strings(columns["gold"], MOST_TEXT_BYTES) if kind == "span" else (),
        class_names=tuple(about["class_names"]),
        positive=about["positive"],
        confidences=np.concatenate([none, *probabilities]) if _has_lists(kind) else probabilities.astype(np.float64),
        starts=np.array([-1 if start is None else start for start in columns.get("start", ())], dtype=np.int64),
    )
    _check(examples)
    return Predictions(**{name: about[name] for name in _ABOUT_RUN}, examples=examples)  # type: ignore[literal-required]


def _numbers(kind: Kind, column: Any, labels: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Return the answers in a column as numbers, and the offsets of the examples; see ``ScoredExamples``."""
    if kind == "regression":
        return column, np.arange(len(column) + 1)
    if kind == "classification":
        return _places(column, labels), np.arange(len(column) + 1)
    if kind == "tagging":
        return _places([tag for tags in column for tag in tags], labels), np.cumsum([0, *map(len, column)])
    if kind == "multi_label":
        decisions = np.zeros((len(column), len(labels)), dtype=np.int64)
        for row, names in enumerate(column):
            decisions[row, _places(names, labels)] = 1
        return decisions.reshape(-1), np.arange(len(column) + 1) * len(labels)
    return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)


def _places(names: Sequence[str | None], labels: Sequence[str]) -> np.ndarray:
    """Return the index of each name among the labels; -1 for None."""
    places: dict[str | None, int] = {label: place for place, label in enumerate(labels)} | {None: -1}
    printable_names = [None if name is None else printable(name) for name in names]
    unknown = next((name for name in printable_names if name not in places), None)
    if unknown is not None:
        raise ValueError(f"{unknown[:40]!r} is not one of its labels or classes")
    return np.array([places[name] for name in printable_names], dtype=np.int64)


def _check_size(metadata: pq.FileMetaData) -> None:
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    most = max((group.column(place).num_values for group in groups for place in range(group.num_columns)), default=0)
    if metadata.num_rows > MOST_EXAMPLES or most > MOST_ANSWERS:
        raise ValueError(f"it has more than {MOST_EXAMPLES:,} examples or {MOST_ANSWERS:,} answers")


def _check_columns(schema: pa.Schema, types: Mapping[str, pa.DataType]) -> None:
    for name, kind in types.items():
        places = schema.get_all_field_indices(name)
        if len(places) != 1:
            raise ValueError(f"it has {'no column' if not places else 'several columns'} named {name}")
        if (column_type := schema.field(places[0]).type) != kind:
            raise ValueError(f"the column {name} has the type {column_type}, but must have the type {kind}")


def _column(table: pa.Table, name: str) -> Any:
    """Return the values of a column: an array of finite numbers within the bounds, or a list."""
    column = table.column(name)
    inner = column
    while pa.types.is_list(inner.type):
        if inner.null_count:
            raise ValueError(f"the column {name} has an empty entry")
        inner = pa.chunked_array([chunk.flatten() for chunk in inner.chunks], inner.type.value_type)
    if inner.null_count and name not in _NULLABLE:
        raise ValueError(f"the column {name} has an empty entry")
    if pa.types.is_floating(inner.type):
        numbers = inner.to_numpy()
        if not (np.abs(numbers.astype(np.float64)) <= _LARGEST).all():
            raise ValueError(f"the column {name} contains a number that is not finite, or larger than {_LARGEST:g}")
    if column is inner and name not in _NULLABLE and not pa.types.is_string(inner.type):
        return column.to_numpy()
    return column.to_pylist()


def _strings(texts: Sequence[str], most_bytes: int) -> tuple[str, ...]:
    if any(len(text.encode()) > most_bytes for text in texts):
        raise ValueError("a text is too long")
    return tuple(map(printable, texts))


def _check(examples: ScoredExamples) -> None:
    size, answers = len(examples.ids), len(examples.predicted)
    for name, ratio in examples.ratios.items():
        if not ((ratio.counts == 0) | (ratio.counts >= 1e-6)).all():
            raise ValueError(f"weight/{name} contains a number below 0 or near 0")
    labels = examples.labels
    if len(labels) > _MOST_LABELS or not 0 <= examples.positive <= max(1, len(labels) - 1):
        raise ValueError(f"labels has more than {_MOST_LABELS:,} entries, or positive is not one of them")
    if len(set(labels)) != len(labels):
        raise ValueError("labels contains the same name twice")
    if not ((examples.confidences >= 0) & (examples.confidences <= 1)).all():
        raise ValueError("probability contains a number that is not between 0 and 1")
    if len(examples.confidences) not in (0, answers):
        raise ValueError("probability does not have one entry per answer")
    if len(np.unique(examples.keys)) != size:
        raise ValueError("key contains the same example twice")
