"""The time for which a waiting thread spins before it sleeps, set before torch is imported.

At the end of every parallel part of a step, the threads wait for one another. GNU's OpenMP runtime, which PyTorch ships
on Linux, spins for up to some tens of milliseconds by default. This is fastest if the process is alone, but slowest if
another process is busy, because a spinning thread occupies the core that the other thread needs.
``scripts/bench/waiting.py`` measures this; ``scripts/RESULTS.md`` has the numbers.
"""

from __future__ import annotations

from collections.abc import MutableMapping

#: Iterations of the waiting loop before a thread sleeps: some tens of microseconds. Long enough for the gaps between a
#: step's operations, so that a process alone loses nothing (1,000 slowed down small finetuning steps by a fifth). Short
#: enough not to wait for a preempted thread (10,000 tripled the duration of a step beside a busy process).
SPIN_COUNT = 2000

#: Variables of GNU's runtime or of OpenMP that users may set; if one is set, it is kept.
USERS_OWN = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")


def set_waiting(environment: MutableMapping[str, str]) -> None:
    """Set how threads wait, unless the user has set it; child processes inherit the setting."""
    if not any(environment.get(name) for name in USERS_OWN):
        environment["GOMP_SPINCOUNT"] = str(SPIN_COUNT)
