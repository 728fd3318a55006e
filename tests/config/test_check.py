from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import pytest
from fakes import configs
from fakes.configs import check_problems, write_tree
from pydantic import ValidationError
from support.refusals import refuses

from lmtransfer.config import paths
from lmtransfer.config.check import read_settings
from lmtransfer.config.component import BROKEN, Node, Supplied
from lmtransfer.config.settings import (
    COMMANDS,
    CommandSettings,
    HardwareSettings,
    Settings,
    TrainSettings,
)
from lmtransfer.config.types import Name, Whole
from lmtransfer.errors import ConfigError
from lmtransfer.launch.composing import compose
from lmtransfer.launch.run_once import settings_of

FILES = {
    "train.yaml": """
        # Train a toy.
        defaults:
          - model: small
          - objective: guess
          - hardware: auto
          - _self_
        name: train
        seed: 0
        share: 0.5
        limit: 20
        verbose: false
        where: ${oc.env:A_VARIABLE_NOBODY_SETS,null}
        train:
          steps: 10
          seconds: null
          batch_tokens: 64
          eval_tokens: 1000
    """,
    "model/small.yaml": """
        # A small toy
        _target_: fakes.configs.Net
        dim: 8
    """,
    "objective/guess.yaml": """
        # A node of plain keys and components
        mask_prob: 0.2
        losses:
          guess:
            _target_: fakes.configs.Part
            size: 3
    """,
    "hardware/auto.yaml": "device: auto\nprecision: auto\nthreads: null\ncompile: auto\n",
}


class ToyObjective(Settings):
    mask_prob: float = 0.0
    losses: Mapping[str, Annotated[Node[Any], Supplied()]]


class ToySettings(CommandSettings):
    name: str = ""
    seed: Whole = 0
    share: float = 0.0
    limit: int = 0
    verbose: bool = False
    where: str | None = None
    train: TrainSettings = TrainSettings()
    hardware: HardwareSettings = HardwareSettings()
    model: Annotated[Node[Any], Supplied("vocab_size")]
    objective: ToyObjective


@pytest.fixture(autouse=True)
def conf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = write_tree(tmp_path / "conf", FILES)
    monkeypatch.setattr(paths, "conf_dir", lambda: folder)
    monkeypatch.setitem(COMMANDS, "train", ToySettings)  # type: ignore[misc]
    configs.allow(monkeypatch)
    return folder


def composed(*overrides: str) -> ToySettings:
    settings = settings_of(compose("train", overrides))
    assert isinstance(settings, ToySettings)
    return settings


def problems(*overrides: str) -> list[str]:
    with pytest.raises(ConfigError) as error:
        composed(*overrides)
    return error.value.problems


def test_a_good_config_passes() -> None:
    settings = composed()
    assert settings.objective.losses["guess"].get("size") == 3


def test_all_problems_are_listed_at_once_in_the_order_of_their_keys() -> None:
    found = problems(
        "model.dim=abc",
        "+model.depth=3",
        "+trian.steps=5",
        "+train.stpes=5",
        "train.steps=-3",
        "hardware.precision=bf61",
        "seed=x",
        "share=much",
        "limit=1.5",
        "verbose=1",
        "name=[a]",
        "objective.losses.guess.size=???",
    )
    expected = {
        "hardware.precision": ("'bf61'", "auto, fp32, bf16, fp16"),
        "limit": ("1.5", "integer"),
        "model.depth": ("Net",),
        "model.dim": ("'abc'", "integer"),
        "name": ("['a']", "text"),
        "objective.losses.guess.size": ("objective.losses.guess.size=<value>",),
        "seed": ("'x'", "integer"),
        "share": ("'much'", "number"),
        "train.steps": ("-3", "1 or more"),
        "train.stpes": ("'steps'",),
        "trian": ("'train'",),
        "verbose": ("1", "true", "false"),
    }
    check_problems(found, expected)
    assert [problem.partition(":")[0] for problem in found] == sorted(expected)


def test_what_was_written_loosely_is_put_right() -> None:
    settings = composed("train.steps=1e3", "limit=2e1", "train.eval_tokens=1e5", "share=1")
    train = settings.train
    assert (train.steps, settings.limit, train.eval_tokens, settings.share) == (1000, 20, 100000, 1.0)
    assert [type(value) for value in (train.steps, settings.limit)] == [int, int]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["+train.batch_examples=3"], {"train.batch_examples": ("steps, seconds, batch_tokens, eval_tokens",)}),
        (["train=5"], {"train": ("5", "steps, seconds, batch_tokens, eval_tokens")}),
        (["~model"], {"model": ("model=<name>",)}),
        (["+objective.losses.more={_target_:fakes.configs.Part,size:big}"],
         {"objective.losses.more.size": ("'big'", "integer")}),
        (["model._target_=os.system", "seed=x"],
         {"model._target_": ("'os.system'", "LMTRANSFER_ALLOW"), "seed": ("'x'", "integer")}),
        (["+experiment=mine"], {"trian": ("'train'",)}),
    ],
    ids=["of another command", "no group", "no component", "added component", "hostile", "unknown key of a file"],
)  # fmt: skip
def test_a_problem_is_named(conf: Path, words: list[str], expected: dict[str, tuple[str, ...]]) -> None:
    write_tree(conf, {"experiment/mine.yaml": "# @package _global_\ntrian:\n  steps: 3\n"})
    check_problems(problems(*words), expected)


