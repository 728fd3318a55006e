"""The outcomes of the points of a sweep, and the folder in which they are exchanged between processes."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from lmtransfer.errors import Interrupted, LmtransferError, MachineError
from lmtransfer.sweeps.plan import Plan
from lmtransfer.system.durable import remove


@dataclass(slots=True)
class Point:
    """The outcome of one run of a sweep; saved as a file, because some launchers run points in other processes.

    Attributes:
        number: position in the sweep, from 0.
        label: the swept keys and their values.
        run_dir: the run directory, if one was made.
        error: the error that stopped it, or None.
        seconds: how long it took; None if it was finished before the sweep was started.
    """

    number: int
    label: str
    run_dir: Path | None = None
    error: str | None = None
    seconds: float | None = None

    def measure_seconds(self, start_time: float) -> None:
        """Note how long the point took, unless its run was finished before ``start_time``, seconds since the epoch."""
        result = None if self.run_dir is None else self.run_dir / "result.json"
        if result is None or not result.is_file() or result.stat().st_mtime >= start_time:
            self.seconds = time.time() - start_time

    def write(self, folder: Path) -> None:
        """Write the outcome to ``folder``, for ``read_points``; another process sees all of it or nothing."""
        content = asdict(self) | {"run_dir": None if self.run_dir is None else str(self.run_dir)}
        staged = folder / f".point-{self.number}.{os.getpid()}.tmp"
        with suppress(FileNotFoundError):  # the sweep was interrupted and has removed its folder
            staged.write_text(json.dumps(content), encoding="utf-8")
            staged.replace(folder / f"point-{self.number}.json")


def read_points(folder: Path) -> list[Point]:
    """The points that have ended, in the order of the sweep."""
    contents = [json.loads(path.read_text(encoding="utf-8")) for path in folder.glob("point-*.json")]
    points = [Point(**item | {"run_dir": Path(item["run_dir"]) if item["run_dir"] else None}) for item in contents]
    return sorted(points, key=lambda point: point.number)


@contextmanager
def exchange_folder(plan: Plan) -> Iterator[Path]:
    """A new folder that all points of a sweep can write; removed at the end.

    On a cluster it is below ``output_root``, which all machines see. If the block raises, it stays there with the logs
    of the jobs.
    """
    if plan.is_local:
        with tempfile.TemporaryDirectory(prefix="lmtransfer-sweep-") as temporary:
            yield Path(temporary)
        return
    root = Path(plan.output_root).expanduser().absolute()
    root.mkdir(parents=True, exist_ok=True)  # goes with the folder if nothing else comes into it
    folder = Path(tempfile.mkdtemp(prefix=".sweep-", dir=root))
    try:
        yield folder
    except BaseException:
        if not _has_jobs(folder):
            _removed(folder)
        raise
    _removed(folder)


def _removed(folder: Path) -> None:
    remove(folder)
    with suppress(OSError):  # the root holds runs
        folder.parent.rmdir()


def launcher_stopped(plan: Plan, error: BaseException, folder: Path) -> LmtransferError:
    """The error for a launcher that failed, such as a worker that was killed, or that no longer waits for its jobs."""
    message = " ".join(str(error).split(". ")[0].split()) or type(error).__name__
    if type(error).__name__ == "TerminatedWorkerError":
        message = "a process of the sweep was killed, perhaps because memory ran out: lower hydra.launcher.n_jobs"
    logs = f"; the logs of the jobs are in {folder}" if _has_jobs(folder) else ""
    again = "finished points are kept, and the same command continues the sweep"
    if isinstance(error, KeyboardInterrupt):
        return Interrupted(f"interrupted{logs}. Submitted jobs continue (scancel ends them); {again}")
    return MachineError(f"hydra/launcher={plan.launcher}: {message}{logs}; {again}")


def _has_jobs(folder: Path) -> bool:
    """Whether an exchange folder holds jobs of a cluster."""
    return (folder / ".submitit").is_dir()
