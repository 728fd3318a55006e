"""Optimizers against one-step references, and their treatment of each kind of parameter."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from support.refusals import refuses
from torch import nn

from lmtransfer.config.component import component_problems
from lmtransfer.errors import CheckpointError, ConfigError
from lmtransfer.models.elmo import ElmoEncoder
from lmtransfer.training.learner import Learner
from lmtransfer.training.optim.muon import COEFFICIENTS, MuonUpdate, orthogonalize
from lmtransfer.training.optim.optimizers import (
    RATE_KEYS,
    Adagrad,
    AdamW,
    Lamb,
    Muon,
    Optimizer,
    build_groups,
    classify,
)
from lmtransfer.training.precision import Precision, PrecisionName
from lmtransfer.training.update import Updater


class _Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query_key_value = nn.Linear(4, 12)
        self.query_key_value.muon_splits = 3
        self.norm = nn.LayerNorm(4)
        self.expand = nn.Linear(4, 8)


class _Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Embedding(6, 4)
        self.layers = nn.ModuleList([_Block(), _Block()])
        self.pooler = nn.Linear(4, 4)

    def blocks(self) -> list[nn.Module]:
        return list(self.layers)


class _Learner(Learner):
    """An encoder and a head tied to its embedding, with misleading names, because names must not decide."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = _Encoder()
        self.heads = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 6)])
        self.heads[1].weight = self.encoder.token.weight
        self.norm_bias_embedding = nn.Linear(4, 2, bias=False)
        self.gamma = nn.Parameter(torch.ones(()))
        self.double()


KINDS = {
    "gamma": "bias",
    "encoder.token.weight": "embedding",
    **{
        f"encoder.layers.{i}.{name}": kind
        for i in (0, 1)
        for name, kind in {
            "query_key_value.weight": "hidden",
            "query_key_value.bias": "bias",
            "norm.weight": "norm",
            "norm.bias": "norm",
            "expand.weight": "hidden",
            "expand.bias": "bias",
        }.items()
    },
    "encoder.pooler.weight": "weight",
    "encoder.pooler.bias": "bias",
    "heads.0.weight": "weight",
    "heads.0.bias": "bias",
    "heads.1.bias": "bias",
    "norm_bias_embedding.weight": "weight",
}


#: By group with its own factor on the learning rate.
PARTS = {name: kind if name.startswith("encoder.") else "head" for name, kind in KINDS.items()}
MAKERS = [AdamW, Lamb, Muon, Adagrad]


def test_a_network_that_gives_embeddings_is_one() -> None:
    """ELMo's whole character CNN, and nothing else in ELMo, is an embedding; a false switch has no effect."""
    encoder = ElmoEncoder(
        vocab_size=5, dim=8, num_layers=1, cell_dim=6, char_dim=4, filters=[[1, 4], [2, 4]], num_highway=1
    )
    kinds = {item.name: item.kind for item in classify(encoder)}
    assert len(kinds) > 15
    assert {name for name, kind in kinds.items() if kind == "embedding"} == {
        name for name in kinds if name.startswith("characters.")
    }
    encoder.characters.gives_embeddings = False
    kinds = {item.name: item.kind for item in classify(encoder)}
    assert [name for name, kind in kinds.items() if kind == "embedding"] == ["characters.embedding.weight"]


def test_parameters_are_told_by_the_type_of_their_module() -> None:
    named = classify(_Learner())
    assert {item.name: item.kind for item in named} == KINDS
    assert {item.name: "head" if item.in_head else item.kind for item in named} == PARTS
    assert set(PARTS.values()) == set(RATE_KEYS)
    assert {item.name for item in named if item.splits == 3} == {
        "encoder.layers.0.query_key_value.weight",
        "encoder.layers.1.query_key_value.weight",
    }


