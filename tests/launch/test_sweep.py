"""Sweeps: their points, progress and table; sweeps of real pretraining runs, in parallel, interrupted and resumed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fakes.runs import pretraining
from fakes.tiny_pretraining import SHORT, TEXT, TINY
from support.refusals import refuses

from lmtransfer.cli import main
from lmtransfer.config.paths import conf_dir
from lmtransfer.errors import ConfigError
from lmtransfer.launch.overrides import quote_value
from lmtransfer.launch.sweep import Point, make_points, points_table, progress_line, seconds_left
from lmtransfer.runs.create_or_resume import writer

pytestmark = pytest.mark.timeout(600)
FOLDERS = [conf_dir()]

TRAINING = ["experiment=null", "train.seconds=null", "optimizer=adamw", "hardware=exact", "hardware.threads=1"]
PRETRAIN = ["pretrain", *TRAINING, *TINY, *TEXT, *SHORT, "train.log_every=1", "-m"]
JOBS = ["jobs=2"]
CLUSTER = ["jobs=2", "cluster=local"]

#: Records each pass over the documents, in any process.
CORPUS = """\
import os
from lmtransfer.data.corpora.corpus import FileCorpus

class CountedCorpus(FileCorpus):
    def documents(self):
        with open(os.environ["PASSES"], "a") as passes:
            print(os.getpid(), file=passes)
        yield from super().documents()
