from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fakes import configs
from fakes.configs import check_problems, write_tree
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf
from support.refusals import refuses

from lmtransfer.config import paths
from lmtransfer.config.check import check
from lmtransfer.config.settings import COMMANDS, HardwareSettings, ObjectiveSettings, Settings, TrainSettings
from lmtransfer.config.types import Whole
from lmtransfer.errors import ConfigError

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

NODES = {"model": {"vocab_size"}, "objective.losses.guess": set[str]()}


class ToySettings(Settings):
    name: str = ""
    seed: Whole = 0
    share: float = 0.0
    limit: int = 0
    verbose: bool = False
    where: str | None = None
    train: TrainSettings = TrainSettings()
    hardware: HardwareSettings = HardwareSettings()
    model: Any = None
    objective: ObjectiveSettings = ObjectiveSettings()


@pytest.fixture(autouse=True)
def conf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = write_tree(tmp_path / "conf", FILES)
    monkeypatch.setattr(paths, "conf_dir", lambda: folder)
    monkeypatch.setitem(COMMANDS, "train", ToySettings)  # type: ignore[misc]
    configs.allow(monkeypatch)
    return folder


def composed(conf: Path, *overrides: str, **changes: Any) -> DictConfig:
    with initialize_config_dir(config_dir=str(conf), version_base="1.3"):
        return compose("train", overrides=list(overrides))


def problems(cfg: DictConfig) -> list[str]:
    with pytest.raises(ConfigError) as error:
        check(cfg, primary="train", nodes=NODES)
    return error.value.problems


def test_a_good_config_passes(conf: Path) -> None:
    check(composed(conf), primary="train", nodes=NODES)


def test_all_problems_are_listed_at_once_in_the_order_of_their_keys(conf: Path) -> None:
    cfg = composed(
        conf,
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
        "name=true",
        "objective.losses.guess.size=???",
    )
    found = problems(cfg)
    expected = {
        "hardware.precision": ("'bf61'", "auto, fp32, bf16, fp16"),
        "limit": ("1.5", "integer"),
        "model.depth": ("Net",),
        "model.dim": ("'abc'", "integer"),
        "name": ("true", "text"),
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


def test_what_was_written_loosely_is_put_right(conf: Path) -> None:
    cfg = composed(conf, "train.steps=1e3", "limit=2e1", "train.eval_tokens=1e5", "share=1")
    check(cfg, primary="train", nodes=NODES)
    assert (cfg.train.steps, cfg.limit, cfg.train.eval_tokens, cfg.share) == (1000, 20, 100000, 1.0)
    assert [type(value) for value in (cfg.train.steps, cfg.limit)] == [int, int]


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
    check_problems(problems(composed(conf, *words)), expected)


def test_a_component_that_is_null_is_an_answer(conf: Path) -> None:
    cfg = composed(conf)
    cfg.model = None
    check(cfg, primary="train", nodes=NODES)


def test_runtime_arguments_are_not_missing_and_others_are(conf: Path) -> None:
    cfg = OmegaConf.create({"model": {"_target_": "fakes.configs.Part"}})
    with refuses(ConfigError, "model.size: ", "Part"):
        check(cfg, primary="train", nodes={"model": {"vocab_size"}})
    check(cfg, primary="train", nodes={"model": {"size"}})
    check(cfg, primary="train")  # the command does not build it, and may know more
