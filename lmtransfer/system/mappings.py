"""Reading nested mappings, such as configurations, by dotted keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def value_at(values: Mapping[str, Any], key: str) -> Any:
    """The value of a dotted key such as ``train.seed``; None if there is none."""
    node: Any = values
    for part in key.split("."):
        node = node.get(part) if isinstance(node, Mapping) else None
    return node
