"""Studies: their commands and overrides, failed runs, and the table."""

from __future__ import annotations

import csv
import json
import math
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fakes.runs import pretraining, transfer
from omegaconf import OmegaConf
from support.refusals import refuses

from lmtransfer.cli import main
from lmtransfer.config.check import read_settings
from lmtransfer.config.settings import StudySettings
from lmtransfer.errors import ConfigError
from lmtransfer.launch import jobs
from lmtransfer.launch.jobs import Job, Place
from lmtransfer.reporting.runs.collect import collect
from lmtransfer.reporting.runs.entries import make_entries
from lmtransfer.study.plan import StudyJob, StudyPlan, make_plan
from lmtransfer.study.progress import read_ledger
from lmtransfer.study.sections import StudyRow, markdown, study_table, write_table
from lmtransfer.system.durable import _HERE

CONFIG = """
name: mine
only: null
recipes:
  small: model=bert_tiny train.steps=7
  other: {pretrain: [objective=mlm, corpus=novels], probe: transfer.layers=mix, few: seeds=9}
pretrain: {corpus: fra, steps: null, tokens: null, epochs: null, seconds: 5, words: seed=3}
transfers:
  probe: {command: probe, task: sst2, seeds: 2, control: true}
  few: {command: finetune, task: sst2, num_train: 100, seeds: 2, control: false, words: [split=test]}
data_root: null
output_root: out
cache_dir: null
"""


START = Place.start


def seconds_of(folder: Path) -> dict[str, float]:
    """Return the seconds of each run in a study."""
    return {key: entry["seconds"] for key, entry in read_ledger(folder).items()}


def config(**changes: Any) -> StudySettings:
    values: Any = OmegaConf.to_container(OmegaConf.merge(OmegaConf.create(CONFIG), OmegaConf.create(changes)))
    return read_settings(StudySettings, values, command="study")


def test_the_words_of_each_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    plan = make_plan(config())
    folder = tmp_path / "out/study/mine"
    end = [f"output_root={folder}", "resume=true"]
    jobs = {job.key: list(job.overrides) for job in plan.jobs}
    assert list(jobs) == [
        f"{stage} of {recipe}" for recipe in ("small", "other") for stage in ("pretrain", "probe", "few")
    ]
    # A recipe's own overrides win: its budget over any other budget, its corpus over the study's.
    assert jobs["pretrain of small"] == ["corpus=fra", "seed=3", "model=bert_tiny", "train.steps=7", "name=small", *end]
    expected = ["train.seconds=5", "seed=3", "objective=mlm", "corpus=novels", "name=other", *end]
    assert jobs["pretrain of other"] == expected
    init = f"init={folder}/pretrain/other"
    expected = ["task=sst2", "seeds=2", "control=true", "transfer.layers=mix", init, "name=other", *end]
    assert jobs["probe of other"] == expected
    expected = [
        "task=sst2",
        "task.num_train=100",
        "control=false",
        "split=test",
        "seeds=9",
        init,
        "name=other-few",
        *end,
    ]
    assert jobs["few of other"] == expected
    assert {job.key: job.run for job in plan.jobs}["few of small"] == folder / "finetune/small-few"
    assert make_plan(config(only=["other"])).recipes == ("other",)
    assert make_plan(config(recipes={"small": None})).recipes == ("other",)
    fewer = make_plan(config(transfers={"few": None})).jobs  # with the recipe's override for this transfer
    assert {job.stage for job in fewer} == {"pretrain", "probe"}


def test_every_mistake_in_a_study_is_named() -> None:
    with refuses(ConfigError) as caught:
        make_plan(
            config(
                name="a/b",
                only=["smal"],
                recipes={"small": "model name=../../evil", "b c": "seed=1", "other": {"prob": "seed=1"}},
                pretrain={"steps": 3},
                transfers={"probe": {"command": "evaluate"}, "few": {"seed": 1}},
            )
        )
    for names in (
        ("name=a/b",),
        ("only=smal:", "small"),
        ("recipes.small.pretrain:", "'model'", "key=value"),
        ("recipes.small.pretrain: name=../../evil:",),
        ("recipes.b c:",),
        ("recipes.other.prob:", "probe"),
        ("pretrain.steps=3", "pretrain.seconds=5"),
        ("transfers.probe.command=evaluate", "probe, finetune"),
        ("transfers.few.seed:", "seeds"),
    ):
        assert any(all(name in problem for name in names) for problem in caught.value.problems), names
    with refuses(ConfigError, "recipes:", "lmtransfer list studies"):
        make_plan(config(recipes={"small": None, "other": None}))


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LMTRANSFER_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("LMTRANSFER_DATA", raising=False)
    return tmp_path


