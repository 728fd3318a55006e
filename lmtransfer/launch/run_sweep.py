"""Sweeps, and other command lines that use Hydra's own features."""

from __future__ import annotations

import contextlib
import functools
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from lmtransfer.config import command_help, overrides, paths
from lmtransfer.config.composing import REFUSALS, compose_files, diagnose, quote_texts, running_config
from lmtransfer.config.effective import complete_values
from lmtransfer.config.sweep_names import in_sweep, sweep_name
from lmtransfer.errors import ConfigError, Interrupted, LmtransferError
from lmtransfer.launch.run_once import run_as_is, run_once, settings_check, to_user_error
from lmtransfer.launch.sweep_points import (
    SweepPlan,
    SweepPoint,
    launcher_error,
    plan_of,
    points_of,
    print_progress,
    progress_line,
    read_points,
    shared_folder,
    watch_points,
)
from lmtransfer.runs.result import RunResult
from lmtransfer.system import cores, interrupts, machine
from lmtransfer.system.addresses import redact

_STOP = "stop"
_RUNNING = "running-"
_PATIENCE = 3.0  # seconds during which a further signal counts as part of the first

_HYDRA_SETTINGS = (
    "hydra/job_logging=none",
    "hydra/hydra_logging=none",
    "hydra.job.name=lmtransfer",
    "hydra.job.chdir=false",
    "hydra.run.dir=.",
    "hydra.sweep.subdir=.",
    "hydra.output_subdir=null",
)


def is_stopping(folder: Path) -> bool:
    """Whether the sweep with this shared folder was interrupted."""
    return (folder / _STOP).exists()


def stop(folder: Path) -> None:
    """Prevent other points from starting."""
    with contextlib.suppress(FileNotFoundError):
        (folder / _STOP).touch()


@contextmanager
def forward_signals(plan: SweepPlan, folder: Path) -> Iterator[None]:
    """Inside the block, forward the first signal to the running points and wait for them.

    The points save and stop, and no other point starts. A second Ctrl-C ends this process immediately; other signals,
    which a cluster may send more than once, do not. If the points run in this process or on other machines, signals
    are handled as if there were no block.
    """
    before = {number: signal.getsignal(number) for number in interrupts.SIGNALS}
    first: list[float] = []

    def handle(number: int, frame: FrameType | None) -> None:
        if first and (number != signal.SIGINT or time.monotonic() - first[0] < _PATIENCE):
            return
        if first:
            signal.signal(number, before[signal.Signals(number)])
            signal.raise_signal(number)
            return
        first.append(time.monotonic())
        stop(folder)
        with contextlib.suppress(OSError):
            os.write(2, b"\nthe running points of the sweep are saving; a second Ctrl-C ends them immediately\n")
        for path in folder.glob(f"{_RUNNING}*"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(path.name.removeprefix(_RUNNING)), signal.SIGTERM)

    if not (plan.is_parallel and plan.is_local) or threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = [number for number, handler in before.items() if handler is not signal.SIG_IGN]  # ignored under nohup
    for number in numbers:
        signal.signal(number, handle)
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, before[number])


@contextmanager
def guard_point(folder: Path) -> Iterator[None]:
    """Inside the block, handle signals as in a single command, and stop if the parent process is gone."""
    running = folder / f"{_RUNNING}{os.getpid()}"
    running.touch()
    over = threading.Event()
    parent = os.getppid()
    threading.Thread(target=_follow, args=(parent, over), daemon=True).start()
    try:
        with interrupts.trap_signals():
            yield
    finally:
        over.set()
        running.unlink(missing_ok=True)
        if os.getppid() != parent:  # no process waits for this one
            os._exit(1)


def _follow(parent: int, over: threading.Event) -> None:
    while not over.wait(1.0):
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGTERM)
            return


class _StopSweep(BaseException):
    """Ends a sweep immediately; it is not an ``Exception``, because Hydra would then continue."""


