"""Cross entropies and samples against PyTorch on dense logits; sampled softmaxes against loops and frequencies."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from fakes.cuda.device import FakeCuda
from fakes.cuda.fake_tensors import fake_tensors
from fakes.objectives import random_documents, store_of
from support.objective_table import built
from torch import Tensor
from torch.nn.functional import cross_entropy, linear
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from lmtransfer.models.layers import cross_entropy as module
from lmtransfer.models.layers.cross_entropy import (
    cross_entropies,
    cross_entropy_sum,
    cross_entropy_sum_and_samples,
    log_uniform_probabilities,
    log_uniform_samples,
    sample_softmax,
    sampled_cross_entropies,
)
from lmtransfer.objectives.base import Objective, builtin_objectives


def _inputs(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    hidden, weight, bias = torch.randn(23, 6), torch.randn(41, 6), torch.randn(41)
    leaves = [tensor.to(dtype).requires_grad_() for tensor in (hidden, weight, bias)]
    return leaves[0], leaves[1], leaves[2], torch.randint(41, (23,))


@pytest.mark.parametrize("chunk", [41 * 5, 1 << 19])
def test_values_and_gradients_are_those_of_dense_logits(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CHUNK_LOGITS", chunk)
    hidden, weight, bias, targets = _inputs(torch.float64)
    factors = torch.randn(23, dtype=torch.float64)
    ours, best = cross_entropies(hidden, weight, bias, targets)
    gradients = torch.autograd.grad((ours.sigmoid() * factors).sum(), (hidden, weight, bias))
    logits = linear(hidden, weight, bias)
    theirs = cross_entropy(logits, targets, reduction="none")
    torch.testing.assert_close(ours, theirs)
    assert torch.equal(best, logits.argmax(-1))
    for local, their in zip(
        gradients, torch.autograd.grad((theirs.sigmoid() * factors).sum(), (hidden, weight, bias)), strict=True
    ):
        torch.testing.assert_close(local, their)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("weighted", [False, True])
def test_what_a_gpu_compiles_is_what_a_cpu_computes(dtype: torch.dtype, weighted: bool) -> None:
    torch.manual_seed(0)
    logits, targets = 8 * torch.randn(23, 41), torch.randint(41, (23,))
    logits[3, targets[3]] = -80.0  # a probability that float32 rounds to 0
    weights = torch.randn(23) if weighted else None
    given = logits.to(dtype), targets, weights
    ours, theirs = module._compute_fused(*given, True, True), module._compute_chunk(*given, True, True)
    assert ours.gradient is not None
    assert theirs.gradient is not None
    torch.testing.assert_close(ours.losses, theirs.losses)
    assert torch.equal(ours.best, theirs.best)
    torch.testing.assert_close(ours.gradient, theirs.gradient.to(dtype))
    torch.testing.assert_close(ours.bias_gradient, theirs.bias_gradient)
    assert module._compute_fused(*given, False, False)[2:] == (None, None)


def test_an_impossible_target_has_a_finite_loss_and_a_sum_in_bfloat16_is_near_float32() -> None:
    hidden = torch.tensor([[200.0, -200.0]])
    assert cross_entropy_sum(hidden, torch.eye(2), None, torch.tensor([1]), torch.ones(1))[0].item() == pytest.approx(
        400
    )
    torch.manual_seed(2)
    hidden, weight, targets = torch.randn(400, 64), 0.05 * torch.randn(1000, 64), torch.randint(0, 1000, (400,))
    exact, _ = cross_entropy_sum(hidden, weight, None, targets, torch.ones(400))
    with torch.autocast("cpu", torch.bfloat16):
        rounded, _ = cross_entropy_sum(hidden, weight, None, targets, torch.ones(400))
    assert rounded.dtype == torch.float32
    assert rounded.item() == pytest.approx(exact.item(), rel=1e-3)


def test_of_no_positions_and_in_bfloat16() -> None:
    hidden, weight, bias, targets = _inputs(torch.float32)
    none, _ = cross_entropies(hidden[:0], weight, bias, targets[:0])
    none.sum().backward()
    assert weight.grad is not None
    assert not weight.grad.any()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded, _ = cross_entropies(hidden, weight, bias, targets)
    exact, _ = cross_entropies(hidden, weight, bias, targets)
    assert rounded.dtype == torch.float32
    torch.testing.assert_close(rounded, exact, rtol=0.05, atol=0.05)


class _Largest(TorchDispatchMode):
    """Records the number of elements of the largest tensor that an operation creates."""

    def __init__(self) -> None:
        super().__init__()
        self.size = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        self.size = max(self.size, *(leaf.numel() for leaf in tree_leaves(made) if isinstance(leaf, torch.Tensor)), 0)
        return made


@pytest.mark.parametrize(("has_bias", "large"), [(True, True), (False, True), (True, False)])
def test_the_sum_is_that_of_dense_logits(has_bias: bool, large: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CHUNK_LOGITS", 41 * 5)
    hidden, weight, bias, targets = _inputs(torch.float64)
    given, factors = bias if has_bias else None, torch.rand(23, dtype=torch.float64)
    leaves = (hidden, weight, bias) if has_bias else (hidden, weight)
    with _Largest() as largest:
        kind = module._LargeCrossEntropySum if large else module._CrossEntropySum
        ours, hits = kind.apply(hidden, weight, given, targets, factors)
        gradients = torch.autograd.grad(3 * ours, leaves)
    logits = linear(hidden, weight, given)
    theirs = (cross_entropy(logits, targets, reduction="none") * factors).sum()
    torch.testing.assert_close(ours, theirs)
    assert torch.equal(hits, logits.argmax(-1) == targets)
    for local, their in zip(gradients, torch.autograd.grad(3 * theirs, leaves), strict=True):
        torch.testing.assert_close(local, their)
    if large:
        assert largest.size <= max(41 * 6, 41 * 5)  # the weights, or the logits at five positions


def test_the_sum_over_a_large_vocabulary_trains_only_what_is_trained() -> None:
    hidden, weight, bias, targets = _inputs(torch.float64)
    factors = torch.ones(23, dtype=torch.float64)
    total, _ = module._LargeCrossEntropySum.apply(hidden, weight.detach(), bias.detach(), targets, factors)
    total.backward()
    assert hidden.grad is not None
    with torch.no_grad():
        again, _ = module._LargeCrossEntropySum.apply(hidden, weight, bias, targets, factors)
    assert again == total


@pytest.mark.parametrize("kind", ["_CrossEntropySum", "_LargeCrossEntropySum", "_CrossEntropies"])
def test_a_validation_computes_no_gradients(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    hidden, weight, bias, targets = _inputs(torch.float32)
    factors = torch.ones(23)
    if kind == "_LargeCrossEntropySum":
        monkeypatch.setattr(module, "_CrossEntropySum", module._LargeCrossEntropySum)
    with torch.no_grad(), FlopCounterMode(display=False) as counted:
        if kind == "_CrossEntropies":
            cross_entropies(hidden, weight, bias, targets)
        else:
            cross_entropy_sum(hidden, weight, bias, targets, factors)
    assert counted.get_total_flops() == 2 * hidden.numel() * len(weight)


def _given() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return torch.randn(5, 8), torch.randn(11, 8), torch.randn(11)


def test_a_low_temperature_takes_the_best_and_chunks_cover_every_position(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CHUNK_SAMPLED", {"cpu": 22})  # two positions per chunk, and one in the last
    hidden, weight, bias = _given()
    best = (hidden @ weight.T + bias).argmax(-1)
    assert torch.equal(sample_softmax(hidden, weight, bias, torch.rand(5), temperature=1e-4), best)
    assert sample_softmax(hidden[:0], weight, bias, torch.rand(0)).shape == (0,)


def test_no_gradient_and_float32_under_autocast() -> None:
    hidden, weight, bias = (tensor.requires_grad_() for tensor in _given())
    many, uniform = hidden.repeat(2000, 1), torch.rand(10_000)
    exact = sample_softmax(many, weight, bias, uniform)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        under = sample_softmax(many, weight, bias, uniform)
    assert not exact.requires_grad
    assert torch.equal(exact, under)


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_a_sample_is_the_first_id_beyond_the_uniform_number(temperature: float) -> None:
    hidden, weight, bias = _given()
    sums = ((hidden @ weight.T + bias).double() / temperature).softmax(-1).cumsum(-1)
    for number in (0.0, 0.25, 0.5, 1 - 2**-24):
        expected = [next(k for k, total in enumerate([*row[:-1].tolist(), 1.0]) if total > number) for row in sums]
        uniform = torch.full((5,), number)
        assert sample_softmax(hidden, weight, bias, uniform, temperature=temperature).tolist() == expected


class _Made(TorchDispatchMode):
    """Records the dtypes of matrix products, and of all computed tensors with at least ``size`` elements."""

    def __init__(self, size: int = 1) -> None:
        super().__init__()
        self.size, self.products, self.large = size, list[torch.dtype](), list[torch.dtype]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if isinstance(made, torch.Tensor):
            self.products += [made.dtype] * (func._schema.name in ("aten::mm", "aten::addmm"))
            self.large += [made.dtype] * (made.numel() >= self.size)
        return made


@pytest.mark.parametrize("chunk", [22, 1 << 19])
@pytest.mark.parametrize("large", [False, True])
def test_samples_of_the_logits_of_the_loss(chunk: int, large: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CHUNK_SAMPLED", {"cpu": chunk})
    monkeypatch.setattr(module, "_CHUNK_LOGITS", 2 * chunk)
    if large:
        monkeypatch.setattr(module, "_CrossEntropySum", module._LargeCrossEntropySum)
    hidden, weight, bias = (tensor.requires_grad_() for tensor in _given())
    targets, weights, uniform = torch.randint(11, (5,)), torch.rand(5), torch.rand(5)
    alone = cross_entropy_sum(hidden, weight, bias, targets, weights)
    expected = sample_softmax(hidden, weight, bias, uniform, temperature=0.7)
    with _Made() as made:
        cross_entropy_sum_and_samples(*_given(), targets, weights, uniform_M=uniform)
    assert len(made.products) == (2 if chunk == 22 else 1)  # one product per chunk of the loss
    total, hits, samples = cross_entropy_sum_and_samples(
        hidden, weight, bias, targets, weights, uniform_M=uniform, temperature=0.7
    )
    assert torch.equal(total, alone[0])
    assert torch.equal(hits, alone[1])
    assert torch.equal(samples, expected)
    leaves = (hidden, weight, bias)
    for ours, theirs in zip(torch.autograd.grad(total, leaves), torch.autograd.grad(alone[0], leaves), strict=True):
        assert torch.equal(ours, theirs)


def test_autocast_on_a_cpu_samples_from_float32() -> None:
    hidden, weight, bias = _given()
    targets, weights, uniform = torch.randint(11, (5,)), torch.ones(5), torch.rand(5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        *_, samples = cross_entropy_sum_and_samples(hidden, weight, bias, targets, weights, uniform_M=uniform)
    assert torch.equal(samples, sample_softmax(hidden, weight, bias, uniform))


@pytest.mark.slow
def test_autocast_on_a_gpu_samples_from_the_logits_of_the_loss(fake_cuda: FakeCuda) -> None:
    products, copies = fake_cuda(_on_cuda)
    assert products == ["torch.bfloat16"]
    assert copies == 2  # both belong to the loss: PyTorch copies bfloat16 logits before a float32 softmax


def _on_cuda() -> tuple[list[str], int]:
    """Return the dtypes of matrix products, and the number of float32 tensors with all logits."""
    with fake_tensors(), mock.patch.object(module, "_compute_on_device", module._compute_chunk):
        hidden, weight, bias = (torch.zeros(*shape, device="cuda") for shape in ((4096, 8), (30_000, 8), (30_000,)))
        targets, numbers = (torch.zeros(4096, device="cuda", dtype=dtype) for dtype in (torch.int64, torch.float32))
        with _Made(4096 * 30_000) as made, torch.no_grad(), torch.autocast("cuda", dtype=torch.bfloat16):
            cross_entropy_sum_and_samples(hidden, weight, bias, targets, numbers, uniform_M=numbers)
    return [str(dtype) for dtype in made.products], made.large.count(torch.float32)


def test_log_uniform_samples_have_their_probabilities() -> None:
    torch.manual_seed(0)
    probabilities = log_uniform_probabilities(torch.arange(50), 50)
    expected = [math.log((k + 2) / (k + 1)) / math.log(51) for k in range(50)]
    torch.testing.assert_close(probabilities, torch.tensor(expected))
    counts = torch.bincount(log_uniform_samples(200_000, 50, torch.device("cpu")), minlength=50)
    assert len(counts) == 50
    squares = ((counts - 200_000 * probabilities) ** 2 / (200_000 * probabilities)).sum().item()
    assert squares < 49 + 4 * math.sqrt(2 * 49)  # chi squared with 49 degrees of freedom


def test_with_very_many_samples_the_gradient_is_that_of_the_full_softmax() -> None:
    torch.manual_seed(0)
    hidden, weight, bias = torch.randn(7, 5, requires_grad=True), torch.randn(30, 5), torch.randn(30)
    targets, weights = torch.randint(0, 30, (7,)), torch.tensor([1.0, 1, 0, 1, 1, 1, 1])
    samples = log_uniform_samples(4_000, 30, torch.device("cpu"))
    losses = sampled_cross_entropies(hidden, weight, bias, targets, samples_S=samples)
    (ours,) = torch.autograd.grad((losses * weights).sum(), hidden)
    full = torch.nn.functional.cross_entropy(hidden @ weight.T + bias, targets, reduction="none")
    (theirs,) = torch.autograd.grad((full * weights).sum(), hidden)
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


def test_the_normaliser_is_that_of_the_full_softmax_on_average() -> None:
    torch.manual_seed(0)
    hidden, weight, bias = torch.randn(4, 6), torch.randn(200, 6) * 0.4, torch.randn(200) * 0.4
    targets = torch.tensor([0, 3, 50, 199])
    logits = hidden @ weight.T + bias
    of_targets = logits.gather(1, targets[:, None])[:, 0]
    found = []
    for _ in range(1_000):
        samples = log_uniform_samples(60, 200, torch.device("cpu"))
        losses = sampled_cross_entropies(hidden, weight, bias, targets, samples_S=samples)
        found.append((losses + of_targets).exp())
    normalisers = torch.stack(found)
    errors = normalisers.std(0) / math.sqrt(len(normalisers))
    assert ((normalisers.mean(0) - logits.exp().sum(1)).abs() < 4 * errors).all()
    assert (errors < 0.03 * normalisers.mean(0)).all()  # otherwise, the check above could not fail


def by_loops(
    hidden: Tensor, weight: Tensor, bias: Tensor, targets: Tensor, samples: Tensor, *, corrects_target: bool
) -> Tensor:
    """Compute the cross entropies position by position, over the target and the other sampled ids."""
    losses = []
    for state, target in zip(hidden, targets.tolist(), strict=True):
        ids = torch.tensor(sorted({target, *samples.tolist()}))
        chance = torch.log((ids + 2.0) / (ids + 1.0)) / math.log(len(weight) + 1)
        inclusion = 1 - (1 - chance.double()) ** len(samples)
        if not corrects_target:
            inclusion[ids == target] = 1.0
        logits = weight[ids] @ state + bias[ids] - inclusion.log()
        losses.append(-logits.log_softmax(0)[(ids == target).nonzero()[0, 0]])
    return torch.stack(losses)


@pytest.mark.parametrize("corrects_target", [False, True])
@pytest.mark.parametrize("num_samples", [1, 5, 40])
def test_each_position_and_all_gradients_equal_loops(num_samples: int, corrects_target: bool) -> None:
    torch.manual_seed(num_samples)
    hidden, weight = (torch.randn(*size, dtype=torch.float64, requires_grad=True) for size in ((9, 6), (30, 6)))
    bias = torch.randn(30, dtype=torch.float64, requires_grad=True)
    samples = log_uniform_samples(num_samples, 30, torch.device("cpu"))
    targets = torch.cat([samples[:1], torch.tensor([29]), torch.randint(0, 30, (7,))])
    factors = torch.rand(9, dtype=torch.float64)
    found = sampled_cross_entropies(hidden, weight, bias, targets, samples_S=samples, corrects_target=corrects_target)
    wanted = by_loops(hidden, weight, bias, targets, samples, corrects_target=corrects_target)
    torch.testing.assert_close(found, wanted, atol=1e-6, rtol=1e-6)  # log Q is computed in float32
    ours, theirs = (torch.autograd.grad((each * factors).sum(), (hidden, weight, bias)) for each in (found, wanted))
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-6)


def test_bfloat16_is_near_float32() -> None:
    torch.manual_seed(0)
    hidden, weight, targets = torch.randn(600, 32) * 0.3, torch.randn(5000, 32), torch.randint(0, 5000, (600,))
    samples = log_uniform_samples(2000, 5000, torch.device("cpu"))  # more than one chunk of positions
    leaf = hidden.clone().requires_grad_()
    exact = sampled_cross_entropies(leaf, weight, None, targets, samples_S=samples)
    (wanted,) = torch.autograd.grad(exact.sum(), leaf)
    with torch.autocast("cpu", torch.bfloat16):
        rounded = sampled_cross_entropies(leaf, weight, None, targets, samples_S=samples)
    (found,) = torch.autograd.grad(rounded.sum(), leaf)
    assert rounded.dtype == torch.float32
    torch.testing.assert_close(rounded, exact, atol=0.03, rtol=0.01)
    assert (found - wanted).norm() < 0.02 * wanted.norm()


def test_each_objective_with_an_output_over_the_vocabulary_can_sample() -> None:
    can = {one.name for one in builtin_objectives() if "num_sampled" in one.__init__.__kwdefaults__}
    assert can == {"mlm", "lm", "backward_lm", "bilm", "plm", "all_tokens_mlm"}


@pytest.mark.parametrize("name", ["mlm_nsp", "bilm", "all_tokens_mlm"])
def test_sampling_is_for_training_alone(name: str, tmp_path: Path) -> None:
    store = store_of(tmp_path / "s", random_documents(30))
    full, source, node = built(name, store, "objective.max_length=24")
    sampling = [loss for loss, one in node.losses.items() if "num_sampled" in one]
    assert sampling
    words = [f"objective.losses.{loss}.num_sampled=8" for loss in sampling]
    learner, source, _ = built(name, store, "objective.max_length=24", *words)
    batch = source.build(0, source.plan(0), range(4))
    sampled, _ = learner.losses(batch)
    known = {kind: loss.count for kind, loss in sampled.items() if isinstance(loss.count, int)}
    assert known == learner.counts(batch)
    assert not {f"{loss}_accuracy" for loss in sampling} & set(sampled)
    sum(loss.weight * loss.sum for loss in sampled.values()).backward()  # type: ignore[union-attr]
    assert [name for name, one in learner.named_parameters() if one.requires_grad and one.grad is None] == []
    full.load_state_dict(learner.state_dict())
    for each in (learner, full):
        each.eval()
        torch.manual_seed(0)
    found, wanted = learner.losses(batch)[0], full.losses(batch)[0]
    assert {kind: loss.sum.item() for kind, loss in found.items()} == {
        kind: loss.sum.item() for kind, loss in wanted.items()
    }
    fewer, all_rows = (
        sum(one.output_weights() for one in each.modules() if isinstance(one, Objective)) for each in (learner, full)
    )
    assert fewer < all_rows
    small, source, _ = built(name, store, "objective.max_length=24", *(word.replace("=8", "=4096") for word in words))
    assert small.losses(batch)[0].keys() == full.train().losses(batch)[0].keys()  # more samples than tokens
