"""Read BLiMP: minimal pairs of sentences as JSON lines, one file per paradigm.

Warstadt et al., "BLiMP: The Benchmark of Linguistic Minimal Pairs for English", TACL 2020
(https://aclanthology.org/2020.tacl-1.25); files from https://github.com/alexwarstadt/blimp, or ``nyu-mll/blimp``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from lmtransfer.data.corpora.hub import check_dataset_folder
from lmtransfer.data.files import find_file, plain_name
from lmtransfer.data.text_lines import read_lines
from lmtransfer.errors import DataError

_COLUMNS: Final = ("sentence_good", "sentence_bad", "UID", "linguistics_term")
#: The files name 13 terms; the paper and the published results (raw_results/summary) merge this term into another.
_PHENOMENA: Final[Mapping[str, str]] = {"s-selection": "argument_structure"}
_SUFFIX: Final = ".jsonl"


@dataclass(frozen=True, slots=True)
class MinimalPair:
    """An acceptable sentence and an unacceptable one.

    Attributes:
        id: the paradigm and the pair's number in its file, from 0.
        good: the acceptable sentence.
        bad: the unacceptable sentence, which differs only slightly from the other.
        paradigm: name of the contrast, such as ``passive_1``.
        phenomenon: one of the 12 English phenomena, such as ``argument_structure``.
    """

    id: str
    good: str
    bad: str
    paradigm: str
    phenomenon: str

    @property
    def has_gold(self) -> bool:
        """True: every pair marks the acceptable sentence."""
        return True

    @property
    def content(self) -> tuple[str, ...]:
        """Both sentences."""
        return (self.good, self.bad)

    @property
    def class_index(self) -> int:
        """0, because there is a single class."""
        return 0

    @property
    def group(self) -> str:
        """The pair itself."""
        return self.id


def paradigm_files(folder: Path) -> dict[str, Path]:
    """Return the file of each paradigm in a folder, plain or compressed, in alphabetical order; empty if missing."""
    if not folder.is_dir():
        return {}
    plain = sorted({plain_name(path) for path in folder.iterdir() if plain_name(path).endswith(_SUFFIX)})
    paths = ((name.removesuffix(_SUFFIX), find_file(folder / name)) for name in plain)
    return {name: path for name, path in paths if path is not None}


def read_pairs(path: Path) -> Iterator[MinimalPair]:
    """Read the pairs of a file.

    Raises:
        DataError: a line is not such a pair; the message has ``file:line``.
    """
    for number, line in read_lines(path):
        where = f"{path}:{number}"
        try:
            record = json.loads(line)
        except ValueError as error:
            raise DataError(f"{where}: not a JSON object ({error}); correct the line") from None
        if not isinstance(record, dict):
            raise DataError(f"{where}: found {type(record).__name__}, but one JSON object per line is expected")
        yield _pair(record, number - 1, where)


def read_hub_pairs(name: str, paradigms: Sequence[str] | None, *, places: str) -> Iterator[MinimalPair]:
    """Read the pairs of a ``datasets`` name with one configuration per paradigm.

    Args:
        name: ``datasets`` name, such as ``nyu-mll/blimp``.
        paradigms: names of the paradigms; None for all paradigms.
        places: where files have already been searched for, for the message.

    Raises:
        DataError: the pairs can neither be loaded nor found in the cache, or a row is not such a pair.
    """
    import datasets  # imported here because the import is slow and files do not need it
    from datasets.exceptions import DatasetGenerationError

    if Path(name).is_dir():
        check_dataset_folder(Path(name))
    try:
        chosen = datasets.get_dataset_config_names(name) if paradigms is None else paradigms
        tables = [datasets.load_dataset(name, paradigm, split="train") for paradigm in chosen]
    except (OSError, ValueError, KeyError, RuntimeError, ImportError, DatasetGenerationError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise DataError(
            f"no files {places}, and the datasets name {name} could not be loaded: {reason}. Either set data_root= (or "
            "LMTRANSFER_DATA) to a folder that contains the files, or load the data set once with network access; "
            "later it is read from the cache"
        ) from None
    for paradigm, table in zip(chosen, tables, strict=True):
        for number, record in enumerate(table):
            yield _pair(record, number, f"{name} {paradigm}, row {number}")


def _pair(record: Mapping[str, Any], number: int, where: str) -> MinimalPair:
    missing = [column for column in _COLUMNS if not str(record.get(column) or "").strip()]
    if missing:
        raise DataError(
            f"{where}: {' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing or empty; a pair has "
            f"{', '.join(_COLUMNS)}"
        )
    good, bad, paradigm, term = (str(record[column]) for column in _COLUMNS)
    return MinimalPair(f"{paradigm}:{number}", good, bad, paradigm, _PHENOMENA.get(term, term))
