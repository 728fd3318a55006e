"""Converts a run to the layout of Hugging Face transformers: config.json, and tensors under their published names."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import torch
from torch import Tensor

from lmtransfer.errors import CheckpointError
from lmtransfer.interop.families.electra import GENERATOR_FOLDER, RTD, split_generator
from lmtransfer.interop.families.family import (
    Family,
    HeadKind,
    PretrainingArchitecture,
    PretrainingHead,
    TaskKind,
    to_theirs,
)
from lmtransfer.interop.families.index import family_of_model

_TASK_NAMES = {
    "classification": "classification",
    "multi_label": "classification",
    "choice": "multiple choice",
    "regression": "regression",
    "tagging": "tagging",
    "span": "spans",
}
_PROBLEM_TYPES = {
    "classification": "single_label_classification",
    "multi_label": "multi_label_classification",
    "regression": "regression",
}


@dataclass(frozen=True, slots=True)
class RunToPublish:
    """The parts of a run to publish.

    A task head must be the family's published head (``transfer.pooling=family``) or a linear layer on each token. This
    class does not know how a head pools tokens, so the caller must reject other heads.

    Attributes:
        head: tensors of the objectives, such as ``mlm.dense.weight``, if the kind is "pretraining"; otherwise those of
            a task's head (``hidden.weight``, ``output.weight``, ...).
        labels: label names for classification and tagging, in the order of the outputs.
        pad_id: padding id of the written tokenizer; if it equals ``vocab_size``, the embeddings get one more row, of
            zeros.
    """

    model: Mapping[str, Any]
    vocab_size: int
    encoder: Mapping[str, Tensor]
    kind: HeadKind
    head: Mapping[str, Tensor]
    labels: tuple[str, ...]
    head_dropout: float
    pad_id: int
    specials: Mapping[str, int]
    loss_arguments: Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class PublishedFiles:
    """The content of the published files.

    Attributes:
        architecture: the transformers class that loads the files.
        tensors: the tensors that the class's ``save_pretrained`` would write; copies of tensors are left out.
        outputs: for each objective whose head is included, the attribute of the class's output that holds its logits.
        more: other models by subfolder, such as ELECTRA's generator.
    """

    architecture: str
    config: dict[str, Any]
    tensors: dict[str, Tensor]
    outputs: Mapping[str, str] = field(default_factory=dict)
    more: Mapping[str, PublishedFiles] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def to_published_files(run: RunToPublish) -> PublishedFiles:
    """Convert a run to the layout of transformers.

    Raises:
        NotInTransformers: transformers has no such model.
        CheckpointError: transformers has the model, but not this head.
    """
    family, arguments = family_of_model(run.model)
    notes: list[str] = []
    if run.kind == "encoder":
        chosen = _ChosenClass(family.body, bool(family.pooler_names), {}, {})
    elif run.kind == "pretraining":
        chosen = _pretraining(family, arguments, run, notes)
    else:
        chosen = _task(family, arguments, run, notes)
    config = _config(family, arguments, run, chosen)
    body = _body(family, arguments, run, chosen, notes)
    head = dict(chosen.tensors)
    family.quirks.write(body, head, config, arguments=arguments, pad_id=run.pad_id)
    prefix = "" if chosen.architecture == family.body else family.prefix
    tensors = {f"{prefix}{name}": tensor for name, tensor in body.items()} | head
    # safetensors requires contiguous tensors that share no memory.
    tensors = {n: tensor.detach().clone(memory_format=torch.contiguous_format) for n, tensor in tensors.items()}
    return PublishedFiles(chosen.architecture, config, tensors, chosen.outputs, chosen.more, tuple(notes))


@dataclass(frozen=True, slots=True)
class _ChosenClass:
    architecture: str
    pooler: bool
    tensors: dict[str, Tensor]
    config: dict[str, Any]
    outputs: Mapping[str, str] = field(default_factory=dict)
    more: Mapping[str, PublishedFiles] = field(default_factory=dict)


def _config(family: Family, arguments: Mapping[str, Any], run: RunToPublish, chosen: _ChosenClass) -> dict[str, Any]:
    return {
        "architectures": [chosen.architecture],
        "model_type": family.model_types[0],
        "vocab_size": max(run.vocab_size, run.pad_id + 1),
        **family.config.write(arguments),
        "pad_token_id": run.pad_id,
        **{key: run.specials.get(role) for key, role in family.specials.items()},
        **chosen.config,
    }


def _body(
    family: Family, arguments: Mapping[str, Any], run: RunToPublish, chosen: _ChosenClass, notes: list[str]
) -> dict[str, Tensor]:
    """Return the encoder's tensors by published names, without the prefix."""
    aliases = [name for name in run.encoder if any(re.fullmatch(pattern, name) for pattern in family.alias_patterns)]
    own = {name: tensor for name, tensor in run.encoder.items() if name not in aliases}
    own[family.token] = _with_padding_row(own[family.token], run)
    published = to_theirs(own, family.key_map, num_heads=arguments.get("num_heads"))
    if family.pooler_names and arguments["pooler"] and not chosen.pooler:
        notes.append(f"the encoder's pooler is left out, because {chosen.architecture} has none")
        published = {name: tensor for name, tensor in published.items() if name not in family.pooler_names}
    elif chosen.pooler and chosen.architecture == family.body and not arguments.get("pooler"):
        notes.append(
            f"the encoder has no pooler, so {family.body} creates a random one: use only its last_hidden_state"
        )
    return published


