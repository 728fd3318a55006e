"""Sweeps (``-m``): a run for each combination of the given values.

The points of a sweep are command lines. They run one after the other in this process, or, with ``jobs`` or ``cluster``,
as jobs in processes of their own.
"""

from __future__ import annotations

import itertools
import math
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.core.override_parser.types import Override

from lmtransfer.config.check import read_group
from lmtransfer.config.settings import CommandSettings, JobsSettings, key_of
from lmtransfer.config.sweep_names import as_point, point_suffix, sweep_name
from lmtransfer.errors import ConfigError, Interrupted, LmtransferError
from lmtransfer.launch import overrides
from lmtransfer.launch.composing import Composed, compose, quote_texts
from lmtransfer.launch.config_files import primary_config
from lmtransfer.launch.jobs import Job, Place, run_jobs
from lmtransfer.launch.overrides import CommandLine
from lmtransfer.launch.plain import to_plain
from lmtransfer.launch.run_once import check_settings, run_as_is, settings_of
from lmtransfer.system import machine
from lmtransfer.system.console import Console
from lmtransfer.system.printable import duration, time_unit

if TYPE_CHECKING:
    from lmtransfer.reporting.table import ReportTable

#: Maximum number of points that the table on a terminal lists.
_MAX_POINTS = 40
#: The commands that skip a finished run; any other command runs again.
_TRAINING = ("pretrain", "probe", "finetune")


@dataclass(slots=True)
class Point:
    """One run of a sweep, and its outcome.

    Attributes:
        words: the overrides of the command that performs the run.
        distinct: the swept overrides except ``name``, which distinguish the run's name from those of other points.
        label: all swept overrides, for the user.
        settings: the settings of the run, once they are checked.
        log: the output of the run, if it runs as a job.
        folder: the run directory to expect; None if the command does not write one with a known name.
        run_dir: the run directory, once it exists.
        seconds: duration of the run; None if the run has not begun, or had finished before the sweep.
        has_ended: whether the run has ended, with or without an error.
    """

    words: tuple[str, ...]
    distinct: str
    label: str
    settings: CommandSettings | None = None
    log: Path = Path()
    folder: Path | None = None
    run_dir: Path | None = None
    error: str | None = None
    seconds: float | None = None
    has_ended: bool = False


def run_sweep(command: str, line: CommandLine, words: Sequence[str], folders: Sequence[Path]) -> int:
    """Run a command once for each combination of values, and print a table of the results.

    Args:
        words: the overrides in Hydra's form.
        folders: the folders with configs.

    Returns:
        0, or 1 if a point failed.
    """
    sweep = _Sweep(command, line, words, folders)
    try:
        sweep.run()
    except (Interrupted, KeyboardInterrupt) as error:
        sweep.close()
        raise Interrupted("the sweep was interrupted; run the same command again to continue it") from error
    return sweep.close()


