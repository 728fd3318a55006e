"""The optimizers that configs can choose; each class takes the learner and flat settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from lmtransfer.config.types import DropoutProb, NonNegative, Positive
from lmtransfer.training.optim.muon import MuonUpdate
from lmtransfer.training.optim.optimizer import Kind, Optimizer, build_groups, classify

NO_DECAY: tuple[Kind, ...] = ("norm", "bias", "embedding")


class LambUpdate(torch.optim.Optimizer):
    """Adam's direction, scaled for each parameter to the parameter's norm.

    The ratio ``|w| / |update|`` is 1 if either norm is 0, and in groups without weight decay, as in ALBERT's published
    code.
    """

    def __init__(self, parameter_groups: list[dict[str, Any]], *, betas: Sequence[DropoutProb], eps: Positive) -> None:
        super().__init__(parameter_groups, {"betas": tuple(betas), "eps": eps})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        for group in self.param_groups:
            parameters = [p for p in group["params"] if p.grad is not None]
            if parameters:
                self._step_group(group, parameters)

    def _step_group(self, group: dict[str, Any], parameters: list[torch.Tensor]) -> None:
        beta1, beta2 = group["betas"]
        for parameter in parameters:
            if not self.state[parameter]:
                self.state[parameter] = {
                    "step": torch.tensor(0.0),
                    "exp_avg": torch.zeros_like(parameter),
                    "exp_avg_sq": torch.zeros_like(parameter),
                }
        states = [self.state[p] for p in parameters]
        gradients = [p.grad for p in parameters if p.grad is not None]
        first, second = [s["exp_avg"] for s in states], [s["exp_avg_sq"] for s in states]
        torch._foreach_add_([s["step"] for s in states], 1)
        torch._foreach_lerp_(first, gradients, 1 - beta1)
        torch._foreach_mul_(second, beta2)
        torch._foreach_addcmul_(second, gradients, gradients, 1 - beta2)
        ages = [s["step"].item() for s in states]
        roots = torch._foreach_div(second, [1 - beta2**age for age in ages])
        torch._foreach_sqrt_(roots)
        torch._foreach_add_(roots, group["eps"])
        updates = torch._foreach_div(first, [1 - beta1**age for age in ages])
        torch._foreach_div_(updates, roots)
        if group["weight_decay"]:
            torch._foreach_add_(updates, parameters, alpha=group["weight_decay"])
            norms, sizes = (torch.stack(torch._foreach_norm(tensors)) for tensors in (parameters, updates))
            ratios = torch.where((norms > 0) & (sizes > 0), norms / sizes, torch.ones_like(norms))
            torch._foreach_mul_(updates, ratios.unbind())
        torch._foreach_add_(parameters, updates, alpha=-group["lr"])


class AdamW(Optimizer):
    """Adam with decoupled weight decay (Loshchilov & Hutter 2019), fused.

    Args:
        no_decay: kinds of parameters without decay (``NamedParameter.kind``).
        bias_correction: False omits the bias correction of the moments, as in the published BERT code
            (google-research/bert, optimization.py), although the Adam of the paper has it.
        rates: factor on the learning rate by kind of parameter, and of the head (see ``RATE_KEYS``).
        lr_scales: factor on the learning rate by parameter name, for layer-wise rates.
    """

    def __init__(
        self,
        *,
        learner: nn.Module,
        learning_rate: Positive = 1e-3,
        betas: tuple[DropoutProb, DropoutProb] = (0.9, 0.98),
        eps: Positive = 1e-6,
        weight_decay: NonNegative = 0.01,
        no_decay: Sequence[Kind] = NO_DECAY,
        bias_correction: bool = True,
        rates: Mapping[str, float] | None = None,
        lr_scales: Mapping[str, float] | None = None,
    ) -> None:
        group = partial(build_groups, no_decay=no_decay, rates=rates, lr_scales=lr_scales)
        parameter_groups = group(classify(learner), learning_rate=learning_rate, weight_decay=weight_decay)
        super().__init__(learner, [fused_adamw(parameter_groups, betas=betas, eps=eps)])
        if not bias_correction:
            for parameter in self.parameters:
                self.parts[0].state[parameter] = _moments_of_age(parameter, 10_000_000)


def _moments_of_age(parameter: nn.Parameter, age: int) -> dict[str, Tensor]:
    """Return Adam's state with zero moments after ``age`` steps; its bias corrections are 1 for a large ``age``."""
    return {
        "step": torch.tensor(float(age), device=parameter.device),
        "exp_avg": torch.zeros_like(parameter),
        "exp_avg_sq": torch.zeros_like(parameter),
    }


