"""Checking a whole configuration before any work starts; all problems are reported at once."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict

from lmtransfer.config.build import component_problems, is_component, outermost
from lmtransfer.config.nearest import hint
from lmtransfer.config.plain import join, to_plain
from lmtransfer.config.primary import primary_config, reference_config
from lmtransfer.config.ranges import out_of_range
from lmtransfer.config.schema import SCHEMAS
from lmtransfer.config.values import BROKEN, Misfit, convert
from lmtransfer.errors import ConfigError

#: Numeric keys for which null means no limit.
_MAY_BE_NULL = ("eval_tokens",)
#: Keys whose own keys are checked elsewhere (``config.phases``); components in them are checked here.
_ELSEWHERE = ("phases",)


def check(cfg: DictConfig, *, primary: str, nodes: Mapping[str, Set[str]] | None = None) -> None:
    """Check a whole configuration, and convert values that are written in another type (1e3 for 1000).

    It finds: unknown keys at any depth, with the nearest name; missing values and broken interpolations; values of the
    wrong type or out of range; a ``_target_`` that is not allowed or does not exist; missing arguments of a class.

    Args:
        cfg: the composed configuration.
        primary: name of the command's config file, which lists the keys that are not components.
        nodes: names of the arguments that the command will supply, for each component that it builds, by full key
            ("model", "objective.rows").

    Raises:
        ConfigError: lists all problems.
    """
    values, problems = to_plain(cfg, "")
    plain = _PlainKeys(primary)
    plain.visit(values, reference_config(primary), key="")
    problems |= plain.problems
    of_primary = primary_config(primary)
    for key, value in outermost(values, ""):
        value = _without_own_keys(value, of_primary.get(key))
        problems |= component_problems(value, key=key, nodes=nodes or {}, complete=key in (nodes or {}))
    for key in nodes or {}:
        if _is_absent(values, key):
            problems[key] = f"missing: choose one with {key.replace('.', '/')}=<name>"
        elif not _may_be_built(values, key):
            problems.setdefault(
                key, f"has no _target_, so it is not a component: choose one with {key.replace('.', '/')}=<name>"
            )
    if problems:
        raise ConfigError([f"{key}: {problem}" for key, problem in sorted(problems.items())])
    with open_dict(cfg):
        for key, value in plain.converted.items():
            OmegaConf.update(cfg, key, value)


def _without_own_keys(component: dict[str, Any], own: Any) -> dict[str, Any]:
    """A component without the extra keys that the command's own file defines in the same node."""
    if not isinstance(own, dict) or is_component(own):
        return component
    return {name: value for name, value in component.items() if name not in own}


def _is_absent(values: Any, key: str) -> bool:
    """Whether ``key`` does not exist; null counts as existing, and so does a value whose problem is already known."""
    for part in key.split("."):
        if not isinstance(values, dict):
            return False
        if part not in values:
            return True
        values = values[part]
    return False


def _may_be_built(values: Any, key: str) -> bool:
    """Whether ``key`` holds a component, null, or a value whose problem is already known."""
    for part in key.split("."):
        if not isinstance(values, dict):
            return True
        values = values[part]
    return values is None or values is BROKEN or is_component(values)


class _PlainKeys:
    """Checks the keys that are not components: those that the primary config lists.

    Args:
        primary: name of the command's config file.

    Attributes:
        problems: problems by full key.
        converted: values whose type was changed, by full key.
    """

    def __init__(self, primary: str) -> None:
        self.primary = primary
        self.problems: dict[str, str] = {}
        self.converted: dict[str, Any] = {}

    def visit(self, values: dict[str, Any], known: dict[str, Any], *, key: str) -> None:
        """Check the node at ``key``; ``known`` is the same node of the primary config."""
        schema = SCHEMAS.get(key)
        described = {} if schema is None else schema.docs()
        names = list(known) or list(described)
        if schema is not None:
            self.problems |= schema.problems(values, key)
            self.converted |= schema.conversions(values, key)
        for name, value in values.items():
            where, default = join(key, name), known.get(name)
            if value is BROKEN:
                continue
            if name not in names and not is_component(value):
                what = f"keys of {key}" if key else f"keys of {self.primary}"
                self.problems[where] = f"there is no such key; {hint(name, names, what=what)}"
            elif value is None and isinstance(default, str) and "${" not in default:
                self.problems[where] = f"null is not allowed; set {where}=<value>"
            elif where in _ELSEWHERE:
                continue
            elif isinstance(value, dict) and not is_component(value):
                if default or where in SCHEMAS:
                    self.visit(value, default if isinstance(default, dict) else {}, key=where)
            elif isinstance(default, dict) and default and not is_component(default) and not is_component(value):
                self.problems[where] = f"{value!r} is not a group of keys; the keys are: {', '.join(default)}"
            elif name not in described and not is_component(value):
                wrong = out_of_range(name, value)
                if wrong:
                    self.problems[where] = wrong
                elif isinstance(default, (bool, int, float)) and not (value is None and name in _MAY_BE_NULL):
                    self._like(default, value, where)

    def _like(self, default: bool | int | float, value: Any, where: str) -> None:
        """Check that a value without a description has the type of the default."""
        try:
            converted = convert(value, type(default))
        except Misfit as misfit:
            self.problems[where] = str(misfit)
            return
        if type(converted) is not type(value):
            self.converted[where] = converted