class _Sweep:
    def __init__(self, command: str, line: CommandLine, words: Sequence[str], folders: Sequence[Path]) -> None:
        self._command, self._folders = command, folders
        self._is_training = command in _TRAINING
        self._config_name, self._config_dir = line.config_name, line.config_dir
        self._words = quote_texts(words, command=line.config_name or command, config_dir=line.config_dir)
        _check_single([overrides.parse(word) for word in self._words])
        where = [word for word in self._words if _says_where(word)]
        if swept := [word for word in where if overrides.parse(word).is_sweep_override()]:
            raise ConfigError(f"{swept[0]}: jobs and cluster say where the points run; choose one value")
        self._points, self._place = self._plan(where)
        self._check()

    def _plan(self, where: Sequence[str]) -> tuple[list[Point], Place]:
        """Work out the points and the place where they run; every command accepts ``jobs`` and ``cluster`` here."""
        new = {"jobs", "cluster"} - primary_config(self._command).keys()
        words = [f"+{word}" if word.partition("=")[0] in new else word for word in self._words]
        composed = self._compose(overrides.first_values(words, self._folders), sweep=words)
        values, _ = to_plain(composed.config)
        own = {name: values[name] for name in ("jobs", "cluster", "cache_dir") if name in values}
        chosen = read_group(JobsSettings, own, key="")
        place = Place.of(
            chosen.jobs,
            chosen.cluster,
            options=composed.options,
            cache_dir=chosen.cache_dir,
            threads=(values.get("hardware") or {"threads": 1}).get("threads"),
        )
        points = make_points(composed.swept, [word for word in self._words if word not in where], self._folders)
        config = self._compose(points[0].words).config  # a recipe can also say where the points run
        here = ["jobs=1"] if config.get("jobs", 1) != 1 else []
        here += ["~cluster"] if config.get("cluster") is not None else []
        for point in points:
            point.words += tuple(here)
        return points, place

    def _compose(self, words: Sequence[str], *, sweep: Sequence[str] = ()) -> Composed:
        names = {"config_name": self._config_name, "config_dir": self._config_dir}
        return compose(self._command, words, **names, sweep=sweep or self._words)

    def _check(self) -> None:
        """Check the settings of every point before the first one starts."""
        labels_of: dict[str, list[str]] = {}
        for point in self._points:
            try:
                with as_point(point.distinct):
                    point.settings = settings_of(self._compose(point.words))
                    check_settings(point.settings, self._command)
                    self._place_outputs(point, point.settings)
            except LmtransferError as error:
                label = " ".join(word for word in point.words if word not in self._words)
                for problem in error.problems if isinstance(error, ConfigError) else [str(error)]:
                    labels_of.setdefault(problem, []).append(label)
        if labels_of:
            total = len(self._points)
            raise ConfigError([_in_points(problem, labels, total) for problem, labels in labels_of.items()])

    def _place_outputs(self, point: Point, settings: CommandSettings) -> None:
        root, name = getattr(settings, "output_root", None), getattr(settings, "name", None)
        folder = Path(root or "runs").absolute() / self._command
        point.label = point.label or (f"name={name}" if name else self._command)
        if root and name:
            point.folder = folder / sweep_name(name)
            point.log = point.folder.parent / "logs" / f"{point.folder.name}.log"
        else:
            point.log = folder / "logs" / f"{point_suffix(point.label)}.log"

    def _is_finished(self, point: Point) -> bool:
        return self._is_training and point.folder is not None and (point.folder / "result.json").is_file()

    def run(self) -> None:
        """Run the points. A finished point runs here: its command checks its settings and has nothing to do."""
        here = [point for point in self._points if self._place.is_here or self._is_finished(point)]
        for point in here:
            self._perform(point)
        self._start_jobs([point for point in self._points if point not in here])

    def _perform(self, point: Point) -> None:
        number = self._points.index(point) + 1
        print(f"\nsweep, run {number}: {point.label} ({progress_line(self._points)})", flush=True)
        start_time, was_finished = time.monotonic(), self._is_finished(point)
        assert point.settings is not None  # it has been checked
        try:
            with as_point(point.distinct):
                returned = run_as_is(point.settings, self._command)
            expected = point.folder if point.folder is not None and point.folder.is_dir() else None
            point.run_dir = returned if isinstance(returned, Path) else expected
        except (Interrupted, KeyboardInterrupt):
            raise
        except Exception as raised:
            described = machine.fault(raised, point.settings.plain()) or raised
            is_bug = not isinstance(described, LmtransferError)
            point.error = f"{type(raised).__name__}: {raised}" if is_bug else str(described)
            bug = machine.bug(raised, [self._command, *point.words]) if is_bug else described
            print(f"lmtransfer: {bug}", file=sys.stderr)
        point.seconds = None if was_finished else time.monotonic() - start_time
        point.has_ended = True
        print_progress(self._points)

    def _start_jobs(self, points: Sequence[Point]) -> None:
        if not points:
            return
        by_label, console = {point.label: point for point in points}, Console(highlight=False)

        def record(job: Job, seconds: float, resumed: bool) -> float:
            by_label[job.key].seconds = seconds
            return seconds

        failed: dict[str, str] = {}
        try:
            failed = run_jobs([self._job(point) for point in points], self._place, console, record=record)
        finally:
            for point in points:
                point.error = failed.get(point.label)
                is_finished = self._is_finished(point) if self._is_training else point.seconds is not None
                point.has_ended = is_finished or point.error is not None
                point.run_dir = point.folder if is_finished else None
        console.print(f"sweep: {progress_line(self._points)}", markup=False, soft_wrap=True)

    def _job(self, point: Point) -> Job:
        return Job(
            point.label,
            self._command,
            point.words,
            result=point.folder / "result.json" if self._is_training and point.folder is not None else None,
            log=point.log,
            options=(overrides.point_option(point.distinct),),
        )

    def close(self) -> int:
        """Print the table of the points and list the failed ones; return 1 if any point failed, else 0."""
        run_dirs = [point.run_dir for point in self._points if point.run_dir is not None and point.error is None]
        failed = [point for point in self._points if point.error is not None]
        if run_dirs:
            from lmtransfer.reporting import result_tables

            result_tables.print_points(self._command, run_dirs, [point.label for point in failed])
        if failed:
            lines = [f"  {point.label}: {str(point.error).splitlines()[0]}" for point in failed]
            heading = f"lmtransfer: {len(failed)} of {len(self._points)} runs of the sweep failed:"
            print("\n".join([heading, *lines]), file=sys.stderr)
        return 1 if failed else 0