"""

Start = Callable[..., "subprocess.Popen[str]"]


def labels(words: list[str], **params: str) -> list[str]:
    return [point.label for point in make_points(params, words, FOLDERS)]


@pytest.mark.parametrize(
    ("words", "points"),
    [
        (["seed=1,2"], ["seed=1", "seed=2"]),
        (["seed=2,1", "train.steps=3", "model=bert_tiny,bert_mini"], None),
        (["seed=range(0,5,2)"], ["seed=0", "seed=2", "seed=4"]),
        (["seed=choice(1,2,3)"], ["seed=1", "seed=2", "seed=3"]),
        (["optimizer.learning_rate=range(0.1,0.31,0.1)"], None),
        (["train.steps=5"], [""]),
        (["name=a,b", "seed=1,2"], ["name=a,seed=1", "name=a,seed=2", "name=b,seed=1", "name=b,seed=2"]),
        (["text='a, b',c"], ["text=a, b", "text=c"]),
        (["schedule=glob(c*)"], ["schedule=constant", "schedule=cosine"]),
        (["+x=1,2", "++y=3,4"], None),
    ],
)
def test_points_are_those_of_hydras_own_sweeper(words: list[str], points: list[str] | None) -> None:
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.core.plugins import Plugins

    made = make_points({}, words, FOLDERS)
    if points is not None:
        assert [point.label for point in made] == points
    if "glob" not in words[0]:
        sweeper = next(one for one in Plugins.instance().discover() if one.__name__ == "BasicSweeper")
        parsed = OverridesParser.create().parse_overrides(words)
        assert [list(point.words) for point in made] == sweeper.split_arguments(parsed, None)[0]  # type: ignore[attr-defined]


def test_values_of_a_recipe_are_part_of_the_name_and_give_way_to_the_command_line() -> None:
    assert labels(["train.steps=3"], seed="5,6", lr="1") == ["lr=1,seed=5", "lr=1,seed=6"]
    assert labels(["seed=7"], seed="5,6") == [""]
    assert labels(["+seed=7,8"], seed="5,6") == ["+seed=7", "+seed=8"]


@pytest.mark.parametrize("word", ["seed=1,1", "name=a,b,a", "model=bert_tiny,bert_mini,bert_tiny", "init='a',a"])
def test_two_points_of_one_name_are_refused(word: str) -> None:
    with refuses(ConfigError, "two points", "give each value once"):
        make_points({}, [quote_value(word, is_sweep=True)], FOLDERS)


def ended(*seconds: float | None, failed: int = 0, total: int = 0) -> list[Point]:
    points = [Point((), "", f"seed={row}", seconds=value, has_ended=True) for row, value in enumerate(seconds)]
    points += [Point((), "", "x", error="no luck", seconds=1e6, has_ended=True) for _ in range(failed)]
    return points + [Point((), "", "y") for _ in range(total - len(points))]


@pytest.mark.parametrize(
    ("points", "line"),
    [
        (ended(30.0, 50.0, 40.0, failed=1, total=12), "3 of 12 finished, 1 failed, about 5 min left"),
        (ended(None, 7200.0, total=4), "2 of 4 finished, about 4.0 h left"),
        (ended(None, None, total=4), "2 of 4 finished"),
        (ended(failed=2, total=4), "0 of 4 finished, 2 failed"),
        (ended(1.0, 1.0, total=2), "2 of 2 finished"),
    ],
)
def test_the_line_counts_and_estimates(points: list[Point], line: str) -> None:
    assert progress_line(points) == line


def test_nothing_is_estimated_from_failed_points() -> None:
    assert seconds_left(ended(failed=1, total=5)) is None
    assert seconds_left(ended(10.0, failed=1, total=5)) == 30.0


def test_the_table_has_a_row_for_each_point_with_its_score(tmp_path: Path) -> None:
    run = pretraining(tmp_path / "pretrain" / "x", final=4.5)
    points = ended(12.0, failed=1, total=3)
    points[0].run_dir, points[1].seconds = run, 3.0
    rows = points_table(points).rows
    assert rows[0][:2] == ["seed=0", "finished"]
    assert (rows[0][2].split()[0], rows[0][3]) == ("loss", "12 s")
    assert rows[1:] == [["x", "failed", "", "3.0 s"], ["y", "waiting", "", ""]]


@pytest.fixture
def start(text_world: Path) -> Start:
    """Start ``lmtransfer <words>`` in a session of its own; a corpus that counts its passes can be used."""
    (text_world / "counting.py").write_text(CORPUS)

    def started(*words: str) -> subprocess.Popen[str]:
        importable = os.pathsep.join(filter(None, (str(text_world), os.environ.get("PYTHONPATH"))))
        environment = {"PYTHONPATH": importable, "LMTRANSFER_ALLOW": "counting", "OMP_NUM_THREADS": "1"}
        return subprocess.Popen(
            [sys.executable, "-m", "lmtransfer", *words],
            env={**os.environ, **environment, "PASSES": str(text_world / "passes"), "COLUMNS": "120"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    return started


def finished(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Return the exit status and the two outputs of a command."""
    out, err = process.communicate(timeout=300)
    return process.returncode, out, err


def numbers(run: Path) -> dict[str, Any]:
    """Return the results of training: the result and the loss of each step, without times."""
    result = json.loads((run / "result.json").read_text())
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    losses = {line["step"]: {key: value for key, value in line.items() if "loss" in key} for line in lines}
    assert losses
    return {"metrics": result["metrics"], "steps": result["steps"], "losses": losses}


def all_numbers(name: str) -> dict[str, Any]:
    """Return the results of each point of a sweep."""
    return {path.name: numbers(path) for path in sorted(Path("runs/pretrain", name).glob("*=*"))}


def written(name: str) -> dict[str, int]:
    """Return the modification time of each file in the runs of a sweep."""
    found = Path("runs/pretrain", name).rglob("*")
    return {str(path): path.stat().st_mtime_ns for path in found if path.is_file() and path.name != ".lock"}


