"""What every metric promises: it streams, and higher is better."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np


@runtime_checkable
class Metric(Protocol):
    """A number computed from predictions and gold answers that arrive batch by batch.

    What is kept is one small array of sums wherever the definition allows it, so that memory does not grow with the
    evaluation set, and F1 and correlations are never averages of averages.

    Attributes:
        name: the key in ``result.json``.
    """

    name: str

    def update(self, predictions: np.ndarray, targets: np.ndarray) -> None:
        """Take in one batch; both arrays have shape (B,)."""
        ...

    def compute(self) -> float:
        """The value over everything seen.

        Raises:
            ValueError: nothing was seen.
        """
        ...


def check_seen(name: str, count: float) -> None:
    """Refuse to compute a metric over nothing.

    Raises:
        ValueError: ``count`` is 0.
    """
    if count == 0:
        raise ValueError(f"metric {name} has seen no example")
