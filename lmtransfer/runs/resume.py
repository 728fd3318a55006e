"""Going on with a run: the settings that it began with, and those that may change since nothing is learnt from them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from omegaconf import DictConfig

from lmtransfer.config.without_effect import is_without_effect
from lmtransfer.errors import ConfigError
from lmtransfer.former_names import LEFT_OPEN, LEFT_OUT, OTHER_DEFAULT
from lmtransfer.runs.run_directory import RunDirectory


def as_it_began(cfg: DictConfig, directory: RunDirectory) -> None:
    """Give a configuration what its run meant by leaving out keys whose default has become another one since.

    Args:
        cfg: of the command that is to go on with the run; changed in place.
        directory: of the run, which may not be there.
    """
    began = directory.read_config() if directory.config_path.is_file() else None
    for key in OTHER_DEFAULT:
        parent, _, name = key.rpartition(".")
        node = None if began is None else (began.get(parent) or {})
        if node is not None and name not in node and name in (cfg.get(parent) or {}):
            cfg[parent][name] = LEFT_OUT[key]


def resume_conflicts(old: Mapping[str, Any], new: Mapping[str, Any], *, allowed: Sequence[str] = ()) -> list[str]:
    """One message for every key whose value may not change on resume, but did.

    Args:
        old: the configuration the run was started with, as plain values.
        new: the one it is to go on with.
        allowed: patterns of dotted keys that may change beside those without effect.
    """
    after = _flat(new)
    before = {key: LEFT_OUT[of_run] for key in after if (of_run := _of_run(key)) in LEFT_OUT} | _flat(old)
    problems = []
    for key in sorted(before.keys() | after.keys()):
        if is_without_effect(key, also=allowed):
            continue
        was, now = before.get(key, _Absent), after.get(key, _Absent)
        left_open = key in LEFT_OPEN and was == LEFT_OPEN[key]
        if was != now and not left_open:
            problems.append(
                f"{key} was {_shown(was)} when the run was started and is {_shown(now)} now: it may not change on "
                "resume; set it back, or start a run under another name="
            )
    return problems


def check_resumable(old: Mapping[str, Any], new: Mapping[str, Any], *, allowed: Sequence[str] = ()) -> None:
    """Refuse to resume with settings that would change what is learnt.

    Raises:
        ConfigError: naming every such key.
    """
    problems = resume_conflicts(old, new, allowed=allowed)
    if problems:
        raise ConfigError(problems)


def _of_run(key: str) -> str:
    """The run's key that a phase has under its name."""
    return re.sub(r"^phases\.[^.]+\.", "", key)


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
