from __future__ import annotations

from typing import Any

import pytest
from fakes import configs
from fakes.configs import Inherits, Net, Part, check_problems
from omegaconf import OmegaConf
from support.refusals import refuses

from lmtransfer.config.component import build
from lmtransfer.errors import ConfigError


@pytest.fixture(autouse=True)
def allow_toys(monkeypatch: pytest.MonkeyPatch) -> None:
    configs.allow(monkeypatch)


def node(**arguments: Any) -> Any:
    return OmegaConf.create({"model": {"_target_": "fakes.configs.Net", **arguments}}).model


def part(**arguments: Any) -> dict[str, Any]:
    return {"_target_": "fakes.configs.Part", **arguments}


def test_config_and_runtime_arguments_are_bound_and_others_dropped() -> None:
    net = build(node(dim=1e1, rate=1), vocab_size=100, tokenizer="dropped")
    assert isinstance(net, Net)
    assert (net.vocab_size, net.dim, net.rate) == (100, 10, 1.0)
    assert type(net.dim) is int
    assert type(net.rate) is float


def test_inherited_constructors_are_read() -> None:
    net = build(OmegaConf.create({"_target_": "fakes.configs.Inherits", "dim": 3}), vocab_size=1)
    assert isinstance(net, Inherits)
    assert net.dim == 3


def test_nested_components_are_built_first_in_values_and_lists() -> None:
    net = build(node(part=part(size=2, shape=[1, 2]), parts=[part(size=3), part(size=4)]), vocab_size=1)
    assert isinstance(net.part, Part)
    assert (net.part.size, net.part.shape) == (2, (1, 2))
    assert [inner.size for inner in net.parts] == [3, 4]


def test_a_component_that_the_command_built_replaces_its_node() -> None:
    own = Part(size=9)
    assert build(node(part=part()), vocab_size=1, part=own).part is own


def test_interpolations_are_resolved() -> None:
    cfg = OmegaConf.create({"width": 12, "model": {"_target_": "fakes.configs.Net", "dim": "${width}"}})
    assert build(cfg.model, vocab_size=1).dim == 12


def test_every_problem_is_listed_with_its_full_key() -> None:
    wrong = node(dim="abc", nrom="pre", norm="pots", limit=None, rate=None, part=part(siez=1), _partial_=True)
    with pytest.raises(ConfigError) as error:
        build(wrong)
    expected = {
        "model.dim": ("'abc'", "integer"),
        "model.nrom": ("Net", "'norm'", "vocab_size, dim, rate, norm, limit, part, parts"),
        "model.norm": ("'pots'", "pre, post"),
        "model.rate": ("null", "number"),
        "model.part.siez": ("Part", "'size'", "size, shape"),
        "model.part.size": ("Part",),
        "model._partial_": ("_target_",),
        "model.vocab_size": ("Net",),
    }
    check_problems(error.value.problems, expected)


def test_missing_values_and_broken_references_are_problems() -> None:
    with pytest.raises(ConfigError) as error:
        build(node(dim="???", rate="${nowhere}"), vocab_size=1)
    check_problems(error.value.problems, {"model.dim": ("model.dim=<value>",), "model.rate": ("nowhere",)})
    assert error.value.problems[0].startswith("model.dim: ")


def test_an_argument_from_both_sides_is_a_problem() -> None:
    with refuses(ConfigError, "model.vocab_size: ", "command"):
        build(node(vocab_size=5), vocab_size=100)
    assert build(node(vocab_size=None), vocab_size=100).vocab_size == 100


def test_a_node_without_target_is_no_component() -> None:
    with refuses(ConfigError, "model: ", "_target_", "{'dim': 3}"):
        build(OmegaConf.create({"model": {"dim": 3}}).model)


def test_optimizers_of_torch_are_built() -> None:
    import torch

    weights = [torch.nn.Parameter(torch.zeros(2))]
    optimizer = build(OmegaConf.create({"_target_": "torch.optim.AdamW", "lr": 1, "betas": [0, 0.9]}), params=weights)
    assert isinstance(optimizer, torch.optim.AdamW)
    assert optimizer.defaults["betas"] == (0, 0.9)
