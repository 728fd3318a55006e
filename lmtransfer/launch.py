"""Running a command through Hydra: one run, the points of a sweep, or a call from Python.

Hydra composes the configuration. It writes no files, does not change the directory and prints no errors itself.
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import InterpolationResolutionError, MissingMandatoryValue, OmegaConfBaseException

from lmtransfer.config import help_page, overrides, paths, yaml_files
from lmtransfer.config.composing import REFUSALS, complete_values, diagnose, in_force
from lmtransfer.config.in_short import expanded
from lmtransfer.config.primary import drop_null_groups
from lmtransfer.config.sweep import in_sweep, sweep_name
from lmtransfer.errors import ConfigError, Interrupted, LmtransferError
from lmtransfer.runs.lock import failed_starts_removed
from lmtransfer.sweeps import signals
from lmtransfer.sweeps.plan import Plan, plan_of
from lmtransfer.sweeps.points import Point, exchange_folder, launcher_stopped, read_points
from lmtransfer.sweeps.progress import print_progress, progress_line, watched
from lmtransfer.system import cores, machine, ranks
from lmtransfer.system.last_resort import last_resort

_HYDRA_SETTINGS = (
    "hydra/help=lmtransfer",
    "hydra/job_logging=none",
    "hydra/hydra_logging=none",
    "hydra.job.name=lmtransfer",
    "hydra.job.chdir=false",
    "hydra.run.dir=.",
    "hydra.sweep.subdir=.",
    "hydra.output_subdir=null",
)

#: For commands that accept words without "=": the key that these words set.
BARE_WORDS = {"compare": "runs", "list": "what", "report": "runs"}


#: Hydra keeps the running command in the process, so calls from several threads wait for each other.
_one_call = threading.RLock()


class _StopSweep(BaseException):
    """Ends a sweep at once; it is not an Exception, since Hydra continues after an Exception."""


def run_command(command: str, words: Sequence[str]) -> int:
    """Run ``lmtransfer <command> <words>``.

    Returns:
        0, or 1 if a point of a sweep failed.

    Raises:
        LmtransferError: a mistake of the user, or an error of the command.
    """
    line = overrides.read(words)
    given, folders = _given(command, line)
    one_each = expanded(given, folders)
    if one_each != given and not line.is_sweep:
        line.options.append("--multirun")
        line.is_sweep = True
    given = one_each
    help_page.register(command)
    is_plain = _is_plain(line, given)
    if is_plain:  # composed once; Hydra's own command line would compose it twice
        with in_force(command, given, config_dir=line.config_dir) as cfg:
            if not in_sweep():  # a config may ask for a sweep
                _perform(command, cfg)
                return 0
    is_sweep = is_plain or line.is_sweep or any(word.startswith("hydra.mode=") for word in given)
    return _by_hydra(command, line, given, is_sweep=is_sweep)


def call_command(command: str, line: overrides.CommandLine, **arguments: Any) -> Any:
    """Run a command once for a caller in Python.

    Nothing of Hydra's state remains afterwards. Calls from several threads run one after another.

    Args:
        command: name of the command.
        line: its settings.
        arguments: further arguments of the command's ``run``.

    Returns:
        What the command returns.

    Raises:
        ConfigError: the settings ask for a sweep or for an option of the command line.
        LmtransferError: a mistake of the user, or an error of the command.
    """
    with _one_call:
        given, folders = _given(command, line)
        for word, one_each in zip(given, expanded(given, folders), strict=True):
            if one_each != word:
                raise ConfigError(f"{word}: a call makes one run; call {command} once for each of {one_each}")
        if not _is_plain(line, given):
            raise ConfigError(
                f"{' '.join([*line.options, *given])}: a call makes one run, without sweeps, options and settings of "
                f"hydra; call {command} once for each value, or use the command line"
            )
        with in_force(command, given, config_dir=line.config_dir) as cfg:
            if in_sweep():
                raise ConfigError("hydra.mode: a config asks for a sweep, but a call makes one run: use -m there")
            return _perform(command, cfg, **arguments)


def _given(command: str, line: overrides.CommandLine) -> tuple[list[str], list[Path]]:
    """The overrides of a command line in Hydra's form, and the folders with configs."""
    folders = [paths.conf_dir()]
    if line.config_dir is not None:
        _check_config_dir(Path(line.config_dir))
        folders.append(Path(line.config_dir))
    given = [*_bare_words(command, line.bare), *line.overrides]
    if line.config_dir is not None:
        yaml_files.check_yaml_files(Path(line.config_dir), given, line.config_name or command)
    given = drop_null_groups(given, primary=line.config_name or command, folders=folders)
    overrides.check_contradictions(given, folders)
    return given, folders


