"""LAMB (You et al. 2020, "Large Batch Optimization for Deep Learning", algorithm 2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from lmtransfer.config.types import DropoutProb, Positive


class LambUpdate(torch.optim.Optimizer):
    """Adam's direction, scaled for each parameter to the norm of the parameter.

    The ratio ``|w| / |update|`` is 1 if either norm is 0, and in groups without weight decay, as in the published
    ALBERT code.

    Args:
        parameter_groups: groups with ``lr`` and ``weight_decay``.
        betas: decay of the first and second moment.
        eps: added to the root of the second moment.
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
