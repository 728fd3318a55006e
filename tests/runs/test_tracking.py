"""``tracker=`` on the command line: the records of runs, seeds, controls and sweeps, and the errors."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from fakes.tiny_pretraining import SHORT, TEXT, TINY
from fakes.trackers import FakeService, by_name
from fakes.transfer_files import QUICK, lmtransfer, make_world, result

PRETRAIN = ["pretrain", "experiment=null", "train.seconds=null", "train.steps=4", *TINY, *TEXT, *SHORT]
PRETRAIN += ["train.log_every=1", "train.eval_every=4", "hardware=exact", "-cd", "own"]
TRANSFER = [*QUICK, "train.log_every=1", "-cd", "own"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tracked")
    make_world(folder)
    (folder / "text.txt").write_text("\n\n".join(f"the boat lay on the shore number {n} all day" for n in range(80)))
    (folder / "own/tracker").mkdir(parents=True)
    for name in ("fake", "faulty"):
        fails = "\n  fails_in: begin" if name == "faulty" else ""
        (folder / f"own/tracker/{name}.yaml").write_text(f"{name}:\n  _target_: fakes.trackers.FakeService{fails}\n")
    return folder


@pytest.fixture(autouse=True)
def here(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    shutil.copytree(made, tmp_path / "world")
    monkeypatch.chdir(tmp_path / "world")
    monkeypatch.setenv("LMTRANSFER_CACHE", str(made / "cache"))
    monkeypatch.setenv("LMTRANSFER_ALLOW", "fakes.trackers")
    monkeypatch.delenv("LMTRANSFER_DATA", raising=False)
    threads = torch.get_num_threads()
    FakeService.kept.clear()
    yield tmp_path / "world"
    FakeService.kept.clear()
    torch.set_num_threads(threads)


def steps_of(run: str) -> list[int]:
    return [json.loads(line)["step"] for line in (Path(run) / "metrics.jsonl").read_text().splitlines()]


def test_several_trackers_of_a_pretraining_with_several_seeds(capsys: pytest.CaptureFixture[str]) -> None:
    assert lmtransfer(*PRETRAIN, "tracker=[jsonl,faulty,fake]", "seeds=2", "name=two") == 0
    kept = by_name()
    assert sorted(kept) == ["pretrain/two", "pretrain/two/seed-0", "pretrain/two/seed-1"]
    assert {one.run.group for one in kept.values()} == {"pretrain/two"}
    for seed in range(2):
        one = kept[f"pretrain/two/seed-{seed}"]
        assert one.steps == steps_of(f"runs/pretrain/two/seed-{seed}") == [1, 2, 3, 4]
        assert one.run.config["seed"] == seed
        assert one.result["result/loss"] == result(f"runs/pretrain/two/seed-{seed}")["metrics"]["loss"]
    assert kept["pretrain/two"].result["result/mean"] == result("runs/pretrain/two")["mean"]
    said = capsys.readouterr().err
    assert said.count("faulty is off") == 3, "one line for each record"


def test_a_transfer_with_seeds_and_a_control() -> None:
    assert lmtransfer("finetune", *TRANSFER, "tracker=fake", "seeds=2", "control=true", "name=ft") == 0
    kept = by_name()
    members = [f"finetune/ft/{part}seed-{seed}" for part in ("", "control/") for seed in range(2)]
    assert sorted(kept) == sorted(["finetune/ft", *members])
    assert {one.run.group for one in kept.values()} == {"finetune/ft"}
    for name in members:
        assert kept[name].steps == steps_of(f"runs/{name}")
        assert kept[name].result["result/accuracy"] == result(f"runs/{name}")["metrics"]["accuracy"]
        assert kept[name].outcomes == ["finished"]
    joint = result("runs/finetune/ft")
    assert kept["finetune/ft"].result["result/difference/difference"] == joint["difference"]["difference"]


@pytest.mark.slow
def test_a_probe_in_a_sweep_over_trackers() -> None:
    words = ["probe", "-m", *TRANSFER, "tracker=[fake],[jsonl]", "seed=0,1", "name=swept"]
    assert lmtransfer(*words) == 0
    kept = by_name()
    assert len(kept) == 2
    assert {one.run.group for one in kept.values()} == {"probe/swept"}
    assert {one.run.config["seed"] for one in kept.values()} == {0, 1}


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["tracker=[fake,wandbb]"], ["tracker=wandbb", "wandb"]),
        (["tracker=[fake,jsonl,fake]"], ["tracker=[fake,jsonl,fake]", "fake is listed twice"]),
        (["tracker=fake,jsonl"], ["-m", "tracker=[a,b]"]),
        (["tracker=[]"], ["tracker", "choose one"]),
        (["tracker=wandb", "tracker.wandb.mode=of"], ["tracker.wandb.mode", "offline"]),
    ],
    ids=lambda value: value[0],
)
def test_what_is_refused_before_work_starts(
    words: list[str], names: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert lmtransfer(*PRETRAIN, *words, "name=refused") == 2
    said = capsys.readouterr().err
    assert [name for name in names if name not in said] == [], said
    assert "Traceback" not in said
    assert not Path("runs/pretrain/refused").exists()
