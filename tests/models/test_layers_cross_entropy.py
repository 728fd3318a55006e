"""Cross entropies position by position, against torch's on dense logits."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy, linear
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from lmtransfer.models.layers import cross_entropy as module
from lmtransfer.models.layers.cross_entropy import cross_entropies, cross_entropy_sum


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
    """The number of elements of the largest tensor that an operation makes."""

    def __init__(self) -> None:
        super().__init__()
        self.size = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        self.size = max(self.size, *(leaf.numel() for leaf in tree_leaves(made) if isinstance(leaf, torch.Tensor)), 0)
        return made


@pytest.mark.parametrize("has_bias", [True, False])
def test_the_sum_over_a_large_vocabulary_is_that_of_dense_logits(
    has_bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_CHUNK_LOGITS", 41 * 5)
    hidden, weight, bias, targets = _inputs(torch.float64)
    given, factors = bias if has_bias else None, torch.rand(23, dtype=torch.float64)
    leaves = (hidden, weight, bias) if has_bias else (hidden, weight)
    with _Largest() as largest:
        ours, hits = module._LargeCrossEntropySum.apply(hidden, weight, given, targets, factors)
        gradients = torch.autograd.grad(3 * ours, leaves)
    logits = linear(hidden, weight, given)
    theirs = (cross_entropy(logits, targets, reduction="none") * factors).sum()
    torch.testing.assert_close(ours, theirs)
    assert torch.equal(hits, logits.argmax(-1) == targets)
    for local, their in zip(gradients, torch.autograd.grad(3 * theirs, leaves), strict=True):
        torch.testing.assert_close(local, their)
    assert largest.size <= max(41 * 6, 41 * 5)  # the weights, or the logits of five positions


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
