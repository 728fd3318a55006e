"""Converts published ELMo models (allenai/bilm-tf) to our settings and tensors; there is no conversion back.

TensorFlow stores matrices as (in, out). An LSTM cell of TensorFlow has one matrix for input and state, stacks the gates
in the order input, new, forget, output, and adds 1 to the forget gate in addition to the bias.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lmtransfer.errors import CheckpointError
from lmtransfer.system.optional import import_optional
from lmtransfer.system.safe_files import irregularity

_FORGET_BIAS = 1.0
_ACTIVATIONS = ("relu", "tanh")
#: Upper bound on sizes, above those of all published models. A larger value means that the file is broken or hostile.
_MAX_SIZE = 10**6
#: Maximum ratio of a tensor's size to the size of its file. Weights hardly compress, so a larger ratio is an attack.
_MAX_EXPANSION = 100


def elmo_arguments(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of ``ElmoEncoder`` for ``options.json``, except ``vocab_size`` and ``dropout``."""
    try:
        lstm, characters = options["lstm"], options["char_cnn"]
        arguments = {
            "dim": 2 * _size(lstm["projection_dim"]),
            "num_layers": _size(lstm["n_layers"], most=100),
            "cell_dim": _size(lstm["dim"]),
            "char_dim": _size(characters["embedding"]["dim"]),
            "filters": [[_size(width, most=50), _size(count)] for width, count in characters["filters"]],
            "num_highway": _size(characters["n_highway"], most=100),
            "activation": characters["activation"],
            "skip_connections": bool(lstm.get("use_skip_connections", False)),
            "cell_clip": _clip(lstm.get("cell_clip")),
            "proj_clip": _clip(lstm.get("proj_clip")),
        }
    except KeyError as error:
        raise CheckpointError(f"options.json of the ELMo model lacks the setting {error}") from None
    except (TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(f"options.json of the ELMo model: {error}") from None
    if arguments["activation"] not in _ACTIVATIONS:
        raise CheckpointError(
            f"options.json: activation={arguments['activation']} is not supported: lmtransfer supports "
            f"{', '.join(_ACTIVATIONS)}"
        )
    return arguments


def _size(value: Any, *, most: int = _MAX_SIZE) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= most:
        raise ValueError(f"{value!r} is not a valid encoder size")
    return value


def _clip(value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
        raise ValueError(f"{value!r} is not a valid clipping limit")
    return float(value)


def elmo_weight_file(folder: Path) -> Path:
    """Return the weight file in the folder of ``options.json``, which must hold exactly one."""
    files = sorted(path for path in Path(folder).glob("*.hdf5") if "weights" in path.name)
    if len(files) != 1:
        names = ", ".join(path.name for path in files) or "none"
        raise CheckpointError(
            f"{folder}: the folder must hold exactly one weight file next to options.json, such as weights.hdf5, but "
            f"holds {names}"
        )
    return files[0]


def read_hdf5(path: Path) -> dict[str, Tensor]:
    """Read all tensors of an HDF5 file, keyed by name."""
    h5py = import_optional("h5py", work=f"{path}", error=CheckpointError)
    tensors: dict[str, Tensor] = {}
    problem = irregularity(path)
    if problem is not None:
        raise CheckpointError(f"{path}: {problem}")
    max_bytes, num_bytes = _MAX_EXPANSION * path.stat().st_size, 0

    def visit(name: str, item: Any) -> None:
        nonlocal num_bytes
        if isinstance(item, h5py.Dataset):
            if item.external or item.is_virtual:
                raise ValueError(f"the content of {name} is in another file")
            num_bytes += item.nbytes
            if num_bytes > max_bytes:
                raise ValueError(
                    f"the tensors up to {name} take {num_bytes:,} bytes, but the file has only {path.stat().st_size:,}"
                )
            tensors[name] = torch.from_numpy(item[...])

    try:
        with h5py.File(path, "r") as file:
            file.visititems(visit)
    except (OSError, TypeError, ValueError, RuntimeError, KeyError) as error:
        raise CheckpointError(
            f"{path}: the file is damaged or incomplete, or is not an HDF5 file with weights: {error}; download it "
            "again"
        ) from error
    return tensors


def elmo_weights(tensors: Mapping[str, Tensor], options: Mapping[str, Any]) -> dict[str, Tensor]:
    """Convert the tensors of ``weights.hdf5`` to a state_dict of ``ElmoEncoder``.

    Args:
        tensors: the file's tensors by name, such as ``RNN_0/RNN/MultiRNNCell/Cell0/LSTMCell/W_0``.
    """
    try:
        return _layout_of(tensors, elmo_arguments(options))
    except (RuntimeError, IndexError, ValueError) as error:
        raise CheckpointError(f"the shapes of the ELMo weights do not match options.json: {error}") from error


def _layout_of(tensors: Mapping[str, Tensor], arguments: Mapping[str, Any]) -> dict[str, Tensor]:
    rest = dict(tensors)

    def take(name: str) -> Tensor:
        if name not in rest:
            raise CheckpointError(f"the ELMo weights have no tensor {name}")
        return rest.pop(name)

    characters = take("char_embed")
    # The file lacks row 0, which stands for "no character".
    ours = {"characters.embedding.weight": torch.cat([torch.zeros_like(characters[:1]), characters])}
    for i in range(len(arguments["filters"])):
        ours[f"characters.convolutions.{i}.weight"] = take(f"CNN/W_cnn_{i}")[0].permute(2, 1, 0)
        ours[f"characters.convolutions.{i}.bias"] = take(f"CNN/b_cnn_{i}")
    for i in range(arguments["num_highway"]):
        for part, name in (("gate", "carry"), ("transform", "transform")):
            ours[f"characters.highways.{i}.{part}.weight"] = take(f"CNN_high_{i}/W_{name}").T
            ours[f"characters.highways.{i}.{part}.bias"] = take(f"CNN_high_{i}/b_{name}")
    ours["characters.projection.weight"] = take("CNN_proj/W_proj").T
    ours["characters.projection.bias"] = take("CNN_proj/b_proj")
    for direction, stack in enumerate(("forwards", "backwards")):
        for layer in range(arguments["num_layers"]):
            cell = f"RNN_{direction}/RNN/MultiRNNCell/Cell{layer}/LSTMCell"
            matrix, bias, projection = (take(f"{cell}/{name}") for name in ("W_0", "B", "W_P_0"))
            lstm = _lstm(matrix, bias, projection)
            ours.update({f"lstms.{stack}.layers.{layer}.lstm.{name}": tensor for name, tensor in lstm.items()})
    if rest:
        raise CheckpointError(
            f"the ELMo weights have tensors that options.json does not describe: {', '.join(sorted(rest))}"
        )
    return {name: tensor.contiguous() for name, tensor in ours.items()}


def _lstm(matrix: Tensor, bias: Tensor, projection: Tensor) -> dict[str, Tensor]:
    """Convert the tensors of a TensorFlow ``LSTMCell`` to those of ``torch.nn.LSTM``."""
    i, j, f, o = bias.chunk(4)
    bias = torch.cat([i, f + _FORGET_BIAS, j, o])
    i, j, f, o = matrix.T.chunk(4)
    matrix = torch.cat([i, f, j, o])
    state_dim = projection.shape[1]
    return {
        "weight_ih_l0": matrix[:, :-state_dim],
        "weight_hh_l0": matrix[:, -state_dim:],
        "bias_ih_l0": bias,
        "bias_hh_l0": torch.zeros_like(bias),
        "weight_hr_l0": projection.T,
    }
