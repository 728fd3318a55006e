"""The lines and the table that a sweep prints while it runs."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from lmtransfer.sweeps.plan import Plan
from lmtransfer.sweeps.points import Point, read_points
from lmtransfer.system.units import duration, time_unit

if TYPE_CHECKING:
    from rich.table import Table


def progress_line(plan: Plan, points: Sequence[Point]) -> str:
    """How far a sweep is: ``3 of 12 finished, 1 failed, about 6 min left``.

    Args:
        plan: the plan of the sweep.
        points: the points that have ended.
    """
    failed = sum(point.error is not None for point in points)
    of = "" if plan.total is None else f" of {plan.total}"
    parts = [f"{len(points) - failed}{of} finished"]
    parts += [f"{failed} failed"] if failed else []
    left = seconds_left(plan, points)
    parts += [f"about {_rounded(left)} left"] if left else []
    return ", ".join(parts)


def seconds_left(plan: Plan, points: Sequence[Point]) -> float | None:
    """The mean duration of the finished points times those left, shared by the workers; None if it is unknown."""
    measure_seconds = [point.seconds for point in points if point.seconds is not None and point.error is None]
    if plan.total is None or plan.workers is None or not measure_seconds:
        return None
    left = plan.total - len(points)
    return sum(measure_seconds) / len(measure_seconds) * left / max(1, min(plan.workers, left))


def print_progress(plan: Plan, points: Sequence[Point]) -> None:
    """Print the line, and on a terminal the table of all points if they run one after the other."""
    if points and plan.labels and not plan.is_parallel and sys.stdout.isatty():
        from lmtransfer.reporting.render.terminal import report_console

        report_console().print(points_table(plan, points))
    print(f"sweep: {progress_line(plan, points)}", flush=True)


@contextmanager
def watched(plan: Plan, folder: Path, *, every: float = 2.0) -> Iterator[None]:
    """Inside the block print the line whenever points have ended, if the points themselves print into the logs of jobs.

    Args:
        plan: the plan of the sweep.
        folder: the exchange folder.
        every: seconds between two looks at it.
    """
    over = threading.Event()

    def watch() -> None:
        known, ended = 0, False
        while not ended:
            ended = over.wait(every)
            points = read_points(folder)
            if len(points) > known:
                known = len(points)
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


def points_table(plan: Plan, points: Sequence[Point]) -> Table:
    """A row for each point: its label, its state, its main score and the time that it took.

    Args:
        plan: the plan of the sweep, with the labels of all points.
        points: the points that have ended.
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table("point", "state", "score", "time", box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    ended = {point.number: point for point in points}
    for number, label in enumerate(plan.labels):
        table.add_row(*map(Text, _cells(label, ended.get(number))))
    return table


def _cells(label: str, point: Point | None) -> tuple[str, str, str, str]:
    if point is None:
        return label, "waiting", "", ""
    time = "" if point.seconds is None else duration(point.seconds)
    if point.error is not None:
        return point.label, "failed", "", time
    return point.label, "finished", _score(point.run_dir), time


def _score(run_dir: Path | None) -> str:
    """The main metric of a run with its value, such as ``loss 3.214``; empty if there is none."""
    from lmtransfer.reporting.render.cells import score_text
    from lmtransfer.reporting.runs.collect import read_run
    from lmtransfer.reporting.runs.entries import make_entries

    if run_dir is None:
        return ""
    entry = make_entries([read_run(run_dir)])[0]
    if entry.metric is None or entry.score is None:
        return ""
    return f"{entry.metric} {score_text(entry.score, entry.metric)}"


def _rounded(seconds: float) -> str:
    scale, unit = time_unit(seconds)
    return f"{seconds / scale:.1f} {unit}" if unit == "h" else f"{max(1, round(seconds / scale))} {unit}"
