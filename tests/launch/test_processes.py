"""Cluster jobs: their exit status, their private folder, and jobs that an earlier runner submitted."""

from __future__ import annotations

import os
import pickle
import subprocess
from pathlib import Path

import pytest
from support.refusals import refuses

from lmtransfer.config.check import read_group
from lmtransfer.config.settings import ClusterSettings
from lmtransfer.errors import ConfigError, MachineError
from lmtransfer.launch import processes
from lmtransfer.launch.jobs import Job, Place, run_jobs
from lmtransfer.system.console import Console

LOCAL = ClusterSettings(executor="local", timeout_min=5)
SLURM = ClusterSettings(executor="slurm", timeout_min=5)


@pytest.fixture(autouse=True)
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LMTRANSFER_CACHE", str(tmp_path / "cache"))
    return tmp_path


def job(name: str) -> Job:
    return Job(name, name, (), Path(name) / "result", Path("logs") / f"{name}.log")


def run(settings: ClusterSettings, *names: str) -> dict[str, str]:
    return run_jobs([job(name) for name in names], Place(2, settings), Console(quiet=True))


def private_folder(world: Path) -> Path:
    return world / "cache" / f"jobs-{os.getuid()}"


class Canary:
    """Makes a file as soon as it is unpickled."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, ("canary",)


@pytest.mark.slow
def test_jobs_of_a_cluster_run_at_once_and_report_their_exit_status(world: Path) -> None:
    pytest.importorskip("submitit")
    failed = run(LOCAL, "--version", "pretran")
    assert Path("logs/--version.log").read_text().startswith("lmtransfer ")
    assert failed["pretran"].startswith("there is no command 'pretran'")
    assert list(private_folder(world).iterdir()) == []
    assert set(os.listdir()) == {"logs", "cache"}


@pytest.fixture
def slurm(world: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Slurm's commands for one machine: a submitted script starts at once, and its job id is its process id."""
    pytest.importorskip("submitit")
    folder = world / "slurm"
    folder.mkdir()
    alive = 'if kill -0 "$number" 2>/dev/null; then echo "$number|RUNNING|a"; else echo "$number|COMPLETED|a"; fi'
    scripts = {
        # Like Slurm, keep a copy of the script: submitit renames the file as soon as sbatch has returned.
        "sbatch": 'cp "$1" "$1.kept"\n'
        "export SLURM_NTASKS=1 SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NODEID=0 SLURM_JOB_NUM_NODES=1\n"
        '(export SLURM_JOB_ID=$BASHPID; exec bash "$1.kept") >/dev/null 2>&1 &\n'
        'echo "$!" >> "$(dirname "$0")/numbers"; echo "Submitted batch job $!"',
        "srun": 'while [ "${1#--}" != "$1" ]; do [ "$1" = --unbuffered ] || shift; shift; done; exec "$@"',
        "sacct": f'echo "JobID|State|NodeList"; for number in $(cat "$(dirname "$0")/numbers"); do {alive}; done',
        "scancel": 'kill -TERM "$1"',
    }
    for name, script in scripts.items():
        (folder / name).write_text(f"#!/bin/bash\n{script}\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    slurm_job = pytest.importorskip("submitit.slurm.slurm").SlurmJob
    monkeypatch.setattr(slurm_job.watcher, "_delay_s", 0.2)
    monkeypatch.setattr(slurm_job, "_results_timeout_s", 1)  # for the result of a job that has none
    return folder


@pytest.mark.slow
def test_nothing_in_a_study_is_unpickled(world: Path, slurm: Path) -> None:
    """The numbers of jobs can be guessed: here they are process ids. The pickles make a folder."""
    folder = Path("logs/submitit")
    folder.mkdir(parents=True)
    with subprocess.Popen(["true"]) as process:
        content = pickle.dumps(("success", Canary()))
        for number in range(process.pid, process.pid + 3000):
            (folder / f"{number}_0_result.pkl").write_bytes(content)
    Path("logs/--help.job").write_text(str(process.pid))
    for settings, name in ((LOCAL, "--version"), (SLURM, "--help")):
        assert list(run(settings, name)) == [name]  # no result
        assert "lmtransfer" in Path(f"logs/{name}.log").read_text()
        assert not Path("canary").exists()


@pytest.mark.slow
def test_a_job_of_slurm_that_an_earlier_runner_submitted_is_waited_for(world: Path, slurm: Path) -> None:
    assert list(run(SLURM, "--version")) == ["--version"]  # no result
    assert Path("logs/--version.log").read_text().startswith("lmtransfer ")
    (slurm / "numbers").unlink()
    (world / "hold").touch()
    sbatch = (slurm / "sbatch").read_text()
    (slurm / "sbatch").write_text(
        sbatch.replace("exec bash", f"while [ -e {world}/hold ]; do sleep 0.1; done; exec bash")
    )
    early = job("early")
    first = processes.submit(early.words(), early.log, SLURM, cache_dir=None)
    number = (slurm / "numbers").read_text()
    assert first.exit_code(timeout=0.1) is None
    second = processes.submit(early.words(), early.log, SLURM, cache_dir=None)
    assert (slurm / "numbers").read_text() == number, "nothing else was submitted"
    (world / "hold").unlink()
    while (code := second.exit_code(timeout=0.1)) is None:
        pass
    assert code == 2
    assert "there is no command 'early'" in early.log.read_text()


@pytest.mark.slow
def test_a_job_that_leaves_no_exit_status_is_a_failure_with_its_folder(
    world: Path, slurm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "_STATUS_SECONDS", 0.2)
    (slurm / "srun").write_text("#!/bin/sh\nexit 1\n")
    failed = run(SLURM, "--version")
    assert str(private_folder(world)) in failed["--version"]
    assert "ended as COMPLETED" in failed["--version"]


@pytest.mark.parametrize("missing", ["sbatch", "srun"])
def test_slurm_that_is_not_there_is_one_line(missing: str, slurm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(slurm))
    processes.check_cluster(SLURM)
    (slurm / missing).unlink()
    with refuses(ConfigError, "cluster=slurm", missing, "jobs=2"):
        processes.check_cluster(SLURM)
    processes.check_cluster(LOCAL)


def test_the_folder_of_submissions_must_be_private(world: Path) -> None:
    folder = private_folder(world)
    assert processes._private_folder(world / "cache") == folder
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o770)
    with refuses(MachineError, str(folder), "cache_dir"):
        processes._private_folder(world / "cache")
    folder.rmdir()
    folder.symlink_to(world)
    with refuses(MachineError, str(folder)):
        processes._private_folder(world / "cache")
    with refuses(ConfigError, "cache_dir"):
        processes._private_folder(world / "a\nb")


@pytest.mark.parametrize(
    ("key", "value"),
    [("slurm_partition", "gpu\ntouch x"), ("slurm_account", "a\rb"), ("slurm_qos", "\n"), ("slurm_constraint", "a\n")]
    + [("slurm_setup", ["module load a", "b\ntouch x"])],
)
def test_a_setting_for_slurm_is_one_line(key: str, value: object) -> None:
    with refuses(ConfigError, f"cluster.{key}", "line break"):
        read_group(ClusterSettings, {"executor": "slurm", key: value}, key="cluster")
    fits = ["module load a", "b"] if key == "slurm_setup" else "gpu,big&fast"
    read_group(ClusterSettings, {"executor": "slurm", key: fits}, key="cluster")
