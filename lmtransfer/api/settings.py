"""The settings of a call from Python as overrides for Hydra: strings as on the command line, and keyword arguments."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from numbers import Integral, Real
from typing import TypeAlias

from lmtransfer.config import overrides
from lmtransfer.config.overrides import CommandLine
from lmtransfer.errors import ConfigError

#: A value: a string is always text, and a dictionary holds the keys of a node.
Setting: TypeAlias = (
    "str | float | bool | os.PathLike[str] | Sequence[Setting] | Mapping[str, Setting] | None"  # float: int too
)

#: A path of the file system.
Folder: TypeAlias = str | os.PathLike[str]

#: Text that Hydra reads as it is, if it is none of the words with a meaning.
_PLAIN = re.compile(r"[A-Za-z_][\w./-]*")
_WITH_MEANING = frozenset({"null", "true", "false", "inf", "nan"})


def command_line(words: Sequence[Folder], settings: Mapping[str, Setting], *, config_dir: Folder | None) -> CommandLine:
    """The settings of one call.

    Args:
        words: ``key=value`` and other words as on the command line; a path is never read as ``key=value``.
        settings: values by top-level key or dotted key.
        config_dir: a folder with the user's configs.

    Raises:
        ConfigError: a word cannot be read, a value is of another type, or a key is given twice.
    """
    line = overrides.read([word for word in words if isinstance(word, str)])
    for word in words:
        if isinstance(word, os.PathLike):
            line.bare.append(os.fspath(word))
        elif not isinstance(word, str):
            raise ConfigError(f"{word!r}: give settings as 'key=value', or as keywords: key=value")
    given = overrides.named_keys(line.overrides)
    for key, value in _dotted(settings):
        if key in given:
            raise ConfigError(f"{key}: is given twice, as '{key}=...' and as a keyword: keep one")
        line.overrides.append(f"{key}={written(value, key)}")
    if config_dir is not None:
        line.config_dir = os.fspath(config_dir)
    return line


def _dotted(settings: Mapping[str, Setting]) -> Iterator[tuple[str, Setting]]:
    """The keys of each node in a dictionary as dotted keys: ``train={"steps": 5}`` is ``train.steps=5``."""
    for key, value in settings.items():
        if isinstance(value, Mapping):
            yield from ((f"{key}.{name}", inner) for name, inner in value.items())
        else:
            yield key, value


def written(value: Setting, key: str) -> str:
    """A value in Hydra's grammar.

    Args:
        value: the value.
        key: its key, for messages.

    Raises:
        ConfigError: its type is not supported.
    """
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Integral):  # also of numpy
        return str(int(value))
    if isinstance(value, Real):
        return repr(float(value))
    if isinstance(value, str | os.PathLike):
        text = os.fspath(value)
        return text if _PLAIN.fullmatch(text) and text.lower() not in _WITH_MEANING else overrides.quote(text)
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{name}:{written(inner, f'{key}.{name}')}" for name, inner in value.items()) + "}"
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return "[" + ",".join(written(inner, key) for inner in value) + "]"
    raise ConfigError(
        f"{key}: a setting is text, a number, True, False, None, a path, a list or a dictionary; this is of type "
        f"{type(value).__name__}"
    )
