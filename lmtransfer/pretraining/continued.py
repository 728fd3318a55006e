"""The parts of another run that continued pretraining reuses: the model, and the arguments and weights of the heads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf, open_dict
from torch import Tensor

from lmtransfer.config.overrides import command_line_overrides, parse
from lmtransfer.config.phases import phases_of
from lmtransfer.config.plain import literal
from lmtransfer.errors import ConfigError
from lmtransfer.objectives.base import Objective
from lmtransfer.objectives.learner import PretrainingLearner
from lmtransfer.runs.labels import model_label
from lmtransfer.runs.saved_run import SavedRun

_GENERATOR_KEYS = ("generator_start", "generator_size")


def continue_from(saved: SavedRun, cfg: DictConfig) -> None:
    """Change the config so that it continues a run.

    The model comes from the run. Only its dropout can be overridden, because dropout has no weights. A loss that the
    run also had keeps the arguments with which its head was trained, except for its weight in the total and the user's
    overrides.
    """
    typed_keys = command_line_keys()
    model = dict(saved.config["model"])
    problems = []
    for key, text in typed_keys.items():
        group, _, name = key.partition(".")
        if group == "model" and name.endswith("dropout") and name in model:
            model[name] = cfg.model[name]
        elif group == "model":
            settable = ", ".join(f"model.{known}" for known in model if known.endswith("dropout"))
            problems.append(
                f"{text}: with init=..., the model comes from the run ({model_label(model)}); leave this setting out"
                + (f" (only {settable} can be set)" if settable else "")
            )
        elif group == "tokenizer" and name != "add":
            problems.append(
                f"{text}: with init=..., the tokenizer comes from the run; leave this setting out "
                "(tokenizer.add=<file> adds words)"
            )
    if problems:
        raise ConfigError(problems)
    with open_dict(cfg):
        cfg.init = literal(saved.reference)
        cfg.model = literal(model)
        for phase in phases_of(cfg):
            _take_arguments(
                saved, OmegaConf.select(cfg, phase.objective).losses, key=phase.objective, typed_keys=typed_keys
            )


def _take_arguments(saved: SavedRun, losses: DictConfig, *, key: str, typed_keys: Mapping[str, str]) -> None:
    """Set the arguments of losses to those with which the heads of the run were trained."""
    for loss, node in ((saved.config.get("objective") or {}).get("losses") or {}).items():
        if loss in losses and losses[loss].get("_target_") == node.get("_target_"):
            place = f"{key}.losses.{loss}."
            arguments = {
                name: value for name, value in node.items() if not typed_keys.keys() & {place + name, f"{key}.{name}"}
            }
            arguments = {name: value for name, value in arguments.items() if not name.endswith("weight")}
            if losses[loss].get("tie_output") is False:
                arguments.pop("tie_output", None)  # not the default, so a phase or a recipe has set false
            if losses[loss].get("generator_start") == "encoder":  # not the default either
                arguments = {name: value for name, value in arguments.items() if name not in _GENERATOR_KEYS}
            losses[loss] = literal({**losses[loss], **arguments})


def recipe_remark() -> str | None:
    """Return a note if the run continues with the default recipe, which is designed for random weights."""
    groups = {key.partition(".")[0] for key in command_line_keys()}
    if not groups or groups & {"experiment", "optimizer"}:
        return None
    return (
        "the default recipe is designed for random weights, and its learning rates make a pretrained encoder forget: "
        "use experiment=adapt, which has lower learning rates"
    )


def command_line_keys() -> dict[str, str]:
    """Return the command-line overrides, keyed by key or group."""
    words = [parse(word) for word in command_line_overrides()]
    return {word.key_or_group: str(word.input_line) for word in words}


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
