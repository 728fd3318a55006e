"""The files of BLiMP, EWoK, COMPS and other sets whose items are choices between completions.

Each set is a folder of ``.jsonl`` files, with one item per line and the fields of the published files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from lmtransfer.data.files import find_file, plain_name, read_lines
from lmtransfer.errors import DataError
from lmtransfer.system import door
from lmtransfer.system.safe_files import parse_json
from lmtransfer.tasks.file_formats.json_document import JsonNode
from lmtransfer.tasks.settings import HubSource, hub_access
from lmtransfer.tasks.zero_shot.task import Item

#: The names of the formats; see ``FORMATS``.
FormatName = Literal[
    "blimp", "blimp_supplement", "ewok", "ewok_targets", "entity_tracking", "comps", "global_piqa", "multiple_choice"
]
_SUFFIX: Final = ".jsonl"
#: BLiMP's files have 13 terms; the paper and the published results (raw_results/summary) count this one as another.
_PHENOMENA: Final[Mapping[str, str]] = {"s-selection": "argument_structure"}
_COMPS_SUBSETS: Final[Mapping[str, str]] = {
    "comps_base": "base",
    "comps_wugs": "wugs",
    "comps_wugs_dist-before": "wugs_dist_before",
    "comps_wugs_dist-in-between": "wugs_dist_in_between",
}


@dataclass(frozen=True, slots=True)
class Choice(Item):
    """Alternatives, each a prefix and a completion; the model should prefer one completion after its prefix.

    The id is the name of the subset and the item's index in its file, from 0.

    Attributes:
        prefixes: the prefix of each alternative; may be empty.
        completions: the completion of each alternative, including the space before it.
        label: index of the correct alternative.
        subset: the group of items over which accuracy is averaged first, such as a BLiMP paradigm.
        category: the larger group to which the subset belongs, such as a phenomenon; "" if there is none.
    """

    prefixes: tuple[str, ...]
    completions: tuple[str, ...]
    label: int
    subset: str
    category: str = ""

    @property
    def texts(self) -> tuple[str, ...]:
        """Each alternative as a whole text."""
        return tuple(prefix + completion for prefix, completion in zip(self.prefixes, self.completions, strict=True))

    @property
    def content(self) -> tuple[str, ...]:
        """All texts."""
        return self.texts


@dataclass(frozen=True, slots=True)
class ChoiceFormat:
    """The format of a set's files, and how its accuracy is averaged.

    Attributes:
        read: builds the item of a line from the JSON object, the file's name without its suffix, and the item's index;
            None for a line that the set leaves out.
        subset: the word for a subset in metric names.
        category: the word for a category in metric names; None if there are no categories.
        averages: whether the accuracy is the mean over subsets, or the mean over categories (each of which is the mean
            over its subsets).
    """

    read: Callable[[JsonNode, str, int], Choice | None]
    subset: str
    category: str | None = None
    averages: Literal["subsets", "categories"] = "subsets"


def _choice(
    prefixes: Sequence[str], completions: Sequence[str], *, id: str, subset: str, category: str = "", label: int = 0
) -> Choice:
    return Choice(id, tuple(prefixes), tuple(completions), label, subset, category)


def _text(row: JsonNode, key: str) -> str:
    return row.field(key).nonblank_text()


def _texts(row: JsonNode, key: str) -> list[str]:
    texts = [node.text() for node in row.field(key).items()]
    if len(texts) < 2:
        raise DataError(f"{row.where}: {key} must be a list of at least two texts")
    return texts


def _blimp(row: JsonNode, source: str, number: int) -> Choice:
    pair = [_text(row, "sentence_good"), _text(row, "sentence_bad")]
    subset, term = _text(row, "UID"), _text(row, "linguistics_term")
    return _choice(["", ""], pair, id=f"{subset}:{number}", subset=subset, category=_PHENOMENA.get(term, term))


def _supplement(row: JsonNode, source: str, number: int) -> Choice:
    pair = [_text(row, "sentence_good"), _text(row, "sentence_bad")]
    return _choice(["", ""], pair, id=f"{source}:{number}", subset=source)


def _ewok(row: JsonNode, source: str, number: int) -> Choice:
    """Build an item with two alternatives: the first target after each of the two contexts."""
    subset, target = _text(row, "Domain"), _text(row, "Target1")
    contexts = [_text(row, "Context1"), _text(row, "Context2")]
    return _choice(contexts, [f" {target}"] * 2, id=f"{subset}:{number}", subset=subset)


def _ewok_targets(row: JsonNode, source: str, number: int) -> Choice:
    """Build an item with two alternatives: each of the two targets after the first context."""
    subset, context = _text(row, "Domain"), _text(row, "Context1")
    targets = [f" {_text(row, key)}" for key in ("Target1", "Target2")]
    return _choice([context] * 2, targets, id=f"{subset}:{number}", subset=subset)


def _entity_tracking(row: JsonNode, source: str, number: int) -> Choice | None:
    options, prefix = _texts(row, "options"), _text(row, "input_prefix")
    if any("nothing" in option for option in options):  # the challenge leaves these items out
        return None
    subset = f"{source}_{row.field('numops').name()}_ops"
    return _choice([prefix] * len(options), options, id=f"{subset}:{number}", subset=subset, category=source)


def _comps(row: JsonNode, source: str, number: int) -> Choice:
    prefixes = [f"{_text(row, key)} " for key in ("prefix_acceptable", "prefix_unacceptable")]
    subset = _COMPS_SUBSETS.get(source, source)
    return _choice(prefixes, [_text(row, "property_phrase")] * 2, id=f"{subset}:{number}", subset=subset)


def _global_piqa(row: JsonNode, source: str, number: int) -> Choice:
    solutions = [_text(row, key) for key in (f"solution{index}" for index in range(16)) if row.value.get(key)]
    return _choice(
        [_text(row, "prompt")] * len(solutions),
        [f" {solution}" for solution in solutions],
        id=f"{source}:{row.value.get('example_id', number)}",
        subset=source,
        label=_index(row, solutions),
    )


def _multiple_choice(row: JsonNode, source: str, number: int) -> Choice:
    choices, prompt = _texts(row, "choices"), str(row.value.get("prompt") or "")
    space = "" if not prompt or prompt[-1].isspace() else " "
    return _choice(
        [prompt] * len(choices),
        [choice if choice[:1].isspace() else space + choice for choice in choices],
        id=f"{source}:{number}",
        subset=str(row.value.get("subset") or source),
        label=_index(row, choices),
    )


def _index(row: JsonNode, choices: Sequence[str]) -> int:
    """Return the index of the correct choice, which a file gives as an index or as the text of the choice."""
    label = row.value.get("label")
    if isinstance(label, str) and label in choices:
        return choices.index(label)
    text = str(label)
    if isinstance(label, bool) or not text.isdecimal() or int(text) >= len(choices):
        raise DataError(
            f"{row.where}: label={label!r} must be the index of a choice, 0 to {len(choices) - 1}, or its text"
        )
    return int(text)


FORMATS: Final[Mapping[FormatName, ChoiceFormat]] = {
    "blimp": ChoiceFormat(_blimp, "paradigm", "phenomenon"),
    "blimp_supplement": ChoiceFormat(_supplement, "subset"),
    "ewok": ChoiceFormat(_ewok, "domain"),
    "ewok_targets": ChoiceFormat(_ewok_targets, "domain"),
    "entity_tracking": ChoiceFormat(_entity_tracking, "operations", "setting", averages="categories"),
    "comps": ChoiceFormat(_comps, "subset"),
    "global_piqa": ChoiceFormat(_global_piqa, "subset"),
    "multiple_choice": ChoiceFormat(_multiple_choice, "subset"),
}


def choice_files(folders: Sequence[Path]) -> dict[str, Path]:
    """Return the ``.jsonl`` files, plain or compressed, in the first folder that has any, keyed by name without suffix.

    Args:
        folders: paths to try; each is a folder or a single file, and may be missing.
    """
    for folder in folders:
        if folder.exists():
            door.check(folder)
        if folder.is_file():
            return {plain_name(folder).removesuffix(_SUFFIX): folder}
        siblings = folder.iterdir() if folder.is_dir() else ()
        plain = sorted({plain_name(path) for path in siblings if plain_name(path).endswith(_SUFFIX)})
        paths = ((name.removesuffix(_SUFFIX), find_file(folder / name)) for name in plain)
        if files := {name: path for name, path in paths if path is not None}:
            return files
    return {}


def read_choices(path: Path, kind: ChoiceFormat) -> Iterator[Choice]:
    """Read the items of a file.

    Raises:
        DataError: a line is not an item of this format; the message has ``file:line``.
    """
    source = plain_name(path).removesuffix(_SUFFIX)
    for number, line in read_lines(path):
        where = f"{path}:{number}"
        fields = parse_json(line.encode(), dict[str, Any], source=where, error=DataError)
        choice = kind.read(JsonNode(fields, None, where), source, number - 1)
        if choice is not None:
            yield choice


def read_hub_choices(name: str, kind: ChoiceFormat, subsets: Sequence[str] | None, *, places: str) -> Iterator[Choice]:
    """Read the items of a data set on the hub, such as ``nyu-mll/blimp``, that has one configuration per subset.

    Args:
        subsets: names of the subsets; None for all.
        places: the places already searched for files, for the message.

    Raises:
        DataError: the items can be neither loaded nor found in the cache, or a row is not such an item.
    """
    import datasets  # imported here because the import is slow and files do not need it

    if subsets is None:
        with hub_access(HubSource(name), places=places):
            subsets = datasets.get_dataset_config_names(name)
    for subset in subsets:
        for number, fields in enumerate(HubSource(name, subset).load("train", places=places)):
            choice = kind.read(JsonNode(fields, None, f"{name} {subset}, row {number}"), subset, number)
            if choice is not None:
                yield choice
