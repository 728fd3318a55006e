from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fakes.configs import write_tree
from omegaconf import OmegaConf
from support.refusals import refuses

from lmtransfer.config import paths
from lmtransfer.config.effective import complete_budget, effective_train
from lmtransfer.errors import ConfigError


@pytest.fixture(autouse=True)
def conf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {
        "timed.yaml": "train:\n  steps: null\n  tokens: null\n  epochs: null\n  seconds: 600\n",
        "probing.yaml": "train:\n  steps: null\n  tokens: null\n  epochs: 10\n  seconds: null\n  min_steps: 600\n",
        "open.yaml": "train:\n  steps: null\n  tokens: null\n  epochs: null\n  seconds: null\n",
    }
    folder = write_tree(tmp_path, files)
    monkeypatch.setattr(paths, "conf_dir", lambda: folder)


def settled(primary: str, overrides: list[str], **train: Any) -> dict[str, Any]:
    """What is left of ``train``, given its composed values."""
    cfg = OmegaConf.create({"train": {"steps": None, "tokens": None, "epochs": None, "seconds": None, **train}})
    complete_budget(cfg, primary=primary, overrides=overrides)
    return {kind: value for kind, value in cfg.train.items() if value is not None}


def test_a_single_budget_stays() -> None:
    assert settled("timed", [], seconds=600) == {"seconds": 600}


@pytest.mark.parametrize("override", ["train.steps=500", "+train.steps=500", "++train.steps=500"])
def test_the_command_line_wins_over_the_commands_file(override: str) -> None:
    assert settled("timed", ["seed=1", override], steps=500, seconds=600) == {"steps": 500}


def test_the_command_line_wins_over_an_experiment() -> None:
    assert settled("open", ["experiment=x", "train.epochs=2"], epochs=2, seconds=170) == {"epochs": 2}
    assert settled("timed", ["experiment=x", "train.epochs=2"], epochs=2, steps=9, seconds=600) == {"epochs": 2}


def test_an_experiment_wins_over_the_commands_file() -> None:
    assert settled("timed", ["experiment=x"], steps=500, seconds=600) == {"steps": 500}


def test_a_budget_repeated_on_the_command_line_still_wins() -> None:
    assert settled("timed", ["experiment=x", "train.seconds=600"], steps=500, seconds=600) == {"seconds": 600}


def test_two_budgets_on_the_command_line_are_an_error() -> None:
    with refuses(ConfigError, "train.steps=5", "train.tokens=7", "command line") as raised:
        settled("timed", ["train.steps=5", "train.tokens=7"], steps=5, tokens=7, seconds=600)
    assert "train.seconds" not in str(raised.value)


def test_two_budgets_in_an_experiment_are_an_error() -> None:
    with refuses(ConfigError, "train.steps=5", "train.seconds=9", "files"):
        settled("timed", [], steps=5, seconds=9)


def test_a_budget_set_to_null_on_the_command_line_is_none() -> None:
    assert settled("timed", ["train.seconds=null", "train.steps=5"], steps=5) == {"steps": 5}
    with refuses(ConfigError, "train.steps", "train.tokens", "train.epochs", "train.seconds"):
        effective_train(OmegaConf.create({"train": {"seconds": None}}), primary="open", overrides=[])


def test_the_effective_settings_have_one_budget_and_settling_again_changes_nothing() -> None:
    cfg = OmegaConf.create({"train": {"steps": 1e3, "seconds": 600, "log_every": 3}})
    settings = effective_train(cfg, primary="timed", overrides=["train.steps=1e3"])
    assert (settings.steps, settings.seconds, settings.log_every) == (1000, None, 3)
    assert effective_train(cfg, primary="timed", overrides=[]) == settings


def test_a_command_without_training_has_no_budget() -> None:
    cfg = OmegaConf.create({"what": "all"})
    complete_budget(cfg, primary="open", overrides=[])
    assert cfg == {"what": "all"}


@pytest.mark.parametrize(
    ("overrides", "train", "left"),
    [
        ([], {"epochs": 10, "min_steps": 600}, {"epochs": 10, "min_steps": 600}),
        (["train.epochs=3"], {"epochs": 3, "min_steps": 600}, {"epochs": 3}),
        (["train.epochs=10"], {"epochs": 10, "min_steps": 600}, {"epochs": 10}),
        (["experiment=x"], {"epochs": 20, "min_steps": 600}, {"epochs": 20}),
        (["train.steps=7"], {"epochs": 10, "steps": 7, "min_steps": 600}, {"steps": 7}),
        (["experiment=x"], {"epochs": 10, "seconds": 5, "min_steps": 600}, {"seconds": 5}),
        (["train.epochs=3", "train.min_steps=600"], {"epochs": 3, "min_steps": 600}, {"epochs": 3, "min_steps": 600}),
        (["experiment=x"], {"epochs": 20, "min_steps": 90}, {"epochs": 20, "min_steps": 90}),
        (["train.min_steps=null"], {"epochs": 10, "min_steps": None}, {"epochs": 10}),
    ],
)
def test_the_least_steps_of_the_commands_file_go_with_its_epochs(
    overrides: list[str], train: dict[str, Any], left: dict[str, Any]
) -> None:
    assert settled("probing", overrides, **train) == left


def test_least_steps_that_are_named_do_not_go_with_another_budget() -> None:
    cfg = OmegaConf.create({"train": {"epochs": 10, "steps": 7, "min_steps": 600}})
    with refuses(ConfigError, "train.min_steps=600", "train.steps=7"):
        effective_train(cfg, primary="probing", overrides=["train.steps=7", "train.min_steps=600"])
