"""Optimisers for the loop: one object that contains one or several ``torch.optim`` optimisers.

Each class takes the learner and flat settings. The loop multiplies every peak learning rate by the factor of the
schedule. State is saved by parameter *name*, as tensors and plain numbers, so that it is safe to load and does not
depend on the order in which parameters were created.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from lmtransfer.errors import CheckpointError
from lmtransfer.training.optim.lamb import LambUpdate
from lmtransfer.training.optim.muon import MuonUpdate
from lmtransfer.training.optim.parameters import classify, groups

NO_DECAY = ("norm", "bias", "embedding")


class Optimizer:
    """One or several ``torch.optim`` optimisers that together hold each trainable parameter once.

    Args:
        learner: the learner that owns the parameters.
        parts: the optimisers; the learning rate of the first is logged. ``peak_lr`` of a group (default: its ``lr``) is
            its learning rate at a factor of 1. ``base_lr`` is the same without layer-wise rates.
    """

    def __init__(self, learner: nn.Module, parts: Sequence[torch.optim.Optimizer]) -> None:
        self.parts = [part for part in parts if any(group["params"] for group in part.param_groups)]
        self.names = {id(parameter): name for name, parameter in learner.named_parameters()}
        for part in self.parts:
            for group in part.param_groups:
                group.setdefault("peak_lr", group["lr"])
                group.setdefault("base_lr", group["peak_lr"])
        self.parameters = [p for part in self.parts for group in part.param_groups for p in group["params"]]
        if len({id(p) for p in self.parameters}) != len(self.parameters):
            raise ValueError("a parameter is in two groups of the optimiser")

    def set_factor(self, factor: float) -> None:
        """Set every learning rate to ``factor`` times its peak."""
        for part in self.parts:
            for group in part.param_groups:
                group["lr"] = group["peak_lr"] * factor

    def learning_rate_at(self, factor: float) -> float:
        """The learning rate of the first group at ``factor`` times its peak, without layer-wise rates."""
        return float(self.parts[0].param_groups[0]["base_lr"]) * factor

    def decay_of(self, parameter: nn.Parameter) -> float | None:
        """The weight decay of a parameter, or None if it is not trained here."""
        for part in self.parts:
            for group in part.param_groups:
                if any(parameter is held for held in group["params"]):
                    return float(group.get("weight_decay", 0.0))
        return None

    def multiply_in(self, dtype: torch.dtype) -> None:
        """Set the dtype of the matrix products in an update; only Muon's update has matrix products.

        Args:
            dtype: bfloat16 if the hardware multiplies it, else float32. Weights and optimiser state keep their dtype.
        """
        for part in self.parts:
            if isinstance(part, MuonUpdate):
                part.product_dtype = dtype

    @property
    def skips_on_device(self) -> bool:
        """Whether ``step`` takes ``skip``: the fused kernels of AdamW do."""
        groups = [group for part in self.parts for group in part.param_groups]
        return all(type(part) is torch.optim.AdamW for part in self.parts) and all(group["fused"] for group in groups)

    def step(self, *, skip: Tensor | None = None) -> None:
        """Update every parameter that has a gradient.

        Args:
            skip: a float32 scalar on the device of the parameters; if it is 1, nothing changes. Only if
                ``skips_on_device``.
        """
        for part in self.parts:
            if skip is None:
                part.step()
                continue
            part.found_inf = skip  # type: ignore[attr-defined]  # where PyTorch's gradient scaler puts it
            try:
                part.step()
            finally:
                del part.found_inf  # type: ignore[attr-defined]

    def zero_grad(self) -> None:
        """Drop the gradients."""
        for parameter in self.parameters:
            parameter.grad = None

    def state_dict(self) -> dict[str, Tensor]:
        """The state with keys ``<parameter name>/<entry>``: tensors only (a number becomes a float64 scalar)."""
        state = {}
        for part in self.parts:
            for parameter, entries in part.state.items():
                for entry, value in entries.items():
                    tensor = value if isinstance(value, Tensor) else torch.tensor(value, dtype=torch.float64)
                    state[f"{self.names[id(parameter)]}/{entry}"] = tensor
        return state

    def load_state_dict(self, state: Mapping[str, Tensor], *, source: str = "the checkpoint") -> None:
        """The reverse of ``state_dict``; tensors are copied to the devices of the parameters.

        Args:
            state: tensors with keys ``<parameter name>/<entry>``.
            source: name of the source in messages.

        Raises:
            CheckpointError: ``state`` has a parameter that is not trained here, a tensor has another shape, or an entry
                is missing.
        """
        holders = {
            self.names[id(p)]: (part, p, bool(group.get("fused")))
            for part in self.parts
            for group in part.param_groups
            for p in group["params"]
        }
        unknown = sorted({key.rpartition("/")[0] for key in state} - set(holders))
        if unknown:
            raise CheckpointError(
                f"the saved optimiser state has {len(unknown)} parameters that are not trained here, such as "
                f"{unknown[0]!r}: resume with the model, objective and optimizer of the first start of the run"
            )
        entries: dict[int, set[str]] = {}
        for key, value in state.items():
            name, _, entry = key.rpartition("/")
            part, parameter, _ = holders[name]
            entries.setdefault(id(part), set()).add(entry)
            if value.ndim and value.shape != parameter.shape:
                raise CheckpointError(
                    f"{source}: the optimiser's {key} has shape {list(value.shape)}, but its parameter "
                    f"has shape {list(parameter.shape)}: restore the folder from a copy"
                )
        started = {key.rpartition("/")[0] for key in state}
        lost = [
            f"{name}/{entry}"
            for name in started
            for entry in entries[id(holders[name][0])]
            if f"{name}/{entry}" not in state
        ]
        if lost:
            raise CheckpointError(f"{source}: the optimiser's {min(lost)} is missing: restore the folder from a copy")
        for part in self.parts:
            part.state.clear()
        for key, value in state.items():
            name, _, entry = key.rpartition("/")
            part, parameter, fused = holders[name]
            on_device = (
                value.ndim > 0 or fused
            )  # fused kernels keep step counts on the device of the parameter, others on the host
            part.state[parameter][entry] = value.to(parameter.device if on_device else "cpu", copy=True)


class AdamW(Optimizer):
    """Adam with decoupled weight decay (Loshchilov & Hutter 2019), fused.

    Args:
        learner: whose trainable parameters are optimised.
        learning_rate: peak rate.
        betas: decay of the first and second moment.
        eps: added to the root of the second moment.
        weight_decay: decoupled decay, times the learning rate.
        no_decay: kinds of parameters without decay (see ``parameters.Kind``).
        bias_correction: False omits the bias correction of the moments, as in the published BERT code
            (google-research/bert, optimization.py), although Adam in the paper has it.
        rates: factor on the learning rate by kind of parameter, and of the head (see ``parameters.RATED``).
        lr_scales: factor on the learning rate by parameter name, for layer-wise rates.
    """

    def __init__(
        self,
        *,
        learner: nn.Module,
        learning_rate: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.98),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        no_decay: Sequence[str] = NO_DECAY,
        bias_correction: bool = True,
        rates: Mapping[str, float] | None = None,
        lr_scales: Mapping[str, float] | None = None,
    ) -> None:
        parameter_groups = groups(
            classify(learner),
            learning_rate=learning_rate,
            weight_decay=weight_decay,
            no_decay=no_decay,
            rates=rates,
            lr_scales=lr_scales,
        )
        super().__init__(learner, [fused_adamw(parameter_groups, betas=betas, eps=eps)])
        if not bias_correction:
            for parameter in self.parameters:
                self.parts[0].state[parameter] = _moments_of_age(parameter, 10_000_000)


def _moments_of_age(parameter: nn.Parameter, age: int) -> dict[str, Tensor]:
    """Adam's state with zero moments after ``age`` steps; with a large ``age`` its bias corrections are exactly 1."""
    return {
        "step": torch.tensor(float(age), device=parameter.device),
        "exp_avg": torch.zeros_like(parameter),
        "exp_avg_sq": torch.zeros_like(parameter),
    }


