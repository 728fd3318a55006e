"""The latest value of each loss in joint training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lmtransfer.training.state import TrainState
from lmtransfer.training.update import Outcome


class LastLosses:
    """A callback that stores the latest value of every loss, because the text's losses end before training ends.

    Attributes:
        losses: the values by name.
    """

    name = "last_losses"

    def __init__(self) -> None:
        self.losses: dict[str, float] = {}

    def on_step_end(self, outcome: Outcome, state: TrainState, *, fraction: float) -> Sequence[str]:
        """See ``training.callbacks.Callback``."""
        self.losses.update(outcome.losses)
        return ()

    def state_dict(self) -> dict[str, Any]:
        """The losses."""
        return dict(self.losses)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the losses of ``state_dict``."""
        self.losses = {str(name): float(value) for name, value in state.items()}
