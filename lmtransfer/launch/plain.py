"""Plain data in, and out of, Hydra's configs."""

from __future__ import annotations

import re
from typing import Any

from omegaconf import DictConfig, ListConfig
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from lmtransfer.config.component import BROKEN
from lmtransfer.system.validation import join

#: A reference that reads a value of this machine, such as ``${oc.env:HOME}``.
LOOK_UP = re.compile(r"\$\{[^{}]*:")
_INTERPOLATION = re.compile(r"(\\*)\$\{")


def literal(value: Any) -> Any:
    """Escape ``${`` in every text of plain data, so that a config holds the text itself, not an interpolation.

    Everything that comes from data or from a saved run (labels, file names, another run's config) must be escaped
    before it enters a config: ``${oc.env:TOKEN}`` in a file would otherwise read a value of this machine. Reading the
    config, also with ``to_plain``, returns the text unchanged.
    """
    if isinstance(value, str):
        return _INTERPOLATION.sub(r"\1\1\\${", value)
    if isinstance(value, dict):
        return {name: literal(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [literal(item) for item in value]
    return value


def to_plain(node: DictConfig | ListConfig, key: str = "") -> tuple[Any, dict[str, str]]:
    """Convert a node to dicts, lists and scalars; an environment variable that is empty is None, as if it were not set.

    Args:
        key: full key of the node.

    Returns:
        The data, with ``BROKEN`` in place of each value that has a problem, and the problems, keyed by full key.
    """
    problems: dict[str, str] = {}

    def plain(container: Any, name: Any, key: str) -> Any:
        try:
            value = container[name]
        except MissingMandatoryValue:
            problems[key] = f"missing: set {key}=<value>"
            return BROKEN
        except OmegaConfBaseException as error:
            problems[key] = f"cannot be resolved: {str(error).splitlines()[0]}"
            return BROKEN
        is_unset = value == "" and str(container._get_node(name)._value()).startswith("${oc.env:")
        return None if is_unset else walk(value, key)

    def walk(value: Any, key: str) -> Any:
        if isinstance(value, DictConfig):
            return None if value._is_none() else {name: plain(value, name, join(key, name)) for name in value}
        if isinstance(value, ListConfig):
            return None if value._is_none() else [plain(value, i, join(key, i)) for i in range(len(value))]
        return value

    return walk(node, key), problems
