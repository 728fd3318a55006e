"""The optimizers that configs can choose, and the ``Optimizer`` that the training loop uses."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from lmtransfer.config.types import DropoutProb, NonNegative, Positive
from lmtransfer.errors import CheckpointError, ConfigError
from lmtransfer.training import process_group
from lmtransfer.training.data_parallel import gather_whole, shard_like
from lmtransfer.training.learner import GivesEmbeddings, HasBlocks, HasSplits
from lmtransfer.training.optim.muon import MuonUpdate

Kind = Literal["hidden", "weight", "embedding", "norm", "bias"]
#: The groups that can have their own learning rate: each kind of encoder parameter, and "head" for all parameters
#: outside encoders.
RATE_KEYS = (*get_args(Kind), "head")
NO_DECAY: tuple[Kind, ...] = ("norm", "bias", "embedding")


class Optimizer:
    """One or several ``torch.optim`` optimizers that together contain each trainable parameter once.

    The loop multiplies every peak learning rate by the schedule's factor. State is saved by parameter *name*, as
    tensors only, so that it is safe to load and does not depend on the order of the parameters.

    Args:
        parts: the optimizers; the learning rate of the first is logged. A group's ``peak_lr`` (default: its ``lr``) is
            its learning rate at a factor of 1; ``base_lr`` is the same without layer-wise rates.
        learning_rate: peak learning rate; a small encoder is finetuned at 1e-4 to 5e-4.
        rates: factors on the learning rate by kind of parameter, 1 by default; 0 freezes: hidden, weight, embedding
            (tables of tokens, positions and segments, a character CNN, and an output matrix that is tied to a table),
            norm, bias; head: everything outside the encoder (dense layers, norms and biases of objectives, and a
            separate output matrix).
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
            raise ValueError("a parameter appears in two optimizer groups")

    def set_factor(self, factor: float) -> None:
        """Set every learning rate to ``factor`` times its peak."""
        for part in self.parts:
            for group in part.param_groups:
                group["lr"] = group["peak_lr"] * factor

    def learning_rate_at(self, factor: float) -> float:
        """Return the learning rate of the first group at ``factor`` times its peak, without layer-wise rates."""
        return float(self.parts[0].param_groups[0]["base_lr"]) * factor

    def decay_of(self, parameter: nn.Parameter) -> float | None:
        """Return the weight decay of a parameter; None if no part trains the parameter."""
        for part in self.parts:
            for group in part.param_groups:
                if any(parameter is member for member in group["params"]):
                    return float(group.get("weight_decay", 0.0))
        return None

    def multiply_in(self, dtype: torch.dtype) -> None:
        """Set the dtype of Muon's matrix products, bfloat16 or float32; other optimizers have none."""
        for part in self.parts:
            if isinstance(part, MuonUpdate):
                part.product_dtype = dtype

    @property
    def skips_on_device(self) -> bool:
        """Whether ``step`` accepts ``skip``: Muon and AdamW's fused kernels do."""
        return all(
            isinstance(part, MuonUpdate)
            or (type(part) is torch.optim.AdamW and all(group["fused"] for group in part.param_groups))
            for part in self.parts
        )

    def step(self, *, skip: Tensor | None = None) -> None:
        """Update every parameter that has a gradient.

        Args:
            skip: a float32 scalar on the device of the parameters; if it is 1, nothing changes. Requires
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
        """Return the state with keys ``<parameter name>/<entry>``, as tensors only: a number becomes a float64 scalar.

        Every rank must call this, because state that only one rank has is sent to the others.
        """
        state = {}
        for part in self.parts:
            for parameter, entries in part.state.items():
                for entry, value in entries.items():
                    tensor = value if isinstance(value, Tensor) else torch.tensor(value, dtype=torch.float64)
                    state[f"{self.names[id(parameter)]}/{entry}"] = gather_whole(tensor)
        return process_group.union(state)

    def load_state_dict(self, state: Mapping[str, Tensor], *, source: str = "the checkpoint") -> None:
        """Restore the state from ``state_dict``; tensors are copied to the devices of the parameters."""
        holders = {
            self.names[id(p)]: (part, p, bool(group.get("fused")))
            for part in self.parts
            for group in part.param_groups
            for p in group["params"]
        }
        unknown = sorted({key.rpartition("/")[0] for key in state} - set(holders))
        if unknown:
            raise CheckpointError(
                f"the saved optimizer state has {len(unknown)} parameters that are not trained here, such as "
                f"{unknown[0]!r}: resume with the model, objective and optimizer with which the run started"
            )
        entries: dict[int, set[str]] = {}
        for key, value in state.items():
            name, _, entry = key.rpartition("/")
            part, parameter, _ = holders[name]
            entries.setdefault(id(part), set()).add(entry)
            if value.ndim and value.shape != parameter.shape:
                raise CheckpointError(
                    f"{source}: the optimizer's {key} has shape {list(value.shape)}, but its parameter "
                    f"has shape {list(parameter.shape)}: restore the folder from a backup"
                )
        started = {key.rpartition("/")[0] for key in state}
        missing = [
            f"{name}/{entry}"
            for name in started
            for entry in entries[id(holders[name][0])]
            if f"{name}/{entry}" not in state
        ]
        if missing:
            raise CheckpointError(
                f"{source}: the optimizer's {min(missing)} is missing: restore the folder from a backup"
            )
        for part in self.parts:
            part.state.clear()
        for key, value in state.items():
            name, _, entry = key.rpartition("/")
            part, parameter, fused = holders[name]
            if isinstance(part, MuonUpdate) and not part.owns(parameter):
                continue
            # fused kernels keep step counts on the device of the parameter, others on the host
            on_device = value.ndim > 0 or fused
            value = value.to(parameter.device if on_device else "cpu", copy=True)
            part.state[parameter][entry] = shard_like(parameter, value) if value.ndim else value


@dataclass(frozen=True, slots=True)
class NamedParameter:
    """One parameter of a learner.

    Attributes:
        kind: ``hidden``: the matrix of a linear layer inside an encoder block; ``embedding``: one row per token (even
            if an output layer is tied to it), or any parameter of a network that computes embeddings; ``norm``: gain or
            offset of a normalization; ``bias``: any other vector or number; ``weight``: everything else.
        splits: number of independent matrices stacked in its rows (3 for a fused query-key-value projection, whose
            module has ``muon_splits = 3``).
        in_head: whether it belongs to the head of an objective or task rather than to an encoder. An output matrix that
            is tied to the token embedding belongs to the encoder.
    """

    name: str
    parameter: nn.Parameter
    kind: Kind
    splits: int = 1
    in_head: bool = False


def _is_norm(module: nn.Module) -> bool:
    return isinstance(module, nn.LayerNorm | nn.RMSNorm | nn.GroupNorm | nn.modules.batchnorm._NormBase) or type(
        module
    ).__name__.endswith("Norm")


def _owners(module: nn.Module) -> Iterator[tuple[nn.Module, nn.Parameter]]:
    for owner in module.modules():
        for parameter in owner.parameters(recurse=False):
            yield owner, parameter


def _hidden_linears(learner: nn.Module) -> set[int]:
    blocks = [block for module in learner.modules() if isinstance(module, HasBlocks) for block in module.blocks()]
    return {id(layer) for block in blocks for layer in block.modules() if isinstance(layer, nn.Linear)}


def _embeddings(learner: nn.Module) -> set[int]:
    """Return the ``id`` of each parameter of an embedding table, or of a network that computes embeddings."""
    tables = (nn.Embedding, nn.EmbeddingBag)
    modules = [module for module in learner.modules() if isinstance(module, tables) or _gives_embeddings(module)]
    return {id(parameter) for module in modules for parameter in module.parameters()}


def _gives_embeddings(module: nn.Module) -> bool:
    return isinstance(module, GivesEmbeddings) and module.gives_embeddings


def classify(learner: nn.Module) -> list[NamedParameter]:
    """List every trainable parameter once, in the order of ``named_parameters()``."""
    hidden, embeddings = _hidden_linears(learner), _embeddings(learner)
    encoders = [module for module in learner.modules() if isinstance(module, HasBlocks)]
    of_encoders = {id(parameter) for encoder in encoders for parameter in encoder.parameters()}
    owners: dict[int, list[nn.Module]] = {}
    for owner, parameter in _owners(learner):
        owners.setdefault(id(parameter), []).append(owner)
    parameters = []
    for name, parameter in learner.named_parameters():
        if not parameter.requires_grad:
            continue
        owning = owners[id(parameter)]
        kind: Kind = "weight"
        if id(parameter) in embeddings:
            kind = "embedding"
        elif any(_is_norm(owner) for owner in owning):
            kind = "norm"
        elif parameter.ndim < 2:
            kind = "bias"
        elif any(id(owner) in hidden for owner in owning):
            kind = "hidden"
        splits = owning[0].muon_splits if kind == "hidden" and isinstance(owning[0], HasSplits) else 1
        parameters.append(NamedParameter(name, parameter, kind, splits, in_head=id(parameter) not in of_encoders))
    return parameters


def build_groups(
    parameters: Collection[NamedParameter],
    *,
    learning_rate: float,
    weight_decay: float,
    no_decay: Collection[Kind],
    rates: Mapping[str, float] | None = None,
    lr_scales: Mapping[str, float] | None = None,
) -> list[dict[str, Any]]:
    """Build parameter groups for a ``torch.optim`` optimizer: every parameter is in exactly one group.

    Args:
        learning_rate: peak rate, stored as ``base_lr``; multiplied by the factors of the parameter, it is ``peak_lr``
            and ``lr``.
        rates: factor on the learning rate by kind (``RATE_KEYS``); all parameters in a head have the factor of "head".
    """
    factors, scales = _check_rates(rates or {}), lr_scales or {}
    by_setting: dict[tuple[float, float], list[nn.Parameter]] = {}
    for item in parameters:
        decay = 0.0 if item.kind in no_decay else weight_decay
        factor = factors.get("head" if item.in_head else item.kind, 1.0) * scales.get(item.name, 1.0)
        by_setting.setdefault((decay, learning_rate * factor), []).append(item.parameter)
    return [
        {"params": members, "lr": rate, "peak_lr": rate, "base_lr": learning_rate, "weight_decay": decay}
        for (decay, rate), members in by_setting.items()
    ]


def _check_rates(rates: Mapping[str, float]) -> Mapping[str, float]:
    problems = [
        f"optimizer.rates.{name}: a model has no such part; the parts are {', '.join(RATE_KEYS)}"
        for name in rates
        if name not in RATE_KEYS
    ]
    problems += [
        f"optimizer.rates.{name}={factor}: this factor on the learning rate must be finite and at least 0 (0 freezes)"
        for name, factor in rates.items()
        if not (math.isfinite(factor) and factor >= 0)
    ]
    if problems:
        raise ConfigError(problems)
    return rates


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
        no_decay: kinds of parameters without decay: some of hidden, weight, embedding, norm, bias.
        bias_correction: False omits the bias correction of the moments, as in the published BERT code
            (google-research/bert, optimization.py); the paper's Adam includes the correction.
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
        num_iterations: Newton-Schulz iterations; 4 here are as close to orthogonal as 5 in the original.
        adamw_learning_rate: peak learning rate of AdamW.
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
