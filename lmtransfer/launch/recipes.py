"""Fits a recipe to a command line: a recipe's keys for a group apply only to its own choice of that group.

A recipe (``experiment=...``) chooses from groups, and sets keys below them that belong to these choices, such as
``model.global_theta`` for ``model: modern_base``. If the command line chooses another model, or a recipe that builds on
this one does, these keys do not apply. Keys for a group from which the recipe does not choose apply to every choice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore

from lmtransfer.config import paths
from lmtransfer.config.settings import key_of
from lmtransfer.errors import ConfigError
from lmtransfer.launch import overrides
from lmtransfer.launch.config_files import read_plain, sibling
from lmtransfer.system.validation import join

GROUP = "experiment"
#: The end of the name of a fitted copy of a recipe.
FITTED = "-fitted"
_Choices = dict[str, str | None]


@dataclass(frozen=True, slots=True)
class FittedRecipe:
    """A recipe that fits the choices of a command line.

    Attributes:
        name: the name of the recipe; None without a recipe.
        words: the command line's overrides, with the fitted recipe in place of the recipe.
        note: one line about the keys that do not apply because of choices on the command line; None if all apply.
    """

    name: str | None
    words: list[str]
    note: str | None = None


def fit_recipe(primary: str | None, words: Sequence[str], folders: Sequence[Path]) -> FittedRecipe:
    """Leave out the keys of a command line's recipe that belong to other choices than those of the command line.

    Args:
        primary: the name of the command's primary config.
        words: the overrides in Hydra's form.
        folders: the config folders, in search order.
    """
    typed = _typed_choices(words, folders)
    path = paths.find(f"{primary}.yaml", folders)
    name = typed.pop(GROUP) if GROUP in typed else None if path is None else _choices_in(read_plain(path)).get(GROUP)
    recipe = None if name is None else _read(name, folders)
    fitting = None if recipe is None else _Fitting(typed, recipe.choices | typed, folders)
    if recipe is None or fitting is None or (fitted := fitting.fit(recipe)) == name:
        return FittedRecipe(name, list(words))
    replaced = [word for word in words if key_of(word) != GROUP]
    prefix = "+" if any(word.startswith(f"+{GROUP}=") for word in words) else ""
    chosen = " ".join(f"{group}={choice or 'null'}" for group, choice in typed.items() if group in fitting.because_of)
    keys = ", ".join(dict.fromkeys(fitting.left_out))
    note = f"these settings of {GROUP}={name} do not apply with {chosen}: {keys}" if keys else None
    return FittedRecipe(name, [*replaced, f"{prefix}{GROUP}={overrides.quote(fitted)}"], note)


def _typed_choices(words: Sequence[str], folders: Sequence[Path]) -> _Choices:
    choices: _Choices = {}
    for word in words:
        try:
            override = overrides.parse(word) if paths.is_group(key_of(word), folders) else None
        except ConfigError:
            continue  # composing the configuration raises the error
        value = None if override is None or override.is_delete() else override.value()
        if override is not None and (value is None or isinstance(value, str)):
            choices[override.key_or_group] = value
    return choices


@dataclass(frozen=True, slots=True)
class _Recipe:
    """A recipe's file; its bases are those in its defaults list; its choices include theirs."""

    name: str
    content: dict[str, Any]
    bases: dict[str, _Recipe]
    choices: _Choices


def _read(name: str, folders: Sequence[Path], above: tuple[str, ...] = ()) -> _Recipe | None:
    path = paths.find(f"{GROUP}/{name}.yaml", folders)
    if path is None or name in above:  # composing the configuration raises the error
        return None
    content = read_plain(path)
    bases = {}
    for entry in filter(_is_base, content.get("defaults") or []):
        other = entry.removeprefix(f"/{GROUP}/") if entry.startswith("/") else sibling(name, entry)
        if (base := _read(other, folders, (*above, name))) is not None:
            bases[entry] = base
    inherited = {group: choice for base in bases.values() for group, choice in base.choices.items()}
    return _Recipe(name, content, bases, inherited | _choices_in(content))


