"""Export encoders and heads as ONNX files, and compare each file with the packed model.

PyTorch's tracing exporter writes the files. The newer exporter, based on ``torch.export``, gives the same numbers, but
takes forty times as long (4 s instead of 0.1 s for two small layers), needs a third package, and writes paths of this
machine into the file. Tracing can freeze a size into the graph as a constant. The comparison finds that, because it
runs the file with other numbers of rows and tokens than those that were traced.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.onnx import register_custom_op_symbolic, symbolic_helper, unregister_custom_op_symbolic

from lmtransfer.data.batch import pack
from lmtransfer.errors import CheckpointError
from lmtransfer.interop.onnx.graph import DenseModel, TaskParts
from lmtransfer.models.base import Encoder
from lmtransfer.objectives.base import Objective
from lmtransfer.system.optional import missing, optional

#: Largest allowed difference from the packed model, relative to the largest of: 1, the output's largest magnitude, and
#: the largest sum of magnitudes that cancel in a head.
TOLERANCE = 1e-5
#: Version of the operators: the first one with a LayerNorm operator; runtimes read it from 2022 on.
OPSET = 17
#: Largest size of a single file (a limit of protobuf), minus room for everything that is not a weight.
_MAX_BYTES = 2**31 - 2**24
#: Row lengths in tokens of the batches that are compared; longer rows than the model reads are cut.
_COMPARED = ((1,), (6,), (3, 40, 1, 17), (130, 9, 64))


@dataclass(frozen=True, slots=True)
class OnnxFile:
    """A written graph.

    Attributes:
        path: path of the file.
        inputs: names of its inputs, int64, (batch, length).
        outputs: names of its outputs, float32.
        difference: difference from the packed model, in the unit of ``TOLERANCE``; None: not compared.
        notes: notes for the user.
    """

    path: Path
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    difference: float | None
    notes: tuple[str, ...]


def export_onnx(
    *,
    encoder: Encoder,
    folder: Path,
    objective: Objective | None = None,
    task: TaskParts | None = None,
    labels: Sequence[str] = (),
    name: str = "model.onnx",
) -> OnnxFile:
    """Write ``folder/name``, check it, and compare it with the packed model if onnxruntime is installed.

    The numbers of rows and tokens of a batch are free; rows are padded on the right. The file appears only after all
    checks succeeded.

    Args:
        encoder: encoder in float32, on the CPU; it is left in evaluation mode, like all given modules.
        folder: the folder; it is created if it is missing.
        objective: see ``DenseModel``.
        task: see ``DenseModel``.
        labels: names of the outputs of a task's head, in order. The file has them in its metadata as JSON, with the key
            ``labels``.
        name: name of the file.

    Raises:
        CheckpointError: a package is missing; the model has no such graph; it is too large; or the outputs of the file
            differ from those of the packed model.
    """
    onnx = optional("onnx", work="ONNX export", error=CheckpointError)
    model = DenseModel(encoder=encoder, objective=objective, task=task).eval()
    size = sum(tensor.nbytes for tensor in model.state_dict().values())
    if size > _MAX_BYTES:
        raise CheckpointError(
            f"no ONNX export: the weights have {size / 2**30:.1f} GB, but a single ONNX file can hold at most 2 GB"
        )
    folder.mkdir(parents=True, exist_ok=True)
    path, unchecked = folder / name, folder / f".{name}.unchecked"
    inputs = ("input_ids", "attention_mask", "token_type_ids")[: 3 if model.has_segments else 2]
    try:
        _write(model, unchecked, inputs)
        if labels:
            written = onnx.load(str(unchecked))
            onnx.helper.set_model_props(written, {"labels": json.dumps(list(labels))})
            onnx.save(written, str(unchecked))
        onnx.checker.check_model(str(unchecked), full_check=True)
        difference, notes = compare(model, unchecked)
        os.replace(unchecked, path)
    finally:
        unchecked.unlink(missing_ok=True)
    return OnnxFile(path, inputs, model.outputs, difference, notes)


def compare(model: DenseModel, path: Path) -> tuple[float | None, tuple[str, ...]]:
    """Return the file's largest difference from the packed model on rows of mixed lengths, in units of ``TOLERANCE``.

    Returns:
        The difference; or None and a note if onnxruntime is not installed.

    Raises:
        CheckpointError: the difference exceeds the tolerance.
    """
    unavailable = missing("onnxruntime")
    if unavailable is not None:
        return None, (f"{path.name} was not compared: {unavailable}",)
    runtime = optional("onnxruntime", work="ONNX export", error=CheckpointError)
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    encoder = model.encoder
    rng, worst = np.random.default_rng(0), 0.0
    scale = max(1.0, model.cancelling)
    for lengths in _COMPARED:
        cut = [min(length, encoder.max_length) for length in lengths]
        tokens = [rng.integers(0, encoder.vocab_size, length) for length in cut]
        segments = [np.arange(length) * encoder.num_segments // length for length in cut]
        with torch.no_grad():
            expected = [output.numpy() for output in model.packed(pack(tokens, segments))]
        fed = padded_rows(tokens, segments, filler=int(rng.integers(0, encoder.vocab_size)))
        real = fed["attention_mask"].astype(bool)
        found = session.run(None, {wanted.name: fed[wanted.name] for wanted in session.get_inputs()})
        for expected_one, found_one in zip(expected, found, strict=True):
            found_one = found_one if model.per_row else found_one[real]
            if found_one.shape != expected_one.shape or not np.isfinite(found_one).all():
                worst = float("inf")
            else:
                worst = max(
                    worst, float(np.abs(found_one - expected_one).max()) / max(scale, float(np.abs(expected_one).max()))
                )
    if worst > TOLERANCE:
        raise CheckpointError(
            f"the ONNX graph of {type(encoder).__name__} ({model.what}) differs from the model by {worst:.1e} of its "
            f"largest output, more than {TOLERANCE:.0e}: nothing was written; please report it"
        )
    return worst, ()


def padded_rows(
    tokens: list[np.ndarray], segments: list[np.ndarray] | None = None, *, filler: int = 0
) -> dict[str, np.ndarray]:
    """Turn rows into the inputs of a graph: padded on the right to the longest row.

    Args:
        tokens: token ids of each row.
        segments: segment ids of each row; if omitted, all are 0.
        filler: token id of padding; any id works.
    """
    shape = (len(tokens), max(map(len, tokens)))
    fed = {name: np.zeros(shape, np.int64) for name in ("input_ids", "attention_mask", "token_type_ids")}
    fed["input_ids"][:] = filler
    for row, ids in enumerate(tokens):
        fed["input_ids"][row, : len(ids)] = ids
        fed["attention_mask"][row, : len(ids)] = 1
        if segments is not None:
            fed["token_type_ids"][row, : len(ids)] = segments[row]
    return fed


def _write(model: DenseModel, path: Path, inputs: tuple[str, ...]) -> None:
    fed = padded_rows([np.zeros(4, np.int64), np.zeros(3, np.int64)])
    sizes = {0: "batch", 1: "length"}
    with torch.no_grad(), _missing_operators(OPSET), warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # see the docstring of this module
        warnings.simplefilter("ignore", torch.jit.TracerWarning)  # about frozen sizes, which the comparison finds
        torch.onnx.export(
            model,
            tuple(torch.from_numpy(fed[name]) for name in inputs),
            str(path),
            input_names=list(inputs),
            output_names=list(model.outputs),
            dynamic_axes={
                **dict.fromkeys(inputs, sizes),
                **dict.fromkeys(model.outputs, {0: "batch"} if model.per_row else sizes),
            },
            opset_version=OPSET,
            dynamo=False,
        )


@symbolic_helper.parse_args("v", "is", "v", "f")
def _rms_norm(graph: Any, states: Any, shape: list[int], weight: Any, eps: float) -> Any:
    """RMSNorm: Zhang & Sennrich 2019, equation 4, with epsilon as in ``torch.nn.functional.rms_norm``."""
    axes = [-1 - axis for axis in range(len(shape))]
    means = graph.op("ReduceMean", graph.op("Mul", states, states), axes_i=axes, keepdims_i=1)
    roots = graph.op("Sqrt", graph.op("Add", means, graph.op("Constant", value_t=torch.tensor(eps))))
    return graph.op("Mul", graph.op("Div", states, roots), weight)


def _or(graph: Any, left: Any, right: Any) -> Any:
    """``left |= right`` as an operator that is not in place, even where the in-place form is traced."""
    return graph.op("Or", left, right)


_OPERATORS: dict[str, Callable[..., Any]] = {"aten::rms_norm": _rms_norm, "aten::__ior_": _or}


@contextmanager
def _missing_operators(opset: int) -> Iterator[None]:
    """Register, within the block, operators of our layers that the exporter lacks, expressed by those that it has.

    Args:
        opset: version of the operators that the exporter writes.
    """
    for name, operator in _OPERATORS.items():
        register_custom_op_symbolic(name, operator, opset)
    try:
        yield
    finally:
        for name in _OPERATORS:
            unregister_custom_op_symbolic(name, opset)
