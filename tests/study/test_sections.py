"""The figures of a study (points, sentences, files), and pretraining runs that studies share."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes.runs import pretraining, transfer
from omegaconf import OmegaConf
from scipy import stats
from support.refusals import refuses

from lmtransfer.config.check import read_settings
from lmtransfer.config.settings import StudySettings
from lmtransfer.errors import ConfigError, RunDirectoryError
from lmtransfer.reporting.page.report import find_sections, write_sections
from lmtransfer.runs.run_directory import RunDirectory
from lmtransfer.study.plan import FigureSpec, StudyPlan, make_plan
from lmtransfer.study.progress import (
    JobProgress,
    add_seconds,
    note_overrides,
    progress_of,
    read_ledger,
    seconds_left,
    share_pretraining,
    summary,
)
from lmtransfer.study.sections import findings, lines_of, make_sections, place_text, read_rows, study_findings

MASKS = {"low": 0.05, "middle": 0.15, "high": 0.8}
#: Accuracy of three seeds by recipe; the middle one is far better than the others.
SCORES = {"low": [0.60, 0.61, 0.62], "middle": [0.70, 0.712, 0.718], "high": [0.604, 0.61, 0.622]}
CONTROLS = [0.58, 0.59, 0.603]


def config(**changes: Any) -> StudySettings:
    merged = OmegaConf.merge(
        OmegaConf.create(
            {
                "name": "masks",
                "question": "How many?",
                "only": None,
                "recipes": {name: f"objective.mask_prob={rate}" for name, rate in MASKS.items()},
                "pretrain": {"corpus": "novels", "steps": 4, "words": []}
                | dict.fromkeys(("tokens", "epochs", "seconds", "seeds")),
                "transfers": {"probe": {"command": "probe", "task": "sst2", "seeds": 3, "control": True}},
                "figures": {"rate": {"x": "objective.mask_prob", "against": "0.05"}},
                "demonstration": False,
                "data_root": None,
                "output_root": "out",
                "cache_dir": None,
            }
        ),
        OmegaConf.create(changes),
    )
    values: Any = OmegaConf.to_container(merged)
    return read_settings(StudySettings, values, command="study")


def make_runs(plan: StudyPlan, baselines: Mapping[str, Sequence[float]] | None = None) -> None:
    """Create the finished runs of a study."""
    for job in plan.jobs:
        if job.stage == "pretrain":
            if not job.run.exists():
                pretraining(job.run, mask_prob=MASKS[job.recipe])
        else:
            init = next(word.partition("=")[2] for word in job.overrides if word.startswith("init="))
            transfer(
                job.run, SCORES[job.recipe], controls=CONTROLS, command=job.command, init=init, baselines=baselines
            )
    note_overrides(plan)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_points_stand_at_the_value_of_a_key_in_order(world: Path) -> None:
    plan = make_plan(config())
    make_runs(plan)
    rows = read_rows(plan)
    (line,) = lines_of(plan.figures[0], rows)
    assert [place for place, _ in line.points] == sorted(MASKS.values())
    means = [entry.score.mean for _, entry in line.points if entry.score is not None]
    assert means == pytest.approx([np.mean(SCORES[name]) for name in MASKS])
    by_recipe = lines_of(FigureSpec("a", "a", x="recipe", recipes=("high", "low")), rows)
    assert {place for place, _ in by_recipe[0].points} == {"high", "low"}
    (one,) = lines_of(FigureSpec("a", "a", x="num_train", lines="recipe", recipes=("low",)), rows)
    assert (one.label, one.points[0][0]) == ("low", 1000.0)
    (family,) = lines_of(FigureSpec("a", "a", x="objective.mask_prob", lines="model"), rows)
    assert (family.label, len(family.points)) == ("bert 4x256 pre-norm", 3)
    (sizes,) = lines_of(FigureSpec("a", "a", x="parameters"), rows)
    assert sizes.points[0][0] == 5_300_000
    assert lines_of(FigureSpec("a", "a", x="no.such.key"), rows) == []
    (loss,) = lines_of(FigureSpec("a", "a", x="objective.mask_prob", y="loss"), rows)
    assert (loss.metric, len(loss.points)) == ("loss", 3)


def test_the_sentence_names_the_best_and_whether_that_is_beyond_chance(world: Path) -> None:
    plan = make_plan(config())
    make_runs(plan)
    spec = plan.figures[0]
    lines = lines_of(spec, read_rows(plan))
    said = findings(spec, lines)
    names = ("71.0 %", "0.15", "59.1 % without pretraining", "against 0.05", "better", "for this checkpoint")
    for name in (*names, "1 better, 1 no difference shown"):
        assert name in said, name
    # The reference: Welch's test of each rate against the lowest, with Holm's correction for two comparisons.
    found = [stats.ttest_ind(SCORES[name], SCORES["low"], equal_var=False).pvalue for name in ("middle", "high")]
    assert 2 * found[0] < 0.05 < found[1]
    shown = findings(spec, lines, demonstration=True)
    assert "better" not in shown
    assert "71.0 %" in shown
    assert findings(spec, [])


@pytest.mark.parametrize(
    ("counted", "says"),
    [
        ([0.80, 0.81, 0.79], "; -9.0 points against NB-SVM, which counts words (worse, for this checkpoint)"),
        ([0.66, 0.78, 0.70], "; -0.3 points against NB-SVM, which counts words (no difference shown)"),
        ([0.50, 0.51, 0.49], ""),
    ],
)
def test_the_sentence_has_the_verdict_against_counting_words(world: Path, counted: list[float], says: str) -> None:
    plan = make_plan(config())
    make_runs(plan, {"NB-SVM": counted, "TF-IDF": [0.4, 0.41, 0.39]})
    lines = lines_of(plan.figures[0], read_rows(plan))
    said = findings(plan.figures[0], lines)
    assert says in said
    assert ("counts words" in said) == bool(says)
    shown = findings(plan.figures[0], lines, demonstration=True)
    assert says.partition(" (")[0] in shown
    assert not any(word in shown for word in ("worse", "no difference"))


def test_one_number_of_seeds_for_all_transfers() -> None:
    jobs = make_plan(config(transfer_seeds=2)).jobs
    assert {word for job in jobs for word in job.overrides if word.startswith("seeds=")} == {"seeds=2"}


def test_places_are_written_as_numbers_or_names() -> None:
    places = {0.15: "0.15", 1000.0: "1,000", 5.3e6: "5.3M", 1.34e13: "1.34e+13", "bert": "bert"}
    assert {place: place_text(place) for place in places} == places


def test_figures_and_sentences_are_kept_for_the_report(world: Path) -> None:
    plan = make_plan(config())
    assert make_sections(read_rows(plan), plan) == []  # nothing is finished
    make_runs(plan)
    sections = make_sections(read_rows(plan), plan)
    write_sections(sections, plan.folder)
    assert [section.title for section in sections] == ["How many?"]
    svg = sections[0].svg.read_text()
    for text in ("How many?", "objective.mask_prob", "accuracy (%)", "without pretraining"):
        assert text in svg, text
    for root in (plan.folder, plan.folder.parent, world / "out"):
        assert find_sections([root]) == sections, root
    (plan.folder / "sections.json").write_text("[{")
    assert find_sections([plan.folder]) == []


def test_mistakes_in_figures_are_named() -> None:
    figures = {
        "a": {"y": "accuracy", "lines": "colour", "z": 1},
        "b": {"recipes": ["lo"]},
        "c": "recipe",
        "d": {"x": "recipe", "transfers": ["prob"]},
    }
    with refuses(ConfigError, "figures.a.y=accuracy", "score, loss", "figures.a.lines=colour") as raised:
        make_plan(config(figures=figures))
    assert "figures.a.z:" in str(raised.value)
    for names in (("figures.b.recipes", "'lo'", "low"), ("figures.c=recipe",), ("figures.d.transfers", "'prob'")):
        assert all(name in str(raised.value) for name in names), names
    with refuses(ConfigError, "figures: 3 is not a mapping"):
        config(figures=3)


def test_equal_pretraining_is_shared_between_studies(world: Path) -> None:
    first = make_plan(config())
    make_runs(first)
    second = share_pretraining(make_plan(config(name="more", transfers={"probe": {"num_train": 100}})))
    shared = {job.recipe: job for job in second.jobs if job.stage == "pretrain"}
    assert all(job.shared and job.run == first.folder / "pretrain" / name for name, job in shared.items())
    starts = [word for job in second.jobs if job.stage == "probe" for word in job.overrides if word.startswith("init=")]
    assert starts == [f"init={first.folder}/pretrain/{name}" for name in MASKS]
    make_runs(second)
    assert not (second.folder / "pretrain").exists()
    assert {key.partition(" of ")[0] for key in read_ledger(second.folder)} == {"probe"}
    rows = read_rows(second)
    assert [row.pretraining is not None for row in rows] == [True, True, True]
    assert len(lines_of(second.figures[0], rows)[0].points) == 3
    note_overrides(share_pretraining(make_plan(config(name="more", transfers={"probe": {"num_train": 100}}))))


def test_other_or_unfinished_pretraining_is_not_shared(world: Path) -> None:
    first = make_plan(config())
    make_runs(first)
    (first.folder / "pretrain/low/result.json").unlink()
    changed = config(name="more", recipes={"middle": "objective.mask_prob=0.16"})
    shared = {job.recipe for job in share_pretraining(make_plan(changed)).jobs if job.shared}
    assert shared == {"high"}
    own = share_pretraining(make_plan(config()))
    assert not any(job.shared for job in own.jobs)


@contextmanager
def written_by_another(run: Path) -> Iterator[None]:
    """Inside the block, another process holds the run's lock."""
    imports = "import pathlib, time; from lmtransfer.runs.create_or_resume import hold"
    hold = f"{imports}; hold(pathlib.Path({str(run)!r})); print(1)"
    with subprocess.Popen([sys.executable, "-u", "-c", f"{hold}; time.sleep(60)"], stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"1\n"
        yield
        other.kill()


def test_progress_shows_what_is_finished_running_failed_and_waiting(world: Path) -> None:
    plan = make_plan(config(pretrain={"steps": None, "seconds": 90}))
    note_overrides(plan)
    runs = {job.key: job.run for job in plan.jobs}
    assert {job.state for job in progress_of(plan.folder)} == {"waiting"}
    assert seconds_left(progress_of(plan.folder)) is None  # the duration of a probe is not known yet
    pretraining(runs["pretrain of low"], mask_prob=0.05)  # in 30 seconds
    transfer(runs["probe of low"], SCORES["low"], command="probe", init=str(runs["pretrain of low"]))  # in 10 seconds
    logs = plan.folder / "logs"
    logs.mkdir()
    (logs / "pretrain-middle.log").write_text("step 3  loss 6.1\n")
    RunDirectory(runs["pretrain of middle"]).path.mkdir(parents=True)
    (logs / "pretrain-high.log").write_text("step 3\nlmtransfer: the disk is full\n")
    with written_by_another(runs["pretrain of middle"]):
        jobs = {f"{job.stage} of {job.recipe}": job for job in progress_of(plan.folder)}
    states = {key: job.state for key, job in jobs.items()}
    assert states == {
        "pretrain of low": "finished",
        "probe of low": "finished",
        "pretrain of middle": "running",
        "probe of middle": "waiting",
        "pretrain of high": "failed",
        "probe of high": "failed",
    }
    assert jobs["pretrain of middle"].note == "step 3  loss 6.1"
    assert jobs["pretrain of high"].note == "the disk is full"
    left = seconds_left(list(jobs.values()))
    assert left == pytest.approx(90 + 10, abs=3)  # the budget, and a probe of the same duration as the finished one
    add_seconds(plan.folder, "probe of low", 44.0, resumed=False)  # with a control and a search of the learning rate
    with written_by_another(runs["pretrain of middle"]):
        assert seconds_left(progress_of(plan.folder)) == pytest.approx(90 + 44, abs=3)
    for name in ("2 of 6", "1 running", "2 failed", "1 waiting"):
        assert name in summary(list(jobs.values()), plan.folder)
    (runs["pretrain of middle"] / ".lock").write_text(f"{os.getpid()}\n")  # left by a killed process
    assert {job.recipe: job.state for job in progress_of(plan.folder)}["middle"] in ("interrupted", "waiting")
    for words in ("SIGTERM: stopped after step 3; all is saved, continue with resume=true", "interrupted"):
        (logs / "pretrain-middle.log").write_text(f"step 3  loss 6.1\nlmtransfer: {words}\n")
        states = {f"{job.stage} of {job.recipe}": job.state for job in progress_of(plan.folder)}
        assert states["pretrain of middle"] == "interrupted"
        assert states["probe of middle"] == "waiting"


def test_the_time_left_of_transfers_that_run_at_the_same_time() -> None:
    running, waiting = JobProgress("a", "probe", "running", 5, left=20), JobProgress("b", "probe", "waiting", left=30)
    alone = JobProgress("c", "pretrain", "waiting", left=100)
    assert seconds_left([alone, running, waiting, waiting]) == 180
    assert seconds_left([alone, running, running, waiting, waiting]) == 150
    assert seconds_left([running, running, running, waiting]) == 30  # no transfer is divided
    assert seconds_left([JobProgress("a", "probe", "finished", 9)]) == 0


def test_rows_are_read_through_a_link(world: Path) -> None:
    (world / "disk").mkdir()
    (world / "runs").symlink_to(world / "disk")
    plan = make_plan(config())
    make_runs(plan)
    assert [row.recipe for row in read_rows(plan)] == list(plan.recipes)
    assert all(row.pretraining is not None and row.transfers for row in read_rows(plan))


def test_a_folder_without_a_study_has_no_progress(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "nowhere"):
        with refuses(RunDirectoryError, str(folder), "study.json"):
            progress_of(folder)
    (tmp_path / "study.json").write_text(json.dumps({"a": 1}))
    with refuses(RunDirectoryError, "study.json"):
        progress_of(tmp_path)


def test_the_weightiest_finding_of_each_transfer_is_said_once(tmp_path: Path) -> None:
    plan = make_plan(config(output_root=str(tmp_path)))
    make_runs(plan)
    assert study_findings(read_rows(plan)) == []
    said = {"low": ["cut", "weak"], "middle": ["cut"], "high": ["weak"]}
    for job in plan.jobs:
        if job.stage != "pretrain":
            path = job.run / "result.json"
            own = [{"text": text, "command": f"lmtransfer {text} {job.recipe}"} for text in said[job.recipe]]
            path.write_text(json.dumps(json.loads(path.read_text()) | {"findings": own}))
    shown = [(finding.text, finding.command) for finding in study_findings(read_rows(plan))]
    assert shown == [("low probe and 1 more: cut", "lmtransfer cut low"), ("high probe: weak", "lmtransfer weak high")]
