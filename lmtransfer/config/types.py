"""Types with ranges, for the arguments of components and the settings of commands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias

from annotated_types import Ge, Gt, Le, Lt
from pydantic import AfterValidator

_LONGEST_NAME = 200  # file systems allow 255 bytes, and temporary names are longer


def _usable_name(value: str) -> str:
    longest = max(len(part.encode("utf-8", "surrogatepass")) for part in value.split("/"))
    if longest > _LONGEST_NAME:
        raise ValueError(
            f"{value[:20]}... is a name of {longest} bytes, but at most {_LONGEST_NAME} are allowed between slashes"
        )
    if any(ord(character) < 32 for character in value):
        raise ValueError(f"{value[:60]!r} contains a control character, which is not allowed in a name")
    if any(part.strip() in ("", ".", "..") for part in value.split("/")):
        raise ValueError(f"{value[:60]!r} is not a valid run name: use letters, digits, '-', '_', and '/' for folders")
    return value


def _not_empty(value: str) -> str:
    if not value:
        raise ValueError("the path is empty; set a folder")
    return value


@dataclass(frozen=True, slots=True)
class Source:
    """Marks the type of a value that names something outside the run; ``config.sources`` finds such values.

    Attributes:
        kinds: what the value may name; a value on the ``hub`` may also name a local folder.
        in_data: whether a relative path is searched for in ``data_root`` first.
    """

    kinds: frozenset[Literal["file", "folder", "pattern", "address", "hub"]]
    in_data: bool = False


#: The name of a run, a corpus or a task, which becomes a folder name; slashes separate nested folders.
Name: TypeAlias = Annotated[str, AfterValidator(_usable_name)]
#: A folder.
Folder: TypeAlias = Annotated[str, AfterValidator(_not_empty), Source(frozenset({"folder"}))]
#: A file or a folder of a data set, in ``data_root`` or in the folder in which the command was started.
DataFile: TypeAlias = Annotated[str, Source(frozenset({"file"}), in_data=True)]
DataFolder: TypeAlias = Annotated[str, Source(frozenset({"file", "folder"}), in_data=True)]
#: Texts: a file, a folder, a pattern such as ``texts/*.txt``, or an address.
Texts: TypeAlias = Annotated[str, Source(frozenset({"file", "folder", "pattern", "address"}))]
#: The address of a server.
Address: TypeAlias = Annotated[str, Source(frozenset({"address"}))]
#: A name on the Hugging Face hub, or a local copy of the repository.
HubName: TypeAlias = Annotated[str, Source(frozenset({"hub"}))]
#: A positive size, such as the width of a layer, or the number of tokens in a text or of pieces in a vocabulary.
Count: TypeAlias = Annotated[int, Ge(1), Le(1 << 24)]
#: A small positive number of layers, heads, threads and the like.
SmallCount: TypeAlias = Annotated[int, Ge(1), Le(4096)]
#: A number of candidates for a prediction.
TopK: TypeAlias = Annotated[int, Ge(1), Le(100_000)]
#: A number of steps, tokens or examples in a whole run.
LargeCount: TypeAlias = Annotated[int, Ge(1), Le(2**63 - 1)]
#: An integer that may be 0, such as a seed or a number of warm-up steps.
Whole: TypeAlias = Annotated[int, Ge(0), Le(2**63 - 1)]
#: A number of tokens that may be 0, such as a memory length.
WholeLength: TypeAlias = Annotated[int, Ge(0), Le(1 << 24)]
#: A number of layers that may be 0.
SmallWhole: TypeAlias = Annotated[int, Ge(0), Le(4096)]
#: A number of consecutive words.
NgramWords: TypeAlias = Annotated[int, Ge(1), Le(1000)]
#: A number of folds in a cross-validation.
Folds: TypeAlias = Annotated[int, Ge(2), Le(1 << 24)]
#: A probability or a share.
Prob: TypeAlias = Annotated[float, Ge(0), Le(1)]
#: A share that is not 0.
PositiveProb: TypeAlias = Annotated[float, Gt(0), Le(1)]
#: A probability less than 1, such as a dropout probability.
DropoutProb: TypeAlias = Annotated[float, Ge(0), Lt(1)]
#: A share that is neither 0 nor 1.
OpenShare: TypeAlias = Annotated[float, Gt(0), Lt(1)]
#: A number greater than 0, such as a learning rate.
Positive: TypeAlias = Annotated[float, Gt(0)]
#: A non-negative number, such as a weight.
NonNegative: TypeAlias = Annotated[float, Ge(0)]
#: The formats of tables: ``tsv`` has no quoting, ``jsonl`` includes an array of objects, and ``parquet`` includes arrow
#: and folders written by ``datasets.save_to_disk``.
TableFormat: TypeAlias = Literal["tsv", "quoted_tsv", "csv", "jsonl", "parquet"]
#: The formats of texts: lines or a table.
TextFormat: TypeAlias = Literal["text", TableFormat]
