"""Every text in a document, with the key where it stands."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def texts(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Dotted key and text of each, such as ``model.dim`` and ``corpus.path[0]``.

    Args:
        value: plain values.
        key: of ``value`` itself.
    """
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield from texts(item, f"{key}.{name}".removeprefix("."))
    elif isinstance(value, list):
        for place, item in enumerate(value):
            yield from texts(item, f"{key}[{place}]")


def interpolations(value: Any) -> Iterator[tuple[str, str]]:
    """The texts that OmegaConf would replace by something else, with their keys."""
    return ((key, text) for key, text in texts(value) if "${" in text)