def wait_until(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    until = time.monotonic() + 120
    while not condition():
        assert process.poll() is None, "the command ended too early"
        assert time.monotonic() < until, "the command took too long"
        time.sleep(0.02)


@pytest.mark.slow
def test_points_beside_each_other_share_the_preparation_and_give_the_same_numbers(
    start: Start, text_world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("submitit")
    monkeypatch.setenv("LMTRANSFER_CACHE", str(text_world / "cache"))
    words = [*PRETRAIN, "corpus._target_=counting.CountedCorpus", "train.steps=3", "seed=1,2,3"]
    for place in (JOBS, CLUSTER):
        name = place[-1].replace("=", "-")
        status, out, err = finished(start(*words, f"name={name}", f"cache_dir={name}", *place))
        assert status == 0, err
        assert "sweep: 3 of 3 finished" in out
        for kind in ("tokenizers", "corpora"):
            assert len([path for path in Path(name, kind).iterdir() if path.is_dir()]) == 1
        assert len(passes()) == 2, "one pass for the tokenizer and one for the tokens"
        Path("passes").unlink()
        logs = [path.name for path in sorted(Path("runs/pretrain", name, "logs").iterdir())]
        assert logs == [f"seed={seed}.log" for seed in (1, 2, 3)]
    monkeypatch.syspath_prepend(text_world)
    monkeypatch.setenv("LMTRANSFER_ALLOW", "counting")
    monkeypatch.setenv("PASSES", str(text_world / "passes"))
    assert main([*words, "name=after", "cache_dir=jobs-2"]) == 0
    assert not passes(), "the tokenizer and the tokens come from the cache"
    assert len(all_numbers("after")) == 3
    assert all_numbers("jobs-2") == all_numbers("cluster-local") == all_numbers("after")
    assert list(Path("cluster-local").glob("jobs-*/*")) == [], "nothing is left of the submissions"


def passes() -> list[str]:
    """The processes that have read the text."""
    return Path("passes").read_text().split() if Path("passes").is_file() else []


@pytest.mark.slow
def test_points_that_fail_beside_others_are_listed_and_tabled(start: Start, text_world: Path) -> None:
    Path("empty.txt").touch()
    shared = [word for word in PRETRAIN if not word.startswith("corpus.path=")]
    words = ["train.steps=2", "seed=1,2", "corpus.path=text.txt,empty.txt", "name=x"]
    status, out, err = finished(start(*shared, *words, *JOBS))
    assert status == 1
    assert "sweep: 2 of 4 finished, 2 failed" in out
    heading, *listed = err.splitlines()[-3:]
    assert heading.startswith("lmtransfer: 2 of 4 ")
    failed = [f"corpus.path=empty.txt,seed={seed}" for seed in (1, 2)]
    assert [line.partition(": ")[0].strip() for line in listed] == failed
    assert sorted(path.name for path in Path("runs/pretrain/x").glob("*=*")) == [
        f"corpus.path=text.txt,seed={seed}" for seed in (1, 2)
    ]
    table = out[out.rindex("sweep: ") :]
    assert table.count("failed") == 3  # one for the command line, one per point
    assert "Traceback" not in err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "status"),
    [
        (signal.SIGINT, 75),
        (signal.SIGTERM, 75),
        (signal.SIGHUP, 75),
        (signal.SIGUSR1, 75),
        (signal.SIGKILL, -signal.SIGKILL),
    ],
)
def test_what_ends_the_command_costs_points_beside_each_other_no_step(
    number: signal.Signals, status: int, start: Start, text_world: Path
) -> None:
    """Ctrl-C goes to the foreground; other signals go to the command. The points save even if the command is killed."""
    words = ["train.steps=100000", "train.save_every=100000", "seed=1,2,3", "name=x", *JOBS]
    process = start(*PRETRAIN, *words)
    runs = [Path(f"runs/pretrain/x/seed={seed}") for seed in (1, 2)]
    wait_until(lambda: all((run / "metrics.jsonl").is_file() for run in runs), process)
    (os.killpg if number == signal.SIGINT else os.kill)(process.pid, number)
    found, _, err = finished(process)
    assert found == status, err
    assert "Traceback" not in err
    until = time.monotonic() + 60
    while any(writer(run.absolute()) is not None for run in runs):  # the command was killed, and its points are saving
        assert time.monotonic() < until
        time.sleep(0.1)
    for run in runs:
        last = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])["step"]
        assert json.loads((run / "checkpoints/last/state.json").read_text())["step"] >= last
    assert not Path("runs/pretrain/x/seed=3").exists()


