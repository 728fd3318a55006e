"""Kept predictions as a compressed ``.npz``: plain arrays that ``numpy.load`` reads, and no executable content.

Texts are UTF-8 bytes, and the description of the arrays is JSON. A label takes about 20 bytes per example, an answer
with its text about 40. The same predictions give the same bytes.
"""

from __future__ import annotations

import io
import json
import re
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
from typing_extensions import TypedDict

from lmtransfer.errors import RunDirectoryError
from lmtransfer.system.durable import staged_folder
from lmtransfer.system.printable import printable, printable_values
from lmtransfer.system.safe_files import DOCUMENT_BYTES, parse_json, read_bytes
from lmtransfer.tasks.metrics.scored_examples import MOST_ID_BYTES, MOST_TEXT_BYTES, Kept, Kind, Ratio, ScoredExamples

#: The folder of predictions in a run directory.
FOLDER = "predictions"
#: The folder in a run directory whose ``FOLDER`` holds the predictions of its baselines.
BASELINES = "baselines"
#: Predictions with more examples, or more words, than this are not kept.
MOST_EXAMPLES, MOST_ANSWERS = 500_000, 10_000_000
#: Files that unpack to more bytes than this are not read; nor are more labels, nor larger numbers.
_MOST_BYTES, _MOST_LABELS, _LARGEST = 1 << 30, 10_000, 1e15
_FORMAT = 1
_ARRAYS = ("about", "ids", "keys", "clusters", "lengths", "predicted", "gold", "offsets", "classes", "answers",
           "gold_answers")  # fmt: skip
_DAMAGED = (OSError, zipfile.BadZipFile, zlib.error, ValueError, KeyError, TypeError, EOFError, RuntimeError)
_KNOWN = re.compile("|".join((*_ARRAYS, "confidences", "starts", r"(?:parts|counts)_\d+")))

_ABOUT_RUN = ("task", "split", "main_metric", "seed", "pretraining_seed", "is_control", "baseline")


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
    """Whether the number of predictions is small enough to keep them."""
    return len(examples) <= MOST_EXAMPLES and len(examples.predicted) <= MOST_ANSWERS


def write_predictions(run: Path, kept: Mapping[str, Kept]) -> None:
    """Write predictions into a run directory and replace older ones; either all files are written or none.

    Args:
        run: the run directory.
        kept: predictions by the name of the file, without its suffix.
    """
    with staged_folder(run / FOLDER) as folder:
        for name, one in kept.items():
            (folder / f"{name}.npz").write_bytes(_packed(one))


def read_predictions(path: Path) -> Kept:
    """Read the predictions in a file.

    Raises:
        RunDirectoryError: the file is missing, damaged, or too large.
    """
    try:
        return _unpacked(path)
    except (RunDirectoryError, *_DAMAGED) as error:
        reason = getattr(error, "strerror", None) or str(error).removeprefix(f"{path}: ") or type(error).__name__
        raise RunDirectoryError(
            f"{path}: cannot read the predictions ({printable(reason)[:200]}); remove the file to continue without "
            "them, or score the run again with lmtransfer evaluate"
        ) from error


def prediction_files(run: Path) -> list[Path]:
    """List the files of a run, its seeds, its control and its baselines, in the order of their paths."""
    members = ("", "seed-*", "pretraining-*/seed-*")
    folders = [
        folder for condition in ("", "control/") for member in members for folder in _found(run, f"{condition}{member}")
    ]
    folders.append(run / BASELINES)
    files = {file for folder in folders for file in (folder / FOLDER).glob("*.npz")}
    return sorted(files, key=lambda file: _natural(file.relative_to(run).as_posix()))


def file_name(kept: Kept, *, alone: bool) -> str:
    """Return the name of a file without its suffix: ``dev``, or ``test-control-seed-1`` if there are several files.

    Args:
        kept: content of the file.
        alone: whether it is the only file in its folder.
    """
    parts = [kept.split]
    if not alone:
        parts += ["control"] if kept.is_control else []
        parts += [kept.baseline] if kept.baseline else []
        parts += [] if kept.pretraining_seed is None else [f"pretraining-{kept.pretraining_seed}"]
        parts += [] if kept.seed is None else [f"seed-{kept.seed}"]
    return re.sub(r"[^\w.-]+", "-", "-".join(parts)).strip(".") or "predictions"


def _found(run: Path, pattern: str) -> list[Path]:
    plain = pattern.rstrip("/")
    return list(run.glob(plain)) if plain else [run]


def _natural(name: str) -> list[tuple[int, int, str]]:
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in re.split(r"(\d+)", name) if part]