def run_by_hydra(command: str, line: overrides.CommandLine, words: Sequence[str], *, is_sweep: bool) -> int:
    """Run a command line that uses Hydra's own features: sweeps, or options such as ``--cfg``.

    Args:
        words: the overrides in Hydra's form.

    Returns:
        0, or 1 if a point of a sweep failed.
    """
    if any(word.startswith("hydra.sweep.") for word in words):
        raise ConfigError("lmtransfer itself sets hydra.sweep.dir and .subdir: leave both out, and set output_root")
    failure: list[Exception] = []
    primary = line.config_name or command
    asks_help = not {"--help", "-h"}.isdisjoint(line.options)
    words = quote_texts(words, command=primary, config_dir=line.config_dir)
    plan = plan_of(primary, [*words, *_not_in_sweep(words)], config_dir=line.config_dir) if is_sweep else SweepPlan()
    if is_sweep:
        _check_points(command, words, primary=primary, config_dir=line.config_dir)
    with shared_folder(plan) as folder:
        task = functools.partial(_perform_or_note, command, failure, plan)
        settings = [*_HYDRA_SETTINGS, overrides.quote_value(f"hydra.sweep.dir={folder}"), *_not_in_sweep(words)]
        argv = [f"lmtransfer {command}", *line.options, *settings, *words]
        try:
            with _hydra_as_library(argv), forward_signals(plan, folder), watch_points(plan, folder):
                if asks_help:
                    print(command_help.page(command, words, primary=primary, config_dir=line.config_dir))
                else:
                    hydra.main(version_base="1.3", config_path=str(paths.conf_dir()), config_name=command)(task)()
            if is_stopping(folder):
                raise _StopSweep
        except REFUSALS as error:  # the command's own errors are in failure
            raise diagnose(
                error,
                command=primary,
                words=words,
                config_dir=line.config_dir,
                is_sweep=line.is_sweep,
            ) from error
        except (_StopSweep, KeyboardInterrupt, RuntimeError) as error:
            stopped = isinstance(error, _StopSweep) or is_stopping(folder)
            if not (stopped or plan.is_parallel):
                raise
            _finish_sweep(command, read_points(folder))
            if stopped:
                raise Interrupted("the sweep was interrupted; run the same command again to continue it") from error
            raise launcher_error(plan, error, folder) from error
        points = read_points(folder)
    if failure:
        raise failure[0]
    return _finish_sweep(command, points) if points else 0


def _check_points(command: str, command_line: Sequence[str], *, primary: str, config_dir: str | None) -> None:
    check = settings_check(command)
    if check is None:
        return
    try:
        first = compose_files(primary, overrides.first_values(command_line), config_dir=config_dir)
        points = list(points_of(command_line, first))
    except (ConfigError, *REFUSALS):
        return  # Hydra raises the same error when the sweep starts
    labels_of: dict[str, list[str]] = {}
    for point in points:
        words = [word for word in point if not word.startswith("hydra")]
        try:
            with running_config(primary, words, config_dir=config_dir) as cfg:
                complete_values(cfg, command)
                check(cfg)
        except LmtransferError as error:
            label = " ".join(word for word in words if word not in command_line)
            for problem in error.problems if isinstance(error, ConfigError) else [str(error)]:
                labels_of.setdefault(problem, []).append(label)
    if labels_of:
        raise ConfigError([_in_points(problem, labels, len(points)) for problem, labels in labels_of.items()])


def _in_points(problem: str, labels: Sequence[str], total: int) -> str:
    """Prefix a problem with the points that have it, unless all points have it."""
    if len(labels) == total:
        return problem
    others = f" and {len(labels) - 1} more" if len(labels) > 1 else ""
    return f"{labels[0]}{others}: {problem}"


def _perform_or_note(command: str, failure: list[Exception], plan: SweepPlan, cfg: DictConfig) -> float:
    """Run the command or a point of the sweep; Hydra calls this, possibly in another process.

    Returns:
        The run's main score, for sweepers that search; NaN if there is none.
    """
    if in_sweep():
        folder = Path(HydraConfig.get().sweep.dir)
        if not (plan.is_parallel and plan.is_local):
            return _perform_point(command, plan, folder, cfg)
        with guard_point(folder), cores.share_cores(plan.workers or 1):
            if not is_stopping(folder):
                return _perform_point(command, plan, folder, cfg)
        return math.nan
    try:
        run_once(command, cfg)
    except Exception as error:
        failure.append(error)
    return math.nan


