"""The plan of a sweep (its points and its launcher), and the outcomes of its points."""

from __future__ import annotations

import itertools
import json
import math
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf

from lmtransfer.config import overrides
from lmtransfer.config.composing import REFUSALS, compose_files
from lmtransfer.errors import ConfigError, Interrupted, LmtransferError, MachineError
from lmtransfer.system.cores import hardware_threads
from lmtransfer.system.durable import remove
from lmtransfer.system.printable import duration, time_unit

if TYPE_CHECKING:
    from lmtransfer.reporting.table import ReportTable

#: Maximum number of points that the table lists.
_MAX_POINTS = 40


@dataclass(frozen=True, slots=True)
class SweepPlan:
    """The facts about a sweep that are known in advance; the processes of its points receive a copy.

    Attributes:
        total: number of points; None if only the sweeper knows it.
        labels: the swept keys and values of each point, in order; empty if they are unknown or too many for a table.
        workers: number of points that run at the same time; None if unknown.
    """

    launcher: str = "basic"
    total: int | None = None
    labels: tuple[str, ...] = ()
    workers: int | None = 1
    output_root: str = "runs"

    @property
    def is_parallel(self) -> bool:
        """Whether the points run in other processes."""
        return self.launcher != "basic"

    @property
    def is_local(self) -> bool:
        """Whether all points run on this machine."""
        return self.launcher in ("basic", "joblib", "submitit_local")


def plan_of(primary: str, words: Sequence[str], *, config_dir: str | None = None) -> SweepPlan:
    """Build the plan of a sweep from the configuration of its first point."""
    try:
        parsed = [overrides.parse(word) for word in words]
        cfg = compose_files(primary, overrides.first_values(words), config_dir=config_dir)
    except (ConfigError, *REFUSALS):
        return SweepPlan()  # Hydra raises the same error when the sweep starts
    choices, excluded = cfg.hydra.runtime.choices, cfg.hydra.job.config.override_dirname.exclude_keys
    launcher = str(choices["hydra/launcher"])
    total: int | None = None
    labels: tuple[str, ...] = ()
    if choices["hydra/sweeper"] == "basic":
        own = [override for override in parsed if not override.is_hydra_override()]
        total, labels = _points([*_of_config(cfg), *own], frozenset(map(str, excluded)))
    return SweepPlan(
        launcher=launcher,
        total=total,
        labels=labels,
        workers=_workers(launcher, cfg.hydra.launcher, total),
        output_root=str(cfg.get("output_root") or "runs"),
    )


def points_of(words: Sequence[str], config: DictConfig) -> Iterator[list[str]]:
    """Yield the overrides of each point of a sweep by Hydra's basic sweeper; nothing for other sweepers."""
    if config.hydra.runtime.choices["hydra/sweeper"] != "basic":
        return
    in_force = _in_force([*_of_config(config), *map(overrides.parse, words)])
    yield from map(list, itertools.product(*map(overrides.each_value, in_force)))


def _of_config(cfg: DictConfig) -> list[Override]:
    params: Any = OmegaConf.to_container(cfg.hydra.sweeper.params or OmegaConf.create(), resolve=False)
    return [overrides.parse(f"{key}={value}") for key, value in params.items()]


def _in_force(parsed: Iterable[Override]) -> list[Override]:
    return list({override.get_key_element(): override for override in parsed}.values())


def _points(parsed: Sequence[Override], excluded: frozenset[str]) -> tuple[int | None, tuple[str, ...]]:
    columns = [[(one.key_or_group, word) for word in overrides.each_value(one)] for one in _in_force(parsed)]
    if not all(columns):
        return None, ()
    total = math.prod(map(len, columns))
    if total > _MAX_POINTS or any(getattr(override.value(), "shuffle", False) for override in parsed):
        return total, ()
    return total, tuple(_label(words, excluded) for words in itertools.product(*columns))


