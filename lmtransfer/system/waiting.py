"""How long a waiting thread spins before it sleeps. Imports nothing heavy, since it must come before torch.

At the end of every parallel stretch of a step the threads wait for one another. GNU's OpenMP runtime, which PyTorch
ships on Linux, spins for up to some tens of milliseconds by default: the fastest way alone, and the slowest beside any
other busy process, since a thread that spins keeps its core from the one it waits for. ``scripts/measure_waiting.py``
draws the curve; README.md has it.
"""

from __future__ import annotations

from collections.abc import MutableMapping

#: Turns of the waiting loop before a thread sleeps, some tens of microseconds. Long enough for the gaps between the
#: operations of a step, so that a step alone loses nothing (1,000 cost small steps of finetuning a fifth); short enough
#: that a preempted fellow is not waited for (10,000 made a step beside a busy process three times as long).
SPIN_COUNT = 2000

#: What users set themselves, by the name in GNU's runtime or by OpenMP's own; any of them wins.
USERS_OWN = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")


def set_waiting(environment: MutableMapping[str, str]) -> None:
    """Set how threads wait, unless the user has; processes that are started inherit it.

    Args:
        environment: ``os.environ``, before torch is imported: the runtime reads it once, when it is loaded.
    """
    if not any(environment.get(name) for name in USERS_OWN):
        environment["GOMP_SPINCOUNT"] = str(SPIN_COUNT)
