"""Jobs: commands that produce results, each of which starts when the jobs that it needs have finished.

Seeds, learning rate tries, the points of a sweep, and the runs of a study are jobs. A job whose result exists is
skipped. An unfinished job is resumed by its own command. Each job runs in its own process, on this machine or on a
cluster.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.text import Text

from lmtransfer.config.settings import ClusterSettings, key_of
from lmtransfer.errors import ConfigError, Interrupted, RunDirectoryError
from lmtransfer.launch.processes import LocalProcess, Process, check_cluster, submit
from lmtransfer.runs.create_or_resume import writer
from lmtransfer.system import ranks
from lmtransfer.system.console import Console
from lmtransfer.system.cores import usable_cores
from lmtransfer.system.interrupts import collect_signals
from lmtransfer.system.printable import duration, short_path
from lmtransfer.system.safe_files import open_unlinked

_LOOK_EVERY_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Job:
    """A command and its result.

    Attributes:
        result: a file in the job's run directory, which exists once the job has finished; None if the job has finished
            when its command succeeds.
        log: the command's output.
        needs: keys of the jobs that must finish first.
        alone: whether no other job may run on the same machine at the same time, because its budget may be a duration.
        extra: settings that do not affect the result.
        options: options of the command line.
    """

    key: str
    command: str
    overrides: tuple[str, ...]
    result: Path | None
    log: Path
    needs: tuple[str, ...] = ()
    alone: bool = False
    extra: tuple[str, ...] = ()
    options: tuple[str, ...] = ()

    @property
    def is_finished(self) -> bool:
        """Whether the result exists."""
        return self.result is not None and self.result.is_file()

    @property
    def folder(self) -> Path | None:
        """The job's run directory, if it is known."""
        return None if self.result is None else self.result.parent

    def words(self, *extra: str) -> tuple[str, ...]:
        """Return the command line, including the ``extra`` settings that the job does not set itself."""
        own = {key_of(word) for word in self.overrides}
        return (self.command, *self.overrides, *(word for word in extra if word.partition("=")[0] not in own))


@dataclass(frozen=True, slots=True)
class Place:
    """Where jobs run.

    Attributes:
        cluster: None for this machine.
        options: additional words of every command line, such as the user's config folder.
        shares_cores: whether each of several jobs on a machine gets its share of the cores.
        cache_dir: the user's cache, which all machines of a cluster can see.
    """

    max_jobs: int = 1
    cluster: ClusterSettings | None = None
    options: tuple[str, ...] = ()
    shares_cores: bool = True
    cache_dir: str | None = None

    @classmethod
    def of(
        cls,
        jobs: int,
        cluster: ClusterSettings | None,
        *,
        options: tuple[str, ...],
        cache_dir: str | None,
        threads: int | None = None,
    ) -> Place:
        """Build the place from a command's ``jobs`` and ``cluster``.

        Args:
            threads: the command's ``hardware.threads``; null gives each job its share of the cores.
        """
        if (jobs > 1 or cluster is not None) and ranks.world_size() > 1:
            raise ConfigError("jobs and cluster start their own processes: leave both out under torchrun")
        if cluster is not None:
            check_cluster(cluster)
        return cls(jobs, cluster, options, shares_cores=threads is None, cache_dir=cache_dir)

    @property
    def is_here(self) -> bool:
        """Whether jobs run in the current process if possible."""
        return self.max_jobs == 1 and self.cluster is None

    @property
    def shares_machine(self) -> bool:
        """Whether the jobs share one machine."""
        return self.cluster is None or self.cluster.executor == "local"

    def start(self, job: Job) -> Process:
        """Start a job."""
        divides = self.shares_cores and self.max_jobs > 1 and self.shares_machine and not job.alone
        threads = [f"hardware.threads={max(1, usable_cores() // self.max_jobs)}"] if divides else []
        words = (*job.words(*job.extra, *threads), *job.options, *self.options)
        job.log.parent.mkdir(parents=True, exist_ok=True)
        if self.cluster is None:
            return LocalProcess(words, job.log)
        return submit(words, job.log, self.cluster, cache_dir=self.cache_dir)


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
        last = "saving" if self.terminated else last_lines(self.job.log)[-1]
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
                resumed = job.folder is not None and job.folder.is_dir()
                self._waiting.remove(job)
                process = self._place.start(job)
                self._running.append(_Running(job, process, time.monotonic(), resumed))
                return True
            if job.alone and self._place.shares_machine:
                return False
        return False

    def _can_start(self, job: Job) -> bool:
        if job.folder is not None and writer(job.folder) is not None:
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
        if code == 0 and (job.result is None or job.is_finished):
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


def inherit_overrides(words: Sequence[str], root: Path | str, name: str, *own: str) -> tuple[str, ...]:
    """Return a command's overrides, for a job that performs a part of this command.

    Args:
        words: the overrides of the command.
        own: settings specific to the part.
    """
    own = (f"output_root={Path(root).absolute()}", f"name={name}", "resume=true", *own)
    replaced = {*map(key_of, own), "jobs", "part", "cluster"}
    kept = [word for word in words if key_of(word) not in replaced and not key_of(word).startswith("cluster.")]
    return (*kept, *own)


def last_message(log: Path) -> str:
    """Return the error message of a failed job, or else the last line of its log."""
    lines = last_lines(log)
    errors = [place for place, line in enumerate(lines) if line.startswith("lmtransfer: ")]
    last = lines[errors[-1] :] if errors else lines[-1:]
    return " ".join(line.strip() for line in last).removeprefix("lmtransfer: ")


def was_interrupted(log: Path) -> bool:
    """Whether the error message in a log is that of an interruption, so that the job will continue."""
    return bool(re.match(r"interrupted$|interrupted;|[^:]*: stopped after step ", last_message(log)))


def last_lines(log: Path) -> list[str]:
    """Return the last lines of a log, at least one; [""] if there is no log yet, or if it is not a regular file."""
    try:
        with open_unlinked(log, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - 4096))
            text: str = file.read().decode("utf-8", errors="replace")
            return text.strip().splitlines() or [""]
    except (OSError, RunDirectoryError):
        return [""]
