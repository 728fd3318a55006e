"""Jobs: commands that produce results, each of which starts when the jobs that it needs have finished.

Seeds, learning rate tries, and the runs of a study are jobs. A job whose result exists is skipped. An unfinished job is
resumed by its own command. Each job runs in its own process, on this machine or as a cluster job (through submitit).
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from hydra.core.hydra_config import HydraConfig
from rich.text import Text

from lmtransfer.config.config_files import own_folder
from lmtransfer.config.overrides import command_line_overrides, key_of, override_keys
from lmtransfer.config.settings import ClusterSettings
from lmtransfer.errors import ConfigError, Interrupted
from lmtransfer.runs.create_or_resume import writer
from lmtransfer.system import ranks
from lmtransfer.system.console import Console
from lmtransfer.system.cores import usable_cores
from lmtransfer.system.interrupts import FOLLOW, collect_signals
from lmtransfer.system.optional import import_optional, install_hint
from lmtransfer.system.printable import duration, short_path

_LOOK_EVERY_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Job:
    """A command and its result.

    Attributes:
        result: a file in the job's run directory, which exists once the job has finished.
        needs: keys of the jobs that must finish first.
        alone: whether no other job may run on the same machine at the same time, because its budget may be a duration.
        extra: settings that do not affect the result.
    """

    key: str
    command: str
    overrides: tuple[str, ...]
    result: Path
    log: Path
    needs: tuple[str, ...] = ()
    alone: bool = False
    extra: tuple[str, ...] = ()

    @property
    def is_finished(self) -> bool:
        """Whether the result exists."""
        return self.result.is_file()

    def words(self, *extra: str) -> tuple[str, ...]:
        """Return the command line, including the ``extra`` settings that the job does not set itself."""
        own = override_keys(self.overrides)
        return (self.command, *self.overrides, *(word for word in extra if word.partition("=")[0] not in own))


@dataclass(frozen=True, slots=True)
class Place:
    """Where jobs run.

    Attributes:
        cluster: settings of a cluster (``config.settings.ClusterSettings``); None for this machine.
        options: additional words of every command line, such as the user's config folder.
    """

    max_jobs: int = 1
    cluster: Mapping[str, Any] | None = None
    options: tuple[str, ...] = ()

    @classmethod
    def of(cls, jobs: int, cluster: ClusterSettings | None, *, command: str | None = None) -> Place:
        """Build the place from a command's ``jobs`` and ``cluster``.

        Args:
            command: name of the command, if the jobs are parts of it; None if the jobs are other commands.
        """
        if (jobs > 1 or cluster is not None) and ranks.world_size() > 1:
            raise ConfigError("jobs and cluster start their own processes: leave both out under torchrun")
        if cluster is not None and (problem := install_hint("submitit")):
            raise ConfigError(f"cluster={cluster.executor}: {problem}")
        folder = own_folder()
        options = [] if folder is None else ["-cd", folder]
        if command is not None and HydraConfig.initialized():
            primary = HydraConfig.get().job.config_name
            options += ["--config-name", str(primary)] if primary not in (None, command) else []
        return cls(jobs, None if cluster is None else cluster.plain(), tuple(options))

    @property
    def is_here(self) -> bool:
        """Whether jobs run in the current process if possible."""
        return self.max_jobs == 1 and self.cluster is None

    @property
    def shares_machine(self) -> bool:
        """Whether the jobs share one machine."""
        return self.cluster is None or self.cluster["executor"] == "local"

    def start(self, job: Job) -> Process:
        """Start a job."""
        shares_cores = self.max_jobs > 1 and self.shares_machine and not job.alone
        threads = [f"hardware.threads={max(1, usable_cores() // self.max_jobs)}"] if shares_cores else []
        words = job.words(*job.extra, *threads)
        log = job.log
        log.parent.mkdir(parents=True, exist_ok=True)
        words = (*words, *self.options)
        return _LocalProcess(words, log) if self.cluster is None else _submit(words, log, self.cluster)


class Process(Protocol):
    """A started job."""

    def exit_code(self, *, timeout: float) -> int | None:
        """Wait for at most ``timeout`` seconds and return the exit code; None if the job is still running."""

    def terminate(self) -> None:
        """Ask the job to save and stop."""

    def release(self) -> None:
        """Release the job's resources; if it is still running, ask it to save and stop."""


#: Called with a job that has ended, its duration in seconds, and whether it was resumed; returns the seconds to print.
Record = Callable[[Job, float, bool], float]


