"""Watching a study from another terminal: a table that follows its runs until the last one ends."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from rich import box
from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from lmtransfer.study.progress import JobProgress, progress_of, seconds_left
from lmtransfer.system.console import Console
from lmtransfer.system.units import duration

_EVERY_SECONDS = 2.0
_MARKS = {"finished": "+", "running": ">", "failed": "x", "interrupted": "!", "waiting": "."}
_STYLES = {"running": "bold", "failed": "bold red", "waiting": "dim"}


def watch(folder: Path, console: Console) -> list[JobProgress]:
    """Show the progress until no run is left to do; on anything but a terminal, show it once.

    Returns:
        The progress as shown last.

    Raises:
        RunDirectoryError: it is not the folder of a study.
    """
    jobs = progress_of(folder)
    if not console.is_terminal:
        console.print(progress_table(jobs, folder))
        return jobs
    with Live(progress_table(jobs, folder), console=console, auto_refresh=False) as live:
        while any(job.state in ("running", "waiting") for job in jobs):
            time.sleep(_EVERY_SECONDS)
            jobs = progress_of(folder)
            live.update(progress_table(jobs, folder), refresh=True)
    return jobs


def progress_table(jobs: Sequence[JobProgress], folder: Path) -> Group:
    """One line for each run, and a summary."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for heading in ("", "recipe", "stage", "state", "time", "left"):
        table.add_column(heading, no_wrap=True)
    table.add_column("", overflow="ellipsis", no_wrap=True, ratio=1)
    for job in jobs:
        table.add_row(
            _MARKS[job.state],
            Text(job.recipe),
            Text(job.stage),
            Text(job.state, _STYLES.get(job.state, "")),
            "" if job.seconds is None else duration(job.seconds),
            "" if job.left is None else duration(job.left),
            Text(job.note, "dim"),
        )
    return Group(table, Text(summary(jobs, folder), "bold"))


def summary(jobs: Sequence[JobProgress], folder: Path) -> str:
    """One line: ``masking_rate: 4 of 15 finished, 1 running, 10 waiting; about 31 min left``."""
    counts = Counter(job.state for job in jobs)
    parts = [f"{counts['finished']} of {len(jobs)} finished"]
    parts += [f"{counts[state]} {state}" for state in ("running", "failed", "interrupted", "waiting") if counts[state]]
    left = seconds_left(jobs)
    ending = f"; about {duration(left)} left" if left else ""
    return f"{folder.name}: {', '.join(parts)}{ending}"