def test_frozen_parameters_are_left_out() -> None:
    learner = _Learner()
    learner.encoder.requires_grad_(False)
    assert {item.name for item in classify(learner)} == {name for name in KINDS if not name.startswith("encoder.")}


@pytest.mark.parametrize("make", [AdamW, Lamb, Muon])
def test_every_parameter_is_in_exactly_one_group(make: type[Optimizer]) -> None:
    learner = _Learner()
    optimizer = make(learner=learner)
    grouped = [id(p) for part in optimizer.parts for group in part.param_groups for p in group["params"]]
    assert sorted(grouped) == sorted(id(p) for p in learner.parameters())


def test_decay_spares_the_kinds_that_are_named() -> None:
    learner = _Learner()
    found = build_groups(classify(learner), learning_rate=1.0, weight_decay=0.1, no_decay=["norm", "bias", "embedding"])
    decayed = {id(p) for group in found if group["weight_decay"] for p in group["params"]}
    names = {name for name, p in learner.named_parameters() if id(p) in decayed}
    assert names == {name for name, kind in KINDS.items() if kind in ("hidden", "weight")}


def _with_gradients(learner: nn.Module, seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    for parameter in learner.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
    return {name: p.grad.clone() for name, p in learner.named_parameters()}


def _moments(gradients: list[torch.Tensor], beta1: float, beta2: float) -> tuple[torch.Tensor, torch.Tensor]:
    first, second = torch.zeros_like(gradients[0]), torch.zeros_like(gradients[0])
    for gradient in gradients:
        first = beta1 * first + (1 - beta1) * gradient
        second = beta2 * second + (1 - beta2) * gradient**2
    return first, second


@pytest.mark.parametrize("bias_correction", [True, False])
def test_adamw_against_its_formula(bias_correction: bool) -> None:
    learner = _Learner()
    optimizer = AdamW(
        learner=learner,
        learning_rate=0.1,
        betas=(0.8, 0.95),
        eps=1e-3,
        weight_decay=0.3,
        bias_correction=bias_correction,
    )
    expected = {name: p.detach().clone() for name, p in learner.named_parameters()}
    seen: dict[str, list[torch.Tensor]] = {name: [] for name in expected}
    for step, factor in enumerate([1.0, 0.5, 0.25], start=1):
        for name, gradient in _with_gradients(learner, step).items():
            seen[name].append(gradient)
            first, second = _moments(seen[name], 0.8, 0.95)
            if bias_correction:
                first, second = first / (1 - 0.8**step), second / (1 - 0.95**step)
            decay = 0.3 if KINDS[name] in ("hidden", "weight") else 0.0
            rate = 0.1 * factor
            expected[name] = expected[name] * (1 - rate * decay) - rate * first / (second.sqrt() + 1e-3)
        optimizer.set_factor(factor)
        optimizer.step()
    for name, parameter in learner.named_parameters():
        torch.testing.assert_close(parameter.detach(), expected[name], rtol=1e-6, atol=1e-9)


def test_lamb_against_its_formula() -> None:
    learner = _Learner()
    optimizer = Lamb(learner=learner, learning_rate=0.1, betas=(0.8, 0.95), eps=1e-3, weight_decay=0.3)
    expected = {name: p.detach().clone() for name, p in learner.named_parameters()}
    seen: dict[str, list[torch.Tensor]] = {name: [] for name in expected}
    for step in (1, 2, 3):
        for name, gradient in _with_gradients(learner, step).items():
            seen[name].append(gradient)
            first, second = _moments(seen[name], 0.8, 0.95)
            update = (first / (1 - 0.8**step)) / ((second / (1 - 0.95**step)).sqrt() + 1e-3)
            ratio = 1.0
            if KINDS[name] not in ("norm", "bias"):
                update = update + 0.3 * expected[name]
                ratio = float(expected[name].norm() / update.norm())
            expected[name] = expected[name] - 0.1 * ratio * update
        optimizer.step()
    for name, parameter in learner.named_parameters():
        torch.testing.assert_close(parameter.detach(), expected[name], rtol=1e-9, atol=1e-12)


def test_lamb_moves_a_parameter_of_zeros() -> None:
    learner = nn.Linear(3, 3, bias=False)
    nn.init.zeros_(learner.weight)
    optimizer = Lamb(learner=learner, learning_rate=0.1)
    learner.weight.grad = torch.ones(3, 3)
    optimizer.step()
    torch.testing.assert_close(learner.weight.detach(), torch.full((3, 3), -0.1), rtol=1e-4, atol=0)


def _with_singular_values(
    rows: int, columns: int, values: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(rows + columns)
    size = min(rows, columns)
    left = torch.linalg.qr(torch.randn(rows, size, dtype=torch.float64))[0]
    right = torch.linalg.qr(torch.randn(columns, size, dtype=torch.float64))[0]
    return left, right, (left * values) @ right.T


#: By dtype of the products: rounding errors allowed in a singular value and in the singular vectors.
ROUNDING = {torch.float32: (0.005, 1e-3), torch.bfloat16: (0.08, 0.06)}


@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("num_iterations", sorted(COEFFICIENTS))
@pytest.mark.parametrize(("rows", "columns"), [(64, 64), (64, 256), (192, 64)])
def test_orthogonalise_against_the_singular_value_decomposition(
    rows: int, columns: int, num_iterations: int, dtype: torch.dtype
) -> None:
    smallest, within = {3: (0.01, 0.29), 4: (0.004, 0.15), 5: (0.002, 0.04)}[num_iterations]
    size = min(rows, columns)
    values = torch.logspace(0, math.log10(4 * smallest), size, dtype=torch.float64)
    left, right, matrix = _with_singular_values(rows, columns, values)
    assert (values / matrix.norm()).min() >= smallest
    of_values, of_vectors = ROUNDING[dtype]
    made = orthogonalize(matrix.to(dtype)[None], num_iterations=num_iterations)[0]
    assert made.dtype is dtype
    inner = left.T @ made.double() @ right
    assert (inner.diagonal() - 1).abs().max() < within + of_values, "the singular values are about 1"
    off_diagonal = inner - inner.diagonal().diag()
    assert off_diagonal.norm() / inner.norm() < of_vectors, "the singular vectors are those of the matrix"


def test_orthogonalise_is_no_worse_than_five_of_the_original_iterations() -> None:
    torch.manual_seed(0)
    for shape in [(128, 128), (128, 512), (512, 128)]:
        matrix = torch.randn(shape)
        left, _, right = torch.linalg.svd(matrix, full_matrices=False)
        polar = left @ right

        def cosine(found: torch.Tensor, polar: torch.Tensor = polar) -> float:
            return float(nn.functional.cosine_similarity(found.flatten(), polar.flatten(), dim=0))

        original = matrix / matrix.norm()
        for _ in range(5):
            gram = original @ original.T
            original = 3.4445 * original + (-4.7750 * gram + 2.0315 * gram @ gram) @ original
        for dtype in ROUNDING:
            ours = orthogonalize(matrix.to(dtype, copy=True)[None], num_iterations=4)[0].float()
            assert cosine(ours) > cosine(original) - 0.005


def test_orthogonalise_never_lets_a_singular_value_run_away() -> None:
    generator = torch.Generator().manual_seed(3)
    for rows, columns in [(64, 64), (64, 256), (256, 64), (192, 64)]:
        size = min(rows, columns)
        left = torch.linalg.qr(torch.randn(20, rows, size, generator=generator))[0]
        right = torch.linalg.qr(torch.randn(20, columns, size, generator=generator))[0]
        spectra = torch.exp(4 * torch.rand(20, 1, generator=generator) * torch.randn(20, size, generator=generator))
        matrices = (left * spectra[:, None]) @ right.mT
        for num_iterations, dtype in itertools.product(COEFFICIENTS, ROUNDING):
            found = orthogonalize(matrices.to(dtype, copy=True), num_iterations=num_iterations).float()
            assert torch.linalg.matrix_norm(found, ord=2).max() < 1.35


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.bfloat16, 0.02)])
def test_orthogonalise_treats_each_matrix_by_itself_and_survives_zeros(dtype: torch.dtype, tolerance: float) -> None:
    torch.manual_seed(0)
    matrices = (torch.randn(3, 32, 96) * torch.tensor([1e-6, 0.0, 1e4]).view(3, 1, 1)).to(dtype)
    together = orthogonalize(matrices.clone())
    assert not together[1].any()
    for index in (0, 2):
        alone = orthogonalize(matrices[index : index + 1].clone())[0]
        torch.testing.assert_close(together[index], alone, rtol=0, atol=tolerance)