Fake = Callable[..., list[str]]


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Fake:
    """Replace the runs of a study by fake ones; return the names of the started runs."""

    def install(fail: tuple[str, ...] = (), code: int = 2) -> list[str]:
        started: list[str] = []

        def run(job: Job) -> int:
            words, log = job.words(), job.log
            given = dict(word.split("=", 1) for word in words[1:] if "=" in word)
            folder = Path(given["output_root"]) / words[0] / given["name"]
            started.append(f"{words[0]} {given['name']}")
            log.parent.mkdir(parents=True, exist_ok=True)
            log.write_text("step 1\nlmtransfer: no more room\n  at all\n")
            if started[-1] in fail:
                return code
            if words[0] == "pretrain":
                final = 4.0 if given["name"] == "masked" else 5.0
                pretraining(folder, final=final)
            else:
                better = 0.1 if given["name"] == "masked" else 0.0
                transfer(
                    folder,
                    [0.60 + better, 0.62 + better],
                    controls=[0.58, 0.603],
                    command=words[0],
                    init=given["init"],
                )
            return 0

        class Made:
            """A process that ends as soon as it has started."""

            def __init__(self, job: Job) -> None:
                self.code = run(job)

            def exit_code(self, *, timeout: float) -> int:
                return self.code

            def release(self) -> None:
                pass

        monkeypatch.setattr(Place, "start", lambda place, job: Made(job))
        return started

    return install