def _label(words: Sequence[tuple[str, str]], excluded: frozenset[str]) -> str:
    varied = sorted(word for key, word in words if key not in excluded)
    return ",".join(varied or [word for key, word in words if key == "name"]).replace("'", "")


def _workers(launcher: str, settings: DictConfig, total: int | None) -> int | None:
    if launcher == "basic":
        return 1
    if launcher == "submitit_local":  # starts all points at once
        return total
    number = settings.get("n_jobs") if launcher == "joblib" else None
    if not isinstance(number, int) or number == 0:
        return None
    workers = number if number > 0 else max(1, hardware_threads() + 1 + number)
    return workers if total is None else min(workers, total)


@dataclass(slots=True)
class SweepPoint:
    """The outcome of one run of a sweep, saved as a file because some launchers run points in other processes.

    Attributes:
        run_dir: the run directory, if any.
        seconds: duration of the run; None if the run had finished before the sweep started.
    """

    number: int
    label: str
    run_dir: Path | None = None
    error: str | None = None
    seconds: float | None = None

    def measure_seconds(self, start_time: float) -> None:
        """Record the point's duration unless its run finished before ``start_time``, in seconds since the epoch."""
        result = None if self.run_dir is None else self.run_dir / "result.json"
        if result is None or not result.is_file() or result.stat().st_mtime >= start_time:
            self.seconds = time.time() - start_time

    def write(self, folder: Path) -> None:
        """Write the outcome to ``folder`` for ``read_points``; another process sees all of it or nothing."""
        content = asdict(self) | {"run_dir": None if self.run_dir is None else str(self.run_dir)}
        staged = folder / f".point-{self.number}.{os.getpid()}.tmp"
        with suppress(FileNotFoundError):  # an interrupted sweep has removed its folder
            staged.write_text(json.dumps(content), encoding="utf-8")
            staged.replace(folder / f"point-{self.number}.json")


def read_points(folder: Path) -> list[SweepPoint]:
    """Read the points that have ended, in the order of the sweep."""
    contents = [json.loads(path.read_text(encoding="utf-8")) for path in folder.glob("point-*.json")]
    points = [SweepPoint(**item | {"run_dir": Path(item["run_dir"]) if item["run_dir"] else None}) for item in contents]
    return sorted(points, key=lambda point: point.number)


@contextmanager
def shared_folder(plan: SweepPlan) -> Iterator[Path]:
    """Create a folder that all points of a sweep can write; remove it at the end.

    On a cluster the folder is in ``output_root``, which all machines can see. If the block raises, the folder stays
    there with the logs of the jobs.
    """
    if plan.is_local:
        with tempfile.TemporaryDirectory(prefix="lmtransfer-sweep-") as temporary:
            yield Path(temporary)
        return
    root = Path(plan.output_root).expanduser().absolute()
    root.mkdir(parents=True, exist_ok=True)  # removed with the folder unless it holds something else by then
    folder = Path(tempfile.mkdtemp(prefix=".sweep-", dir=root))
    try:
        yield folder
    except BaseException:
        if not _has_jobs(folder):
            _remove(folder)
        raise
    _remove(folder)


def _remove(folder: Path) -> None:
    remove(folder)
    with suppress(OSError):  # the root holds runs
        folder.parent.rmdir()


def launcher_error(plan: SweepPlan, error: BaseException, folder: Path) -> LmtransferError:
    """Return the error for a launcher that failed (for example, because a worker was killed) or was interrupted."""
    message = " ".join(str(error).split(". ")[0].split()) or type(error).__name__
    if type(error).__name__ == "TerminatedWorkerError":
        message = "a process of the sweep was killed, possibly for lack of memory: lower hydra.launcher.n_jobs"
    logs = f"; the logs of the jobs are in {folder}" if _has_jobs(folder) else ""
    again = "finished points are kept, and the same command continues the sweep"
    if isinstance(error, KeyboardInterrupt):
        return Interrupted(f"interrupted{logs}. Submitted jobs continue (scancel ends them); {again}")
    return MachineError(f"hydra/launcher={plan.launcher}: {message}{logs}; {again}")