@pytest.mark.parametrize(("precision", "dtype"), [("fp32", torch.float32), ("bf16", torch.bfloat16)])
def test_an_update_multiplies_in_the_format_of_the_run(
    precision: PrecisionName, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner, formats = _Learner(), []

    def watched(matrices: torch.Tensor, **settings: Any) -> torch.Tensor:
        formats.append(matrices.dtype)
        return orthogonalize(matrices, **settings)

    monkeypatch.setattr("lmtransfer.training.optim.muon.orthogonalize", watched)
    optimizer = Muon(learner=learner)
    Updater(
        learner=learner,
        optimizer=optimizer,
        seed=0,
        device="cpu",
        precision=Precision(name=precision),
        max_grad_norm=None,
    )
    for parameter in learner.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    assert set(formats) == {dtype}


def test_float16_has_too_little_range_for_newton_schulz() -> None:
    assert Precision(name="fp16").optimizer_dtype is torch.float32


def test_muon_step_against_the_exact_polar_factor() -> None:
    torch.manual_seed(0)
    weight = nn.Parameter(torch.randn(96, 32))
    start = weight.detach().clone()
    muon = MuonUpdate([{"params": [weight], "lr": 0.1, "weight_decay": 0.5}], momentum=0.9, num_iterations=5)
    expected, mean = start.clone(), torch.zeros_like(start)
    for _ in range(2):
        gradient = torch.randn(96, 32)
        weight.grad = gradient.clone()
        mean = 0.9 * mean + 0.1 * gradient
        left, _, right = torch.linalg.svd(0.9 * mean + 0.1 * gradient, full_matrices=False)
        expected = expected * (1 - 0.1 * 0.5) - 0.1 * math.sqrt(3) * left @ right
        muon.step()
    moved, wanted = (weight.detach() - start).flatten(), (expected - start).flatten()
    assert nn.functional.cosine_similarity(moved, wanted, dim=0) > 0.99
    assert abs(moved.norm() / wanted.norm() - 1) < 0.08


def test_muon_splits_a_fused_projection_into_its_matrices() -> None:
    torch.manual_seed(0)
    fused = nn.Parameter(torch.zeros(48, 16))
    gradient = torch.randn(48, 16) * torch.tensor([1.0, 10.0, 100.0]).repeat_interleave(16)[:, None]
    fused.grad = gradient.clone()
    parts = [nn.Parameter(torch.zeros(16, 16)) for _ in range(3)]
    for part, piece in zip(parts, gradient.chunk(3), strict=True):
        part.grad = piece.clone()
    MuonUpdate([{"params": [fused], "lr": 1.0, "weight_decay": 0.0}], splits={id(fused): 3}).step()
    MuonUpdate([{"params": parts, "lr": 1.0, "weight_decay": 0.0}]).step()
    torch.testing.assert_close(fused.detach(), torch.cat([part.detach() for part in parts]))


def test_muon_takes_the_hidden_matrices_and_adamw_the_rest() -> None:
    learner = _Learner()
    muon, adamw = Muon(learner=learner).parts
    names = {id(p): name for name, p in learner.named_parameters()}
    hidden = {names[id(p)] for group in muon.param_groups for p in group["params"]}
    assert hidden == {name for name, kind in KINDS.items() if kind == "hidden"}
    assert {group["peak_lr"] for group in adamw.param_groups} == {1e-3}


def test_muon_without_any_hidden_matrix_is_adamw() -> None:
    learner = nn.Linear(3, 2)
    optimizer = Muon(learner=learner)
    assert optimizer.learning_rate_at(1.0) == 1e-3


def test_settings_out_of_range_are_refused_by_name() -> None:
    node = {"_target_": "lmtransfer.training.optim.optimizers.Muon", "num_iterations": 7, "no_decay": ["layernorm"]}
    problems = component_problems(node, key="optimizer", nodes={"optimizer": {"learner"}}, complete=True)
    assert problems.keys() == {"optimizer.num_iterations", "optimizer.no_decay[0]"}
    assert "one of 3, 4, 5" in problems["optimizer.num_iterations"]


@pytest.mark.parametrize("make", [AdamW, Lamb, Muon])
def test_state_goes_on_exactly_where_it_was_saved(make: type[Optimizer]) -> None:
    def run(learner: nn.Module, optimizer: Optimizer, seeds: range) -> None:
        for seed in seeds:
            _with_gradients(learner, seed)
            optimizer.step()

    torch.manual_seed(0)
    straight = _Learner()
    resumed = _Learner()
    resumed.load_state_dict(straight.state_dict())
    whole = make(learner=straight)
    run(straight, whole, range(6))

    first = make(learner=resumed)
    run(resumed, first, range(3))
    state = {name: tensor.clone() for name, tensor in first.state_dict().items()}
    assert all(isinstance(tensor, torch.Tensor) for tensor in state.values())
    second = make(learner=resumed)
    second.load_state_dict(state)
    run(resumed, second, range(3, 6))
    for left, right in zip(straight.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(left, right)


def test_state_of_another_model_is_refused() -> None:
    with refuses(CheckpointError, "nonesuch"):
        AdamW(learner=nn.Linear(2, 2)).load_state_dict({"nonesuch/exp_avg": torch.zeros(2)})


def test_any_optimiser_of_torch_can_be_wrapped() -> None:
    learner = nn.Linear(2, 2)
    optimizer = Optimizer(learner, [torch.optim.Adagrad(learner.parameters(), lr=0.2, initial_accumulator_value=1.0)])
    optimizer.set_factor(0.5)
    before = learner.weight.detach().clone()
    for parameter in learner.parameters():
        parameter.grad = torch.full_like(parameter, 2.0)
    optimizer.step()
    torch.testing.assert_close(learner.weight.detach(), before - 0.1 * 2 / math.sqrt(1 + 4))
    assert {key.partition("/")[0] for key in optimizer.state_dict()} == {"weight", "bias"}


def test_a_parameter_in_two_parts_is_refused() -> None:
    learner = nn.Linear(2, 2)
    parts = [torch.optim.SGD(learner.parameters()), torch.optim.SGD([learner.bias])]
    with refuses(ValueError, "groups"):
        Optimizer(learner, parts)


def _step(make: type[Optimizer], rates: dict[str, float], **settings: Any) -> dict[str, torch.Tensor]:
    """Return how far one step at a schedule factor of 0.5 moves each parameter."""
    torch.manual_seed(0)
    learner = _Learner()
    optimizer = make(learner=learner, rates=rates, **settings)
    before = {name: p.detach().clone() for name, p in learner.named_parameters()}
    _with_gradients(learner, 1)
    optimizer.set_factor(0.5)
    optimizer.step()
    return {name: p.detach() - before[name] for name, p in learner.named_parameters()}


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
    torch.manual_seed(0)
    learner = _Learner()
    _with_gradients(learner, 1)
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
