"""The attention that an encoder ended its training with, where it can have more than one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from lmtransfer.config.target import resolve
from lmtransfer.models.base import Direction, Encoder
from lmtransfer.objectives.base import Objective, shared_attention
from lmtransfer.runs.saved import SavedRun


def attention_of(saved: SavedRun, encoder: Encoder) -> Direction:
    """Which tokens a token saw where a run's encoder was trained last.

    Args:
        saved: a run of pretraining, or of a task.
        encoder: any of its kind, with the attention of its class.

    Raises:
        RunDirectoryError: an objective of the run is none.
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
