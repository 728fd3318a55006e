"""Converts published folders (``config.json`` and weights in the layout of transformers) to our encoders.

Nothing in a folder is executed or imported; ``auto_map`` and similar keys are reported and ignored. Safetensors files
hold only data. Pickles are read by PyTorch's restricted loader, which rejects everything except tensors. The index of a
sharded checkpoint may name only files in its own folder.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from typing_extensions import TypedDict

from lmtransfer.errors import CheckpointError, ConfigError, list_problems
from lmtransfer.interop.families.electra import GENERATOR_FOLDER, GENERATOR_PREFIXES, RTD, join_generator
from lmtransfer.interop.families.elmo import elmo_arguments, elmo_weight_file, elmo_weights, read_hdf5
from lmtransfer.interop.families.family import (
    Family,
    PretrainingHead,
    TaskKind,
    check_tensors,
    expected_tensors,
    target_of,
    to_ours,
)
from lmtransfer.interop.families.index import family_of_config
from lmtransfer.models.base import Encoder, shapes_only
from lmtransfer.models.elmo import ElmoEncoder
from lmtransfer.objectives.replaced_token import ReplacedTokenDetection
from lmtransfer.system.safe_files import is_file_name, read_json, read_tensors

#: Maximum number of left-out tensors that a note names.
_MAX_NAMES = 20

#: Weight files in search order; each may be sharded, with an index file next to the shards.
FILES = ("model.safetensors", "pytorch_model.bin")
#: Parts of tensor names that PyTorch's module wrappers add.
_WRAPPERS = re.compile(r"(?:(?<=\.)|^)(?:_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.")
#: Keys of config.json that make other loaders run code from the folder.
_CODE = ("auto_map", "custom_pipelines", "_target_")


def _read_heads(
    family: Family,
    config: Mapping[str, Any],
    encoder: Encoder,
    body: Mapping[str, Tensor],
    heads: Mapping[str, Tensor],
    *,
    source: str,
    notes: list[str],
) -> tuple[dict[str, Tensor], dict[str, dict[str, Any]]]:
    """Read the heads that belong to our objectives; other tensors are left out, with a note.

    Returns:
        The tensors under our names, which begin with ``objectives.``, and the component nodes of the complete
        objectives.
    """
    rest = dict(heads)
    tensors: dict[str, Tensor] = {}
    nodes: dict[str, dict[str, Any]] = {}
    architectures = config.get("architectures")
    architectures = architectures if isinstance(architectures, list) else []
    for head in family.heads:
        names = [name for rewrite in head.key_map for name in rewrite.theirs]
        own = {name: rest.pop(name) for name in names if name in rest}
        repeats = {name: rest.pop(name) for name in head.repeats if name in rest}
        named = any(choice.name in architectures for choice in family.pretraining if head.loss in choice.losses)
        if not own and not repeats and (head.key_map or not named):  # a head without tensors has only a name
            continue
        problem = _why_not(head, own, repeats, body, encoder)
        if problem is not None:
            notes.append(f"the head of {head.loss} is left out: {problem}")
            continue
        try:
            arguments = {setting.ours: setting.value_in(config) for setting in head.settings} | dict(
                head.implied_values
            )
        except ValueError as error:
            notes.append(f"the head of {head.loss} is left out: config.json: {error}")
            continue
        with shapes_only():
            objective = head.objective(**arguments)
            objective.bind(encoder)
        without = GENERATOR_PREFIXES if head.loss == RTD else ()
        shapes = expected_tensors(objective, head.key_map, num_heads=None, prefix=f"{head.loss}.", without=without)
        check_tensors(own, shapes, source=source)
        tensors.update(to_ours(own, head.key_map))
        if head.loss != RTD:
            nodes[head.loss] = {"_target_": target_of(head.objective), **arguments}
    if rest:
        more = f" and {len(rest) - _MAX_NAMES} more" if len(rest) > _MAX_NAMES else ""
        notes.append(
            "these tensors are left out, because no objective of lmtransfer has such a head: "
            f"{', '.join(sorted(rest)[:_MAX_NAMES])}{more}"
        )
    return tensors, nodes


def _why_not(
    head: PretrainingHead,
    own: Mapping[str, Tensor],
    repeats: Mapping[str, Tensor],
    body: Mapping[str, Tensor],
    encoder: Encoder,
) -> str | None:
    """Explain why a head in the checkpoint cannot be used; None if it can."""
    missing = [name for rewrite in head.key_map for name in rewrite.theirs if name not in own]
    if missing:
        return f"these tensors are missing: {', '.join(missing)}"
    if head.objective.uses_pooler and encoder.pooler is None:
        return "this head needs a pooler, but the checkpoint has none"
    for name, tensor in repeats.items():
        original = {**body, **own}[head.repeats[name]]
        same = original.shape == tensor.shape and original.dtype == tensor.dtype
        if not same or not torch.equal(original, tensor):
            return f"{name} differs from {head.repeats[name]}, but lmtransfer uses one tensor for both"
    return None


class _Index(TypedDict):
    weight_map: dict[str, str]


def read_weight_files(folder: Path) -> dict[str, Tensor]:
    """Read all tensors of a published folder from ``model.safetensors`` or, if missing, ``pytorch_model.bin``."""
    for name in FILES:
        read = partial(read_tensors, error=CheckpointError) if name.endswith(".safetensors") else _read_pickle
        if (folder / name).is_file():
            return read(folder / name)
        index = folder / f"{name}.index.json"
        if index.is_file():
            return _read_shards(index, read)
    others = sorted(
        path.name for path in folder.iterdir() if path.suffix in (".h5", ".msgpack", ".ckpt", ".onnx", ".gguf")
    )
    hint = f"; lmtransfer cannot read {', '.join(others)}: save the model with transformers" if others else ""
    raise CheckpointError(f"{folder}: the folder holds no weights ({' or '.join(FILES)}, whole or sharded){hint}")


def _read_pickle(path: Path) -> dict[str, Tensor]:
    try:
        with warnings.catch_warnings(action="ignore"):  # the warnings concern the content, which is checked below
            content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a broken or hostile pickle can raise any exception; each becomes one message
        code = re.search(r"GLOBAL\s+([\w.]+)", str(error))
        if code is not None:
            raise CheckpointError(
                f"{path}: loading this file would run code ({code.group(1)}), which weights do not need, so lmtransfer "
                "does not load it. If you trust the file, load it where it was made, and save the model as safetensors"
            ) from error
        (reason, *_) = str(error).splitlines() or [""]
        raise CheckpointError(
            f"{path}: the file is damaged or incomplete, or holds other things than tensors ({type(error).__name__}: "
            f"{reason}); "
            "download it again, or save the model as safetensors"
        ) from error
    if not isinstance(content, Mapping) or not all(isinstance(name, str) for name in content):
        raise CheckpointError(
            f"{path}: the file must hold a dictionary of tensors by name, but holds a {type(content).__name__}; save "
            "the state_dict of the model"
        )
    unknown = [name for name, value in content.items() if not isinstance(value, Tensor)]
    if unknown:
        raise CheckpointError(
            f"{path}: these entries are not tensors: {', '.join(sorted(unknown)[:5])}; save only the state_dict of the "
            "model"
        )
    return dict(content)


def _read_shards(index: Path, read: Callable[[Path], dict[str, Tensor]]) -> dict[str, Tensor]:
    places = read_json(index, _Index, error=CheckpointError, finite=False)["weight_map"]
    shards = sorted(set(places.values()))
    outside = [shard for shard in shards if not is_file_name(shard)]
    if outside:
        raise CheckpointError(
            f"{index}: the index names files outside its own folder, which is not allowed: {', '.join(outside[:5])}; "
            "download it again"
        )
    missing = [shard for shard in shards if not (index.parent / shard).is_file()]
    if missing:
        raise CheckpointError(f"{index}: these files are missing: {', '.join(missing[:5])}; download them")
    tensors: dict[str, Tensor] = {}
    for shard in shards:
        content = read(index.parent / shard)
        names = [name for name, place in places.items() if place == shard]
        absent = [name for name in names if name not in content]
        if absent:
            raise CheckpointError(
                f"{index.parent / shard}: the file lacks tensors that the index lists for this file: "
                f"{', '.join(absent[:5])}; "
                "download all files again"
            )
        tensors |= content
    return tensors


@dataclass(frozen=True, slots=True)
class PublishedCheckpoint:
    """A published checkpoint, converted to our names.

    Attributes:
        objectives: tensors of the pretraining heads, such as ``mlm.dense.weight``, including those of incomplete
            objectives (ELECTRA's discriminator without its generator).
    """

    model: dict[str, Any]
    vocab_size: int  #: number of rows of the token embedding; 0 if the encoder reads characters
    encoder: dict[str, Tensor]  #: the encoder's tensors by our names; a tensor that layers share occurs once
    objectives: dict[str, Tensor]
    losses: dict[str, dict[str, Any]]  #: the component nodes of the objectives whose heads are complete
    config: dict[str, Any]
    notes: tuple[str, ...]


def read_published(folder: Path) -> PublishedCheckpoint:
    """Read a published folder."""
    return _read(Path(folder), generators=True)


def _read(folder: Path, *, generators: bool) -> PublishedCheckpoint:
    if not folder.is_dir():
        raise CheckpointError(f"{folder} is not a folder; give a folder with config.json and weights")
    if (folder / "options.json").is_file() and not (folder / "config.json").exists():
        return _read_elmo(folder)
    source = folder / "config.json"
    config = read_json(source, dict[str, Any], error=CheckpointError, finite=False)
    family = family_of_config(config, source=str(source))
    notes = [f"config.json: {key} names custom code, which lmtransfer ignores" for key in _CODE if key in config]
    settings = family.quirks.read_config(config)
    arguments, vocab_size = _arguments(family, settings, source, notes)
    body, heads = _split(family, _unwrap(family, _rename(read_weight_files(folder)), folder, notes))
    if family.pooler_names:
        arguments["pooler"] = any(name in body for name in family.pooler_names)
    body = family.quirks.read_tensors(body, arguments, settings, notes)
    heads = family.quirks.read_heads(heads, settings)
    body = {name: tensor for name, tensor in body.items() if not _any_matches(family.ignored_patterns, name)}
    encoder = skeleton(family.encoder, arguments, vocab_size=vocab_size, source=str(source))
    expected = expected_tensors(encoder, family.key_map, num_heads=arguments.get("num_heads"))
    check_tensors(body, expected, source=str(folder))
    types = sorted({str(tensor.dtype).removeprefix("torch.") for tensor in body.values()} - {"float32"})
    if types:
        notes.append(f"the weights are {', '.join(types)}; lmtransfer stores and trains them in float32")
    tensors, nodes = _read_heads(
        family, settings, encoder=encoder, body=body, heads=heads, source=str(folder), notes=notes
    )
    published = PublishedCheckpoint(
        model={"_target_": target_of(family.encoder), **arguments},
        vocab_size=vocab_size,
        encoder=to_ours(body, family.key_map),
        objectives=tensors,
        losses=nodes,
        config=config,
        notes=tuple(notes),
    )
    if generators and any(name.startswith(f"{RTD}.") for name in tensors):
        return _with_generator(published, folder)
    return published


def _with_generator(published: PublishedCheckpoint, folder: Path) -> PublishedCheckpoint:
    """Add the generator from its subfolder, or add a note if the generator is missing or does not match the encoder."""
    place = folder / GENERATOR_FOLDER
    warning = f"{RTD} is incomplete without its generator"
    if not (place / "config.json").is_file():
        note = f"{warning}: put the generator into the subfolder {GENERATOR_FOLDER} to continue pretraining with {RTD}"
        return replace(published, notes=(*published.notes, note))
    other = _read(place, generators=False)
    result = join_generator(published.model, published.encoder, other.model, other.encoder, other.objectives)
    if isinstance(result, str):
        note = f"{warning}, and the model in {GENERATOR_FOLDER} is not the generator of this encoder: {result}"
        return replace(published, notes=(*published.notes, note))
    tensors, size = result
    mlm = other.losses["mlm"]
    node = {"_target_": target_of(ReplacedTokenDetection), **{key: mlm[key] for key in ("activation", "norm_eps")}}
    return replace(
        published,
        objectives=published.objectives | tensors,
        losses=published.losses | {RTD: node | {"generator_size": size}},
        notes=(*published.notes, *(f"{GENERATOR_FOLDER}: {note}" for note in other.notes)),
    )


def _read_elmo(folder: Path) -> PublishedCheckpoint:
    options = read_json(folder / "options.json", dict[str, Any], error=CheckpointError, finite=False)
    arguments = elmo_arguments(options)
    encoder = skeleton(ElmoEncoder, arguments, vocab_size=1, source=str(folder / "options.json"))
    path = elmo_weight_file(folder)
    tensors = elmo_weights(read_hdf5(path), options)
    check_tensors(tensors, dict(encoder.state_dict()), source=str(path))
    return PublishedCheckpoint(
        model={"_target_": target_of(ElmoEncoder), **arguments},
        vocab_size=0,
        encoder=tensors,
        objectives={},
        losses={},
        config=options,
        notes=("only the encoder is imported, because the published files lack the softmax over words",),
    )


def read_task_head(folder: Path, *, kind: TaskKind) -> dict[str, Tensor]:
    """Read the tensors of a task's head, and return them under our names."""
    config = read_json(Path(folder) / "config.json", dict[str, Any], error=CheckpointError, finite=False)
    family = family_of_config(config, source=str(Path(folder) / "config.json"))
    task = family.task(kind)
    if isinstance(task, str):
        raise CheckpointError(f"{folder}: {family.body} has no head for {kind}: {task}")
    tensors = _unwrap(family, read_weight_files(Path(folder)), Path(folder), [])
    tensors = dict(family.quirks.read_task_head(tensors, config))
    names = [name for rewrite in task.key_map for name in rewrite.theirs]
    missing = [name for name in names if name not in tensors]
    if missing:
        raise CheckpointError(f"{folder}: the head of {task.name} is incomplete; missing: {', '.join(missing)}")
    return to_ours({name: tensors[name] for name in names}, task.key_map)


def _arguments(family: Family, config: Mapping[str, Any], source: Path, notes: list[str]) -> tuple[dict[str, Any], int]:
    arguments, problems, remarks = family.config.read(config)
    vocab_size = config.get("vocab_size")
    if not isinstance(vocab_size, int) or isinstance(vocab_size, bool) or not 0 < vocab_size < 2**31:
        problems.append(f"vocab_size={vocab_size!r} is not allowed: it must be a whole number above 0")
    if problems:
        raise CheckpointError(list_problems(f"{source}: lmtransfer does not support this encoder:", problems))
    notes.extend(f"config.json: {remark}" for remark in remarks)
    return arguments, cast(int, vocab_size)


def _rename(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rename gamma and beta of LayerNorms, TensorFlow's names in old files, to weight and bias."""
    suffixes = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}
    renamed = {}
    for name, tensor in tensors.items():
        old = next((suffix for suffix in suffixes if name.endswith(suffix)), None)
        renamed[name.removesuffix(old) + suffixes[old] if old else name] = tensor
    return renamed


def _unwrap(family: Family, tensors: Mapping[str, Tensor], folder: Path, notes: list[str]) -> dict[str, Tensor]:
    """Remove from tensor names what wrappers added, and the prefix of a surrounding module.

    ``torch.compile`` adds ``_orig_mod.`` to the modules that it compiles, ``DistributedDataParallel`` adds the prefix
    ``module.``, and training programs add prefixes of their own.
    """
    templates = [re.escape(name).replace(r"\{i\}", r"\d+") for rewrite in family.key_map for name in rewrite.theirs]
    pattern = re.compile(rf"(?P<outer>(?:.+?\.)??)(?:{re.escape(family.prefix)})?(?:{'|'.join(templates)})")
    tensors = {_WRAPPERS.sub("", name): tensor for name, tensor in tensors.items()}
    outer = {match["outer"] for name in tensors if (match := pattern.fullmatch(name))}
    if not outer or "" in outer:
        return tensors
    prefix = min(outer)
    others = [name for name in tensors if not name.startswith(prefix)]
    if len(outer) > 1 or others:
        example = f", but not {others[0]}" if others else ""
        raise CheckpointError(
            f"{folder}: the tensors of the encoder have the prefix {' or '.join(map(repr, sorted(outer)))}{example}: "
            "save the encoder alone, or remove the prefix from its tensor names"
        )
    notes.append(f"the prefix {prefix!r} was removed from all tensor names")
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}