@pytest.mark.slow
def test_a_killed_point_is_one_message_and_is_taken_up_again(start: Start, text_world: Path) -> None:
    psutil = pytest.importorskip("psutil")
    words = ["train.steps=150", "train.save_every=20", "seed=1,2", "name=x", *JOBS]
    process = start(*PRETRAIN, *words)
    wait_until(lambda: len(list(Path("runs/pretrain/x").glob("*/checkpoints/last/state.json"))) == 2, process)
    points = {one for one in psutil.Process(process.pid).children() if "--point=seed=1" in one.cmdline()}
    assert len(points) == 1
    points.pop().kill()
    status, out, err = finished(process)
    assert status == 1
    assert "sweep: 1 of 2 finished, 1 failed" in out
    assert err.splitlines()[-2:][0] == "lmtransfer: 1 of 2 runs of the sweep failed:"
    assert "Traceback" not in err
    before = written("x/seed=2")
    status, out, err = finished(start(*PRETRAIN, *words))
    assert status == 0, err
    assert "runs/pretrain/x/seed=2 is finished; nothing is left to do" in out
    assert written("x/seed=2") == before
    assert {path: one["steps"] for path, one in all_numbers("x").items()} == {"seed=1": 150, "seed=2": 150}


@pytest.mark.slow
def test_finished_points_with_other_settings_are_refused_also_beside_others(start: Start, text_world: Path) -> None:
    assert finished(start(*PRETRAIN, "train.steps=2", "seed=1", "name=x"))[0] == 0
    assert finished(start(*PRETRAIN, "train.steps=2", "seed=1,2", "name=y", *JOBS))[0] == 0
    status, out, err = finished(start(*PRETRAIN, "train.steps=3", "seed=2,3", "name=y", *JOBS))
    assert status == 1
    assert "train.steps was 2 when the run started, but is 3 now" in err
    assert "  seed=2: " in err.splitlines()[-1]
    assert numbers(Path("runs/pretrain/y/seed=3"))["steps"] == 3


@pytest.mark.slow
def test_a_command_without_jobs_of_its_own_runs_its_points_as_jobs(start: Start, text_world: Path) -> None:
    status, out, err = finished(start("list", "-m", "what=[models],[nope],[tasks]", "jobs=2"))
    assert status == 1
    assert "sweep: 2 of 3 finished, 1 failed" in out
    assert err.splitlines()[-1].startswith("  what=[nope]: what=nope: no such kind")
    logs = {path.name[:8]: path.read_text() for path in Path("runs/list/logs").iterdir()}
    assert "bert_base" in logs["what=-mo"]
    assert "sst2" in logs["what=-ta"]


@pytest.mark.slow
def test_a_sweep_that_was_killed_goes_on_and_gives_the_same_numbers(
    start: Start, text_world: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*PRETRAIN, "train.steps=100", "train.save_every=20", "train.eval_every=50", "seed=1,2"]
    process = start(*words, "name=killed")
    begun = [Path(f"runs/pretrain/killed/seed={seed}") for seed in (1, 2)]
    wait_until(lambda: any((run / "result.json").is_file() for run in begun), process)
    unfinished = [run for run in begun if not (run / "result.json").is_file()]
    wait_until(lambda: any((run / "checkpoints/last/state.json").is_file() for run in unfinished), process)
    os.killpg(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert [(run / "result.json").is_file() for run in begun] == [True, False]
    before = written("killed/seed=1")
    assert main([*words, "name=killed"]) == 0
    assert "sweep: 2 of 2 finished" in capsys.readouterr().out
    assert written("killed/seed=1") == before, "finished points are not run again"
    assert main([*words, "name=alone"]) == 0
    assert all_numbers("killed") == all_numbers("alone")
