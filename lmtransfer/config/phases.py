"""The phases of a pretraining run, in order.

A phase has its own objective, optimizer and batch sizes, and a share of the budget. It may restart the learning-rate
schedule, and change the token embeddings when it ends. ``launch.phases`` completes them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from lmtransfer.config.component import Node
from lmtransfer.config.settings import ObjectiveSettings, PhaseTrainSettings, PretrainSettings, VectorSettings


@dataclass(frozen=True, slots=True)
class Phase:
    """One phase of a run, or a whole run without phases.

    Attributes:
        name: the name of the phase; "" for a run without phases.
        begins: the share of the budget that is used before the phase.
        ends: the share of the budget that is used when the phase ends; exactly 1 for the last phase.
        restart: whether the learning-rate schedule restarts; None to restart it if the losses or the optimizer change.
    """

    name: str
    begins: float
    ends: float
    objective: ObjectiveSettings
    optimizer: Node[Any]
    train: PhaseTrainSettings | None = None
    restart: bool | None = None
    after: VectorSettings | None = None

    @property
    def objective_key(self) -> str:
        """The full key of the objective; that of the last phase is the run's."""
        return "objective" if self.ends == 1 else f"phases.{self.name}.objective"


def phases_of(settings: PretrainSettings) -> list[Phase]:
    """Return the phases of a run; a single phase without a name if its settings define none."""
    if not settings.phases:
        return [Phase("", 0.0, 1.0, settings.objective, settings.optimizer)]
    phases: list[Phase] = []
    shares = [phase.share or 0.0 for phase in settings.phases.values()]
    for index, (name, own) in enumerate(settings.phases.items(), start=1):
        phases.append(
            Phase(
                name=name,
                begins=phases[-1].ends if phases else 0.0,
                # Rounded, so that 0.1 + 0.2 is 0.3.
                ends=1.0 if index == len(shares) else round(math.fsum(shares[:index]), 12),
                objective=own.objective or settings.objective,
                optimizer=own.optimizer or settings.optimizer,
                train=own.train,
                restart=own.restart,
                after=own.embedding_after,
            )
        )
    return phases
