"""Short names for parts of a resolved configuration: the model, the objective, the corpus and the task."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

#: Suffixes of class names that all classes of a group share.
_SUFFIXES = ("Encoder", "Corpus", "Task", "Objective")


def node_label(node: Any) -> str:
    """Return a short label for a component node: its ``name`` if it has one, else its class; empty for None."""
    if node is None:
        return ""
    if not isinstance(node, Mapping):
        return str(node)
    name = node.get("name")
    if isinstance(name, str) and name:
        return name
    class_name = str(node.get("_target_") or "").rsplit(".", 1)[-1]
    for suffix in _SUFFIXES:
        if class_name.endswith(suffix) and class_name != suffix:
            class_name = class_name.removesuffix(suffix)
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", class_name).lower()


def model_label(node: Any) -> str:
    """Return a label with the family and size of a model: ``bert 4x256`` has four layers of width 256."""
    label = node_label(node)
    if isinstance(node, Mapping):
        size = [node.get("num_layers"), node.get("dim")]
        if all(isinstance(number, int) for number in size):
            label = f"{label} {size[0]}x{size[1]}"
        if node.get("norm") == "pre" and "bert" in label:
            label += " pre-norm"
    return label


def objective_label(node: Any, phases: Any = None) -> str:
    """Return a label with the losses of an objective: ``mlm+nsp``, or ``skipgram, mlm`` for a run with phases."""
    losses = node.get("losses") if isinstance(node, Mapping) else None
    own = "+".join(map(str, losses)) if isinstance(losses, Mapping) and losses else node_label(node)
    if not isinstance(phases, Mapping):
        return own
    earlier = [phase.get("objective") for phase in phases.values() if isinstance(phase, Mapping)]
    labels = [*(objective_label(objective) for objective in earlier if objective is not None), own]
    return ", ".join(dict.fromkeys(labels))


def flatten(node: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested mappings into one mapping with dotted keys; lists are not flattened."""
    flat: dict[str, Any] = {}
    for key, value in node.items():
        if isinstance(value, Mapping) and value:
            flat.update(flatten(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value
    return flat