def _is_plain(line: overrides.CommandLine, given: Sequence[str]) -> bool:
    """Whether a command line asks for a single run and uses none of Hydra's own features."""
    if line.is_sweep or not set(line.options) <= {"--config-dir", "-cd", line.config_dir}:
        return False
    try:
        parsed = [overrides.parse(override) for override in given]
    except ConfigError:
        return True  # the error is raised where the configuration is composed
    return not any(override.is_sweep_override() or override.is_hydra_override() for override in parsed)


def _by_hydra(command: str, line: overrides.CommandLine, given: Sequence[str], *, is_sweep: bool) -> int:
    """Run a command line that uses Hydra's own features (options, sweeps); return 1 if a point of a sweep failed."""
    if any(word.startswith("hydra.sweep.") for word in given):
        raise ConfigError("hydra.sweep.dir and .subdir are set by lmtransfer: leave them out, and set output_root")
    failure: list[Exception] = []
    primary = line.config_name or command
    plan = plan_of(primary, [*given, *_not_in_sweep(given)], config_dir=line.config_dir) if is_sweep else Plan()
    with exchange_folder(plan) as folder:
        task = functools.partial(_perform_or_note, command, failure, plan)
        settings = [*_HYDRA_SETTINGS, overrides.quoted(f"hydra.sweep.dir={folder}"), *_not_in_sweep(given)]
        argv = [f"lmtransfer {command}", *line.options, *settings, *given]
        try:
            with _hydra_as_library(argv), signals.passed_on(plan, folder), watched(plan, folder):
                hydra.main(version_base="1.3", config_path=str(paths.conf_dir()), config_name=command)(task)()
            if signals.is_stopping(folder):
                raise _StopSweep
        except REFUSALS as error:  # errors of the command itself are in failure
            raise diagnose(
                error,
                command=primary,
                given=given,
                config_dir=line.config_dir,
                is_sweep=line.is_sweep,
            ) from error
        except (_StopSweep, KeyboardInterrupt, RuntimeError) as error:
            stopped = isinstance(error, _StopSweep) or signals.is_stopping(folder)
            if not (stopped or plan.is_parallel):
                raise
            _finish_sweep(command, read_points(folder))
            if stopped:
                raise Interrupted("the sweep was interrupted; run the same command again to continue it") from error
            raise launcher_stopped(plan, error, folder) from error
        points = read_points(folder)
    if failure:
        raise failure[0]
    return _finish_sweep(command, points) if points else 0


def _perform(command: str, cfg: DictConfig, **arguments: Any) -> Any:
    """Run the command once; return what it returns."""
    try:
        return _returned(command, cfg, **arguments)
    except Exception as error:
        described = _as_user_error(error, cfg)
        if described is error:
            raise
        raise described from error


def _perform_or_note(command: str, failure: list[Exception], plan: Plan, cfg: DictConfig) -> None:
    """The function that Hydra calls for a run or for each point of a sweep, possibly in another process."""
    if in_sweep():
        folder = Path(HydraConfig.get().sweep.dir)
        if not (plan.is_parallel and plan.is_local):
            _perform_point(command, plan, folder, cfg)
            return
        with signals.as_point(folder), cores.shared_by(plan.workers or 1):
            if not signals.is_stopping(folder):
                _perform_point(command, plan, folder, cfg)
        return
    try:
        _perform(command, cfg)
    except Exception as error:
        failure.append(error)


def _perform_point(command: str, plan: Plan, folder: Path, cfg: DictConfig) -> None:
    job = HydraConfig.get().job
    label = job.override_dirname.replace("'", "") or f"name={cfg.get('name')}"
    point = Point(number=int(job.num), label=label)
    print(f"\nsweep, run {point.number + 1}: {label} ({progress_line(plan, read_points(folder))})", flush=True)
    start_time = time.time()
    try:
        point.run_dir = _run(command, cfg)
    except (Interrupted, KeyboardInterrupt) as error:
        if not plan.is_parallel:
            raise _StopSweep from error
        if plan.is_local:
            signals.stop(folder)
            return
        point.error = "interrupted; run the same command again to continue"
    except Exception as raised:
        described = _as_user_error(raised, cfg)
        if isinstance(described, LmtransferError):
            point.error = str(described)
            print(f"lmtransfer: {described}", file=sys.stderr)
        else:
            point.error = f"{type(raised).__name__}: {raised}"
            print(f"lmtransfer: {last_resort(raised, [command, *overrides.of_command_line()])}", file=sys.stderr)
    point.measure_seconds(start_time)
    point.write(folder)
    print_progress(plan, read_points(folder))


