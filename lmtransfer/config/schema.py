"""The settings that commands share, with their types, descriptions and ranges. Does not import torch.

A command's primary config lists its keys; these classes describe the common ones.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self

from lmtransfer.config.plain import full_key, join, to_plain
from lmtransfer.config.ranges import out_of_range
from lmtransfer.config.values import BROKEN, Misfit, convert
from lmtransfer.errors import ConfigError


def _setting(default: Any, doc: str, *, above: float | None = None, at_least: float | None = None) -> Any:
    """A field with its description and its range."""
    return dataclasses.field(default=default, metadata={"doc": doc, "above": above, "at_least": at_least})


class Settings:
    """Base of the settings classes: reads a config node and reports all problems at once."""

    @classmethod
    def problems(cls, node: Mapping[str, Any], key: str) -> dict[str, str]:
        """The problems of the keys that this class describes, by full key; other keys are ignored.

        Args:
            node: plain data, interpolations resolved.
            key: full key of the node ("train"), or "" for the top level.
        """
        found = {}
        for name, (field, annotation) in _fields(cls).items():
            if name not in node or node[name] is BROKEN:
                continue
            try:
                value = convert(node[name], annotation)
            except Misfit as misfit:
                found[join(key, name)] = str(misfit)
                continue
            problem = _out_of_range(value, field) or out_of_range(name, value)
            if problem:
                found[join(key, name)] = problem
        return found

    @classmethod
    def conversions(cls, node: Mapping[str, Any], key: str) -> dict[str, Any]:
        """The values that need another type, by full key: 1e3 (a float) for a key that is an integer."""
        found = {}
        for name, (_, annotation) in _fields(cls).items():
            if name not in node:
                continue
            try:
                value = convert(node[name], annotation)
            except Misfit:
                continue
            if type(value) is not type(node[name]):
                found[join(key, name)] = value
        return found

    @classmethod
    def from_config(cls, node: Any) -> Self:
        """Read a config node (``cfg.train``); keys that this class does not describe are the command's own.

        Raises:
            ConfigError: a value has the wrong type or is out of range, or a ``???`` is not set.
        """
        key = full_key(node)
        values, problems = to_plain(node, key)
        problems |= cls.problems(values, key)
        if problems:
            raise ConfigError([f"{name}: {problem}" for name, problem in problems.items()])
        known = _fields(cls)
        return cls(**{name: convert(value, known[name][1]) for name, value in values.items() if name in known})

    @classmethod
    def annotations(cls) -> dict[str, Any]:
        """The evaluated annotation of each key."""
        return {name: annotation for name, (_, annotation) in _fields(cls).items()}

    @classmethod
    def docs(cls) -> dict[str, str]:
        """The description of each key, for help pages."""
        return {name: field.metadata["doc"] for name, (field, _) in _fields(cls).items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainSettings(Settings):
    """``train``: the budget (one of steps, tokens, epochs, seconds), batch sizes, and intervals."""

    steps: int | None = _setting(None, "budget in optimiser steps", above=0)
    tokens: int | None = _setting(None, "budget in real tokens", above=0)
    epochs: float | None = _setting(None, "budget in passes over the training data", above=0)
    seconds: float | None = _setting(None, "budget in wall-clock seconds; the schedule follows the clock", above=0)
    min_steps: int | None = _setting(None, "smallest number of steps, used if the epochs give fewer", above=0)
    batch_tokens: int | None = _setting(None, "tokens in one optimiser step, over all ranks", above=0)
    batch_examples: int | None = _setting(None, "labelled examples in one optimiser step, over all ranks", above=0)
    micro_batch_tokens: int | None = _setting(
        None, "tokens in one pass, up to a row more; null: all of the step", above=0
    )
    save_every: int | None = _setting(None, "steps between checkpoints; null: only at the end", above=0)
    save_at: list[int | str] | None = _setting(
        None, "tokens seen at which the model is kept for good, such as [0,100k,1M]; 0: the initial weights; null: none"
    )
    eval_every: int | None = _setting(None, "steps between validations; null: only at the end", above=0)
    log_every: int = _setting(10, "steps between two lines of metrics.jsonl", above=0)
    max_grad_norm: float | None = _setting(None, "clip the gradient's norm to this; null: no clipping", above=0)
    num_workers: int | None = _setting(
        None,
        "processes that build batches, which are the same for any number; null: some beside a GPU, none on a CPU",
        at_least=0,
    )
    patience: int | None = _setting(None, "stop after this many validations without improvement; null: never", above=0)
    ema_decay: float | None = _setting(
        None, "validate, save and transfer an exponential moving average of the weights, with this decay; null: none"
    )
    average_last: float | None = _setting(
        None, "validate, save and transfer the mean weights of this last share of the budget (LAWA, SWA); null: none"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class HardwareSettings(Settings):
    """``hardware``: device, number format, threads, compilation, and memory of the passes."""

    device: str = _setting("auto", "auto, cpu, cuda, cuda:1, mps")
    precision: Literal["auto", "fp32", "bf16", "fp16"] = _setting("auto", "auto, fp32, bf16, fp16")
    threads: int | None = _setting(None, "CPU threads; null: the usable physical cores", above=0)
    compile: bool | Literal["auto"] = _setting(
        "auto", "torch.compile each block: auto (on CUDA, in pretraining, if possible), true, false"
    )
    activation_checkpointing: bool = _setting(
        False, "recompute transformer layers in the backward pass: less memory, more time, the same result"
    )
    residual: Literal["float32", "bfloat16"] = _setting(
        "float32", "states between layers in training: float32, bfloat16 (with bf16)"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CommonSettings(Settings):
    """The top level of training commands."""

    name: str | None = _setting(None, "name of the run: <output_root>/<command>/<name>")
    seed: int = _setting(0, "decides order, masks, initialisation and dropout", at_least=0)
    seeds: int = _setting(1, "train this many times, with seeds seed, seed + 1, ...", above=0)
    init: str | None = _setting(None, "run directory to start from, or hf:<folder or name>; null: random weights")
    run: str | None = _setting(None, "run directory to read")
    resume: bool = _setting(False, "continue the run of this name")
    control: bool = _setting(False, "also train the same model from random initialisation")
    baseline: bool | None = _setting(True, "also score what counting words gives; null: leave it out")
    data_root: str | None = _setting(None, "folder with data; LMTRANSFER_DATA if not given")
    output_root: str = _setting("runs", "folder for run directories")
    cache_dir: str | None = _setting(None, "folder for prepared data that runs reuse; null: ~/.cache/lmtransfer")
    split: str | None = _setting(None, "the split of the task to score")
    to: str | None = _setting(None, "folder to write to")
    title: str = _setting("lmtransfer report", "heading of the pages")


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseSettings(Settings):
    """The settings of a phase in ``phases``; see ``config.phases`` for its components."""

    share: float | None = _setting(None, "share of the run's budget; all shares add up to 1; null: the rest", above=0)
    restart: bool | None = _setting(
        None, "the learning rate schedule starts again here; null: only if the losses or the kind of optimiser change"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseTrainSettings(Settings):
    """``train`` of a phase."""

    batch_tokens: int | None = _setting(None, "tokens in one optimiser step, over all ranks", above=0)
    micro_batch_tokens: int | None = _setting(
        None, "tokens in one pass, up to a row more; null: all of the step", above=0
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class VectorSettings(Settings):
    """``embedding_after`` of a phase: changes to the token embeddings at its end."""

    centre: bool = _setting(True, "subtract the mean vector, so that the mean of each column is 0")
    deviation: float | None = _setting(None, "scale all numbers to this standard deviation; null: no scaling", above=0)


#: Config nodes that are described by a settings class; "" is the top level.
SCHEMAS: dict[str, type[Settings]] = {"": CommonSettings, "train": TrainSettings, "hardware": HardwareSettings}


def _fields(cls: type) -> dict[str, tuple[dataclasses.Field[Any], Any]]:
    hints = typing.get_type_hints(cls)
    return {field.name: (field, hints[field.name]) for field in dataclasses.fields(cls)}


def _out_of_range(value: Any, field: dataclasses.Field[Any]) -> str | None:
    if value is None:
        return None
    above, at_least = field.metadata["above"], field.metadata["at_least"]
    if above is not None and not value > above:
        return f"{value} is not greater than {above:g}"
    if at_least is not None and not value >= at_least:
        return f"{value} is less than {at_least:g}"
    return None
