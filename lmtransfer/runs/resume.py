"""Resuming a run: which settings it began with, and which settings may change because they do not affect training."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from omegaconf import DictConfig, open_dict

from lmtransfer.config.overrides import named_keys, of_command_line
from lmtransfer.config.without_effect import is_without_effect
from lmtransfer.errors import ConfigError
from lmtransfer.former_names import FORMER_DEFAULT, FORMER_MODEL, LEFT_OPEN, LEFT_OUT, OTHER_DEFAULT, current_config
from lmtransfer.runs.run_directory import RunDirectory


def use_saved_config(cfg: DictConfig, directory: RunDirectory) -> None:
    """Set the keys whose default has changed since an old run to the value that they had then.

    Args:
        cfg: configuration of the command that resumes the run; changed in place.
        directory: directory of the run, which may not exist.
    """
    if not directory.config_path.is_file():
        return
    saved = directory.read_config()
    for key in OTHER_DEFAULT:
        old, new, name = _parents(key, saved, cfg)
        if name not in old and name in new:
            new[name] = LEFT_OUT[key]
    typed = {word.lstrip("+~") for word in of_command_line()}
    named = named_keys()
    if "objective" in cfg and (typed | named).isdisjoint(FORMER_MODEL[1]):
        _keep_model(current_config(saved.get("model") or {}), cfg, named)
    for key, (value, words) in FORMER_DEFAULT.items():
        old, new, name = _parents(key, saved, cfg)
        if name in new and old.get(name) == value and named.isdisjoint(words):
            new[name] = value


def _keep_model(model: Mapping[str, Any], cfg: DictConfig, named: set[str]) -> None:
    """Give a command that chooses no model that of the run, if it is of the former default; keys that it sets stay."""
    if model.get("_target_") == FORMER_MODEL[0]:
        set_by_command = {key: value for key, value in cfg.model.items() if f"model.{key}" in named}
        with open_dict(cfg):
            cfg.model = {**model, **set_by_command}


def _parents(key: str, saved: Mapping[str, Any], cfg: DictConfig) -> tuple[Mapping[str, Any], Any, str]:
    """What holds a dotted key in either configuration, empty where it does not exist, and the last part of the key."""
    *parents, name = key.split(".")
    old: Mapping[str, Any] = saved
    new: Any = cfg
    for parent in parents:
        old, new = old.get(parent) or {}, new.get(parent) or {}
    return old, new, name


def resume_conflicts(old: Mapping[str, Any], new: Mapping[str, Any], *, allowed: Sequence[str] = ()) -> list[str]:
    """One message for every key whose value may not change on resume, but did.

    Args:
        old: the configuration the run was started with, as plain values.
        new: the configuration to resume with.
        allowed: patterns of dotted keys that may change, besides the keys without effect on training.
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
                f"{key} was {_shown(was)} when the run was started and is {_shown(now)} now: it must not change on "
                "resume; set it back, or start a run with another name="
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


def _of_run(key: str) -> str:
    """The key of the run that corresponds to a key of a phase or of a part of a mixture.

    ``phases.<name>.train.lr`` becomes ``train.lr``, and ``corpus.parts.<name>.streaming`` becomes ``corpus.streaming``.
    """
    return re.sub(r"^corpus\.parts\.[^.]+\.", "corpus.", re.sub(r"^phases\.[^.]+\.", "", key))


class _Absent:
    """Marks a key that is missing."""


def _shown(value: Any) -> str:
    return "absent" if value is _Absent else "null" if value is None else repr(value)


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The values of all leaves by dotted key; lists are leaves, and tuples count as lists."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            flat.update(_flat(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = list(value) if isinstance(value, tuple) else value
    return flat
