"""Budgets and learning rates: which one is in effect."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from support.refusals import refuses

from lmtransfer.config.budget import check_budget, settle, with_one_budget
from lmtransfer.config.check import read_group
from lmtransfer.config.component import Node
from lmtransfer.config.settings import CommandSettings, TrainSettings, TransferSettings
from lmtransfer.errors import ConfigError
from lmtransfer.launch.run_once import command_settings

#: What the files of three commands say.
OWN: dict[str, dict[str, Any]] = {
    "timed": {"steps": None, "tokens": None, "epochs": None, "seconds": 600},
    "probing": {"steps": None, "tokens": None, "epochs": 10, "seconds": None, "min_steps": 600},
    "open": {"steps": None, "tokens": None, "epochs": None, "seconds": None},
}


def settled(primary: str, words: Sequence[str], **train: Any) -> TrainSettings:
    given = CommandSettings(words=tuple(words)).given
    return with_one_budget(read_group(TrainSettings, train, key="train"), OWN[primary], given)


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
def test_one_budget_is_in_effect(primary: str, words: list[str], train: dict[str, Any], left: dict[str, Any]) -> None:
    once = settled(primary, words, **train)
    assert {kind: value for kind, value in once.plain().items() if value is not None} == left
    assert with_one_budget(once, OWN[primary], {}) == once or primary == "probing"  # settling again changes nothing


def test_two_budgets_of_one_place_are_an_error() -> None:
    with refuses(ConfigError, "train.steps=5", "train.tokens=7", "command line") as raised:
        settled("timed", ["train.steps=5", "train.tokens=7"], steps=5, tokens=7, seconds=600)
    assert "train.seconds" not in str(raised.value)
    with refuses(ConfigError, "train.steps=5", "train.seconds=9", "files"):
        settled("timed", [], steps=5, seconds=9)
    with refuses(ConfigError, "train.steps", "train.tokens", "train.epochs", "train.seconds"):
        check_budget(settled("open", [], seconds=None))
    words = ["train.steps=7", "train.min_steps=600"]
    with refuses(ConfigError, "train.min_steps=600", "train.steps=7"):
        check_budget(settled("probing", words, epochs=10, steps=7, min_steps=600))


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
def test_rates_are_searched(words: list[str], settings: dict[str, Any], searched: bool) -> None:
    rates = [1e-4, 5e-4]
    transfer = TransferSettings.model_construct(
        words=tuple(words),
        learning_rates=rates,
        train=TrainSettings(),
        task=Node({"_target_": "a.Task", **settings.get("task", {"dev_from_train": 0.1})}),
        split=settings.get("split", "dev"),
    )
    assert settle(transfer, {}).learning_rates == (rates if searched else None)


def test_the_laptop_recipe_searches_unless_a_rate_is_given() -> None:
    words = ["experiment=laptop_finetune", "init=x", "task=sst2"]
    settings: Any = command_settings("finetune", words)
    assert len(settings.learning_rates) == 2
    assert settings.optimizer.get("learning_rate") in settings.learning_rates
    settings = command_settings("finetune", [*words, "optimizer.learning_rate=2e-4"])
    assert (settings.learning_rates, settings.optimizer.get("learning_rate")) == (None, 2e-4)