def test_a_study_makes_one_table(world: Path, fake: Fake, capsys: pytest.CaptureFixture[str]) -> None:
    started = fake()
    staged = world / f"runs/study/tiny/.tiny.json.{_HERE}-4194305.tmp"  # of a killed study: no process has this id
    staged.parent.mkdir(parents=True)
    staged.write_text("half")
    assert main(["study", "study=tiny"]) == 0
    assert not staged.exists()
    assert started == ["pretrain masked", "probe masked", "pretrain left_to_right", "probe left_to_right"]
    out = capsys.readouterr().out
    assert "study tiny" in out
    folder = world / "runs/study/tiny"
    records = json.loads((folder / "tiny.json").read_text())
    first = records[0]
    assert first["recipe"] == "masked"
    assert (first["parameters"], first["tokens"], first["validation_mlm"]) == (5_300_000, 409600, 4.1)
    assert first["probe"] == pytest.approx(0.71)
    assert first["probe_deviation"] == pytest.approx(math.sqrt(0.0002))
    assert first["probe_control"] == pytest.approx(0.5915)
    assert first["probe_difference"] == pytest.approx(0.1185)  # pairs 12 and 11.7 points apart, two comparisons
    assert first["probe_standard_error"] == pytest.approx(0.0015)
    reach = 25.452 * 0.0015  # one degree of freedom, a level of 0.025
    assert (first["probe_low"], first["probe_high"]) == pytest.approx((0.1185 - reach, 0.1185 + reach), abs=1e-6)
    assert first["probe_scope"] == "this checkpoint"
    assert [record["probe_verdict"] for record in records] == ["better", "no difference shown"]
    with (folder / "tiny.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [float(row["validation_loss"]) for row in rows] == [4.5, 5.5]
    markdown = (folder / "tiny.md").read_text().splitlines()
    assert markdown[2].startswith("| masked | bert 4x256 pre-norm | mlm+nsp | 5.3M | 410k | 13.7k | 4.500 |")
    assert "| 71.0 \u00b1 1.4 | 59.1 \u00b1 1.6 | +11.8 (+8.0 to +15.7) better, " in markdown[2]
    assert markdown[2].endswith(" this checkpoint |")


@pytest.mark.parametrize("num_transfers", [1, 4], ids=["a line for each recipe", "a line for each transfer"])
def test_the_chosen_metrics_are_in_the_table(num_transfers: int, tmp_path: Path) -> None:
    names = [f"t{place}" for place in range(num_transfers)]
    for name in names:
        run = transfer(tmp_path / "finetune" / name, [0.7, 0.72], settings={"task.metrics": ["accuracy", "matthews"]})
        result = json.loads((run / "result.json").read_text())
        for seed, one in enumerate(result["seeds"]):
            one["metrics"]["matthews"] = 0.4 + seed / 10
        (run / "result.json").write_text(json.dumps(result))
    transfers = {entry.name: entry for entry in make_entries(collect(tmp_path))}
    rows = [StudyRow("masked", None, transfers)]
    plan = StudyPlan("s", tmp_path, ("masked",), tuple(names), ())
    shown = "matthews 0.450 \u00b1 0.071"
    assert markdown(rows, plan).count(shown) == num_transfers
    table = study_table(rows, plan)
    assert sum(shown in column.cell(line).lines for line in table.lines for column in table.columns) == num_transfers
    write_table(rows, plan)
    (record,) = json.loads((tmp_path / "s.json").read_text())
    assert [record[f"{name}_matthews"] for name in names] == pytest.approx([0.45] * num_transfers)


def test_what_is_finished_is_skipped_and_what_failed_is_done_again(
    world: Path, fake: Fake, capsys: pytest.CaptureFixture[str]
) -> None:
    started = fake(fail=("pretrain masked", "probe left_to_right"))
    assert main(["study", "study=tiny"]) == 2
    assert started == ["pretrain masked", "pretrain left_to_right", "probe left_to_right"]
    err = capsys.readouterr().err
    assert "3 of 4 runs" in err
    assert re.search(r"pretrain of masked: .*no more room at all.*runs/study/tiny/logs/pretrain-masked\.log", err)
    assert "probe of masked: " in err
    assert len(json.loads((world / "runs/study/tiny/tiny.json").read_text())) == 1
    started = fake()
    assert main(["study", "study=tiny"]) == 0
    assert started == ["pretrain masked", "probe masked", "probe left_to_right"]


def test_an_interruption_ends_the_study(world: Path, fake: Fake, capsys: pytest.CaptureFixture[str]) -> None:
    started = fake(fail=("probe masked",), code=75)
    assert main(["study", "study=tiny"]) == 75
    assert started == ["pretrain masked", "probe masked"]
    assert "interrupted" in capsys.readouterr().err


@pytest.mark.slow
def test_runs_that_were_made_otherwise_are_not_mixed(
    world: Path, fake: Fake, capsys: pytest.CaptureFixture[str]
) -> None:
    fake()
    assert main(["study", "study=tiny"]) == 0
    started = fake()
    assert main(["study", "study=tiny", "pretrain.steps=21"]) == 2
    said = capsys.readouterr().err
    for name in ("pretrain of masked", "runs/study/tiny/pretrain/masked", "train.steps=20", "train.steps=21"):
        assert name in said
    assert started == []
    (made_from_it,) = (run for run in Path("runs/study/tiny").glob("*/masked*") if run.parent.name != "pretrain")
    shutil.rmtree(world / "runs/study/tiny/pretrain/masked")
    assert main(["study", "study=tiny"]) == 2  # transfers from the old run would be mixed with a new pretraining run
    assert f"{made_from_it}" in capsys.readouterr().err
    assert started == []
    assert (
        main(["study", "study=tiny", "pretrain.seconds=9", "name=more", "only=masked"]) == 0
    )  # the command line's budget wins
    assert (
        "train.seconds=9"
        in json.loads((world / "runs/study/more/study.json").read_text())["pretrain of masked"]["overrides"]
    )


def test_all_commands_are_checked_before_any_starts(
    world: Path, fake: Fake, capsys: pytest.CaptureFixture[str]
) -> None:
    started = fake()
    words = ['+recipes.a="model=brt_tiny train.stps=4"', '+recipes.b="model.dim=x"', "transfers.probe.task=ssst2"]
    assert main(["study", "study=tiny", *words]) == 2
    err = capsys.readouterr().err
    for names in (
        ("pretrain of a:", "model=brt_tiny:", "bert_tiny"),
        ("pretrain of a:", "train.stps=4:", "train.steps"),
        ("pretrain of b:", "model.dim:", "'x'", "integer"),
        ("probe of masked:", "task=ssst2:", "'sst2'"),
    ):
        assert any(all(name in line for name in names) for line in err.splitlines()), names
    assert started == []
    assert not (world / "runs").exists()


def test_transfers_at_the_same_time_follow_all_pretraining(
    world: Path, fake: Fake, capsys: pytest.CaptureFixture[str]
) -> None:
    started = fake()
    assert main(["study", "study=tiny", "jobs=2"]) == 0
    assert started == ["pretrain masked", "pretrain left_to_right", "probe masked", "probe left_to_right"]
    said = capsys.readouterr().out
    in_order = ["1/4] pretrain of masked", "2/4] pretrain of left_to_right", "3/4] probe of masked"]
    places = [said.index(heading) for heading in in_order]
    assert places == sorted(places)
    started = fake()
    assert main(["study", "study=tiny", "only=masked"]) == 0
    assert started == []  # the ledger does not depend on it


def test_times_are_by_the_clock_and_added_over_interruptions(
    world: Path, fake: Fake, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = iter(range(0, 10_000, 90))  # each reading of the clock is 90 seconds later
    monkeypatch.setattr(jobs.time, "monotonic", lambda: next(now))
    folder = world / "runs/study/tiny"
    fake(fail=("probe left_to_right",))
    assert main(["study", "study=tiny"]) == 2
    assert seconds_of(folder) == dict.fromkeys(
        ("pretrain of masked", "probe of masked", "pretrain of left_to_right", "probe of left_to_right"), 90
    )
    assert re.search(r"probe of masked: (90 s|1\.5 min)", capsys.readouterr().out)
    (folder / "probe/left_to_right").mkdir(parents=True)  # what an interrupted run leaves
    shutil.rmtree(folder / "probe/masked")  # this run starts again
    fake()
    assert main(["study", "study=tiny"]) == 0
    assert seconds_of(folder)["probe of left_to_right"] == 180
    assert seconds_of(folder)["probe of masked"] == 90


@pytest.mark.slow
def test_settings_without_effect_are_no_part_of_the_ledger(
    world: Path, fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake()
    given: dict[str, list[str]] = {}

    class Done:
        def exit_code(self, *, timeout: float) -> int:
            return 0

        def release(self) -> None:
            pass

    def local(words: tuple[str, ...], log: Path) -> Done:
        log.write_text("")
        named = dict(word.split("=", 1) for word in words[1:] if "=" in word)
        key = f"{words[0]} of {named['name']}"
        given[key] = [word for word in words if word.startswith(("hardware.threads", "keep_weights"))]
        return Done()

    monkeypatch.setattr(Place, "start", START)
    monkeypatch.setattr(jobs, "LocalProcess", local)
    monkeypatch.setattr(jobs, "usable_cores", lambda: 9)
    monkeypatch.setattr(StudyJob, "is_finished", property(lambda job: job.key in given))
    words = ["study", "study=tiny", "+recipes.own={probe: 'hardware.threads=3'}"]
    assert main([*words, "jobs=4", "keep_weights=false"]) == 0
    assert given == {
        **{f"pretrain of {recipe}": [] for recipe in ("masked", "left_to_right", "own")},
        "probe of masked": ["keep_weights=false", "hardware.threads=2"],
        "probe of left_to_right": ["keep_weights=false", "hardware.threads=2"],
        "probe of own": ["hardware.threads=3", "keep_weights=false"],
    }
    del given["probe of masked"]
    assert main(words) == 0  # the same study, although its runs had other values of these settings
    assert given["probe of masked"] == []


@pytest.mark.slow
def test_two_of_the_same_study_do_not_run_at_once(world: Path, fake: Fake, capsys: pytest.CaptureFixture[str]) -> None:
    folder = world / "runs/study/tiny"
    folder.mkdir(parents=True)
    imports = "import pathlib, time; from lmtransfer.runs.create_or_resume import hold"
    hold = f"{imports}; hold(pathlib.Path({str(folder)!r})); print(1)"
    with subprocess.Popen([sys.executable, "-u", "-c", f"{hold}; time.sleep(60)"], stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        started = fake()
        assert main(["study", "study=tiny", "only=masked"]) == 2
        other.kill()
    said = capsys.readouterr().err
    assert all(name in said for name in ("runs/study/tiny", str(other.pid), "name=", "watch=true")), said
    assert started == []
    assert main(["study", "study=tiny", "only=masked"]) == 0  # the lock of a dead process does not count


MISTAKES = {
    "number": ("  2: model=brt_tiny\n", ("pretrain of 2", "model=brt_tiny", "bert_tiny")),
    "looked_up": ("  a: seed=${oc.env:HOME}\n", ("recipes.a:", "${oc.env:HOME}", "write the value itself")),
    "twice": ("  a: seed=1\n  a: seed=2\n", ("twice.yaml:6", "a")),
    "small": ("  a: model=bert_tiny train.steps=1 phases=words_then_masked\n", ("pretrain of a", "train.steps=1")),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_in_a_file_are_answered_before_any_run(
    name: str, world: Path, fake: Fake, capsys: pytest.CaptureFixture[str]
) -> None:
    recipes, names = MISTAKES[name]
    (world / "mine/study").mkdir(parents=True)
    shared = "pretrain: {corpus: python_docs}\ntransfers: {probe: {command: probe, task: python_docs}}\n"
    (world / f"mine/study/{name}.yaml").write_text(f"# @package _global_\n# own\nname: x\nrecipes:\n{recipes}{shared}")
    started = fake()
    assert main(["study", "-cd", "mine", f"study={name}"]) == 2
    said = capsys.readouterr().err
    assert all(one in said for one in names), said
    assert "Traceback" not in said
    assert len(said.strip().splitlines()) <= 3, said
    assert started == []
    assert not (world / "runs").exists()


def test_a_figure_over_a_key_that_no_run_has_is_refused_before_any_run(
    world: Path, fake: Fake, capsys: pytest.CaptureFixture[str]
) -> None:
    started = fake()
    assert main(["study", "study=tiny", "figures.score.x=model.num_layer"]) == 2
    said = capsys.readouterr().err
    assert "figures.score.x=model.num_layer:" in said
    assert "'model.num_layers'" in said
    assert started == []
