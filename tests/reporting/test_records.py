"""All runs as one table: every score of every seed, and back from the files."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
from fakes.runs import pretraining, transfer, write_run

from lmtransfer import load_records, report
from lmtransfer.errors import RunDirectoryError


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    root = tmp_path / "runs"
    source = pretraining(root / "pretrain" / "imdb")
    transfer(
        root / "finetune" / "ft",
        [0.70, 0.72, 0.71],
        controls=[0.66, 0.67],
        init=str(source),
        baselines={"TF-IDF": [0.6, 0.61]},
        settings={"optimizer.learning_rate": 1e-4},
    )
    transfer(
        root / "probe" / "one", [0.65], command="probe", init=str(source), settings={"optimizer.learning_rate": "auto"}
    )
    write_run(root / "pretrain" / "going", config={"init": None})
    return root


def test_each_seed_of_each_side_has_a_row(runs: Path) -> None:
    table = load_records(runs)
    of_run = table[table.run == "finetune/ft"]
    found = {side: rows.score.tolist() for side, rows in of_run.groupby("side")}
    assert found == {"run": [0.70, 0.72, 0.71], "control": [0.66, 0.67], "TF-IDF": [0.6, 0.61], "majority": [0.509]}
    assert of_run[of_run.side == "run"].seed.tolist() == [0, 1, 2]
    assert set(of_run.metric) == {"accuracy"}
    assert of_run.score.equals(of_run["metrics.accuracy"])
    assert set(of_run.pretraining) == {"pretrain/imdb"}
    assert set(of_run.pretraining_tokens) == {409600}
    assert of_run["num_train"].tolist() == [1000] * 8


def test_costs_are_those_of_the_folder_of_the_seed(runs: Path) -> None:
    for seed, seconds in enumerate((5.0, 6.0, 7.0)):
        path = runs / "finetune" / "ft" / f"seed-{seed}" / "result.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "seconds": seconds}))
    table = load_records(runs / "finetune", runs / "pretrain")
    own = table[(table.run == "finetune/ft") & (table.side == "run")]
    assert own.seconds.tolist() == [5.0, 6.0, 7.0]
    assert own.tokens.tolist() == [90000] * 3
    baseline = table[table.side == "TF-IDF"]
    assert baseline.seconds.isna().all()


def test_runs_without_a_score_have_a_row(runs: Path) -> None:
    table = load_records(runs).set_index("run")
    assert table.loc["pretrain/going", "state"] == "unfinished"
    assert pd.isna(table.loc["pretrain/going", "score"])
    assert table.loc["pretrain/imdb", "score"] == 5.0
    assert table.loc["pretrain/imdb", "metrics.mlm"] == 4.6
    with pytest.raises(RunDirectoryError):
        load_records(runs / "none")


def test_the_files_hold_the_same(runs: Path) -> None:
    table = load_records(runs)
    assert set(table["config.optimizer.learning_rate"].dropna()) == {"0.0001", '"auto"'}  # of two types: as JSON
    for kind, read in (("csv", pd.read_csv), ("parquet", pd.read_parquet)):
        folder = report(runs, format=kind, figures=False).path
        back = read(folder / f"records.{kind}")
        pd.testing.assert_frame_equal(_known(back), _known(table), check_dtype=False)


def _known(table: pd.DataFrame) -> pd.DataFrame:
    """The table with one sign for what is not known."""
    return table.astype(object).where(table.notna(), None)


def test_the_table_as_latex(runs: Path) -> None:
    folder = report(runs, format="latex", figures=False).path
    text = (folder / "table.tex").read_text(encoding="utf-8")
    assert text.startswith(r"\begin{tabular}")
    assert r"71.0 $\pm$ 1.0" in text
    assert r"accuracy (\%)" in text