def _pretraining(family: Family, arguments: Mapping[str, Any], run: RunToPublish, notes: list[str]) -> _ChosenClass:
    """Choose the class that has the largest number of the run's heads."""
    losses = dict.fromkeys([*run.loss_arguments, *(name.partition(".")[0] for name in run.head)])
    heads = [head for head in family.heads if head.loss in losses and _is_publishable(head, arguments, run, notes)]
    available = {head.loss for head in heads}
    choices = [architecture for architecture in family.pretraining if available.issuperset(architecture.losses)]
    choice = max(choices, key=lambda choice: len(choice.losses), default=PretrainingArchitecture(family.body, {}))
    rest = [loss for loss in losses if loss not in choice.losses]
    if rest:
        notes.append(f"the head of {', '.join(rest)} is left out, because {choice.name} has no such head")
    tensors: dict[str, Tensor] = {}
    more: dict[str, PublishedFiles] = {}
    for head in heads:
        if head.loss in choice.losses:
            own = {name: tensor for name, tensor in run.head.items() if name.startswith(f"{head.loss}.")}
            if head.loss == RTD:
                node = run.loss_arguments.get(RTD, {})
                own, small = split_generator(own, encoder=run.encoder, model=run.model, arguments=arguments, node=node)
                if small:
                    more[GENERATOR_FOLDER] = to_published_files(replace(run, **small))
            per_token = [f"{head.loss}.{name}" for name in head.objective.vocabulary_tensors]
            own |= {name: _with_padding_row(own[name], run) for name in per_token if name in own}
            tensors |= to_theirs(own, head.key_map, num_heads=arguments.get("num_heads"))
    return _ChosenClass(choice.name, choice.pooler or not choice.losses, tensors, {}, choice.losses, more)


def _is_publishable(head: PretrainingHead, arguments: Mapping[str, Any], run: RunToPublish, notes: list[str]) -> bool:
    """Whether the run's arguments of an objective are those that the published head has; if not, add a note."""
    node = run.loss_arguments.get(head.loss, {})
    published = (
        {setting.ours: arguments[setting.ours] for setting in head.settings}
        | dict(head.implied_values)
        | dict(head.objective.published_arguments)
    )
    other = {name: node[name] for name in published if node.get(name, published[name]) != published[name]}
    epsilon = other.pop("norm_eps", None)
    if other:
        differ = ", ".join(f"{name}={value} (published: {published[name]})" for name, value in other.items())
        notes.append(f"the head of {head.loss} with {differ} has no counterpart in transformers")
    elif epsilon is not None:
        notes.append(
            f"the head of {head.loss} was trained with norm_eps={epsilon}; the published head uses the encoder's "
            f"value, {published['norm_eps']}"
        )
    return not other


def _task(family: Family, arguments: Mapping[str, Any], run: RunToPublish, notes: list[str]) -> _ChosenClass:
    task = family.task(cast(TaskKind, run.kind))
    if isinstance(task, str):
        raise CheckpointError(f"{family.body} has no published head for {_TASK_NAMES[run.kind]}: {task}")
    outputs = len(run.head["output.bias"])
    if run.kind == "span" and outputs != 2:
        raise CheckpointError(
            f"{task.name} predicts the start and the end of an answer, but this head has {outputs - 2} more outputs "
            "(for other kinds of answers), so it has no counterpart in transformers"
        )
    key_map = list(task.key_map)
    ours = {rewrite.ours for rewrite in key_map}
    if task.pooler and not arguments["pooler"] and "hidden.weight" in run.head:
        key_map += task.pooler_key_map
    elif task.pooler and not arguments["pooler"]:
        raise CheckpointError(
            f"{task.name} needs a pooler, but this encoder has none: the head has no counterpart in transformers"
        )
    elif ("hidden.weight" in run.head) != ("hidden.weight" in ours):
        own, published = ("a", "none") if "hidden.weight" in run.head else ("no", "one")
        raise CheckpointError(
            f"this head has {own} hidden layer, but {task.name} has {published}: the head has no counterpart in "
            "transformers"
        )
    if "hidden.weight" in run.head and run.head["hidden.weight"].shape[0] != arguments["dim"]:
        raise CheckpointError(
            f"the hidden layer of this head has width {run.head['hidden.weight'].shape[0]}, but that of {task.name} "
            f"has the width of the encoder, {arguments['dim']}: the head has no counterpart in transformers"
        )
    if task.note:
        notes.append(task.note)
    config = dict.fromkeys(task.dropouts, run.head_dropout) | dict(task.config) | _labels(run)
    return _ChosenClass(task.name, task.pooler, to_theirs(run.head, key_map), config)


def _labels(run: RunToPublish) -> dict[str, Any]:
    if run.kind == "span":
        return {}
    labels: Sequence[str] = run.labels or [f"LABEL_{i}" for i in range(len(run.head["output.bias"]))]
    keys = {
        "id2label": {str(i): label for i, label in enumerate(labels)},
        "label2id": {label: i for i, label in enumerate(labels)},
    }
    if run.kind == "tagging":
        return keys
    return keys | {"problem_type": _PROBLEM_TYPES[run.kind]}


def _with_padding_row(per_token: Tensor, run: RunToPublish) -> Tensor:
    if run.pad_id != run.vocab_size:
        return per_token
    return torch.cat([per_token, per_token.new_zeros(1, *per_token.shape[1:])])
