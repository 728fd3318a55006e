from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from fakes.configs import check_problems
from support.refusals import refuses

from lmtransfer.config.check import read_group
from lmtransfer.config.settings import COMMANDS, HardwareSettings, Settings, TrainSettings
from lmtransfer.errors import ConfigError
from lmtransfer.launch.config_files import primary_config


def is_component(annotation: Any) -> bool:
    return any(
        name in str(annotation)
        for name in ("component.Node[", "settings.PhaseSettings", "settings.ObjectiveSettings | None")
    )


def train(values: dict[str, Any]) -> TrainSettings:
    return read_group(TrainSettings, values, key="train")


def test_settings_are_read_with_their_types() -> None:
    settings = train({"steps": 1e3, "epochs": 2, "log_every": 5})
    assert settings.plain() == {"steps": 1000, "epochs": 2, "log_every": 5}
    assert type(settings.steps) is int
    assert train({"transfers": 3}).plain() == {"transfers": 3}  # a key of the user's own


def test_all_problems_are_named_with_the_full_key() -> None:
    with pytest.raises(ConfigError) as error:
        train({"steps": 0, "num_workers": -1, "log_every": None})
    expected = {
        "train.steps": ("0", "1 or more"),
        "train.num_workers": ("-1", " 0"),
        "train.log_every": ("null", "integer"),
    }
    check_problems(error.value.problems, expected)


@pytest.mark.parametrize(
    ("value", "allowed"), [(float("nan"), "a finite number"), (-1.0, "greater than 0"), (0.0, "greater than 0")]
)
def test_a_budget_is_more_than_nothing(value: float, allowed: str) -> None:
    with refuses(ConfigError, "train.seconds: ", f"{value}", allowed):
        train({"seconds": value})


@pytest.mark.parametrize("value", ["auto", True, False])
def test_compile_is_auto_or_a_switch(value: object) -> None:
    assert read_group(HardwareSettings, {"compile": value}, key="hardware").compile is value


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_every_key_of_a_command_has_a_type_and_a_description(command: str) -> None:
    def visit(node: Mapping[str, Any], settings: type[Settings], key: str) -> None:
        for name, value in node.items():
            where, annotation = f"{key}{name}", settings.annotation_of(name)
            assert name in settings.model_fields, f"{where} has no type"
            if isinstance(annotation, type) and issubclass(annotation, Settings):
                visit(value or {}, annotation, f"{where}.")
            else:
                assert settings.model_fields[name].description, f"{where} has no description"

    visit(primary_config(command), COMMANDS[command], "")
