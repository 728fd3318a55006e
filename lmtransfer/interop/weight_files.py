"""Read the weights of a published folder: tensors by name, from safetensors or from PyTorch's older files.

Nothing in these files is executed. Safetensors holds only data; a pickle is read by the PyTorch loader that accepts
only tensors and refuses everything else. The index of a sharded checkpoint may name only files in its folder.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from typing_extensions import TypedDict

from lmtransfer.errors import CheckpointError
from lmtransfer.system.safe_files import check_tensor_file, read_json

#: File names in search order; each may also be sharded, with an index file next to it.
FILES = ("model.safetensors", "pytorch_model.bin")


class _Index(TypedDict):
    weight_map: dict[str, str]


def read_weight_files(folder: Path) -> dict[str, Tensor]:
    """Read all tensors of a published folder to the CPU: from ``model.safetensors``, else from ``pytorch_model.bin``.

    Raises:
        CheckpointError: there are no weights; a file is missing, damaged, has another format, or would run code.
    """
    for name in FILES:
        read = _read_safetensors if name.endswith(".safetensors") else _read_pickle
        if (folder / name).is_file():
            return read(folder / name)
        index = folder / f"{name}.index.json"
        if index.is_file():
            return _read_shards(index, read)
    others = sorted(
        path.name for path in folder.iterdir() if path.suffix in (".h5", ".msgpack", ".ckpt", ".onnx", ".gguf")
    )
    found = f"; {', '.join(others)} is from another program: save the model with transformers first" if others else ""
    raise CheckpointError(f"{folder}: holds no weights ({' or '.join(FILES)}, whole or sharded){found}")


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    check_tensor_file(path, error=CheckpointError)
    try:
        return load_file(path)
    except (SafetensorError, OSError, ValueError) as error:
        raise CheckpointError(
            f"{path}: is damaged or incomplete, or is not a safetensors file: {error}; download it again"
        ) from error


def _read_pickle(path: Path) -> dict[str, Tensor]:
    try:
        with warnings.catch_warnings(action="ignore"):  # about the content, which is either refused or read
            content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a broken or hostile pickle can raise any exception; each becomes one message
        code = re.search(r"GLOBAL\s+([\w.]+)", str(error))
        if code is not None:
            raise CheckpointError(
                f"{path}: contains code that would run on loading ({code.group(1)}), and weights need no code: the "
                "file is refused. If you trust its source, save the model as safetensors there"
            ) from error
        (reason, *_) = str(error).splitlines() or [""]
        raise CheckpointError(
            f"{path}: is damaged or incomplete, or holds more than tensors ({type(error).__name__}: {reason}); "
            "download it again, or save the model as safetensors at its source"
        ) from error
    if not isinstance(content, Mapping) or not all(isinstance(name, str) for name in content):
        raise CheckpointError(f"{path}: holds a {type(content).__name__} where tensors by name are expected")
    unknown = [name for name, value in content.items() if not isinstance(value, Tensor)]
    if unknown:
        raise CheckpointError(f"{path}: holds more than tensors by name: {', '.join(sorted(unknown)[:5])}")
    return dict(content)


def _read_shards(index: Path, read: Callable[[Path], dict[str, Tensor]]) -> dict[str, Tensor]:
    places = read_json(index, _Index, error=CheckpointError, finite=False)["weight_map"]
    shards = sorted(set(places.values()))
    outside = [shard for shard in shards if Path(shard).name != shard or "\\" in shard or shard in ("", ".", "..")]
    if outside:
        raise CheckpointError(f"{index}: names files outside its folder, which are refused: {', '.join(outside[:5])}")
    missing = [shard for shard in shards if not (index.parent / shard).is_file()]
    if missing:
        raise CheckpointError(f"{index}: names files that are missing: {', '.join(missing[:5])}")
    tensors: dict[str, Tensor] = {}
    for shard in shards:
        content = read(index.parent / shard)
        promised = [name for name, place in places.items() if place == shard]
        lost = [name for name in promised if name not in content]
        if lost:
            raise CheckpointError(
                f"{index.parent / shard}: lacks tensors that the index lists for it: {', '.join(lost[:5])}"
            )
        tensors |= content
    return tensors