def run_jobs(
    jobs: Sequence[Job],
    place: Place,
    console: Console,
    *,
    record: Record = lambda job, seconds, resumed: seconds,
    where: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Run the unfinished jobs; a failed job stops only those that need it.

    On Ctrl-C (even if repeated), SIGTERM or SIGHUP, if a single job is interrupted, or if this process dies, each
    running job is asked to save and stop, and no other job starts.

    Args:
        jobs: the jobs, in order of preference for starting.
        record: called when a job has ended.
        where: the run directories to show for finished jobs of other studies, by the jobs' keys.

    Returns:
        The reason for each job that failed, by the job's key.

    Raises:
        Interrupted: on a signal, or if a job was interrupted, after the running jobs have saved.
    """
    return _Runner(jobs, place, console, record, where or {}).run()


@dataclass(slots=True)
class _Running:
    job: Job
    process: Process
    started_at: float
    resumed: bool
    terminated: bool = False

    def line(self, heading: str, width: int) -> Text:
        """Return the last output line, truncated to the console width beside the spinner."""
        last = "saving" if self.terminated else _last_lines(self.job.log)[-1]
        text = Text(f"{heading}: {last}")
        text.truncate(width - 2, overflow="ellipsis")
        return text


class _Runner:
    def __init__(
        self, jobs: Sequence[Job], place: Place, console: Console, record: Record, where: Mapping[str, str]
    ) -> None:
        self._jobs, self._place, self._console, self._record, self._where = jobs, place, console, record, where
        self._waiting = list(jobs)
        self._running: list[_Running] = []
        self._failed: dict[str, str] = {}

    def run(self) -> dict[str, str]:
        ending = False
        with collect_signals() as signals, self._console.status("") as status:
            try:
                while True:
                    ending = ending or bool(signals)
                    while not ending and self._start_next():
                        ending = bool(signals)
                    if not self._running and (ending or not self._waiting):
                        break
                    if not self._running:  # an earlier runner was killed; its jobs save and stop
                        time.sleep(_LOOK_EVERY_SECONDS)
                        continue
                    if ending:
                        self._terminate()
                    lines = [running.line(self._heading(running.job), self._console.width) for running in self._running]
                    status.update(Text("\n").join(lines))
                    for running in list(self._running):
                        code = running.process.exit_code(timeout=_LOOK_EVERY_SECONDS / len(self._running))
                        if code is not None:
                            self._running.remove(running)
                            running.process.release()
                            ending = ending or bool(signals) or code == Interrupted.exit_code
                            self._end(running, code, interrupted=ending)
            finally:
                for running in self._running:
                    running.process.release()
        if ending:
            raise Interrupted("interrupted; run the same command again to continue")
        return self._failed

    def _start_next(self) -> bool:
        """Start the first job that is ready, or remove a finished job from the list; False if none is ready."""
        for job in self._waiting:
            if job.is_finished:
                self._say(job, f"finished{self._where.get(job.key, '')}")
                self._waiting.remove(job)
                return True
            failed_key = next((key for key in job.needs if key in self._failed), None)
            if failed_key is not None:
                self._failed[job.key] = f"{failed_key} failed"
                self._waiting.remove(job)
                return True
            if self._can_start(job):
                resumed = job.result.parent.is_dir()
                self._waiting.remove(job)
                process = self._place.start(job)
                self._running.append(_Running(job, process, time.monotonic(), resumed))
                return True
            if job.alone and self._place.shares_machine:
                return False
        return False

    def _can_start(self, job: Job) -> bool:
        if writer(job.result.parent) is not None:
            return False
        unfinished = {other.key for other in self._waiting} | {running.job.key for running in self._running}
        if any(key in unfinished for key in job.needs):
            return False
        if not self._place.shares_machine:
            return True
        alone = job.alone or any(running.job.alone for running in self._running)
        return not self._running if alone else len(self._running) < self._place.max_jobs

    def _end(self, running: _Running, code: int, *, interrupted: bool) -> None:
        job, seconds = running.job, time.monotonic() - running.started_at
        seconds = self._record(job, seconds, running.resumed)
        if interrupted:
            return
        if code == 0 and job.is_finished:
            self._say(job, duration(seconds))
        else:
            reason = f"{last_message(job.log)} ({short_path(job.log)})"
            self._failed[job.key] = reason
            self._say(job, f"failed: {reason}")

    def _terminate(self) -> None:
        for running in self._running:
            if not running.terminated:
                running.process.terminate()
                running.terminated = True

    def _heading(self, job: Job) -> str:
        return f"[{self._jobs.index(job) + 1}/{len(self._jobs)}] {job.key}"

    def _say(self, job: Job, what: str) -> None:
        self._console.print(f"{self._heading(job)}: {what}", markup=False, soft_wrap=True)


class _LocalProcess:
    """A command in its own process, which is asked to save and stop if this process dies."""

    def __init__(self, words: Sequence[str], log: Path) -> None:
        followed, self._held = os.pipe()  # this process holds one end; when it closes, the command stops
        try:
            with log.open("w", encoding="utf-8") as output:
                # In its own session, so that Ctrl-C on the terminal reaches only this process, which forwards it once.
                self._process = subprocess.Popen(
                    _command_line(words),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    pass_fds=(followed,),
                    env={**os.environ, **_importable(), FOLLOW: str(followed)},
                )
        except BaseException:
            os.close(self._held)
            raise
        finally:
            os.close(followed)

    def exit_code(self, *, timeout: float) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(timeout=timeout)
        return None

    def terminate(self) -> None:
        self._process.terminate()

    def release(self) -> None:
        os.close(self._held)


@dataclass
class JobSubmission:
    """A command that submitit runs on a cluster machine."""

    words: tuple[str, ...]
    log: Path

    def __call__(self) -> int:
        """Run the command and return its exit code."""
        self._process = _LocalProcess(self.words, self.log)
        try:
            while (code := self._process.exit_code(timeout=60.0)) is None:
                pass
        except BaseException:
            self._save()
            raise
        return code

    def checkpoint(self) -> Any:
        """Requeue the job; called by submitit before its time limit or on preemption."""
        self._save()
        return _submitit().helpers.DelayedSubmission(JobSubmission(self.words, self.log))

    def _save(self) -> None:
        self._process.terminate()
        while self._process.exit_code(timeout=60.0) is None:
            pass


class _SubmittedJob:
    """A cluster job. It continues if this process dies; a restarted runner waits for it."""

    def __init__(self, job: Any, log: Path) -> None:
        self._job, self._log = job, log

    def exit_code(self, *, timeout: float) -> int | None:
        if not self._job.done():  # asks Slurm at most once a minute
            time.sleep(timeout)
            return None
        try:
            return int(self._job.result())
        except Exception as error:  # from submitit: the job did not start, or its machine failed
            with self._log.open("a", encoding="utf-8") as output:
                output.write(f"\nlmtransfer: {' '.join(str(error).split())}\n")
            return 1

    def terminate(self) -> None:
        self._job.cancel()

    def release(self) -> None:
        pass


def _submit(words: tuple[str, ...], log: Path, settings: Mapping[str, Any]) -> Process:
    """Submit a job, or take it over if an earlier runner's Slurm submission of it is still pending or running."""
    folder, number = log.parent / "submitit", log.with_suffix(".job")
    if settings["executor"] == "slurm" and number.is_file():
        job = _submitit().SlurmJob(folder=folder, job_id=number.read_text(encoding="ascii"))
        if not job.done(force_check=True):
            return _SubmittedJob(job, log)
    executor = _submitit().AutoExecutor(folder=folder, cluster=settings["executor"])
    parameters = {key: value for key, value in settings.items() if key != "executor" and value is not None}
    executor.update_parameters(name="lmtransfer", **parameters)
    job = executor.submit(JobSubmission(words, log))
    number.write_text(job.job_id, encoding="ascii")
    return _SubmittedJob(job, log)


def _submitit() -> Any:
    return import_optional("submitit", work="cluster", error=ConfigError)


def inherit_overrides(root: Path | str, name: str, *own: str) -> tuple[str, ...]:
    """Return the running command's overrides, for a job that performs a part of this command.

    Args:
        own: settings specific to the part.
    """
    own = (f"output_root={Path(root).absolute()}", f"name={name}", "resume=true", *own)
    replaced = {*override_keys(own), "jobs", "part", "cluster"}
    words = [word for word in command_line_overrides() if key_of(word) not in replaced]
    return (*(word for word in words if not key_of(word).startswith("cluster.")), *own)


def _command_line(words: Sequence[str]) -> list[str]:
    return [sys.executable, "-P", "-m", "lmtransfer", *words]


def _importable() -> dict[str, str]:
    """Return environment variables with which a child process finds this lmtransfer if it is not installed."""
    package_root = str(Path(__file__).absolute().parents[2])
    if package_root in sys.path:
        return {}
    before = os.environ.get("PYTHONPATH")
    return {"PYTHONPATH": os.pathsep.join([package_root, *([before] if before else [])])}


def last_message(log: Path) -> str:
    """Return the error message of a failed job, or else the last line of its log."""
    lines = _last_lines(log)
    errors = [place for place, line in enumerate(lines) if line.startswith("lmtransfer: ")]
    last = lines[errors[-1] :] if errors else lines[-1:]
    return " ".join(line.strip() for line in last).removeprefix("lmtransfer: ")


def was_interrupted(log: Path) -> bool:
    """Whether the error message in a log is that of an interruption, so that the job will continue."""
    return bool(re.match(r"interrupted$|interrupted;|[^:]*: stopped after step ", last_message(log)))


def _last_lines(log: Path) -> list[str]:
    """Return the last lines of a log, at least one; [""] if there is no log yet."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - 4096))
            return file.read().decode("utf-8", errors="replace").strip().splitlines() or [""]
    except FileNotFoundError:
        return [""]
