"""What a command is called with: values, groups, budgets, user configs; and that Hydra leaves no traces."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest


def test_values_and_groups_reach_the_command(lmtransfer: Any, toy: Any) -> None:
    assert lmtransfer("toy", "model=large", "seed=3", "train.steps=5", "name=x").code == 0
    cfg = toy.configs[0]
    assert (cfg["model"]["dim"], cfg["seed"], cfg["run_name"]) == (64, 3, "x")
    assert "hydra" not in cfg


def test_nothing_is_written_and_nothing_is_changed(lmtransfer: Any, toy: Any) -> None:
    before = dict(os.environ)
    folder = Path.cwd()
    lmtransfer("toy")
    lmtransfer("toy", "-m", "seed=1,2")
    assert Path.cwd() == folder
    assert list(folder.iterdir()) == []
    assert dict(os.environ) == before


@pytest.mark.parametrize(
    ("words", "budget"),
    [
        ([], {"steps": None, "seconds": 600}),
        (["train.steps=5"], {"steps": 5, "seconds": None}),
        (["experiment=quick"], {"steps": 7, "seconds": None}),
        (["experiment=quick", "train.seconds=600"], {"steps": None, "seconds": 600}),
        (["-m", "train.steps=5"], {"steps": 5, "seconds": None}),
    ],
)
def test_the_budget_that_was_asked_for_is_the_one_that_counts(
    words: list[str], budget: dict[str, Any], lmtransfer: Any, toy: Any
) -> None:
    assert lmtransfer("toy", *words).code == 0
    assert toy.configs[0]["train"] == budget


def test_text_and_awkward_paths_arrive_as_typed(lmtransfer: Any, toy: Any) -> None:
    text = "[It's] a film, isn't it? 100% {sic} ${x}"
    Path("runs/a/model.dim=3").mkdir(parents=True)
    Path("runs/a/model.dim=3/config.yaml").touch()
    lmtransfer("toy", f"text={text}", "init=runs/a/model.dim=3")
    assert (toy.configs[0]["text"], toy.configs[0]["init"]) == (text, "runs/a/model.dim=3")


def test_a_group_can_be_set_to_null(lmtransfer: Any, toy: Any) -> None:
    assert lmtransfer("toy", "model=null").code == 0
    assert lmtransfer("toy", "experiment=null").code == 0
    assert "model" not in toy.configs[0]
    assert toy.configs[1]["model"]["dim"] == 8
    primary = toy.conf / "toy.yaml"
    primary.write_text(primary.read_text().replace("experiment: null", "experiment: quick"))
    lmtransfer("toy")
    lmtransfer("toy", "experiment=null")
    assert [cfg["train"]["steps"] for cfg in toy.configs[2:]] == [7, None]


def test_configs_of_a_users_folder_are_found_and_shadowed_ones_are_warned_about(
    lmtransfer: Any, toy: Any, tmp_path: Path
) -> None:
    own = tmp_path / "own" / "model"
    own.mkdir(parents=True)
    (own / "mine.yaml").write_text("# Mine\n_target_: lmtransfer.models.bert.Pooler\ndim: 99\n")
    result = lmtransfer("toy", "-cd", str(own.parent), "model=mine")
    assert (result.code, result.err) == (0, "")
    assert toy.configs[0]["model"]["dim"] == 99
    (own / "small.yaml").write_text("dim: 1\n")
    result = lmtransfer("toy", "--config-dir", str(own.parent))
    assert str(own / "small.yaml") in result.err
    assert toy.configs[1]["model"]["dim"] == 8
    result = lmtransfer("toy", "-cd", str(own.parent), "model=mien")
    assert all(name in result.err for name in ("model=mien", "'mine'", "large, mine, small")), result.err


def test_the_config_can_be_printed_instead(lmtransfer: Any, toy: Any) -> None:
    result = lmtransfer("toy", "model=large", "-c", "job", "-p", "model")
    assert result.out == "# @package model\n_target_: lmtransfer.models.bert.Pooler\ndim: 64\n"
    assert toy.configs == []


def test_help_shows_examples_choices_and_what_fields_and_docstrings_say(lmtransfer: Any, toy: Any) -> None:
    result = lmtransfer("toy", "--help", "model=large", "model._target_=lmtransfer.models.base.Encoder")
    assert result.code == 0
    assert toy.configs == []
    lines = result.out.splitlines()
    assert lines[0] == "A toy that trains nothing, on two lines."
    assert "  lmtransfer toy seed=1     one example" in lines
    assert any(line.split() == ["model", "large*,", "small"] for line in lines)
    assert any(line.split("#") == [f"  {'name: toy':<38}", " of the run"] for line in lines)
    assert any("dim: 64" in line and line.endswith("# width D of every layer") for line in lines)
    assert any("seconds: 600" in line and "budget in wall-clock seconds" in line for line in lines)
    assert lmtransfer("help", "toy").out.startswith("A toy that trains nothing")
