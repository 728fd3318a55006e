"""The rules for resuming a run: which settings may change because they do not affect training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lmtransfer.config.settings import is_without_effect
from lmtransfer.errors import ConfigError
from lmtransfer.runs.labels import flatten


def resume_conflicts(old: Mapping[str, Any], new: Mapping[str, Any], *, allowed: Sequence[str] = ()) -> list[str]:
    """Return one message for every key whose value must not change on resume but did.

    Args:
        old: the configuration with which the run started, as plain values.
        allowed: patterns of dotted keys that may change, besides the keys without effect on training.
    """
    before, after = _lists(flatten(old)), _lists(flatten(new))
    problems = []
    for key in sorted(before.keys() | after.keys()):
        if is_without_effect(key, also=allowed):
            continue
        was, now = before.get(key, _Absent), after.get(key, _Absent)
        if was != now:
            problems.append(
                f"{key} was {_as_text(was)} when the run started, but is {_as_text(now)} now: it must not change on "
                "resume; restore the old value, or start a run with another name="
            )
    return problems


def check_resumable(old: Mapping[str, Any], new: Mapping[str, Any], *, allowed: Sequence[str] = ()) -> None:
    """Raise an error if the run would resume with settings that change training.

    Raises:
        ConfigError: settings differ; the message names every such key.
    """
    problems = resume_conflicts(old, new, allowed=allowed)
    if problems:
        raise ConfigError(problems)


class _Absent:
    """Marks a missing key."""


def _as_text(value: Any) -> str:
    return "absent" if value is _Absent else "null" if value is None else repr(value)


def _lists(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Return the dotted keys and values, with tuples as lists."""
    return {key: list(value) if isinstance(value, tuple) else value for key, value in flat.items()}