class PlainSettings(CommandSettings):
    name: Name
    share: float
    limit: Whole | None = None
    hardware: HardwareSettings
    model: Annotated[Node[Any], Supplied("vocab_size")]
    other: Annotated[Node[Any], Supplied()] | None = None


KNOWN = {
    "name": None,
    "share": None,
    "limit": None,
    "hardware": {"device": None},
    "model": None,
    "mine": None,
    "other": None,
}
VALUES = {
    "name": "a",
    "share": 1,
    "hardware": {"device": "cpu"},
    "model": {"_target_": "fakes.configs.Net", "dim": 1e1},
    "mine": [1, {"a": None}],
}


def read(values: dict[str, Any], **more: Any) -> PlainSettings:
    return read_settings(PlainSettings, values, command="train", known=KNOWN, **more)


def test_settings_are_an_object_with_the_values_of_the_config() -> None:
    settings = read(VALUES).model_copy(update={"words": ("share=1", "~limit")})
    assert (settings.name, settings.share, settings.limit, settings.other) == ("a", 1.0, None, None)
    assert settings.hardware.device == "cpu"
    assert settings.model.build(vocab_size=5).dim == 10
    assert settings.given == {"share": "share=1", "limit": "~limit"}
    with pytest.raises(ValidationError, match="frozen"):
        settings.name = "b"  # type: ignore[misc]


def test_arguments_that_the_command_does_not_supply_are_missing() -> None:
    part = {"_target_": "fakes.configs.Part"}
    with refuses(ConfigError, "model.size: ", "Part"):
        read({**VALUES, "model": part})
    with refuses(ConfigError, "other.size: ", "Part"):
        read({**VALUES, "other": part})


def test_settings_become_the_config_again_with_what_was_worked_out() -> None:
    assert read(VALUES).plain() == VALUES
    limit = read({**VALUES, "limit": 2e1}).plain()["limit"]
    assert (limit, type(limit)) == (20, int)
    settings = read(VALUES).model_copy(update={"limit": 3, "model": read(VALUES).model.replace(dim=2)})
    assert settings.plain() == {**VALUES, "limit": 3, "model": {"_target_": "fakes.configs.Net", "dim": 2}}
    assert read(VALUES).plain() == VALUES


def test_settings_have_all_problems_at_once() -> None:
    values = {
        "name": "",
        "limit": BROKEN,
        "hardware": {"device": 5, "threads": 2},
        "model": {"_target_": "fakes.configs.Net", "dim": "x", "vocab_size": 3},
        "nmae": 1,
    }
    with pytest.raises(ConfigError) as error:
        read(values, problems={"limit": "missing: set limit=<value>"})
    expected = {
        "hardware.device": ("5", "text"),
        "hardware.threads": ("no such key", "device"),
        "limit": ("limit=<value>",),
        "model.dim": ("'x'", "integer"),
        "model.vocab_size": ("the command sets",),
        "name": ("''", "run name"),
        "nmae": ("'name'",),
        "share": ("missing", "share=<value>"),
    }
    check_problems(error.value.problems, expected)


@pytest.mark.parametrize(
    ("changes", "key", "names"),
    [
        ({"model": None}, "model", ("null", "model=<name>")),
        ({"model": {"dim": 3}}, "model", ("_target_", "model=<name>")),
        ({"model": "bert"}, "model", ("_target_", "model=<name>")),
        ({"hardware": None}, "hardware", ("None", "device")),
        ({"hardware": {"device": None}}, "hardware.device", ("null", "text")),
    ],
)
def test_what_is_no_component_and_no_group_is_named(changes: dict[str, Any], key: str, names: tuple[str, ...]) -> None:
    with refuses(ConfigError, f"{key}: ", *names):
        read({**VALUES, **changes})


class SeveralSettings(CommandSettings):
    parts: Mapping[str, Annotated[Node[Any], Supplied("size")]]


def test_each_of_several_components_has_a_key_of_its_own() -> None:
    def read_parts(parts: object) -> SeveralSettings:
        return read_settings(SeveralSettings, {"parts": parts}, command="train")

    part = {"_target_": "fakes.configs.Part"}
    assert read_parts({"a": part}).plain() == {"parts": {"a": part}}
    assert read_parts({"a": part}).parts["a"].build(size=3).size == 3
    with refuses(ConfigError, "parts._target_: ", "parts.<name>._target_"):
        read_parts(part)
    with refuses(ConfigError, "parts.b: ", "null"):
        read_parts({"a": part, "b": None})
    with refuses(ConfigError, "parts: ", "3"):
        read_parts(3)


def test_what_is_left_out_is_missing_or_null() -> None:
    without = {name: value for name, value in VALUES.items() if name not in ("model", "share", "limit")}
    with pytest.raises(ConfigError) as error:
        read(without)
    check_problems(error.value.problems, {"model": ("missing", "model=<name>"), "share": ("missing", "share=<value>")})