def _has_jobs(folder: Path) -> bool:
    return (folder / ".submitit").is_dir()


def progress_line(plan: SweepPlan, points: Sequence[SweepPoint]) -> str:
    """Report the progress of a sweep: ``3 of 12 finished, 1 failed, about 6 min left``."""
    failed = sum(point.error is not None for point in points)
    total = "" if plan.total is None else f" of {plan.total}"
    parts = [f"{len(points) - failed}{total} finished"]
    parts += [f"{failed} failed"] if failed else []
    left = seconds_left(plan, points)
    parts += [f"about {_rounded(left)} left"] if left else []
    return ", ".join(parts)


def seconds_left(plan: SweepPlan, points: Sequence[SweepPoint]) -> float | None:
    """Estimate the seconds left from the finished points' mean duration and the number of workers; None if unknown."""
    durations = [point.seconds for point in points if point.seconds is not None and point.error is None]
    if plan.total is None or plan.workers is None or not durations:
        return None
    left = plan.total - len(points)
    return sum(durations) / len(durations) * left / max(1, min(plan.workers, left))


def print_progress(plan: SweepPlan, points: Sequence[SweepPoint]) -> None:
    """Print the progress line and, on a terminal, the table of all points if they run one after the other."""
    if points and plan.labels and not plan.is_parallel and sys.stdout.isatty():
        from lmtransfer.reporting.table import print_table, report_console

        print_table(points_table(plan, points), report_console())
    print(f"sweep: {progress_line(plan, points)}", flush=True)


@contextmanager
def watch_points(plan: SweepPlan, folder: Path, *, every: float = 2.0) -> Iterator[None]:
    """Inside the block, print the progress line whenever points end, if the points' own output goes to job logs."""
    over = threading.Event()

    def watch() -> None:
        num_known, ended = 0, False
        while not ended:
            ended = over.wait(every)
            points = read_points(folder)
            if len(points) > num_known:
                num_known = len(points)
                print_progress(plan, points)

    thread = threading.Thread(target=watch, daemon=True)
    if plan.launcher not in ("basic", "joblib"):
        print(f"sweep: {progress_line(plan, [])}", flush=True)
        thread.start()
    try:
        yield
    finally:
        over.set()
        if thread.is_alive():
            thread.join()


def points_table(plan: SweepPlan, points: Sequence[SweepPoint]) -> ReportTable:
    """Build a table with the label, state, main score and duration of each point."""
    from lmtransfer.reporting.table import plain_table

    ended = {point.number: point for point in points}
    rows = [_cells(label, ended.get(number)) for number, label in enumerate(plan.labels)]
    return plain_table("Points", ("point", "state", "score", "time"), rows)


def _cells(label: str, point: SweepPoint | None) -> tuple[str, str, str, str]:
    if point is None:
        return label, "waiting", "", ""
    time = "" if point.seconds is None else duration(point.seconds)
    if point.error is not None:
        return point.label, "failed", "", time
    return point.label, "finished", _score(point.run_dir), time


def _score(run_dir: Path | None) -> str:
    """Format the main metric of a run with its value: ``loss 3.214``; empty if there is none."""
    from lmtransfer.reporting.runs.collect import read_run
    from lmtransfer.reporting.runs.entries import make_entries
    from lmtransfer.reporting.table import score_text

    if run_dir is None:
        return ""
    entry = make_entries([read_run(run_dir)])[0]
    if entry.metric is None or entry.score is None:
        return ""
    return f"{entry.metric} {score_text(entry.score, entry.metric)}"


def _rounded(seconds: float) -> str:
    scale, unit = time_unit(seconds)
    return f"{seconds / scale:.1f} {unit}" if unit == "h" else f"{max(1, round(seconds / scale))} {unit}"