def fused_adamw(parameter_groups: list[dict], *, betas: Sequence[float], eps: float) -> torch.optim.AdamW:
    """``torch.optim.AdamW`` in one kernel over all parameters, on CPU and CUDA."""
    beta1, beta2 = betas
    return torch.optim.AdamW(parameter_groups or [{"params": []}], betas=(beta1, beta2), eps=eps, fused=True)


class Lamb(Optimizer):
    """LAMB for large batches (You et al. 2020, algorithm 2).

    Args:
        learner: whose trainable parameters are optimised.
        learning_rate: peak rate.
        betas: decay of the first and second moment.
        eps: added to the root of the second moment.
        weight_decay: decay, added to the update before its norm is taken.
        no_decay: kinds of parameters without decay and, as in the published ALBERT code, without the trust ratio.
        rates: factor on the learning rate by kind of parameter, and of the head (see ``parameters.RATED``).
        lr_scales: factor on the learning rate by parameter name, for layer-wise rates.
    """

    def __init__(
        self,
        *,
        learner: nn.Module,
        learning_rate: float = 1.76e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        no_decay: Sequence[str] = ("norm", "bias"),
        rates: Mapping[str, float] | None = None,
        lr_scales: Mapping[str, float] | None = None,
    ) -> None:
        parameter_groups = groups(
            classify(learner),
            learning_rate=learning_rate,
            weight_decay=weight_decay,
            no_decay=no_decay,
            rates=rates,
            lr_scales=lr_scales,
        )
        super().__init__(learner, [LambUpdate(parameter_groups, betas=betas, eps=eps)])