def _says_where(word: str) -> bool:
    return key_of(word).partition(".")[0] in ("jobs", "cluster")


def _in_points(problem: str, labels: Sequence[str], total: int) -> str:
    """Prefix a problem with the points that have it, unless all points have it."""
    if len(labels) == total:
        return problem
    others = f" and {len(labels) - 1} more" if len(labels) > 1 else ""
    return f"{labels[0]}{others}: {problem}"


def make_points(params: Mapping[str, Any], words: Sequence[str], folders: Sequence[Path]) -> list[Point]:
    """Return the points of a sweep: the product of all values, the last key varying fastest.

    Args:
        params: the values that a recipe sweeps (``hydra.sweeper.params``); the command line takes precedence.
        words: the overrides on the command line.
        folders: the folders with configs.

    Raises:
        ConfigError: two points would have the same name.
    """
    own = [override for override in map(overrides.parse, words) if not override.is_hydra_override()]
    given = {key_of(str(override.input_line)) for override in own}
    in_recipe = [overrides.parse(f"{key}={value}") for key, value in params.items() if key_of(key) not in given]
    columns = [
        [(word, is_in_recipe or override.is_sweep_override()) for word in overrides.each_value(override, folders)]
        for is_in_recipe, group in ((True, in_recipe), (False, own))
        for override in {override.get_key_element(): override for override in group}.values()
    ]
    points: dict[tuple[str, str], Point] = {}
    for combination in itertools.product(*columns):
        swept = [word for word, is_swept in combination if is_swept]
        distinct = ",".join(sorted(word for word in swept if key_of(word) != "name"))
        label = ",".join(sorted(swept)).replace("'", "")
        name = next((word for word in swept if key_of(word) == "name"), "")
        point = Point(tuple(word for word, _ in combination), distinct, label)
        if points.setdefault((name, point_suffix(distinct)), point) is not point:
            raise ConfigError(f"{label}: two points of the sweep would have this name; give each value once")
    return list(points.values())


def _check_single(words: Sequence[Override]) -> None:
    """Reject a swept key that is given again."""
    lines: dict[str, list[Override]] = {}
    for override in words:
        lines.setdefault(key_of(str(override.input_line)), []).append(override)
    problems = [
        f"{' and '.join(str(override.input_line) for override in same)} are both given: keep only one"
        for same in lines.values()
        if len(same) > 1 and any(override.is_sweep_override() for override in same)
    ]
    if problems:
        raise ConfigError(problems)


def progress_line(points: Sequence[Point]) -> str:
    """Report the progress of a sweep: ``3 of 12 finished, 1 failed, about 6 min left``."""
    ended = [point for point in points if point.has_ended]
    failed = sum(point.error is not None for point in ended)
    parts = [f"{len(ended) - failed} of {len(points)} finished"]
    parts += [f"{failed} failed"] if failed else []
    left = seconds_left(points)
    parts += [f"about {_rounded(left)} left"] if left else []
    return ", ".join(parts)


def seconds_left(points: Sequence[Point]) -> float | None:
    """Estimate the seconds left from the mean duration of the finished points; None if unknown."""
    durations = [point.seconds for point in points if point.seconds is not None and point.error is None]
    left = sum(not point.has_ended for point in points)
    return math.fsum(durations) / len(durations) * left if durations else None


def print_progress(points: Sequence[Point]) -> None:
    """Print the progress line and, on a terminal, the table of all points."""
    if len(points) <= _MAX_POINTS and sys.stdout.isatty():
        from lmtransfer.reporting.table import print_table, report_console

        print_table(points_table(points), report_console())
    print(f"sweep: {progress_line(points)}", flush=True)


def points_table(points: Sequence[Point]) -> ReportTable:
    """Build a table with the label, state, main score and duration of each point."""
    from lmtransfer.reporting.table import plain_table

    return plain_table("Points", ("point", "state", "score", "time"), [_cells(point) for point in points])


def _cells(point: Point) -> tuple[str, str, str, str]:
    time = "" if point.seconds is None else duration(point.seconds)
    if not point.has_ended:
        return point.label, "waiting", "", ""
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
