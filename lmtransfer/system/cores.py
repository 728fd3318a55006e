"""The cores that a process may use (CPU affinity, hyper-threads, the container's quota), and how its threads wait."""

from __future__ import annotations

import os
from collections.abc import MutableMapping
from pathlib import Path

#: Iterations of the waiting loop before a thread sleeps: some tens of microseconds. At the end of every parallel region
#: of a step, threads wait for one another. GNU's OpenMP runtime, which PyTorch ships on Linux, spins by default for
#: up to some tens of milliseconds: fastest if the process is alone, slowest if another process needs the core. 2,000 is
#: long enough for the gaps between a step's operations (1,000 slowed down small finetuning steps by a fifth), and short
#: enough not to wait for a preempted thread (10,000 tripled the duration of a step beside a busy process).
#: ``scripts/bench/waiting.py`` measures this; ``scripts/RESULTS.md`` has the results.
SPIN_COUNT = 2000

#: Variables of GNU's runtime or of OpenMP that users may set; if one is set, it is kept.
USERS_OWN = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")


def usable_cores() -> int:
    """Return the number of physical cores that this process should use, at least 1."""
    quota = cpu_quota()
    cores = physical_cores()
    return max(1, cores if quota is None else min(cores, int(quota)))


def physical_cores() -> int:
    """Return the number of physical cores for this process (two threads on a core do not speed up matrix products)."""
    siblings = set()
    for cpu in _allowed():
        try:
            with open(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list", encoding="ascii") as file:
                siblings.add(file.read().strip())
        except OSError:
            siblings.add(str(cpu))
    return max(1, len(siblings))


def _allowed() -> set[int]:
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))


def cpu_quota(root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> float | None:
    """Return the CPU quota of this process's control groups, in cores: the smallest of all levels; None if unlimited.

    If more threads run than the quota allows, the system pauses all of them together, in the middle of a step.

    Args:
        root: mount point of the control groups, version 2 (``cpu.max``) or 1 (``cpu/cpu.cfs_quota_us``).
    """
    quotas = []
    for folder in _groups(root, own):
        quota = _quota_v2(folder / "cpu.max")
        if quota is None:
            quota = _quota_v1(folder)
        if quota is not None:
            quotas.append(quota)
    return min(quotas, default=None)


def _groups(root: Path, own: Path) -> list[Path]:
    """Return the folders of this process's groups, from its own up to the root."""
    try:
        lines = own.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    folders = []
    for line in lines:
        number, controllers, path = (*line.split(":", 2), "", "")[:3]
        if number == "0" and not controllers:
            base = root
        elif "cpu" in controllers.split(","):
            base = root / "cpu"
        else:
            continue
        inner = Path(path.lstrip("/"))
        folders += [base / inner, *(base / parent for parent in inner.parents)]
    return list(dict.fromkeys([*folders, root, root / "cpu"]))


def _quota_v2(file: Path) -> float | None:
    """Read ``cpu.max``: "<microseconds or max> <period>"."""
    try:
        quota, period = file.read_text(encoding="ascii").split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return None


def _quota_v1(folder: Path) -> float | None:
    try:
        quota = int((folder / "cpu.cfs_quota_us").read_text(encoding="ascii"))
        return None if quota <= 0 else quota / int((folder / "cpu.cfs_period_us").read_text(encoding="ascii"))
    except (OSError, ValueError, ZeroDivisionError):
        return None


def set_waiting(environment: MutableMapping[str, str]) -> None:
    """Set how long waiting threads spin, unless the user has set it; must precede the first import of torch."""
    if not any(environment.get(name) for name in USERS_OWN):
        environment["GOMP_SPINCOUNT"] = str(SPIN_COUNT)
