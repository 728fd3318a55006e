"""Plain data, such as configurations, accessed by dotted keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def value_at(values: Mapping[str, Any], key: str) -> Any:
    """Return the value of a dotted key such as ``train.seed``; None if there is none."""
    node: Any = values
    for part in key.split("."):
        node = node.get(part) if isinstance(node, Mapping) else None
    return node


def leaves(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted key and value of every text, number, boolean and null in plain data, such as ``corpus.path[0]``.

    Args:
        value: plain values.
        key: key of ``value`` itself.
    """
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from leaves(item, f"{key}.{name}".removeprefix("."))
    elif isinstance(value, list):
        for place, item in enumerate(value):
            yield from leaves(item, f"{key}[{place}]")
    else:
        yield key, value


def texts(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Yield the dotted key and value of every string in plain data; see ``leaves``."""
    return ((where, leaf) for where, leaf in leaves(value, key) if isinstance(leaf, str))


def interpolations(value: Any) -> Iterator[tuple[str, str]]:
    """Yield the key and value of every string in which OmegaConf would resolve an interpolation."""
    return ((key, text) for key, text in texts(value) if "${" in text)
