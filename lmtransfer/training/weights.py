"""A module's weights as safetensors, with stable names. Tied tensors are stored once and stay tied on loading."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from lmtransfer.errors import CheckpointError, list_problems
from lmtransfer.training.checkpoints import STATE, open_checkpoint
from lmtransfer.training.data_parallel import gather_whole, shard_like


def _entries(module: nn.Module) -> dict[str, Tensor]:
    """Return every persistent parameter and buffer, keyed by name; a shared tensor appears under each of its names."""
    return dict(module.state_dict(keep_vars=True))


def weights(module: nn.Module) -> dict[str, Tensor]:
    """Return a module's parameters and persistent buffers, keyed by name; a shared tensor only under its first name.

    Those of a sharded module are gathered, so every rank must call this.
    """
    seen: set[int] = set()
    copies = {}
    for name, tensor in _entries(module).items():
        if id(tensor) not in seen:
            seen.add(id(tensor))
            copies[name] = gather_whole(tensor.detach())
    return copies


def num_bytes(module: nn.Module) -> int:
    """Return the size of the tensors that ``weights`` returns, in bytes."""
    entries = {id(tensor): tensor for tensor in _entries(module).values()}
    return sum(tensor.numel() * tensor.element_size() for tensor in entries.values())


def num_parameters(module: nn.Module) -> int:
    """Return a module's number of parameters, counting shared tensors once and unsaved copies not at all."""
    entries = {id(tensor): tensor for tensor in _entries(module).values()}
    return sum(tensor.numel() for tensor in entries.values() if isinstance(tensor, nn.Parameter))


def aliases(module: nn.Module) -> dict[str, str]:
    """Return the other names of shared tensors, each with the name under which the tensor is saved."""
    first: dict[int, str] = {}
    return {
        name: first[id(tensor)]
        for name, tensor in _entries(module).items()
        if first.setdefault(id(tensor), name) != name
    }


def not_finite(tensors: Mapping[str, Tensor]) -> list[str]:
    """Return the names of the tensors with a value that is NaN or infinite."""
    numbers = {name: tensor for name, tensor in tensors.items() if tensor.is_floating_point() and tensor.numel()}
    # NaN spreads to both extremes, which need no memory of the tensor's size.
    return [name for name, tensor in numbers.items() if not torch.stack(tensor.aminmax()).isfinite().all()]


def check_finite(tensors: Mapping[str, Tensor], *, source: str) -> None:
    """Check that all values of a model's tensors are finite; otherwise each of its results could be NaN."""
    if names := not_finite(tensors):
        raise CheckpointError(
            list_problems(f"{source}: the model cannot be used, because these tensors hold NaN or infinity:", names)
        )


def check_not_nan(outputs: np.ndarray | Tensor, *, what: str) -> None:
    """Check the outputs of a model, which are NaN if values inside the model overflow although its weights are finite.

    Args:
        what: the outputs, in the plural.
    """
    are_nan = torch.as_tensor(outputs).isnan()
    if are_nan.any():
        raise CheckpointError(
            f"{what} are NaN for {int(are_nan.flatten(1).any(1).sum())} of {len(outputs)} inputs: the weights "
            "are too large for this precision, or damaged; try hardware.precision=fp32, or another checkpoint"
        )


@torch.no_grad()
def load_weights(module: nn.Module, saved: Mapping[str, Tensor], *, source: str = "the checkpoint") -> None:
    """Copy saved weights, under any of their names, into the module in place, so that tied tensors stay tied."""
    pairs = _match(module, saved, source)
    check_finite(saved, source=source)
    for target, value in pairs:
        target.copy_(shard_like(target, value))


def check_weights(module: nn.Module, saved: Mapping[str, Tensor], *, source: str = "the checkpoint") -> None:
    """Check that saved weights match a module, which may be on the ``meta`` device."""
    _match(module, saved, source)


def _match(module: nn.Module, saved: Mapping[str, Tensor], source: str) -> list[tuple[Tensor, Tensor]]:
    """Pair each tensor of a module with its saved tensor."""
    names: dict[int, list[str]] = {}
    tensors: dict[int, Tensor] = {}
    for name, tensor in _entries(module).items():
        names.setdefault(id(tensor), []).append(name)
        tensors[id(tensor)] = tensor
    problems, used = [], set()
    pairs: list[tuple[Tensor, Tensor]] = []
    for key, aliases in names.items():
        saved_names = [alias for alias in aliases if alias in saved]
        used.update(saved_names)
        if not saved_names:
            problems.append(f"{aliases[0]} is missing")
        elif saved[saved_names[0]].shape != tensors[key].shape:
            shape, expected = list(saved[saved_names[0]].shape), list(tensors[key].shape)
            problems.append(f"{saved_names[0]} has shape {shape}, but the model expects {expected}")
        else:
            pairs.append((tensors[key], saved[saved_names[0]]))
    problems.extend(f"{name} is not in the model" for name in saved if name not in used)
    if problems:
        raise CheckpointError(list_problems(f"the weights of {source} do not match the model:", problems))
    return pairs


def read_weights(folder: Path, *, prefix: str = "") -> dict[str, Tensor]:
    """Read the weights of a checkpoint whose names start with ``prefix``, and remove the prefix.

    A shared tensor appears under each of its names.

    Args:
        folder: folder of the checkpoint, such as ``<run>/checkpoints/best``; its hashes are verified.
    """
    checkpoint = open_checkpoint(Path(folder))
    saved = checkpoint.tensors("model")
    aliases = checkpoint.state.get("aliases", {})
    missing = [name for name in aliases.values() if name not in saved]
    if missing:
        raise CheckpointError(
            f"{checkpoint.folder / STATE}: aliases lists the tensor {missing[0][:80]}, which is not in "
            "model.safetensors"
        )
    saved.update({alias: saved[name] for alias, name in aliases.items()})
    tensors = {name.removeprefix(prefix): tensor for name, tensor in saved.items() if name.startswith(prefix)}
    if not tensors:
        raise CheckpointError(f"the checkpoint {folder} has no weights with the prefix {prefix!r}")
    return tensors
