"""The number of cores that this process may use, given CPU affinity, hyper-threads and the container's quota."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_sharing = [1]


def usable_cores() -> int:
    """Return the number of physical cores that this process should use, at least 1."""
    quota = cpu_quota()
    cores = physical_cores()
    return max(1, (cores if quota is None else min(cores, int(quota))) // _sharing[-1])


@contextmanager
def share_cores(processes: int) -> Iterator[None]:
    """Give this process its share of the cores inside the block, as one of the given number of parallel processes."""
    _sharing.append(processes)
    try:
        yield
    finally:
        _sharing.pop()


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


def hardware_threads() -> int:
    """Return the number of hardware threads that this process may use: several per core with hyper-threads."""
    return len(_allowed())


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
