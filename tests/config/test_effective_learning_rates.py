from __future__ import annotations

from typing import Any

import pytest
from omegaconf import OmegaConf

from lmtransfer.config.composing import command_config
from lmtransfer.config.effective import complete_learning_rates


def left(overrides: list[str], **settings: Any) -> Any:
    """What is left of the rates of a recipe."""
    cfg = OmegaConf.create({"learning_rates": [1e-4, 5e-4], "optimizer": {"learning_rate": 5e-4}, **settings})
    complete_learning_rates(cfg, overrides=overrides)
    return cfg.learning_rates


def test_the_rates_of_a_recipe_are_searched() -> None:
    assert left([]) == left(["seed=1", "train.epochs=3", "optimizer.weight_decay=0.1"]) == [1e-4, 5e-4]


@pytest.mark.parametrize("override", ["optimizer.learning_rate=1e-3", "+optimizer.learning_rate=1e-3"])
def test_a_rate_on_the_command_line_takes_their_place(override: str) -> None:
    assert left([override]) is None


def test_rates_on_the_command_line_stay() -> None:
    assert left(["learning_rates=[1e-4,5e-4]", "optimizer.learning_rate=1e-3"]) == [1e-4, 5e-4]


@pytest.mark.parametrize(
    ("task", "split", "searched"),
    [
        ({"dev_from_train": 0.1}, "dev", True),
        ({"dev_from_train": None}, "test", True),  # dev chooses
        ({"dev_from_train": None}, "dev", False),
        ({}, "dev", False),
        ({"dev_from_train": 0.1, "folds": 5}, "dev", False),
    ],
)
def test_only_examples_that_are_not_scored_choose(task: dict[str, Any], split: str, searched: bool) -> None:
    assert (left([], task=task, split=split) is not None) == searched
    given = ["learning_rates=[1e-4,5e-4]"]
    assert left(given, task=task, split=split) == [1e-4, 5e-4]  # the command refuses what it cannot do


def test_the_laptop_recipe_searches_unless_a_rate_is_given() -> None:
    words = ["experiment=laptop_finetune", "init=x", "task=sst2"]
    with command_config("finetune", words) as cfg:
        assert len(cfg.learning_rates) == 2
        assert cfg.optimizer.learning_rate in cfg.learning_rates
    with command_config("finetune", [*words, "optimizer.learning_rate=2e-4"]) as cfg:
        assert (cfg.learning_rates, cfg.optimizer.learning_rate) == (None, 2e-4)
