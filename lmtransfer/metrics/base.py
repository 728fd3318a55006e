"""What every metric promises: it streams, it merges, and it declares its direction."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np


@runtime_checkable
class Metric(Protocol):
    """A number computed from predictions and gold answers that arrive batch by batch.

    The state is one small array of sums wherever the definition allows it, so that memory does not grow with the
    evaluation set; states of several ranks are merged before ``compute``, which is why F1 and correlations are
    never averages of averages.

    Attributes:
        name: the key in ``result.json``.
        higher_is_better: its direction, for choosing checkpoints and for verdicts.
    """

    name: str
    higher_is_better: bool

    def update(self, predictions: np.ndarray, targets: np.ndarray) -> None:
        """Take in one batch; both arrays have shape (B,)."""
        ...

    def state(self) -> np.ndarray:
        """Everything seen so far, float64."""
        ...

    def merge(self, state: np.ndarray) -> None:
        """Take in what another metric of the same kind has seen."""
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