def _returned(command: str, cfg: DictConfig, **arguments: Any) -> Any:
    complete_values(cfg, command)
    with failed_starts_removed():
        return _module(command).run(cfg, **arguments)


def _run(command: str, cfg: DictConfig) -> Path | None:
    """Run the command; return its run directory, if it made one."""
    returned = _returned(command, cfg)
    if isinstance(returned, Path):
        return returned
    if cfg.get("output_root") and cfg.get("name"):
        expected = Path(cfg.output_root) / command / sweep_name(str(cfg.name))
        return expected if expected.is_dir() else None
    return None


def _finish_sweep(command: str, points: list[Point]) -> int:
    """Print the table of the points and list those that failed; return 1 if there are any."""
    run_dirs = [point.run_dir for point in points if point.run_dir is not None and point.error is None]
    failed = [point for point in points if point.error is not None]
    after: Callable[[list[Path], list[str]], None] | None = getattr(_module(command), "after_sweep", None)
    if after is not None and run_dirs:
        after(run_dirs, [point.label for point in failed])
    if failed:
        lines = [f"  {point.label}: {str(point.error).splitlines()[0]}" for point in failed]
        heading = f"lmtransfer: {len(failed)} of {len(points)} runs of the sweep failed:"
        print("\n".join([heading, *lines]), file=sys.stderr)
    return 1 if failed else 0


def _module(command: str) -> ModuleType:
    return importlib.import_module(f"lmtransfer.commands.{command}")


def _as_user_error(error: Exception, cfg: DictConfig) -> Exception:
    """Turn a missing value, a broken reference or an error of the machine into a message; keep other errors."""
    if isinstance(error, (MissingMandatoryValue, InterpolationResolutionError)):
        where = f"{error.full_key}: " if error.full_key else ""
        described = ConfigError(where + str(error).splitlines()[0])
        described.__cause__ = error
        return described
    return machine.fault(error, _plain(cfg)) or error


def _plain(cfg: DictConfig) -> dict[str, Any]:
    """The settings as plain data, resolved if that is possible."""
    try:
        return cast("dict[str, Any]", OmegaConf.to_container(cfg, resolve=True))
    except OmegaConfBaseException:
        return cast("dict[str, Any]", OmegaConf.to_container(cfg, resolve=False))


def _not_in_sweep(given: Sequence[str]) -> list[str]:
    """The Hydra setting that excludes ``name`` and keys with a single value from the names of a sweep's runs."""
    try:
        parsed = [overrides.parse(override) for override in given]
    except ConfigError:
        return []
    single = sorted({override.key_or_group for override in parsed if not override.is_sweep_override()} | {"name"})
    quoted = ",".join(f"'{key}'" for key in single)
    return [f"hydra.job.config.override_dirname.exclude_keys=[{quoted}]"]


def _bare_words(command: str, bare: Sequence[str]) -> list[str]:
    if not bare:
        return []
    if command not in BARE_WORDS:
        raise ConfigError(f"'{bare[0]}' is not key=value; lmtransfer {command} --help shows the keys")
    quoted = [overrides.quote(word) for word in bare]
    return [f"{BARE_WORDS[command]}={quoted[0] if len(quoted) == 1 else '[' + ','.join(quoted) + ']'}"]


def _check_config_dir(folder: Path) -> None:
    if not folder.is_dir():
        raise ConfigError(f"--config-dir: there is no folder {folder}")
    for path in paths.shadowed(folder):
        print(
            f"lmtransfer: warning: {folder / path} is ignored, because lmtransfer has its own {path}; rename yours",
            file=sys.stderr,
        )


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


def end_process(code: int) -> None:
    """End a rank at once, with all output written; without ``torchrun``, do nothing.

    In a normal exit, remaining threads of the process group sometimes abort the process, and ``torchrun`` takes a
    finished run for a failed one.
    """
    if ranks.are_many():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