def fused_adamw(parameter_groups: list[dict], *, betas: Sequence[float], eps: float) -> torch.optim.AdamW:
    """Build a ``torch.optim.AdamW`` that updates all parameters in one kernel, on CPU and CUDA."""
    beta1, beta2 = betas
    return torch.optim.AdamW(parameter_groups or [{"params": []}], betas=(beta1, beta2), eps=eps, fused=True)


class Lamb(Optimizer):
    """LAMB for large batches (You et al. 2020, algorithm 2).

    Args:
        weight_decay: decay, added to the update before its norm is taken.
        no_decay: kinds of parameters without decay and, as in the published ALBERT code, without the trust ratio.
    """

    def __init__(
        self,
        *,
        learner: nn.Module,
        learning_rate: Positive = 1.76e-3,
        betas: tuple[DropoutProb, DropoutProb] = (0.9, 0.999),
        eps: Positive = 1e-6,
        weight_decay: NonNegative = 0.01,
        no_decay: Sequence[Kind] = ("norm", "bias"),
        rates: Mapping[str, float] | None = None,
        lr_scales: Mapping[str, float] | None = None,
    ) -> None:
        group = partial(build_groups, no_decay=no_decay, rates=rates, lr_scales=lr_scales)
        parameter_groups = group(classify(learner), learning_rate=learning_rate, weight_decay=weight_decay)
        super().__init__(learner, [LambUpdate(parameter_groups, betas=betas, eps=eps)])


class Muon(Optimizer):
    """Muon for the matrices inside the encoder's blocks, AdamW for everything else (Jordan et al. 2024).

    Args:
        weight_decay: decoupled decay of the matrices, times their learning rate.
    """

    def __init__(
        self,
        *,
        learner: nn.Module,
        learning_rate: Positive = 0.02,
        momentum: DropoutProb = 0.95,
        weight_decay: NonNegative = 0.1,
        num_iterations: Literal[3, 4, 5] = 4,
        adamw_learning_rate: Positive = 1e-3,
        adamw_betas: tuple[DropoutProb, DropoutProb] = (0.9, 0.98),
        adamw_eps: Positive = 1e-6,
        adamw_weight_decay: NonNegative = 0.01,
        no_decay: Sequence[Kind] = NO_DECAY,
        rates: Mapping[str, float] | None = None,
        lr_scales: Mapping[str, float] | None = None,
    ) -> None:
        parameters = classify(learner)
        matrices = [item for item in parameters if item.kind == "hidden"]
        rest = [item for item in parameters if item.kind != "hidden"]
        group = partial(build_groups, no_decay=no_decay, rates=rates, lr_scales=lr_scales)
        muon = MuonUpdate(
            group(matrices, learning_rate=learning_rate, weight_decay=weight_decay),
            momentum=momentum,
            num_iterations=num_iterations,
            splits={id(item.parameter): item.splits for item in matrices},
        )
        others = group(rest, learning_rate=adamw_learning_rate, weight_decay=adamw_weight_decay)
        adamw = fused_adamw(others, betas=adamw_betas, eps=adamw_eps)
        super().__init__(learner, [muon, adamw])


class Adagrad(Optimizer):
    """Adagrad (Duchi et al. 2011) with ``torch.optim.Adagrad``; the settings are named as in that class.

    Args:
        lr_decay: the rate of update n, from 0, is divided by ``1 + n * lr_decay``.
    """

    def __init__(
        self,
        *,
        learner: nn.Module,
        lr: float = 0.01,
        lr_decay: float = 0.0,
        weight_decay: NonNegative = 0.0,
        initial_accumulator_value: float = 0.0,
        eps: Positive = 1e-10,
        rates: Mapping[str, float] | None = None,
        lr_scales: Mapping[str, float] | None = None,
    ) -> None:
        group = partial(build_groups, no_decay=(), rates=rates, lr_scales=lr_scales)
        parameter_groups = group(classify(learner), learning_rate=lr, weight_decay=weight_decay)
        adagrad = torch.optim.Adagrad(
            parameter_groups, lr_decay=lr_decay, initial_accumulator_value=initial_accumulator_value, eps=eps
        )
        super().__init__(learner, [adagrad])
