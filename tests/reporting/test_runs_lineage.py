"""Transfers from revisions of one pretraining run: their tokens, what they count as, and the chart over tokens."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from fakes.runs import pretraining, transfer

from lmtransfer.reporting.comparison.sides import Side
from lmtransfer.reporting.figures.scores import make_charts
from lmtransfer.reporting.figures.spec import Chart
from lmtransfer.reporting.runs.collect import collect
from lmtransfer.reporting.runs.entries import Entry, make_entries
from lmtransfer.reporting.runs.lineage import pretraining_run
from lmtransfer.reporting.runs.sweeps import find_sweeps

REVISIONS = {"@0": (0.60, 0.62), "@2048": (0.64, 0.65), "@100k": (0.70, 0.72), "": (0.80, 0.81)}


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    root = tmp_path / "runs"
    pretraining(root / "pretrain" / "imdb")
    for revision, scores in REVISIONS.items():
        init = f"{root}/pretrain/imdb{revision}"
        transfer(root / "finetune" / f"ft{revision.replace('@', '-')}", scores, controls=(0.6, 0.61), init=init)
    return root


def _entries(root: Path) -> dict[str, Entry]:
    return {entry.name: entry for entry in make_entries(collect(root))}


def _charts(root: Path) -> dict[str, Chart]:
    entries = make_entries(collect(root))
    return {chart.name: chart for chart in make_charts(entries, find_sweeps(entries))}


def test_a_transfer_counts_the_pretraining_up_to_its_revision(runs: Path) -> None:
    entries = _entries(runs)
    assert entries["ft-100k"].pretraining_tokens == 100_000
    assert entries["ft-100k"].pretraining_seconds == pytest.approx(30.0 * 100_000 / 409_600)
    assert entries["ft-0"].pretraining_tokens == 0
    assert (entries["ft"].pretraining_tokens, entries["ft"].pretraining_seconds) == (409_600, 30.0)
    assert entries["ft-100k"].objective == entries["ft"].objective == "mlm+nsp"
    source = entries["ft-100k"].source
    assert source is not None
    assert (source.name, source.path.name, source.revision) == ("imdb@100k", "imdb", 100_000)
    assert [line["tokens"] for line in source.metrics] == [2048 * step for step in range(1, 49)]


def test_revisions_are_different_weights(runs: Path) -> None:
    entries = _entries(runs)
    weights = {name: entry.condition.scores[0].pretraining for name, entry in entries.items() if entry.condition}
    assert len({weights[name] for name in ("ft", "ft-0", "ft-2048", "ft-100k")}) == 4
    settings = [Side.pretraining_settings(entries[name]) for name in ("ft-0", "ft-100k", "ft")]
    assert [one.get("revision") for one in settings] == [0, 100_000, None]


def test_a_moved_run_is_found_with_its_revision(runs: Path, tmp_path: Path) -> None:
    runs.rename(tmp_path / "moved")
    found = collect(tmp_path / "moved")
    run = next(run for run in found if run.key == "finetune/ft-100k")
    source = pretraining_run(run, found)
    assert source is not None
    assert (source.revision, source.path) == (100_000, (tmp_path / "moved/pretrain/imdb").resolve())


def test_the_score_is_charted_over_the_tokens(runs: Path) -> None:
    (panel,) = _charts(runs)["revisions-sst2-dev-1-000-labels-accuracy"].panels
    assert panel.x == "tokens"
    own, control = panel.series
    assert (own.label, control.label) == ("finetuned", "finetuned, control")
    assert [(place, score.values) for place, score in own.points] == list(
        zip((0, 2048, 100_000, 409_600), REVISIONS.values(), strict=True)
    )


def test_a_run_with_a_budget_in_words_is_charted_over_words(runs: Path) -> None:
    folder = runs / "pretrain" / "imdb"
    config = yaml.safe_load((folder / "config.yaml").read_text())
    config["train"] = {"words": 300_000}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    result = json.loads((folder / "result.json").read_text())
    (folder / "result.json").write_text(json.dumps({**result, "words": 300_000}))
    (panel,) = _charts(runs)["revisions-sst2-dev-1-000-labels-accuracy"].panels
    assert panel.x == "words"
    assert [place for place, _ in panel.series[0].points] == pytest.approx([0, 1500, 73242.2, 300_000], abs=0.1)


def test_without_revisions_there_is_no_such_chart(tmp_path: Path) -> None:
    pretraining(tmp_path / "pretrain" / "imdb")
    for name in ("one", "two"):
        transfer(tmp_path / "finetune" / name, (0.6, 0.7), init=f"{tmp_path}/pretrain/imdb")
    assert not [name for name in _charts(tmp_path) if name.startswith("revisions")]


def test_a_sweep_over_revisions_is_over_tokens_and_is_drawn_once(runs: Path) -> None:
    for revision, scores in REVISIONS.items():
        init = f"{runs}/pretrain/imdb{revision}"
        transfer(runs / "finetune" / "sweep" / f"init=imdb{revision}-{len(revision)}", scores, init=init)
    (sweep,) = find_sweeps(make_entries(collect(runs)))
    assert sweep.keys == ("tokens of pretraining",)
    assert [point.values for point in sweep.points] == [(0,), (2048,), (100_000,), (409_600,)]
    assert not [name for name in _charts(runs) if name.startswith("sweep")]
