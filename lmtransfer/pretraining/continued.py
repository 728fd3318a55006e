"""The parts of another run that continued pretraining reuses: the model, and the arguments and weights of the heads."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from lmtransfer.config.component import Node
from lmtransfer.config.settings import ObjectiveSettings, PretrainSettings
from lmtransfer.errors import ConfigError
from lmtransfer.objectives.base import Objective
from lmtransfer.objectives.learner import PretrainingLearner
from lmtransfer.runs.labels import model_label
from lmtransfer.runs.saved_run import SavedRun

P = TypeVar("P", bound=PretrainSettings)

_GENERATOR_KEYS = ("generator_start", "generator_size")


def continue_from(saved: SavedRun, settings: P) -> P:
    """Return the settings that continue a run.

    The model comes from the run. Only its dropout can be set, because dropout has no weights. A loss that the run also
    had keeps the arguments with which its head was trained, except for its weight in the total and what the user set.
    """
    model = dict(saved.config["model"])
    problems = []
    for key, word in settings.given.items():
        group, _, name = key.partition(".")
        if group == "model" and name.endswith("dropout") and name in model:
            model[name] = settings.model.values[name]
        elif group == "model":
            settable = ", ".join(f"model.{known}" for known in model if known.endswith("dropout"))
            problems.append(
                f"{word}: with init=..., the model comes from the run ({model_label(model)}); leave this setting out"
                + (f" (only {settable} can be set)" if settable else "")
            )
        elif group == "tokenizer" and name != "add":
            problems.append(
                f"{word}: with init=..., the tokenizer comes from the run; leave this setting out "
                "(tokenizer.add=<file> adds words)"
            )
    if problems:
        raise ConfigError(problems)
    phases = {
        name: phase
        if phase.objective is None
        else phase.model_copy(
            update={"objective": _take_arguments(saved, phase.objective, f"phases.{name}.objective", settings.given)}
        )
        for name, phase in (settings.phases or {}).items()
    }
    return settings.model_copy(
        update={
            "init": saved.reference,
            "model": Node(model, "model"),
            "objective": _take_arguments(saved, settings.objective, "objective", settings.given),
            **({"phases": phases} if phases else {}),
        }
    )


def _take_arguments(
    saved: SavedRun, objective: ObjectiveSettings, key: str, given: Mapping[str, str]
) -> ObjectiveSettings:
    """Return an objective whose losses have the arguments with which the heads of the run were trained."""
    losses = dict(objective.losses)
    for name, trained in ((saved.config.get("objective") or {}).get("losses") or {}).items():
        loss = losses.get(name)
        if loss is None or loss.get("_target_") != trained.get("_target_"):
            continue
        arguments = {
            argument: value
            for argument, value in trained.items()
            if not given.keys() & {f"{key}.losses.{name}.{argument}", f"{key}.{argument}"}
            and not argument.endswith("weight")
        }
        if loss.get("tie_output") is False:
            arguments.pop("tie_output", None)  # not the default, so a phase or a recipe has set false
        if loss.get("generator_start") == "encoder":  # not the default either
            arguments = {argument: value for argument, value in arguments.items() if argument not in _GENERATOR_KEYS}
        losses[name] = loss.replace(**arguments)
    return objective.model_copy(update={"losses": losses})


def recipe_remark(given: Collection[str]) -> str | None:
    """Return a note if the run continues with the default recipe, which is designed for random weights."""
    groups = {key.partition(".")[0] for key in given}
    if not groups or groups & {"experiment", "optimizer"}:
        return None
    return (
        "the default recipe is designed for random weights, and its learning rates make a pretrained encoder forget: "
        "use experiment=adapt, which has lower learning rates"
    )


@dataclass(frozen=True, slots=True)
class InheritedHeads:
    """The objectives that received all, some or none of their head weights from the continued run."""

    loaded: tuple[str, ...]
    partly_loaded: tuple[str, ...]
    random: tuple[str, ...]

    def __str__(self) -> str:
        groups = (("loaded", self.loaded), ("loaded in part", self.partly_loaded), ("start at random", self.random))
        return "heads: " + "; ".join(f"{', '.join(names)} {what}" for what, names in groups if names)


@torch.no_grad()
def inherit_heads(learner: PretrainingLearner, heads: Mapping[str, Tensor]) -> InheritedHeads:
    """Copy the head weights of another run by name (``mlm.dense.weight``), where names and shapes match."""
    names_of_kinds: dict[str, list[str]] = {"loaded": [], "partly_loaded": [], "random": []}
    own_encoder = {id(tensor) for tensor in learner.encoder.state_dict(keep_vars=True).values()}
    for objective in learner.objective_list():
        name = objective.name
        own: dict[str, Any] = {
            key: tensor
            for key, tensor in objective.state_dict(prefix=f"{name}.", keep_vars=True).items()
            if id(tensor) not in own_encoder
        }
        tensors = _shared_head(objective, heads) | dict(heads)
        matching = [key for key, tensor in own.items() if key in tensors and tensors[key].shape == tensor.shape]
        together = {f"{name}.{key}" for key in objective.joint_parameters}
        if not together <= set(matching):
            matching = [key for key in matching if key not in together]
        for key in matching:
            own[key].copy_(tensors[key])
        kind = "loaded" if len(matching) == len(own) else "partly_loaded" if matching else "random"
        names_of_kinds[kind].append(name)
    return InheritedHeads(**{kind: tuple(names) for kind, names in names_of_kinds.items()})


def _shared_head(objective: Objective, heads: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the head weights that an objective borrows, renamed to its own modules."""
    return {
        f"{objective.name}.{module}.{key.removeprefix(f'{other}.')}": tensor
        for module, other in objective.borrowed_heads.items()
        for key, tensor in heads.items()
        if key.startswith(f"{other}.")
    }