def _is_base(entry: object) -> bool:
    return isinstance(entry, str) and entry != "_self_"


def _choices_in(content: Mapping[str, Any]) -> _Choices:
    """Return the choices in a defaults list, by their groups."""
    entries = [entry for entry in content.get("defaults") or [] if isinstance(entry, Mapping)]
    return {_group_of(key): choice for entry in entries for key, choice in entry.items()}


def _group_of(key: object) -> str:
    return str(key).removeprefix("override ").removeprefix("optional ").lstrip("/")


def _choice_inside(group: str, choices: _Choices, folders: Sequence[Path]) -> _Choices:
    """Return the choice of an inner group, such as ``objective/rows``, that the choice of its outer group makes."""
    outer, _, inner = group.rpartition("/")
    pending = [choices.get(outer)]
    for name in pending:
        path = None if name is None else paths.find(f"{outer}/{name}.yaml", folders)
        if name is not None and path is not None:
            content = read_plain(path)
            if inner in (inside := _choices_in(content)):
                return {group: inside[inner]}
            pending += [sibling(name, entry) for entry in filter(_is_base, content.get("defaults") or [])]
    return {}


@dataclass(frozen=True, slots=True)
class _Fitting:
    typed: _Choices
    final: _Choices
    folders: Sequence[Path]
    left_out: list[str] = field(default_factory=list)
    because_of: set[str] = field(default_factory=set)

    def fit(self, recipe: _Recipe) -> str:
        """Return the name of a recipe; if some of its keys do not apply, that of a copy without them."""
        own = dict(recipe.choices)
        for group in self.typed.keys() - own.keys():
            own |= _choice_inside(group, recipe.choices, self.folders)
        others = {group.replace("/", "."): group for group, choice in own.items() if self.final[group] != choice}
        content = self._without(recipe.content | {"defaults": None}, others)
        entries: list[Any] = []
        content["defaults"] = entries
        for entry in recipe.content.get("defaults") or []:
            if isinstance(entry, str):
                fitted = self.fit(recipe.bases[entry]) if entry in recipe.bases else entry
                is_same = entry not in recipe.bases or fitted == recipe.bases[entry].name
                entries.append(entry if is_same else f"/{GROUP}/{fitted}")
            else:
                entries += [{key: choice} for key, choice in entry.items() if not self._is_inside(key, choice, others)]
        if content == {"defaults": []} | recipe.content:
            return recipe.name
        folder, _, name = f"{GROUP}/{recipe.name}{FITTED}".rpartition("/")
        ConfigStore.instance().store(name, content, group=folder, package="_global_")
        return f"{recipe.name}{FITTED}"

    def _without(self, node: Mapping[str, Any], others: Mapping[str, str], prefix: str = "") -> dict[str, Any]:
        """Return a copy of a node without the keys of groups with other choices."""
        remaining = {}
        for name, value in node.items():
            key = join(prefix, str(name))
            if key in others:
                self._record(others[key], _leaves(value, key))
            else:
                remaining[name] = self._without(value, others, key) if isinstance(value, Mapping) else value
        return remaining

    def _is_inside(self, key: object, choice: object, others: Mapping[str, str]) -> bool:
        """Whether a defaults list's entry chooses from a group inside a group with another choice."""
        group = _group_of(key)
        outer = next((other for other in others.values() if group.startswith(f"{other}/")), None)
        if outer is not None and group not in self.typed:
            self._record(outer, [f"{group}={choice}"])
        return outer is not None

    def _record(self, group: str, keys: Iterable[str]) -> None:
        if group in self.typed:
            self.because_of.add(group)
            self.left_out.extend(keys)


def _leaves(value: Any, key: str) -> Iterator[str]:
    if not isinstance(value, Mapping):
        yield key
        return
    for name, item in value.items():
        yield from _leaves(item, join(key, str(name)))
