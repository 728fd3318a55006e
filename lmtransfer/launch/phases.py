"""Completes ``phases``: each phase's own settings, and the settings that it takes from the run.

``phases`` maps the names of the phases, in order, to their nodes. ``share`` is a phase's share of the budget; one phase
may omit its share and gets the rest. The node contains the settings that differ from the run's: ``objective`` and
``optimizer``, as complete nodes or single settings, and batch sizes (``train``). The settings of the last phase become
those of the run, because a run is characterized by its last objective.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict

from lmtransfer.config.check import group_problems
from lmtransfer.config.component import BROKEN, is_broken, is_component
from lmtransfer.config.nearest import hint
from lmtransfer.config.settings import PhaseSettings, PhaseTrainSettings
from lmtransfer.errors import ConfigError
from lmtransfer.launch.plain import to_plain
from lmtransfer.system.validation import join

_PARTS = ("objective", "optimizer")
#: Keys that the objective of a phase may have in addition to those of the run's objective.
_OBJECTIVE_KEYS = ("max_length", "mask_prob", "rows", "corruption", "losses")
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,39}")
#: Maximum difference between the sum of the shares and 1, which allows for shares such as 0.333.
_ROUNDING = 1e-3


def complete_phases(cfg: DictConfig) -> None:
    """Complete every phase but the last, and copy the settings of the last phase to the run.

    Args:
        cfg: the composed configuration, which is changed in place. Without ``phases``, or if it is already complete, it
            stays unchanged.
    """
    if cfg.get("phases") is None:
        return
    problems = phase_problems(cfg)
    if problems:
        raise ConfigError([f"{key}: {problem}" for key, problem in problems.items()])
    names = [str(name) for name in cfg.phases]
    shares = _shares(cfg.phases)
    train = {key: cfg.train.get(key) for key in PhaseTrainSettings.model_fields}
    completed: dict[str, dict[str, Any]] = {}
    own: dict[str, dict[str, Any]] = {}
    for name in names:
        node = _plain(cfg.phases[name])
        parts = {part: _merge(_plain(cfg[part]), node.get(part) or {}) for part in _PARTS}
        completed[name] = {**parts, "train": {**train, **(node.get("train") or {})}}
        own[name] = {"share": shares[name], **{key: node.get(key) for key in ("restart", "embedding_after")}}
    last = names[-1]
    with open_dict(cfg):
        for name in names:
            node = own[name] if name == last else completed[name] | own[name]
            OmegaConf.update(cfg, f"phases.{name}", node, merge=False)
        for part in _PARTS:
            OmegaConf.update(cfg, part, completed[last][part], merge=False)
        for key, value in completed[last]["train"].items():
            cfg.train[key] = value


def _shares(phases: Mapping[str, Any]) -> dict[str, float]:
    shares = {name: node.get("share") for name, node in phases.items()}
    rest = round(1 - math.fsum(float(share) for share in shares.values() if share is not None), 12)
    return {name: rest if share is None else float(share) for name, share in shares.items()}


def _plain(node: DictConfig) -> dict[str, Any]:
    plain = OmegaConf.to_container(node)
    assert isinstance(plain, dict)
    return {str(key): value for key, value in plain.items()}


def _merge(own: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    """Override the run's settings with those of a phase; a node with a ``_target_`` replaces the run's node."""
    losses = values.get("losses")
    parts = [values, *(losses.values() if isinstance(losses, dict) else ())]
    if any(is_component(part) for part in parts):
        return values
    merged = dict(own)
    for key, value in values.items():
        before = own.get(key)
        merged[key] = _merge(before, value) if isinstance(before, dict) and isinstance(value, dict) else value
    return merged


def phase_problems(cfg: DictConfig) -> dict[str, str]:
    """Find the problems with ``phases`` (keyed by full key), except those inside components."""
    phases, problems = to_plain(cfg.phases, "phases")
    if not isinstance(phases, dict) or not phases:
        return {"phases": f"{phases!r} contains no phases: choose phases=<name>, or phases=null for none"}
    for name in cfg.phases:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            problems[f"phases.{name}"] = (
                "this name is not valid: use letters, digits, '-' and '_', and begin with a letter"
            )
    if problems:
        return problems
    for name, node in phases.items():
        key = join("phases", str(name))
        if isinstance(node, dict):
            own = {name: value for name, value in node.items() if name not in _PARTS}
            problems |= group_problems(PhaseSettings, own, key=key)
            problems |= {
                join(key, part): f"{node[part]!r} is not a group of keys"
                for part in _PARTS
                if node.get(part) is not None and not isinstance(node[part], dict) and not is_broken(node[part])
            }
        elif node is not BROKEN:
            problems[key] = (
                f"{node!r} is not a phase: give it a share of the budget ({key}.share=0.5), and the settings that "
                "it changes"
            )
    of_run = _OBJECTIVE_KEYS + tuple(str(key) for key in cfg.objective)
    for name, node in phases.items():
        objective = node.get("objective") if isinstance(node, dict) else None
        if isinstance(objective, dict):
            known = of_run + _of_parts(objective)
            for key in objective.keys() - set(known):
                where = f"phases.{name}.objective.{key}"
                problems[where] = f"there is no such key; {hint(key, known, what='keys of an objective')}"
    if problems:
        return problems
    return _joint_problems(phases, cfg)


def _of_parts(objective: Mapping[str, Any]) -> tuple[str, ...]:
    """List the keys of the components in a phase's objective; as in a run, the objective itself may also set them."""
    losses = objective.get("losses")
    parts = [objective.get("rows"), objective.get("corruption"), *(losses.values() if isinstance(losses, dict) else ())]
    return tuple(str(key) for part in parts if isinstance(part, dict) and is_component(part) for key in part)


def _joint_problems(phases: dict[str, Any], cfg: DictConfig) -> dict[str, str]:
    problems = {}
    given_shares = [float(node["share"]) for node in phases.values() if node.get("share") is not None]
    total, added = math.fsum(given_shares), " + ".join(f"{share:g}" for share in given_shares)
    left_open = [name for name, node in phases.items() if node.get("share") is None]
    if len(left_open) > 1:
        for name in left_open:
            problems[f"phases.{name}.share"] = (
                "missing: only one phase may omit its share and get the rest; set it here"
            )
    elif left_open and total > 1 - _ROUNDING:
        problems[f"phases.{left_open[0]}.share"] = (
            f"the other phases use {total:g} of the budget ({added}), so nothing is left; lower one of their shares"
        )
    elif not left_open and abs(total - 1) > _ROUNDING:
        problems["phases"] = (
            f"the shares add up to {total:g} ({added}), but they must add up to 1: correct phases.<name>.share"
        )
    if problems:
        return problems
    last = list(phases)[-1]
    if phases[last].get("embedding_after") is not None:
        problems[f"phases.{last}.embedding_after"] = "no phase follows the last one; leave it out, or add a phase"
    train = cfg.get("train") or {}
    if train.get("epochs") is not None:
        problems["train.epochs"] = (
            "phases cannot share a budget in epochs, because an epoch has a different number of steps in each phase: "
            "set train.steps, train.tokens or train.seconds instead"
        )
    steps = train.get("steps")
    if isinstance(steps, int):
        for name, share in _shares(phases).items():
            if share * steps < 1 - _ROUNDING:
                problems[f"phases.{name}.share"] = (
                    f"{share:g} of train.steps={steps} is less than one step; raise the share or train.steps"
                )
    return problems
