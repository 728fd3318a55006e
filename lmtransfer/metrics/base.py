"""The interface of all metrics: they take batches one after another, and higher is better."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np


@runtime_checkable
class Metric(Protocol):
    """A number computed from predictions and gold answers that arrive batch by batch.

    If the definition allows it, only one small array of sums is kept. So memory does not grow with the evaluation set,
    and F1 and correlations are never averages of averages.

    Attributes:
        name: the key in ``result.json``.
    """

    name: str

    def update(self, predictions: np.ndarray, targets: np.ndarray) -> None:
        """Add one batch; both arrays have shape (B,), or (B, C) for sets of labels: probabilities, and 0 or 1."""
        ...

    def compute(self) -> float:
        """Compute the value over all batches so far.

        Raises:
            ValueError: there was no example.
        """
        ...


def check_seen(name: str, count: float) -> None:
    """Check that there was at least one example.

    Raises:
        ValueError: ``count`` is 0.
    """
    if count == 0:
        raise ValueError(f"metric {name} received no examples")