def _split(family: Family, tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Separate the encoder's tensors, by names without the prefix, from the tensors of heads."""
    if any(name.startswith(family.prefix) for name in tensors):
        body = {name: name.removeprefix(family.prefix) for name in tensors if name.startswith(family.prefix)}
    else:
        parts = {name.partition(".")[0] for rewrite in family.key_map for name in rewrite.theirs}
        heads = [name for head in family.heads for rewrite in head.key_map for name in rewrite.theirs]
        repeats = [name for head in family.heads for name in head.repeats]
        body = {
            name: name
            for name in tensors
            if name not in (*heads, *repeats)
            and (name.partition(".")[0] in parts or _any_matches(family.ignored_patterns, name))
        }
    return (
        {short: tensors[name] for name, short in body.items()},
        {name: tensor for name, tensor in tensors.items() if name not in body},
    )


def skeleton(encoder: type[Encoder], arguments: Mapping[str, Any], *, vocab_size: int, source: str) -> Encoder:
    """Build an encoder on the meta device, which allocates no memory; only its tensor names and shapes are needed."""
    try:
        with shapes_only():
            return encoder(vocab_size=vocab_size, **arguments)
    except (ConfigError, ArithmeticError, LookupError, RuntimeError, TypeError, ValueError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise CheckpointError(f"{source}: no encoder of lmtransfer accepts these settings: {reason}") from error


def _any_matches(patterns: Iterable[str], name: str) -> bool:
    return any(re.fullmatch(pattern, name) for pattern in patterns)
