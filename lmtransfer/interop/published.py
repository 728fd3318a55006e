"""Published folders (``config.json`` and weights, as Hugging Face transformers writes them) as encoders of ours.

Nothing of a folder is executed or imported: ``auto_map`` and the like are told and ignored.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from lmtransfer.errors import CheckpointError, ConfigError
from lmtransfer.interop.families import family_of_config
from lmtransfer.interop.family import Family, PretrainingHead, TaskKind, target_of
from lmtransfer.interop.key_map import Rewrite, to_ours, to_theirs
from lmtransfer.interop.publishing import PublishedFiles as PublishedFiles
from lmtransfer.interop.publishing import RunToPublish as RunToPublish
from lmtransfer.interop.publishing import to_published as to_published
from lmtransfer.interop.weight_files import read_json, read_weight_files
from lmtransfer.models.base import Encoder

#: Keys of config.json by which a folder asks for code of its own.
_CODE = ("auto_map", "custom_pipelines", "_target_")
_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Published:
    """A published checkpoint, as ours.

    Attributes:
        model: component node of the encoder, without ``vocab_size``.
        vocab_size: rows of its token embedding; 0 where it reads characters.
        encoder: its tensors by our names: the encoder's state, what layers share named once.
        objectives: those of its pretraining heads, such as ``mlm.dense.weight``; a head whose objective is not
            complete (ELECTRA's discriminator without its generator) is here too.
        losses: the objectives whose heads are complete.
        loss_arguments: their component nodes.
        config: config.json as it was.
        notes: what was left out or read otherwise, for the user.
    """

    model: dict[str, Any]
    vocab_size: int
    encoder: dict[str, Tensor]
    objectives: dict[str, Tensor]
    losses: tuple[str, ...]
    loss_arguments: dict[str, dict[str, Any]]
    config: dict[str, Any]
    notes: tuple[str, ...]


def read_published(folder: Path) -> Published:
    """Read a published folder.

    Raises:
        CheckpointError: something in it is missing, torn, hostile, not supported, or does not fit: all that is wrong
            with config.json at once, and all that is wrong with the encoder's tensors at once.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise CheckpointError(f"{folder}: is no folder with config.json and weights")
    source = folder / "config.json"
    config = read_json(source)
    family = family_of_config(config, source=str(source))
    notes = [f"config.json: {key} names code of its own, which is ignored" for key in _CODE if key in config]
    arguments, vocab_size = _arguments(family, config, source, notes)
    body, heads = _apart(family, _renamed(read_weight_files(folder)))
    if family.pooler:
        arguments["pooler"] = any(name in body for name in family.pooler_names)
    body = family.quirks.read_tensors(body, arguments, config, notes)
    heads = family.quirks.read_heads(heads, config)
    body = {name: tensor for name, tensor in body.items() if not _any_matches(family.ignored, name)}
    encoder = _skeleton(family, arguments, vocab_size, source)
    _check(body, _published_names(encoder, family.key_map, arguments), folder)
    read = _read_heads(family, arguments, config, encoder, body, heads, folder, notes)
    return Published(
        model={"_target_": family.target, **arguments},
        vocab_size=vocab_size,
        encoder=to_ours(body, family.key_map),
        objectives=read.tensors,
        losses=tuple(read.nodes),
        loss_arguments=read.nodes,
        config=config,
        notes=tuple(notes),
    )


def read_task_head(folder: Path, *, kind: TaskKind) -> dict[str, Tensor]:
    """The tensors of a task's head by our names (``hidden.weight``, ``output.weight``, ...): ``to_published``, undone.

    Raises:
        CheckpointError: the folder cannot be read, its family has no such head, or this checkpoint has none.
    """
    config = read_json(Path(folder) / "config.json")
    family = family_of_config(config, source=str(Path(folder) / "config.json"))
    task = family.tasks.get(kind, "there is none")
    if isinstance(task, str):
        raise CheckpointError(f"{folder}: {family.body} has no head for {kind}: {task}")
    tensors = read_weight_files(Path(folder))
    wanted = [name for rewrite in task.key_map for name in rewrite.theirs]
    missing = [name for name in wanted if name not in tensors]
    if missing:
        raise CheckpointError(f"{folder}: holds no head of {task.name}: {', '.join(missing)} missing")
    return to_ours({name: tensors[name] for name in wanted}, task.key_map)


@dataclass(frozen=True, slots=True)
class _Heads:
    tensors: dict[str, Tensor]
    nodes: dict[str, dict[str, Any]]


def _arguments(family: Family, config: Mapping[str, Any], source: Path, notes: list[str]) -> tuple[dict[str, Any], int]:
    seen = family.quirks.read_config(config)
    arguments, problems, remarks = family.config.read(seen)
    vocab_size = config.get("vocab_size")
    if not isinstance(vocab_size, int) or isinstance(vocab_size, bool) or not 0 < vocab_size < 2**31:
        problems.append(f"vocab_size={vocab_size!r} is no number of tokens")
    if problems:
        raise CheckpointError(_listed(f"{source}: cannot become an encoder of lmtransfer:", problems))
    notes.extend(f"config.json: {remark}" for remark in remarks)
    return arguments, cast(int, vocab_size)


def _renamed(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Old files call the scale and the shift of a LayerNorm gamma and beta, as TensorFlow does."""
    suffixes = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}
    found = {}
    for name, tensor in tensors.items():
        old = next((suffix for suffix in suffixes if name.endswith(suffix)), None)
        found[name.removesuffix(old) + suffixes[old] if old else name] = tensor
    return found


def _apart(family: Family, tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The encoder's tensors without their prefix, and those of heads."""
    if any(name.startswith(family.prefix) for name in tensors):
        body = {name: name.removeprefix(family.prefix) for name in tensors if name.startswith(family.prefix)}
    else:
        known = {name.partition(".")[0] for rewrite in family.key_map for name in rewrite.theirs}
        heads = [name for head in family.heads for rewrite in head.key_map for name in rewrite.theirs]
        repeats = [name for head in family.heads for name in head.repeats]
        body = {
            name: name
            for name in tensors
            if name not in (*heads, *repeats)
            and (name.partition(".")[0] in known or _any_matches(family.ignored, name))
        }
    return (
        {short: tensors[name] for name, short in body.items()},
        {name: tensor for name, tensor in tensors.items() if name not in body},
    )


def _skeleton(family: Family, arguments: Mapping[str, Any], vocab_size: int, source: Path) -> nn.Module:
    """The encoder without memory for its weights, for the shapes that they must have."""
    try:
        with torch.device("meta"):
            return cast(nn.Module, family.encoder(vocab_size=vocab_size, **arguments))
    except ConfigError as error:
        raise CheckpointError(f"{source}: {error}") from error


def _published_names(
    module: nn.Module, key_map: Sequence[Rewrite], arguments: Mapping[str, Any], *, prefix: str = ""
) -> dict[str, Tensor]:
    """What the published file must hold for a module of ours: tensors without content; shared ones once."""
    named = {id(tensor): f"{prefix}{name}" for name, tensor in reversed(module.state_dict(keep_vars=True).items())}
    state = {f"{prefix}{name}": tensor for name, tensor in module.state_dict(keep_vars=True).items()}
    own = {name: tensor.detach() for name, tensor in state.items() if named[id(tensor)] == name}
    return to_theirs(own, key_map, num_heads=arguments.get("num_heads"))


def _check(found: Mapping[str, Tensor], expected: Mapping[str, Tensor], folder: Path) -> None:
    problems = _misfits(found, expected)
    if problems:
        raise CheckpointError(_listed(f"{folder}: its tensors do not fit its config.json:", problems))


def _misfits(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> list[str]:
    problems = [f"{name} is missing" for name in expected if name not in found]
    problems += [f"{name} is not expected" for name in found if name not in expected]
    for name, tensor in found.items():
        if name not in expected:
            continue
        if tensor.shape != expected[name].shape:
            shape, wanted = list(tensor.shape), list(expected[name].shape)
            problems.append(f"{name} has shape {shape}, config.json says {wanted}")
        elif not tensor.is_floating_point():
            problems.append(f"{name} holds {str(tensor.dtype).removeprefix('torch.')}, not floating-point numbers")
    return problems


def _read_heads(
    family: Family,
    arguments: Mapping[str, Any],
    config: Mapping[str, Any],
    encoder: nn.Module,
    body: Mapping[str, Tensor],
    heads: Mapping[str, Tensor],
    folder: Path,
    notes: list[str],
) -> _Heads:
    """The pretraining heads that are there; what else is beside the encoder is told and left out."""
    left, tensors, nodes = dict(heads), dict[str, Tensor](), dict[str, dict[str, Any]]()
    declared = config.get("architectures") or ()
    for head in family.heads:
        names = [name for rewrite in head.key_map for name in rewrite.theirs]
        own = {name: left.pop(name) for name in names if name in left}
        repeats = {name: left.pop(name) for name in head.repeats if name in left}
        if not own and not repeats and not any(name in head.declared_by for name in declared):
            continue
        problem = _why_not(head, arguments, own, repeats, body, encoder)
        if problem is not None:
            notes.append(f"the head of {head.loss} is left out: {problem}")
            continue
        node, objective = _objective(head, arguments, config, encoder)
        expected = _published_names(objective, head.key_map, arguments, prefix=f"{head.loss}.")
        _check(own, expected, folder)
        tensors |= to_ours(own, head.key_map)
        nodes[head.loss] = node
    if left:
        shown = ", ".join(sorted(left)[:_SHOWN]) + (f" and {len(left) - _SHOWN} more" if len(left) > _SHOWN else "")
        notes.append(f"left out, as it belongs to no pretraining objective here: {shown}")
    return _Heads(tensors, nodes)


def _why_not(
    head: PretrainingHead,
    arguments: Mapping[str, Any],
    own: Mapping[str, Tensor],
    repeats: Mapping[str, Tensor],
    body: Mapping[str, Tensor],
    encoder: nn.Module,
) -> str | None:
    """Why a head that is there cannot come along."""
    missing = [name for rewrite in head.key_map for name in rewrite.theirs if name not in own]
    if missing:
        return f"{', '.join(missing)} missing"
    if head.uses_pooler and cast(Encoder, encoder).pooler is None:
        return "it reads a pooler, and the checkpoint has none"
    for name, tensor in repeats.items():
        original = {**body, **own}[head.repeats[name]]
        if original.shape != tensor.shape or not torch.equal(original, tensor):
            return f"{name} is not {head.repeats[name]}: lmtransfer ties the two"
    return None


def _objective(
    head: PretrainingHead, arguments: Mapping[str, Any], config: Mapping[str, Any], encoder: nn.Module
) -> tuple[dict[str, Any], nn.Module]:
    """The component node of a head's objective, and the objective without memory for its weights."""
    given = {setting.ours: setting.value_in(config) for setting in head.settings} | dict(head.implied)
    with torch.device("meta"):
        objective = head.objective(**given)
        objective.bind(encoder)
    return {"_target_": target_of(head.objective), **given}, objective


def _any_matches(patterns: Iterable[str], name: str) -> bool:
    return any(re.fullmatch(pattern, name) for pattern in patterns)


def _listed(heading: str, problems: Sequence[str]) -> str:
    shown = "\n".join(f"  - {problem}" for problem in problems[:_SHOWN])
    more = f"\n  - and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
    return f"{heading}\n{shown}{more}"