def _packed(kept: Kept) -> bytes:
    examples = kept.examples
    about = {
        "format": _FORMAT,
        **{name: getattr(kept, name) for name in _ABOUT_RUN},
        "kind": examples.kind,
        "labels": examples.labels,
        "class_names": examples.class_names,
        "positive": examples.positive,
        "metrics": list(examples.ratios),
    }
    arrays = {
        "about": np.frombuffer(json.dumps(about).encode(), dtype=np.uint8),
        "ids": _texts(examples.ids),
        "keys": examples.keys,
        **{name: _small(getattr(examples, name)) for name in ("clusters", "lengths", "offsets", "classes")},
        "predicted": _small(examples.predicted),
        "gold": _small(examples.gold),
        "answers": _texts(examples.answers),
        "gold_answers": _texts(examples.gold_answers),
        **({"confidences": examples.confidences.astype(np.float16)} if len(examples.confidences) else {}),
        **({"starts": _small(examples.starts)} if len(examples.starts) else {}),
    }
    for number, ratio in enumerate(examples.ratios.values()):
        arrays |= {f"parts_{number}": _small(ratio.parts), f"counts_{number}": _small(ratio.counts)}
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, array in arrays.items():
            packed = io.BytesIO()
            np.lib.format.write_array(packed, array, version=(1, 0), allow_pickle=False)
            member = zipfile.ZipInfo(f"{name}.npy")  # dated 1980, so that the same content gives the same file
            member.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(member, packed.getvalue())
    return target.getvalue()


def _small(array: np.ndarray) -> np.ndarray:
    """Convert integers to the smallest integer dtype that holds them; other arrays stay as they are."""
    if len(array) == 0:
        return array.astype(np.int8)
    if not np.isfinite(array).all() or (array != np.rint(array)).any() or np.abs(array).max() > 2**53:
        return array
    low, high = int(array.min()), int(array.max())
    return array.astype(np.result_type(np.min_scalar_type(low), np.min_scalar_type(high)))


def _texts(texts: Sequence[str]) -> np.ndarray:
    return np.array([text.encode() for text in texts] or [b""], dtype=np.bytes_)[: len(texts)]


def _unpacked(path: Path) -> Kept:
    with zipfile.ZipFile(io.BytesIO(read_bytes(path, error=RunDirectoryError, most=_MOST_BYTES))) as archive:
        # Later versions may write further arrays. Of two arrays of one name, the last one counts.
        members = {name: member for member in archive.infolist() if _KNOWN.fullmatch(name := member.filename[:-4])}
        if sum(member.file_size for member in members.values()) > _MOST_BYTES:
            raise ValueError("it unpacks to more than 1 GiB")
        lengths = {}
        for name, member in members.items():
            with archive.open(member) as file:
                lengths[name] = _length(file, member.file_size)
        _check_lengths(lengths)
        arrays = {name: _array(name, archive.read(member)) for name, member in members.items()}
    raw, source = arrays["about"].astype(np.uint8).tobytes(), f"{path}: about"
    if parse_json(raw, _Format, source=source, error=RunDirectoryError)["format"] != _FORMAT:
        raise ValueError("it was written by a later version of lmtransfer")
    about: _About = printable_values(parse_json(raw, _About, source=source, error=RunDirectoryError))
    ratios = {
        name: Ratio(arrays[f"parts_{number}"].astype(np.float64), arrays[f"counts_{number}"].astype(np.float64))
        for number, name in enumerate(about["metrics"])
    }
    whole = {name: arrays[name].astype(np.int64) for name in ("clusters", "lengths", "offsets", "classes")}
    kind = about["kind"]
    examples = ScoredExamples(
        kind=kind,
        labels=tuple(about["labels"]),
        ids=_strings(arrays["ids"], MOST_ID_BYTES),
        keys=arrays["keys"].astype(np.uint64),
        predicted=arrays["predicted"].astype(np.float64 if kind == "regression" else np.int64),
        gold=arrays["gold"].astype(np.float64 if kind == "regression" else np.int64),
        ratios=ratios,
        answers=_strings(arrays["answers"], MOST_TEXT_BYTES),
        gold_answers=_strings(arrays["gold_answers"], MOST_TEXT_BYTES),
        class_names=tuple(about["class_names"]),
        positive=about["positive"],
        confidences=arrays.get("confidences", np.zeros(0)).astype(np.float64),  # left out where there are none
        starts=arrays.get("starts", np.zeros(0)).astype(np.int64),
        **whole,
    )
    _check(examples)
    return Kept(
        task=about["task"],
        split=about["split"],
        main_metric=about["main_metric"],
        seed=about["seed"],
        pretraining_seed=about["pretraining_seed"],
        is_control=about["is_control"],
        baseline=about["baseline"],
        examples=examples,
    )


