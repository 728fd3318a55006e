"""Choosing a checkpoint by few examples, where an accuracy takes few values and ties are common."""

from __future__ import annotations

from collections.abc import Mapping

from lmtransfer.training.model_selection import ModelSelection
from lmtransfer.training.state import TrainState


class SelectionWithTies(ModelSelection):
    """Of evaluations with the same main metric, the one with the lowest ``loss`` is the best.

    Without this, the earliest of them would be, which for a hundred held-out labels is often a model that has hardly
    begun to learn.
    """

    def observe(self, metrics: Mapping[str, float], state: TrainState) -> bool:
        """See ``ModelSelection.observe``; the evaluation must have ``loss``."""
        tied = state.best is not None and metrics.get(self.metric) == state.best
        if tied and metrics["loss"] < state.best_metrics["loss"]:
            state.best = None
        return super().observe(metrics, state)
