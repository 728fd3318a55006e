"""The classification of parameters by the type of the module that owns them, never by name."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from torch import nn

from lmtransfer.errors import ConfigError
from lmtransfer.training.learner import GivesEmbeddings, HasBlocks, HasSplits

Kind = Literal["hidden", "weight", "embedding", "norm", "bias"]
#: What can have its own learning rate: each kind of encoder parameter, and "head", all parameters outside encoders.
RATE_KEYS = (*get_args(Kind), "head")


@dataclass(frozen=True, slots=True)
class NamedParameter:
    """One parameter of a learner.

    Attributes:
        name: its first name in ``named_parameters()``.
        parameter: the parameter itself.
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
    """Return the ``id`` of each linear layer inside encoder blocks."""
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
    """List every trainable parameter once, with its kind, in the order of ``named_parameters()``.

    The kinds are described at ``NamedParameter``. The linear matrices in the blocks of every encoder are ``hidden``,
    including those of ELECTRA's generator. The matrices of a head are not.
    """
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
    no_decay: Collection[str],
    rates: Mapping[str, float] | None = None,
    lr_scales: Mapping[str, float] | None = None,
) -> list[dict[str, Any]]:
    """Build parameter groups for a ``torch.optim`` optimizer: every parameter is in exactly one group.

    Args:
        parameters: the parameters, as ``classify`` returns them.
        learning_rate: peak rate, stored as ``base_lr``; multiplied by the factors of the parameter, it is ``peak_lr``
            and ``lr``.
        weight_decay: weight decay of all kinds except ``no_decay``.
        no_decay: the kinds without weight decay.
        rates: factor on the learning rate by kind of parameter, see ``RATED``; 1 for the others. All parameters in a
            head, of any kind, have the factor of "head".
        lr_scales: factor on the learning rate by parameter name (layer-wise rates); 1 for the others.

    Raises:
        ConfigError: ``no_decay`` or ``rates`` names a kind that does not exist, or a factor is not a finite number of
            at least 0.
    """
    unknown = sorted(set(no_decay) - set(get_args(Kind)))
    if unknown:
        raise ConfigError(f"optimizer.no_decay={unknown}: the kinds of parameters are {', '.join(get_args(Kind))}")
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
    """Check the factors and return them."""
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