class Muon(Optimizer):
    """Muon for the matrices inside the encoder's blocks, AdamW for everything else (Jordan et al. 2024).

    Args:
        learner: whose trainable parameters are optimised.
        learning_rate: peak rate of the matrices.
        momentum: Nesterov momentum of the gradients of the matrices.
        weight_decay: decoupled decay of the matrices, times their learning rate.
        num_iterations: number of Newton-Schulz iterations, 3 to 5.
        adamw_learning_rate: peak rate of the other parameters.
        adamw_betas: decay of the moments of the other parameters.
        adamw_eps: added to the root of the second moment of the other parameters.
        adamw_weight_decay: decoupled decay of the other parameters.
        no_decay: kinds of parameters without decay (see ``parameters.Kind``).
        rates: factor on the learning rate by kind of parameter, and of the head (see ``parameters.RATED``).
        lr_scales: factor on the learning rate by parameter name, for layer-wise rates.
    """

    def __init__(
        self,
        *,
        learner: nn.Module,
        learning_rate: float = 0.02,
        momentum: float = 0.95,
        weight_decay: float = 0.1,
        num_iterations: int = 4,
        adamw_learning_rate: float = 1e-3,
        adamw_betas: tuple[float, float] = (0.9, 0.98),
        adamw_eps: float = 1e-6,
        adamw_weight_decay: float = 0.01,
        no_decay: Sequence[str] = NO_DECAY,
        rates: Mapping[str, float] | None = None,
        lr_scales: Mapping[str, float] | None = None,
    ) -> None:
        named = classify(learner)
        matrices = [item for item in named if item.kind == "hidden"]
        rest = [item for item in named if item.kind != "hidden"]
        muon = MuonUpdate(
            groups(
                matrices,
                learning_rate=learning_rate,
                weight_decay=weight_decay,
                no_decay=no_decay,
                rates=rates,
                lr_scales=lr_scales,
            ),
            momentum=momentum,
            num_iterations=num_iterations,
            splits={id(item.parameter): item.splits for item in matrices},
        )
        adamw = fused_adamw(
            groups(
                rest,
                learning_rate=adamw_learning_rate,
                weight_decay=adamw_weight_decay,
                no_decay=no_decay,
                rates=rates,
                lr_scales=lr_scales,
            ),
            betas=adamw_betas,
            eps=adamw_eps,
        )
        super().__init__(learner, [muon, adamw])


class Adagrad(Optimizer):
    """Adagrad (Duchi et al. 2011) with ``torch.optim.Adagrad``; the settings have the names of that class.

    Args:
        learner: whose trainable parameters are optimised.
        lr: peak rate.
        lr_decay: the rate of update n, from 0, is divided by ``1 + n * lr_decay``.
        weight_decay: this number times the weight is added to each gradient.
        initial_accumulator_value: initial value of the sums of squared gradients.
        eps: added to the roots of these sums.
        rates: factor on the learning rate by kind of parameter, and of the head (see ``parameters.RATED``).
        lr_scales: factor on the learning rate by parameter name, for layer-wise rates.
    """

    def __init__(
        self,
        *,
        learner: nn.Module,
        lr: float = 0.01,
        lr_decay: float = 0.0,
        weight_decay: float = 0.0,
        initial_accumulator_value: float = 0.0,
        eps: float = 1e-10,
        rates: Mapping[str, float] | None = None,
        lr_scales: Mapping[str, float] | None = None,
    ) -> None:
        parameter_groups = groups(
            classify(learner),
            learning_rate=lr,
            weight_decay=weight_decay,
            no_decay=(),
            rates=rates,
            lr_scales=lr_scales,
        )
        adagrad = torch.optim.Adagrad(
            parameter_groups, lr_decay=lr_decay, initial_accumulator_value=initial_accumulator_value, eps=eps
        )
        super().__init__(learner, [adagrad])
