"""The files of BLiMP, EWoK, COMPS and other sets whose items are choices between completions.

Each set is a folder of ``.jsonl`` files, with one item per line and the fields of the published files.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal

from lmtransfer.data.files import find_file, plain_name, read_lines
from lmtransfer.errors import DataError
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
        label: index of the right alternative.
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


class _Record:
    """The fields of a line.

    Args:
        fields: the JSON object.
        number: index of the item in its file, from 0.
        source: name of the file without its suffix.
        where: ``file:line``, for messages.
    """

    def __init__(self, fields: Mapping[str, Any], number: int, source: str, where: str) -> None:
        self.fields, self.number, self.source, self.where = fields, number, source, where

    def text(self, name: str) -> str:
        """Return a field as text, which must not be blank."""
        value = self.fields.get(name)
        if isinstance(value, bool) or not isinstance(value, str | int | float) or not str(value).strip():
            raise self.problem(f"the field {name} is missing or empty")
        return str(value)

    def texts(self, name: str) -> list[str]:
        """Return a field, which must be a list of at least two texts."""
        values = self.fields.get(name)
        if not isinstance(values, list) or len(values) < 2 or not all(isinstance(value, str) for value in values):
            raise self.problem(f"the field {name} must be a list of at least two texts")
        return values

    def problem(self, text: str) -> DataError:
        """Build the error for this line."""
        return DataError(f"{self.where}: {text}; the line has the fields {', '.join(self.fields) or '(none)'}")

    def choice(
        self, prefixes: Sequence[str], completions: Sequence[str], *, subset: str, category: str = "", label: int = 0
    ) -> Choice:
        """Build an item."""
        return Choice(f"{subset}:{self.number}", tuple(prefixes), tuple(completions), label, subset, category)


@dataclass(frozen=True, slots=True)
class ChoiceFormat:
    """The format of a set's files, and how its accuracy is averaged.

    Attributes:
        read: builds the item of a line; None for a line that the set leaves out.
        subset: the word for a subset in metric names.
        category: the word for a category in metric names; None if there are no categories.
        averages: whether the accuracy is the mean over subsets, or the mean over categories (each of which is the mean
            over its subsets).
    """

    read: Callable[[_Record], Choice | None]
    subset: str
    category: str | None = None
    averages: Literal["subsets", "categories"] = "subsets"


def _blimp(record: _Record) -> Choice:
    pair = [record.text("sentence_good"), record.text("sentence_bad")]
    term = record.text("linguistics_term")
    return record.choice(["", ""], pair, subset=record.text("UID"), category=_PHENOMENA.get(term, term))


def _supplement(record: _Record) -> Choice:
    return record.choice(["", ""], [record.text("sentence_good"), record.text("sentence_bad")], subset=record.source)


def _ewok(record: _Record) -> Choice:
    """The first target after either context."""
    contexts, target = [record.text("Context1"), record.text("Context2")], record.text("Target1")
    return record.choice(contexts, [f" {target}"] * 2, subset=record.text("Domain"))


def _ewok_targets(record: _Record) -> Choice:
    """Either target after the first context."""
    context, targets = record.text("Context1"), [record.text("Target1"), record.text("Target2")]
    return record.choice([context] * 2, [f" {target}" for target in targets], subset=record.text("Domain"))


def _entity_tracking(record: _Record) -> Choice | None:
    options, prefix = record.texts("options"), record.text("input_prefix")
    if any("nothing" in option for option in options):  # the challenge leaves these items out
        return None
    subset = f"{record.source}_{record.text('numops')}_ops"
    return record.choice([prefix] * len(options), options, subset=subset, category=record.source)


def _comps(record: _Record) -> Choice:
    prefixes = [record.text("prefix_acceptable"), record.text("prefix_unacceptable")]
    phrase = record.text("property_phrase")
    subset = _COMPS_SUBSETS.get(record.source, record.source)
    return record.choice([f"{prefix} " for prefix in prefixes], [phrase] * 2, subset=subset)


def _global_piqa(record: _Record) -> Choice:
    names = [name for name in (f"solution{number}" for number in range(16)) if record.fields.get(name)]
    solutions = [f" {record.text(name)}" for name in names]
    label = _index(record, record.fields.get("label"), [text.strip() for text in solutions])
    choice = record.choice([record.text("prompt")] * len(solutions), solutions, subset=record.source, label=label)
    return replace(choice, id=f"{record.source}:{record.fields.get('example_id', record.number)}")


def _multiple_choice(record: _Record) -> Choice:
    choices, prompt = record.texts("choices"), str(record.fields.get("prompt") or "")
    space = "" if not prompt or prompt[-1].isspace() else " "
    completions = [choice if choice[:1].isspace() else space + choice for choice in choices]
    label = _index(record, record.fields.get("label"), choices)
    choice = record.choice([prompt] * len(choices), completions, subset=record.source, label=label)
    return replace(choice, subset=str(record.fields.get("subset") or record.source))


def _index(record: _Record, label: object, choices: Sequence[str]) -> int:
    """Return the index of the right choice, which a file gives as an index or as the text of the choice."""
    if isinstance(label, str) and label in choices:
        return choices.index(label)
    text = str(label)
    if isinstance(label, bool) or not text.isdecimal() or int(text) >= len(choices):
        raise record.problem(f"label={label!r} must be the index of a choice, 0 to {len(choices) - 1}, or its text")
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
    """Return the ``.jsonl`` files, plain or compressed, in the first folder that has any, by name without suffix.

    Args:
        folders: paths to try; each is a folder or a single file, and may be missing.
    """
    for folder in folders:
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
        try:
            fields = json.loads(line)
        except ValueError as error:
            raise DataError(f"{where}: not a JSON object ({error}); correct the line") from None
        if not isinstance(fields, dict):
            raise DataError(f"{where}: found {type(fields).__name__}, but one JSON object per line is expected")
        choice = kind.read(_Record(fields, number - 1, source, where))
        if choice is not None:
            yield choice


def read_hub_choices(name: str, kind: ChoiceFormat, subsets: Sequence[str] | None, *, places: str) -> Iterator[Choice]:
    """Read the items of a data set on the hub, such as ``nyu-mll/blimp``, that has one configuration per subset.

    Args:
        subsets: names of the subsets; None for all.
        places: the places already searched for files, for the message.

    Raises:
        DataError: the items can neither be loaded nor found in the cache, or a row is not such an item.
    """
    import datasets  # imported here because the import is slow and files do not need it

    if subsets is None:
        with hub_access(HubSource(name), places=places):
            subsets = datasets.get_dataset_config_names(name)
    for subset in subsets:
        for number, fields in enumerate(HubSource(name, subset).load("train", places=places)):
            choice = kind.read(_Record(fields, number, subset, f"{name} {subset}, row {number}"))
            if choice is not None:
                yield choice
