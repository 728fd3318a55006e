"""Settings of a call from Python: Hydra reads back the values that were given."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf
from support.refusals import refuses

from lmtransfer.api import Run, checked, command_line, written
from lmtransfer.config.types import TopK
from lmtransfer.errors import ConfigError

VALUES = [
    None,
    True,
    False,
    0,
    -3,
    1e-5,
    float("inf"),
    "",
    "bert_tiny",
    "my/texts",
    "null",
    "True",
    "1",
    "1e3",
    'a, b [c] {d: e} = ${oc.env:HOME} it\'s "quoted" \\ #',
    "runs/pretrain/imdb/objective.mask_prob=0.15",
    "ein Stück\nweiter",
    ["a b", 1, None, ["x,y"]],
    {"a": 1, "b": ["x y", {"c": "null"}]},
]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_hydra_reads_the_value_that_was_given(value: Any) -> None:
    read = OverridesParser.create().parse_override(f"key={written(value, 'key')}").value()

    plain = OmegaConf.to_container(OmegaConf.create({"key": read}), resolve=True)
    assert isinstance(plain, dict)
    assert plain["key"] == value
    assert type(plain["key"]) is type(value)


def test_numbers_of_numpy_and_paths_are_numbers_and_text() -> None:
    assert written(np.int64(7), "key") == "7"
    assert float(written(np.float32(0.5), "key")) == 0.5
    assert written(Path("runs/a"), "key") == written(Run(Path("runs/a")), "key") == "runs/a"
    assert math.isnan(float(written(float("nan"), "key")))


def test_strings_are_words_and_keywords_are_keys() -> None:
    line = command_line(
        ["corpus=text", "corpus.path=my/texts"],
        {"name": "mine", "train": {"steps": 3, "seconds": None}},
        config_dir="conf",
    )
    assert line.overrides == ["corpus=text", "corpus.path=my/texts", "name=mine", "train.steps=3", "train.seconds=null"]
    assert line.config_dir == "conf"
    assert command_line(["runs/a"], {}, config_dir=None).bare == ["runs/a"]
    assert command_line([Path("runs/mask_prob=0.4")], {}, config_dir=None).bare == ["runs/mask_prob=0.4"]


def test_mistakes_name_the_key() -> None:
    with refuses(ConfigError, "name"):
        command_line(["name=a"], {"name": "b"}, config_dir=None)
    with refuses(ConfigError, "train.steps"):
        command_line(["train.steps=1"], {"train": {"steps": 2}}, config_dir=None)
    with refuses(ConfigError, "model.dim", "object"):
        command_line([], {"model": {"dim": object()}}, config_dir=None)
    with refuses(ConfigError, "3"):
        command_line([3], {}, config_dir=None)  # type: ignore[list-item]


@checked
def call(
    texts: str | Sequence[str], *, top_k: TopK = 5, precision: Literal["fp32", "bf16"] = "fp32", trust: bool = False
) -> int:
    return len(texts)


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        ({"texts": None}, ["texts=None", "text"]),
        ({"texts": b"bytes"}, ["texts=b'bytes'"]),
        ({"texts": ["a", None]}, ["texts[1]=None", "text"]),
        ({"texts": {"a": "b"}}, ["texts={'a': 'b'}"]),
        ({"texts": "a", "precision": "fp8"}, ["precision='fp8'", "fp32, bf16"]),
        ({"texts": "a", "top_k": 2.5}, ["top_k=2.5", "integer"]),
        ({"texts": "a", "top_k": 0}, ["top_k=0", "1 or more"]),
        ({"texts": 3, "trust": "yes"}, ["texts=3", "trust='yes'", "true or false"]),
    ],
)
def test_an_argument_that_does_not_fit_its_annotation_is_named(arguments: dict[str, Any], names: list[str]) -> None:
    with refuses(ConfigError, *names):
        call(**arguments)


@pytest.mark.parametrize("texts", ["ab", ["a", "b"], ("a", "b"), np.array(["a", "b"])], ids=repr)
def test_texts_are_one_text_or_any_list_of_them(texts: Any) -> None:
    assert call(texts, top_k=np.int64(3)) == 2  # type: ignore[arg-type]