def _header(file: IO[bytes]) -> tuple[int, np.dtype[Any]]:
    """The number of entries and the type of an array, after which its data begin."""
    if np.lib.format.read_magic(file) != (1, 0):
        raise ValueError("an array does not have npy format 1.0")
    shape, _, dtype = np.lib.format.read_array_header_1_0(file)
    if dtype.kind not in "biufS" or not dtype.itemsize or len(shape) != 1:
        raise ValueError("the header of an array is not that of a list of numbers or texts")
    return shape[0], dtype


def _length(file: IO[bytes], num_bytes: int) -> int:
    """The number of entries of an array; its header may not claim more data than there is."""
    length, dtype = _header(file)
    if length * dtype.itemsize != num_bytes - file.tell():
        raise ValueError("an array does not match its header")
    return length


def _array(name: str, packed: bytes) -> np.ndarray:
    """Read an array whose numbers, if it has any, are finite and of a possible size; its length is checked already."""
    file = io.BytesIO(packed)
    length, dtype = _header(file)
    array = np.frombuffer(packed, dtype=dtype, offset=file.tell(), count=length) if length else np.zeros(0, dtype)
    if dtype.kind in "iuf" and name != "keys" and not (np.abs(array.astype(np.float64)) <= _LARGEST).all():
        raise ValueError(f"{name} contains a number that is not finite, or larger than {_LARGEST:g}")
    return array


def _check_lengths(lengths: Mapping[str, int]) -> None:
    """Check that the arrays fit together, before any of them is unpacked.

    Raises:
        ValueError: they do not; the message names the array.
    """
    missing = [name for name in _ARRAYS if name not in lengths]
    if missing:
        raise ValueError(f"it has no {missing[0]}")
    size, answers = lengths["ids"], lengths["predicted"]
    if size > MOST_EXAMPLES or answers > MOST_ANSWERS or lengths["about"] > DOCUMENT_BYTES:
        raise ValueError(f"it has more than {MOST_EXAMPLES:,} examples or {MOST_ANSWERS:,} answers")
    wanted = {
        **dict.fromkeys(("keys", "clusters", "lengths", "classes"), (size,)),
        **dict.fromkeys(("answers", "gold_answers", "starts"), (size, 0)),
        **{"offsets": (size + 1,), "gold": (answers,), "confidences": (answers, 0)},
    }
    for name, length in lengths.items():
        allowed = (size,) if name.startswith(("parts_", "counts_")) else wanted.get(name, (length,))
        if length not in allowed:
            raise ValueError(f"{name} has {length} entries, but {allowed[0]} are needed")


def _strings(array: np.ndarray, most_bytes: int) -> tuple[str, ...]:
    if len(array) and (array.dtype.kind != "S" or array.dtype.itemsize > most_bytes):
        raise ValueError("an array of texts has another type, or a text is too long")
    return tuple(printable(text.decode("utf-8", "replace")) for text in array.tolist())


def _check(examples: ScoredExamples) -> None:
    """Check that the arrays are consistent.

    Raises:
        ValueError: they are not; the message names the field.
    """
    size, answers = len(examples.ids), len(examples.predicted)
    for name, ratio in examples.ratios.items():
        if not ((ratio.counts == 0) | (ratio.counts >= 1e-6)).all():
            raise ValueError(f"{name} counts contains a number below 0 or near 0")
    if len(examples.labels) > _MOST_LABELS or not 0 <= examples.positive <= max(1, len(examples.labels) - 1):
        raise ValueError(f"labels has more than {_MOST_LABELS:,} labels, or positive is none of them")
    if not ((examples.confidences >= 0) & (examples.confidences <= 1)).all():
        raise ValueError("confidences contains a number that is no probability")
    offsets = examples.offsets
    if offsets[0] != 0 or offsets[-1] != answers or (np.diff(offsets) < 0).any():
        raise ValueError("offsets do not match the number of answers")
    if len(np.unique(examples.keys)) != size:
        raise ValueError("keys contains an example twice")
    if (
        not -1
        <= examples.classes.min(initial=-1)
        <= examples.classes.max(initial=-1)
        < max(1, len(examples.class_names))
    ):
        raise ValueError("classes contains a class without a name")
    if examples.kind in ("classification", "multi_label", "tagging"):
        highest = 1 if examples.kind == "multi_label" else len(examples.labels) - 1
        for name, array in (("predicted", examples.predicted), ("gold", examples.gold)):
            if array.min(initial=0) < 0 or array.max(initial=0) > highest:
                raise ValueError(f"{name} contains a label without a name")
    if examples.kind == "multi_label" and (np.diff(offsets) != len(examples.labels)).any():
        raise ValueError("offsets do not give each example one answer for each label")
