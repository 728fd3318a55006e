"""Factors on the learning rate by what a parameter is: one step against torch's own optimisers, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.refusals import refuses
from torch import nn

from lmtransfer.errors import ConfigError
from lmtransfer.training.learner import Learner
from lmtransfer.training.optim.optimizer import RATE_KEYS, Optimizer, classify
from lmtransfer.training.optim.optimizers import Adagrad, AdamW, Lamb, Muon

MAKERS = [AdamW, Lamb, Muon, Adagrad]


class _Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Embedding(6, 4)
        self.layers = nn.ModuleList([nn.ModuleList([nn.Linear(4, 4), nn.LayerNorm(4)])])
        self.pooler = nn.Linear(4, 4)

    def blocks(self) -> list[nn.Module]:
        return list(self.layers)


class _Learner(Learner):
    """An encoder, a head with one of each kind, and an output matrix that is tied."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.encoder = _Encoder()
        self.head = nn.ModuleList([nn.Linear(4, 4), nn.LayerNorm(4), nn.Embedding(3, 4)])
        self.output = nn.Linear(4, 6)
        self.output.weight = self.encoder.token.weight
        self.double()


PARTS = {
    "encoder.token.weight": "embedding",
    "encoder.layers.0.0.weight": "hidden",
    "encoder.layers.0.0.bias": "bias",
    "encoder.layers.0.1.weight": "norm",
    "encoder.layers.0.1.bias": "norm",
    "encoder.pooler.weight": "weight",
    "encoder.pooler.bias": "bias",
    "head.0.weight": "head",
    "head.0.bias": "head",
    "head.1.weight": "head",
    "head.1.bias": "head",
    "head.2.weight": "head",
    "output.bias": "head",
}


def _step(make: type[Optimizer], rates: dict[str, float], **settings: Any) -> dict[str, torch.Tensor]:
    """How far one step at factor 0.5 of the schedule moves each parameter."""
    learner = _Learner()
    optimizer = make(learner=learner, rates=rates, **settings)
    before = {name: p.detach().clone() for name, p in learner.named_parameters()}
    _give_gradients(learner)
    optimizer.set_factor(0.5)
    optimizer.step()
    return {name: p.detach() - before[name] for name, p in learner.named_parameters()}


def _give_gradients(learner: nn.Module) -> None:
    generator = torch.Generator().manual_seed(1)
    for parameter in learner.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)


def test_what_is_in_no_encoder_is_the_heads_whatever_its_kind() -> None:
    assert {item.name: "head" if item.in_head else item.kind for item in classify(_Learner())} == PARTS
    assert set(PARTS.values()) == set(RATE_KEYS)


@pytest.mark.parametrize("part", RATE_KEYS)
@pytest.mark.parametrize(
    ("make", "of_torch"),
    [
        (AdamW, lambda p, lr: torch.optim.AdamW([p], lr=lr, betas=(0.9, 0.98), eps=1e-6, weight_decay=0.0)),
        (Adagrad, lambda p, lr: torch.optim.Adagrad([p], lr=lr, initial_accumulator_value=0.5)),
    ],
)
def test_a_step_at_a_factor_is_torchs_step_at_that_times_the_rate(make: Any, of_torch: Any, part: str) -> None:
    settings = {"learning_rate": 0.1, "weight_decay": 0.0} if make is AdamW else {}
    settings = settings or {"lr": 0.1, "initial_accumulator_value": 0.5}
    moved = _step(make, {part: 3.0}, **settings)
    learner = _Learner()
    _give_gradients(learner)
    for name, parameter in learner.named_parameters():
        before = parameter.detach().clone()
        of_torch(parameter, 0.5 * 0.1 * (3.0 if PARTS[name] == part else 1.0)).step()
        torch.testing.assert_close(moved[name], parameter.detach() - before, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("part", RATE_KEYS)
@pytest.mark.parametrize("make", [Lamb, Muon])
def test_a_factor_multiplies_the_first_step_decay_included(make: Any, part: str) -> None:
    once, more = _step(make, {}), _step(make, {part: 3.0})
    for name, step in once.items():
        torch.testing.assert_close(more[name], step * (3.0 if PARTS[name] == part else 1.0), rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("make", MAKERS)
def test_factors_of_one_are_no_factors_and_nought_freezes(make: Any) -> None:
    plain, ones = make(learner=_Learner()), make(learner=_Learner(), rates=dict.fromkeys(RATE_KEYS, 1.0))
    for left, right in zip(plain.parts, ones.parts, strict=True):
        for one, other in zip(left.param_groups, right.param_groups, strict=True):
            settings = [{key: value for key, value in group.items() if key != "params"} for group in (one, other)]
            assert settings[0] == settings[1]
            assert [p.shape for p in one["params"]] == [p.shape for p in other["params"]]
    moved = _step(make, {"embedding": 0.0})
    assert {name for name, step in moved.items() if not step.any()} == {"encoder.token.weight"}


def test_a_part_and_a_layer_have_both_their_factors_and_the_log_neither() -> None:
    optimizer = AdamW(
        learner=_Learner(), learning_rate=2.0, rates={"embedding": 3.0}, lr_scales={"encoder.token.weight": 0.25}
    )
    optimizer.set_factor(0.5)
    of_token = [g["lr"] for g in optimizer.parts[0].param_groups if any(p.shape == (6, 4) for p in g["params"])]
    assert of_token == [0.75]
    assert optimizer.learning_rate_at(0.5) == 1.0


@pytest.mark.parametrize("make", MAKERS)
def test_parts_that_do_not_exist_and_factors_that_are_none_are_named_at_once(make: Any) -> None:
    with refuses(ConfigError) as refused:
        make(learner=_Learner(), rates={"embeddings": 1.0, "head": -1.0, "norm": float("nan")})
    first, second, third = refused.value.problems
    assert first.startswith("optimizer.rates.embeddings: ")
    assert ", ".join(RATE_KEYS) in first
    assert second.startswith("optimizer.rates.head=-1.0: ")
    assert third.startswith("optimizer.rates.norm=nan: ")
