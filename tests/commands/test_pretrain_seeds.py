"""Several pretraining seeds, each with its own folder and transfers, also in studies."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from fakes.transfer_files import MASKED, TASK, lmtransfer, make_world, result

from lmtransfer.config.check import read_settings
from lmtransfer.config.settings import StudySettings
from lmtransfer.reporting.runs.collect import collect
from lmtransfer.reporting.runs.entries import make_entries
from lmtransfer.study.plan import make_plan

TRANSFER = ["finetune", *TASK, "hardware=exact", "train.epochs=1", "optimizer.learning_rate=0.02"]
SMALL = [
    *("experiment=null", "train.seconds=null", "train.steps=3", "model=bert_tiny", "model.dim=16", "model.num_heads=2"),
    *("model.hidden_dim=16", "objective=mlm", "objective.max_length=16", "corpus=text", "corpus.path=data/text.txt"),
    *("tokenizer.vocab_size=60", "tokenizer.allow_fewer=true", "train.batch_tokens=64", "hardware=exact"),
    "train.eval_every=3",
]


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with the run ``two``, pretrained with the seeds 0 and 4."""
    make_world(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LMTRANSFER_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("LMTRANSFER_DATA", raising=False)
    threads = torch.get_num_threads()
    yield tmp_path
    torch.set_num_threads(threads)


def pretrained_twice(world: Path) -> None:
    """Create a pretraining run ``two`` with the seeds 0 and 4."""
    base = world / "runs/pretrain/base"
    config = {**yaml.safe_load((base / "config.yaml").read_text()), "objective": MASKED}
    for seed in (0, 4):
        shutil.copytree(base, world / f"runs/pretrain/two/seed-{seed}")
        (world / f"runs/pretrain/two/seed-{seed}/config.yaml").write_text(yaml.safe_dump({**config, "seed": seed}))
    shutil.copytree(base / "tokenizer", world / "runs/pretrain/two/tokenizer")
    (world / "runs/pretrain/two/config.yaml").write_text(yaml.safe_dump({**config, "seeds": 2}))


@pytest.mark.slow
def test_pretraining_with_several_seeds(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [line.partition("\t")[0] for line in Path("data/train.tsv").read_text().splitlines()]
    Path("data/text.txt").write_text("\n\n".join(lines * 3))
    assert lmtransfer("pretrain", *SMALL, "seeds=2", "name=two") == 0
    joint = result("runs/pretrain/two")
    assert lmtransfer("pretrain", *SMALL, "seeds=2", "name=apart", "jobs=2", "hardware.threads=1") == 0
    apart = result("runs/pretrain/apart")
    losses = [[seed["metrics"]["loss"] for seed in run["seeds"]] for run in (joint, apart)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)  # with another number of threads
    each = [result(f"runs/pretrain/two/seed-{seed}") for seed in range(2)]
    assert [seed["seed"] for seed in joint["seeds"]] == [0, 1]
    assert each[0]["metrics"] != each[1]["metrics"]
    assert joint["metrics"]["loss"] == pytest.approx(np.mean([one["metrics"]["loss"] for one in each]))
    assert joint["tokens"] == sum(one["tokens"] for one in each)
    # Each seed's run is the same as alone; resuming adds a third seed.
    assert lmtransfer("pretrain", *SMALL, "seed=1", "name=alone") == 0
    assert result("runs/pretrain/alone")["metrics"] == each[1]["metrics"]
    assert lmtransfer("pretrain", *SMALL, "seeds=3", "name=two") == 2
    said = capsys.readouterr().err
    assert all(name in said for name in ("runs/pretrain/two", "name=", "resume=true")), said
    assert lmtransfer("pretrain", *SMALL, "seeds=3", "name=two", "resume=true") == 0
    assert [seed["seed"] for seed in result("runs/pretrain/two")["seeds"]] == [0, 1, 2]
    assert lmtransfer("pretrain", *SMALL, "seeds=3", "name=two", "resume=true", "train.steps=4") == 2
    assert re.search(r"train\.steps .*\b3 .*\b4 ", capsys.readouterr().err)
    assert lmtransfer("pretrain", *SMALL, "seed=1", "seeds=2", "name=alone", "resume=true") == 2
    assert re.search(r"\bseeds .*\b2 ", capsys.readouterr().err)
    entry = next(entry for entry in make_entries(collect(Path("runs"))) if entry.run.name == "two")
    assert entry.score is not None
    assert entry.score.n == 3
    assert entry.pretraining_tokens == pytest.approx(each[0]["tokens"])


@pytest.mark.slow
def test_each_pretraining_seed_is_transferred_with_each_finetuning_seed(world: Path) -> None:
    pretrained_twice(world)
    assert lmtransfer(*TRANSFER, "init=runs/pretrain/two", "seeds=2", "control=true", "name=nested") == 0
    found = result("runs/finetune/nested")
    places = [(seed["pretraining_seed"], seed["seed"]) for seed in found["seeds"]]
    assert places == [(0, 0), (0, 1), (4, 0), (4, 1)]
    for place, (pretraining, seed) in enumerate(places):
        own = result(f"runs/finetune/nested/pretraining-{pretraining}/seed-{seed}")
        assert own["metrics"] == found["seeds"][place]["metrics"]
        assert (own["pretraining_seed"], own["seed"]) == (pretraining, seed)
    assert [(seed["pretraining_seed"], seed["seed"]) for seed in found["control"]["seeds"]] == [(None, 0), (None, 1)]
    assert found["difference"]["num_pretrainings"] == [2, 0]
    assert lmtransfer(*TRANSFER, "init=runs/pretrain/two/seed-4", "seed=1", "name=alone") == 0  # the same alone
    assert result("runs/finetune/alone")["metrics"] == found["seeds"][3]["metrics"]
    assert result("runs/finetune/alone")["pretraining_seed"] == 4

    entries = {entry.run.key: entry for entry in make_entries(collect(Path("runs")))}
    assert set(entries) == {"finetune/nested", "finetune/alone", "pretrain/base", "pretrain/two"}
    nested = entries["finetune/nested"]
    assert len(nested.seeds) == 4
    assert nested.condition is not None
    assert nested.condition.examples is not None
    assert len(nested.condition.pretrainings) == 2
    assert lmtransfer("evaluate", "run=runs/finetune/nested", "split=test", "hardware=exact", "name=test") == 0
    assert [seed["pretraining_seed"] for seed in result("runs/evaluate/test")["seeds"]] == [0, 0, 4, 4]
    assert len([*Path("runs/evaluate/test/predictions").iterdir()]) == 6


@pytest.mark.slow
def test_going_on_trains_what_is_missing(world: Path) -> None:
    pretrained_twice(world)
    words = [
        *TRANSFER,
        "init=runs/pretrain/two",
        "name=nested",
        "learning_rates=[0.01,0.02]",
        "task.dev_from_train=0.2",
    ]
    assert lmtransfer(*words) == 0
    run = Path("runs/finetune/nested")
    before = result(run)
    kept = {file: file.read_bytes() for file in run.rglob("*.parquet")}
    assert len(kept) == 2 + 2  # each pretraining seed, and two baselines
    tries = before["learning_rate_tries"]
    assert [(tried["pretraining_seed"], tried["learning_rate"]) for tried in tries] == [
        (pretraining, rate) for rate in (0.01, 0.02) for pretraining in (0, 4)
    ]
    (run / "result.json").unlink()
    shutil.rmtree(run / "pretraining-4")
    assert lmtransfer(*words, "resume=true") == 0
    assert result(run)["seeds"] == before["seeds"]
    assert result(run)["learning_rate_tries"] == tries
    assert {file: file.read_bytes() for file in run.rglob("*.parquet")} == kept


def test_a_run_of_several_seeds_that_is_not_whole(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pretrained_twice(world)
    shutil.rmtree("runs/pretrain/two/seed-4")
    assert lmtransfer(*TRANSFER, "init=runs/pretrain/two", "name=x") == 2
    said = capsys.readouterr().err
    assert all(name in said for name in ("runs/pretrain/two", "1 of its 2 seeds", "resume=true")), said
    assert lmtransfer("evaluate", "run=runs/pretrain/two", "hardware=exact") == 2
    assert not Path("runs/finetune/x").exists()


def test_a_study_pretrains_with_several_seeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    pretrain = {"corpus": "fra", "steps": 3, "tokens": None, "epochs": None, "seconds": None, "words": []}
    config = {
        "name": "mine",
        "only": None,
        "recipes": {"one": "model=bert_tiny", "two": "seeds=5"},
        "pretrain": {**pretrain, "seeds": 3},
        "transfers": {"probe": {"command": "probe", "task": "sst2", "seeds": 2}},
        "data_root": None,
        "output_root": "out",
        "cache_dir": None,
    }
    jobs = {job.key: job for job in make_plan(read_settings(StudySettings, config, command="study")).jobs}
    assert "seeds=3" in jobs["pretrain of one"].overrides
    assert "seeds=5" in jobs["pretrain of two"].overrides
    assert "seeds=3" not in jobs["pretrain of two"].overrides
    assert f"init={jobs['pretrain of one'].run}" in jobs["probe of one"].overrides
