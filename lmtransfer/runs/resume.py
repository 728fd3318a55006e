"""Which settings may change when a run is resumed: those that change nothing in what is learnt."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from typing import Any

from lmtransfer.errors import ConfigError

#: Keys that may change, as patterns over dotted keys.
MAY_CHANGE = (
    "name",
    "resume",
    "control",
    "data_root",
    "output_root",
    "cache_dir",
    "hardware.device",
    "hardware.threads",
    "hardware.compile",
    "tracker",
    "tracker.*",
    "train.save_every",
    "train.log_every",
    "train.num_workers",
)

#: Values of older runs that left open what is now named; any value agrees with them.
NOT_YET_NAMED = (("hardware.precision", "auto"),)


def resume_conflicts(
    old: Mapping[str, Any], new: Mapping[str, Any], *, allowed: Sequence[str] = MAY_CHANGE
) -> list[str]:
    """One message for every key whose value may not change on resume, but did.

    Args:
        old: the configuration the run was started with, as plain values.
        new: the one it is to go on with.
        allowed: patterns of dotted keys that may change.
    """
    before, after = _flat(old), _flat(new)
    problems = []
    for key in sorted(before.keys() | after.keys()):
        if any(fnmatch.fnmatchcase(key, pattern) for pattern in allowed):
            continue
        was, now = before.get(key, _Absent), after.get(key, _Absent)
        if was != now and (key, was) not in NOT_YET_NAMED:
            problems.append(
                f"{key} was {_shown(was)} when the run was started and is {_shown(now)} now: it may not change on "
                "resume; set it back, or start a run under another name="
            )
    return problems


def check_resumable(old: Mapping[str, Any], new: Mapping[str, Any], *, allowed: Sequence[str] = MAY_CHANGE) -> None:
    """Refuse to resume with settings that would change what is learnt.

    Raises:
        ConfigError: naming every such key.
    """
    problems = resume_conflicts(old, new, allowed=allowed)
    if problems:
        raise ConfigError(problems)


class _Absent:
    """Stands for a key that is not there."""


def _shown(value: Any) -> str:
    return "absent" if value is _Absent else "null" if value is None else repr(value)


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Leaves by dotted key; lists are leaves, and tuples are lists."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            flat.update(_flat(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = list(value) if isinstance(value, tuple) else value
    return flat
