from __future__ import annotations

import pytest
from fakes.configs import check_problems
from omegaconf import OmegaConf
from refusals import refuses

from lmtransfer.config.schema import SCHEMAS, HardwareSettings, TrainSettings
from lmtransfer.errors import ConfigError


def test_settings_are_read_with_their_types() -> None:
    settings = TrainSettings.from_config(OmegaConf.create({"steps": 1e3, "epochs": 2, "log_every": 5}))
    assert settings == TrainSettings(steps=1000, epochs=2.0, log_every=5)
    assert type(settings.steps) is int
    assert type(settings.epochs) is float


def test_keys_of_the_command_itself_are_left_to_it() -> None:
    assert TrainSettings.from_config(OmegaConf.create({"eval_tokens": 3})) == TrainSettings()


def test_all_problems_are_named_with_the_full_key() -> None:
    cfg = OmegaConf.create({"train": {"steps": 0, "num_workers": -1, "log_every": None, "patience": "???"}})
    with pytest.raises(ConfigError) as error:
        TrainSettings.from_config(cfg.train)
    expected = {
        "train.steps": (" 0",),
        "train.num_workers": ("-1", " 0"),
        "train.log_every": ("null", "integer"),
        "train.patience": ("train.patience=<value>",),
    }
    check_problems(error.value.problems, expected)


@pytest.mark.parametrize("value", [float("nan"), -1.0, 0.0])
def test_a_budget_is_more_than_nothing(value: float) -> None:
    with refuses(ConfigError, "seconds: ", f"{value}", " 0"):
        TrainSettings.from_config(OmegaConf.create({"seconds": value}))


@pytest.mark.parametrize(("value", "expected"), [("auto", "auto"), (True, True), (False, False)])
def test_compile_is_auto_or_a_switch(value: object, expected: object) -> None:
    assert HardwareSettings.from_config(OmegaConf.create({"compile": value})).compile == expected


def test_every_setting_says_what_it_means() -> None:
    for schema in SCHEMAS.values():
        docs = schema.docs()
        assert docs
        assert all(docs.values())
