"""Budgets and learning rates: which one is in effect."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fakes.configs import write_tree
from omegaconf import DictConfig, OmegaConf
from support.refusals import refuses

from lmtransfer.config import overrides, paths
from lmtransfer.config.composing import command_config
from lmtransfer.config.effective import check_budget, complete_budget, complete_learning_rates
from lmtransfer.config.settings import TrainSettings
from lmtransfer.errors import ConfigError

Typed = Callable[..., None]


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> Typed:
    """Set the overrides of the running command."""
    return lambda *words: monkeypatch.setattr(overrides, "command_line_overrides", lambda: list(words))


@pytest.fixture
def conf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {
        "timed.yaml": "train:\n  steps: null\n  tokens: null\n  epochs: null\n  seconds: 600\n",
        "probing.yaml": "train:\n  steps: null\n  tokens: null\n  epochs: 10\n  seconds: null\n  min_steps: 600\n",
        "open.yaml": "train:\n  steps: null\n  tokens: null\n  epochs: null\n  seconds: null\n",
    }
    folder = write_tree(tmp_path, files)
    monkeypatch.setattr(paths, "conf_dir", lambda: folder)


def settled(primary: str, **train: Any) -> dict[str, Any]:
    """What is left of ``train``, given its composed values."""
    cfg = OmegaConf.create({"train": {"steps": None, "tokens": None, "epochs": None, "seconds": None, **train}})
    complete_budget(cfg, primary=primary)
    return {kind: value for kind, value in cfg.train.items() if value is not None}


@pytest.mark.parametrize(
    ("primary", "words", "train", "left"),
    [
        ("timed", [], {"seconds": 600}, {"seconds": 600}),
        # the command line wins over the command's file and over an experiment, which wins over the command's file
        ("timed", ["seed=1", "train.steps=500"], {"steps": 500, "seconds": 600}, {"steps": 500}),
        ("timed", ["++train.steps=500"], {"steps": 500, "seconds": 600}, {"steps": 500}),
        ("open", ["experiment=x", "train.epochs=2"], {"epochs": 2, "seconds": 170}, {"epochs": 2}),
        ("timed", ["experiment=x", "train.epochs=2"], {"epochs": 2, "steps": 9, "seconds": 600}, {"epochs": 2}),
        ("timed", ["experiment=x"], {"steps": 500, "seconds": 600}, {"steps": 500}),
        ("timed", ["experiment=x", "train.seconds=600"], {"steps": 500, "seconds": 600}, {"seconds": 600}),
        ("timed", ["train.seconds=null", "train.steps=5"], {"steps": 5}, {"steps": 5}),
        # min_steps of the command's file goes with its epochs
        ("probing", [], {"epochs": 10, "min_steps": 600}, {"epochs": 10, "min_steps": 600}),
        ("probing", ["train.epochs=3"], {"epochs": 3, "min_steps": 600}, {"epochs": 3}),
        ("probing", ["train.epochs=10"], {"epochs": 10, "min_steps": 600}, {"epochs": 10}),
        ("probing", ["experiment=x"], {"epochs": 20, "min_steps": 600}, {"epochs": 20}),
        ("probing", ["train.steps=7"], {"epochs": 10, "steps": 7, "min_steps": 600}, {"steps": 7}),
        ("probing", ["train.epochs=3", "train.min_steps=600"], {"epochs": 3, "min_steps": 600},
         {"epochs": 3, "min_steps": 600}),
        ("probing", ["experiment=x"], {"epochs": 20, "min_steps": 90}, {"epochs": 20, "min_steps": 90}),
    ],
)  # fmt: skip
def test_one_budget_is_in_effect(
    primary: str, words: list[str], train: dict[str, Any], left: dict[str, Any], typed: Typed, conf: None
) -> None:
    typed(*words)
    assert settled(primary, **train) == left


def effective_train(cfg: DictConfig, *, primary: str) -> TrainSettings:
    complete_budget(cfg, primary=primary)
    settings = TrainSettings.from_config(cfg.train)
    check_budget(settings)
    return settings


def test_two_budgets_of_one_place_are_an_error(typed: Typed, conf: None) -> None:
    typed("train.steps=5", "train.tokens=7")
    with refuses(ConfigError, "train.steps=5", "train.tokens=7", "command line") as raised:
        settled("timed", steps=5, tokens=7, seconds=600)
    assert "train.seconds" not in str(raised.value)
    typed()
    with refuses(ConfigError, "train.steps=5", "train.seconds=9", "files"):
        settled("timed", steps=5, seconds=9)
    with refuses(ConfigError, "train.steps", "train.tokens", "train.epochs", "train.seconds"):
        effective_train(OmegaConf.create({"train": {"seconds": None}}), primary="open")
    typed("train.steps=7", "train.min_steps=600")
    with refuses(ConfigError, "train.min_steps=600", "train.steps=7"):
        effective_train(OmegaConf.create({"train": {"epochs": 10, "steps": 7, "min_steps": 600}}), primary="probing")


def test_the_effective_settings_have_one_budget_and_settling_again_changes_nothing(typed: Typed, conf: None) -> None:
    cfg = OmegaConf.create({"train": {"steps": 1e3, "seconds": 600, "log_every": 3}})
    typed("train.steps=1e3")
    settings = effective_train(cfg, primary="timed")
    assert (settings.steps, settings.seconds, settings.log_every) == (1000, None, 3)
    typed()
    assert effective_train(cfg, primary="timed") == settings


@pytest.mark.parametrize(
    ("words", "settings", "searched"),
    [
        ([], {}, True),
        (["seed=1", "train.epochs=3", "optimizer.weight_decay=0.1"], {}, True),
        (["+optimizer.learning_rate=1e-3"], {}, False),
        (["learning_rates=[1e-4,5e-4]", "optimizer.learning_rate=1e-3"], {}, True),
        # only examples that are not scored choose
        ([], {"task": {"dev_from_train": 0.1}, "split": "dev"}, True),
        ([], {"task": {"dev_from_train": None}, "split": "test"}, True),  # dev chooses
        ([], {"task": {"dev_from_train": None}, "split": "dev"}, False),
        ([], {"task": {}, "split": "dev"}, False),
        ([], {"task": {"dev_from_train": 0.1, "folds": 5}, "split": "dev"}, False),
        (["learning_rates=[1e-4,5e-4]"], {"task": {}, "split": "dev"}, True),  # the command refuses it
    ],
)
def test_rates_are_searched(words: list[str], settings: dict[str, Any], searched: bool, typed: Typed) -> None:
    typed(*words)
    cfg = OmegaConf.create({"learning_rates": [1e-4, 5e-4], "optimizer": {"learning_rate": 5e-4}, **settings})
    complete_learning_rates(cfg)
    assert cfg.learning_rates == ([1e-4, 5e-4] if searched else None)


def test_the_laptop_recipe_searches_unless_a_rate_is_given() -> None:
    words = ["experiment=laptop_finetune", "init=x", "task=sst2"]
    with command_config("finetune", words) as cfg:
        assert len(cfg.learning_rates) == 2
        assert cfg.optimizer.learning_rate in cfg.learning_rates
    with command_config("finetune", [*words, "optimizer.learning_rate=2e-4"]) as cfg:
        assert (cfg.learning_rates, cfg.optimizer.learning_rate) == (None, 2e-4)
