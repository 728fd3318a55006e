"""The attention that an encoder was last trained with, for encoders that support more than one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from lmtransfer.config.component import resolve
from lmtransfer.models.base import Direction, Encoder
from lmtransfer.objectives.base import Objective, shared_attention
from lmtransfer.runs.saved import SavedRun


def attention_of(saved: SavedRun, encoder: Encoder) -> Direction:
    """Return the attention with which a run's encoder was last trained.

    Args:
        saved: a run of pretraining, or of a task.
        encoder: an encoder of the same class, with the default attention of that class.

    Raises:
        RunDirectoryError: an objective in the run's configuration is not an objective.
    """
    if "task" in saved.config:
        named = (saved.config.get("transfer") or {}).get("attention", "auto")
        return encoder.attention if named == "auto" else cast(Direction, named)
    objective = saved.config.get("objective")
    losses = objective.get("losses") if isinstance(objective, Mapping) else None
    nodes = [saved.component(f"objective.losses.{name}", "tokenizer") for name in losses or {}]
    kinds = [resolve(node["_target_"]) for node in nodes]
    found = shared_attention(encoder, [kind for kind in kinds if issubclass(kind, Objective)])
    return found or encoder.attention