def _perform_point(command: str, plan: SweepPlan, folder: Path, cfg: DictConfig) -> float:
    job = HydraConfig.get().job
    label = job.override_dirname.replace("'", "") or f"name={cfg.get('name')}"
    point = SweepPoint(number=int(job.num), label=label)
    print(f"\nsweep, run {point.number + 1}: {label} ({progress_line(plan, read_points(folder))})", flush=True)
    start_time = time.time()
    try:
        point.run_dir = _run(command, cfg)
    except (Interrupted, KeyboardInterrupt) as error:
        if not plan.is_parallel:
            raise _StopSweep from error
        if plan.is_local:
            stop(folder)
            return math.nan
        point.error = "interrupted; run the same command again to continue"
    except Exception as raised:
        described = to_user_error(raised, cfg)
        if isinstance(described, LmtransferError):
            point.error = redact(str(described))
            print(f"lmtransfer: {point.error}", file=sys.stderr)
        else:
            point.error = redact(f"{type(raised).__name__}: {raised}")
            print(f"lmtransfer: {machine.bug(raised, [command, *overrides.command_line_overrides()])}", file=sys.stderr)
    point.measure_seconds(start_time)
    point.write(folder)
    print_progress(plan, read_points(folder))
    return math.nan if point.error is not None else _score(point.run_dir)


def _score(run: Path | None) -> float:
    """Return the mean main metric of a finished run, or its pretraining loss; NaN if there is none."""
    if run is None or not (run / "result.json").is_file():
        return math.nan
    result = RunResult.read(run / "result.json").values()
    score = result.get("mean", result["metrics"].get(result.get("main_metric") or "loss"))
    return math.nan if score is None else float(score)


def _run(command: str, cfg: DictConfig) -> Path | None:
    returned = run_as_is(command, cfg)
    if isinstance(returned, Path):
        return returned
    if cfg.get("output_root") and cfg.get("name"):
        expected = Path(cfg.output_root) / command / sweep_name(str(cfg.name))
        return expected if expected.is_dir() else None
    return None


def _finish_sweep(command: str, points: list[SweepPoint]) -> int:
    """Print the table of the points and list the failed points; return 1 if any point failed, else 0."""
    run_dirs = [point.run_dir for point in points if point.run_dir is not None and point.error is None]
    failed = [point for point in points if point.error is not None]
    if run_dirs:
        from lmtransfer.reporting import result_tables

        result_tables.print_points(command, run_dirs, [point.label for point in failed])
    if failed:
        lines = [f"  {point.label}: {str(point.error).splitlines()[0]}" for point in failed]
        heading = f"lmtransfer: {len(failed)} of {len(points)} runs of the sweep failed:"
        print("\n".join([heading, *lines]), file=sys.stderr)
    return 1 if failed else 0


def _not_in_sweep(words: Sequence[str]) -> list[str]:
    """Return the Hydra setting that excludes ``name`` and keys with a single value from the run names of a sweep."""
    try:
        parsed = [overrides.parse(override) for override in words]
    except ConfigError:
        return []
    single = sorted({override.key_or_group for override in parsed if not override.is_sweep_override()} | {"name"})
    quoted = ",".join(f"'{key}'" for key in single)
    return [f"hydra.job.config.override_dirname.exclude_keys=[{quoted}]"]


@contextmanager
def _hydra_as_library(argv: list[str]) -> Iterator[None]:
    """Let Hydra read ``argv`` and raise its errors instead of printing them and exiting."""
    saved_argv, saved = sys.argv, os.environ.get("HYDRA_FULL_ERROR")
    sys.argv, os.environ["HYDRA_FULL_ERROR"] = argv, "1"
    try:
        yield
    finally:
        HydraConfig.instance().cfg = None
        sys.argv = saved_argv
        if saved is None:
            del os.environ["HYDRA_FULL_ERROR"]
        else:
            os.environ["HYDRA_FULL_ERROR"] = saved
