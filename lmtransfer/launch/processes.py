"""The processes of jobs: children on this machine, and jobs on a cluster, through submitit.

submitit exchanges pickles through a folder. Here this folder is new for each job, open to no other user, and outside
every run, so that nothing that came with a run is ever unpickled. The exit status of a job is in a JSON file there.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from typing_extensions import TypedDict, override

from lmtransfer.config.settings import ClusterSettings
from lmtransfer.errors import ConfigError, MachineError
from lmtransfer.system.durable import remove, write_json
from lmtransfer.system.interrupts import FOLLOW
from lmtransfer.system.machine import default_cache_dir
from lmtransfer.system.optional import import_optional, install_hint
from lmtransfer.system.safe_files import open_unlinked, read_json

#: Seconds in which the exit status of a job must appear on a network file system after the job has ended.
_STATUS_SECONDS = 15.0
_STATUS = "exit.json"


class Process(Protocol):
    """A started job."""

    def exit_code(self, *, timeout: float) -> int | None:
        """Wait for at most ``timeout`` seconds and return the exit code; None if the job is still running."""

    def terminate(self) -> None:
        """Ask the job to save and stop."""

    def release(self) -> None:
        """Release the job's resources; if it is still running here, ask it to save and stop."""


class LocalProcess(Process):
    """A command in its own process, which is asked to save and stop if this process dies."""

    def __init__(self, words: Sequence[str], log: Path) -> None:
        followed, self._held = os.pipe()  # this process holds one end; when it closes, the command stops
        try:
            with open_unlinked(log, "wb") as output:
                # In its own session, so that Ctrl-C on the terminal reaches only this process, which forwards it once.
                self._process = subprocess.Popen(
                    command_line(words),
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

    @override
    def exit_code(self, *, timeout: float) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(timeout=timeout)
        return None

    @override
    def terminate(self) -> None:
        self._process.terminate()

    @override
    def release(self) -> None:
        os.close(self._held)


def command_line(words: Sequence[str]) -> list[str]:
    """Return the command line of ``lmtransfer <words>``."""
    return [sys.executable, "-P", "-m", "lmtransfer", *words]


def _importable() -> dict[str, str]:
    """Return environment variables with which a child process finds this lmtransfer if it is not installed."""
    package_root = str(Path(__file__).absolute().parents[2])
    if package_root in sys.path:
        return {}
    before = os.environ.get("PYTHONPATH")
    return {"PYTHONPATH": os.pathsep.join([package_root, *([before] if before else [])])}


class _Submission(TypedDict):
    """A submitted job: Slurm's number, and the name of its folder."""

    job: str
    folder: str


class _Status(TypedDict):
    """How a job ended."""

    exit: int


def check_cluster(settings: ClusterSettings) -> None:
    """Check that jobs can be submitted from this machine.

    Raises:
        ConfigError: submitit or Slurm is missing.
    """
    if problem := install_hint("submitit"):
        raise ConfigError(f"cluster={settings.executor}: {problem}")
    missing = [name for name in ("sbatch", "srun") if settings.executor == "slurm" and shutil.which(name) is None]
    if missing:
        raise ConfigError(
            f"cluster=slurm: there is no {missing[0]} on this machine; start the command on a machine from which jobs "
            "are submitted to Slurm, or run the jobs here with jobs=2"
        )


@dataclass
class JobSubmission:
    """A command that submitit runs on a cluster machine."""

    words: tuple[str, ...]
    log: Path
    status: Path

    def __call__(self) -> None:
        """Run the command and write its exit code."""
        self._process = LocalProcess(self.words, self.log)
        try:
            while (code := self._process.exit_code(timeout=60.0)) is None:
                pass
        except BaseException:
            self._save()
            raise
        write_json(self.status, _Status(exit=code))

    def checkpoint(self) -> Any:
        """Requeue the job; called by submitit before its time limit or on preemption."""
        self._save()
        return _submitit().helpers.DelayedSubmission(JobSubmission(self.words, self.log, self.status))

    def _save(self) -> None:
        self._process.terminate()
        while self._process.exit_code(timeout=60.0) is None:
            pass


class _SubmittedJob(Process):
    """A cluster job. It continues if this process dies; a restarted runner waits for it."""

    def __init__(self, job: Any, log: Path, folder: Path, record: Path) -> None:
        self._job, self._log, self._folder, self._record = job, log, folder, record

    @override
    def exit_code(self, *, timeout: float) -> int | None:
        if not self._job.done():  # asks Slurm at most once a minute
            time.sleep(timeout)
            return None
        status, until = self._folder / _STATUS, time.monotonic() + _STATUS_SECONDS
        while not status.is_file() and time.monotonic() < until:
            time.sleep(0.1)
        remove(self._record)
        if status.is_file():
            code = read_json(status, _Status, error=MachineError)["exit"]
            remove(self._folder)
            return code
        with open_unlinked(self._log, "ab") as output:  # the job did not start, or its machine failed
            reason = f"the cluster job {self._job.job_id} ended as {self._job.state}; see the files in {self._folder}"
            output.write(f"\nlmtransfer: {reason}\n".encode())
        return 1

    @override
    def terminate(self) -> None:
        self._job.cancel()

    @override
    def release(self) -> None:
        pass


def submit(words: tuple[str, ...], log: Path, settings: ClusterSettings, *, cache_dir: str | None) -> Process:
    """Submit a job, or take it over if an earlier runner's Slurm submission of it is still pending or running."""
    root = _private_folder(default_cache_dir() if cache_dir is None else Path(cache_dir).expanduser().absolute())
    record = root / f"{hashlib.blake2b(os.fsencode(log.absolute()), digest_size=16).hexdigest()}.json"
    if settings.executor == "slurm" and record.is_file():
        before = read_json(record, _Submission, error=MachineError)
        job = _submitit().SlurmJob(folder=root / before["folder"], job_id=before["job"])
        if not job.done(force_check=True):
            return _SubmittedJob(job, log, root / before["folder"], record)
        remove(root / before["folder"])
    open_unlinked(log, "wb").close()
    folder = Path(tempfile.mkdtemp(prefix="job-", dir=root))
    executor = _submitit().AutoExecutor(folder=folder, cluster=settings.executor)
    executor.update_parameters(name="lmtransfer", **settings.model_dump(exclude={"executor"}, exclude_none=True))
    job = executor.submit(JobSubmission(words, log.absolute(), folder / _STATUS))
    write_json(record, _Submission(job=job.job_id, folder=folder.name))
    return _SubmittedJob(job, log, folder, record)


def _private_folder(cache: Path) -> Path:
    """Return a folder in the cache that belongs to this user, and that no one else can read or write."""
    folder = cache / f"jobs-{os.getuid()}"
    if "\n" in str(folder):  # it would end a line of the script for Slurm
        raise ConfigError(f"cache_dir={str(cache)!r}: cluster jobs need a path without line breaks")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or stat.S_IMODE(status.st_mode) & 0o077:
        raise MachineError(
            f"{folder}: cluster jobs need a folder here that is yours and closed to other users: remove it, or set "
            "cache_dir to another folder"
        )
    return folder


def _submitit() -> Any:
    return import_optional("submitit", work="cluster", error=ConfigError)
