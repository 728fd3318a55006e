"""The transitions between the phases of a pretraining: what one phase has in common with the phase before it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from omegaconf import DictConfig, OmegaConf

from lmtransfer.config.phases import Phase
from lmtransfer.pretraining.parts import Parts


@dataclass(frozen=True, slots=True)
class Transition:
    """The transition to a phase from the phase before it.

    Attributes:
        same_losses: the phase has the same objectives.
        same_optimizer: the phase has the same optimiser, with the same settings.
        same_kind: the phase has the same kind of optimiser, perhaps with other settings.
        restarts: the learning rate schedule restarts.
    """

    same_losses: bool
    same_optimizer: bool
    same_kind: bool
    restarts: bool


#: The first phase follows no other.
_BEGINNING = Transition(same_losses=False, same_optimizer=False, same_kind=False, restarts=True)


def transitions_of(cfg: DictConfig, phases: Sequence[Phase], parts: Sequence[Parts]) -> list[Transition]:
    """The transition to each phase.

    Args:
        cfg: the settled configuration, which has the optimiser of each phase.
        phases: the phases, in their order.
        parts: the parts of each phase; phases with the same losses share their objectives.

    Returns:
        One transition for each phase, the first included.
    """
    optimizers = [OmegaConf.select(cfg, phase.optimizer) for phase in phases]
    found = [_BEGINNING]
    for place, (old, new) in enumerate(pairwise(optimizers), start=1):
        same_losses = parts[place].objectives is parts[place - 1].objectives
        same_kind = str(old["_target_"]) == str(new["_target_"])
        restart = phases[place].restart
        found.append(
            Transition(
                same_losses=same_losses,
                same_optimizer=old == new,
                same_kind=same_kind,
                restarts=not (same_losses and same_kind) if restart is None else restart,
            )
        )
    return found


def span_of_schedule(phases: Sequence[Phase], transitions: Sequence[Transition], place: int) -> tuple[int, float]:
    """Where the learning rate schedule of phase ``place`` begins and ends.

    Returns:
        The place of the phase that began the schedule, and the share of the budget at which it ends: where the next
        phase restarts it, or 1.
    """
    first = max(one for one in range(place + 1) if transitions[one].restarts)
    later = range(place + 1, len(phases))
    return first, next((phases[one].begins for one in later if transitions[one].restarts), 1.0)
