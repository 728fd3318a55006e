"""Exports encoders and heads as ONNX files, and compares each file with the model on packed sequences.

PyTorch's tracing exporter writes the files. The newer exporter, which is based on ``torch.export``, gives the same
results, but takes forty times as long (4 s instead of 0.1 s for two small layers), needs a third package, and writes
local paths to the file. Tracing can turn a size into a constant in the graph. The comparison detects such constants,
because its batches have different numbers of rows and tokens than the traced example.

No model is implemented a second time: the modules are the same as for packed batches, but their input is a dense block
of padded rows (``models.padded``).

Shape legend: T tokens, B rows, L slots in a row.
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
from torch import Tensor, nn
from torch.onnx import register_custom_op_symbolic, symbolic_helper, unregister_custom_op_symbolic

from lmtransfer.data.batch import PackedBatch, pack
from lmtransfer.errors import CheckpointError
from lmtransfer.interop.exporting.run import OpenRun
from lmtransfer.models.base import Encoder
from lmtransfer.models.padded import PaddedRows
from lmtransfer.objectives.base import Objective
from lmtransfer.system.optional import import_optional, install_hint
from lmtransfer.transfer.learner import TaskLearner

#: Largest allowed difference from the packed model, as a fraction of the largest of three values: 1, the largest
#: magnitude in the output, and the largest sum of magnitudes that cancel in a head.
TOLERANCE = 1e-5
#: Version of the operators: the first with a LayerNorm operator, supported by runtimes since 2022.
OPSET = 17
#: Maximum size of the weights: a single file can hold 2 GiB (a limit of protobuf), of which the graph needs a little.
_MAX_BYTES = 2**31 - 2**24
#: Row lengths, in tokens, of the batches for the comparison; rows are truncated to the model's maximum length.
_COMPARED = ((1,), (6,), (3, 40, 1, 17), (130, 9, 64))


class DenseModel(nn.Module):
    """An encoder with its head, on padded rows.

    Args:
        objective: a pretraining objective with logits for each token, bound to the encoder; or None.
        task: a task's model on the encoder; or None. Without objective and task, the output is the last layer.

    Attributes:
        per_row: whether there is one output per row, (B, ...), as opposed to one per token, (B, L, ...).
        cancellation: the largest sum of magnitudes that cancel in a head; see ``transfer.heads.Head``.
    """

    def __init__(
        self, *, encoder: Encoder, objective: Objective | None = None, task: TaskLearner | None = None
    ) -> None:
        super().__init__()
        problem = _problem(encoder, task)
        if problem is not None:
            raise CheckpointError(f"no ONNX export: {problem}")
        self.encoder, self.objective = encoder, objective
        self.reading = None if task is None else task.reading
        self.composition = None if task is None else task.composition
        self.head = None if task is None else task.head
        self.use_pooler = task is not None and task.use_pooler
        self.has_segments = encoder.num_segments > 1
        self.outputs: tuple[str, ...] = ("last_hidden_state",) if objective is None else ("logits",)
        self.what = "encoder" if objective is None else objective.name
        self.per_row, self.cancellation = False, 0.0
        if self.head is not None:
            self.outputs, self.what = self.head.graph_outputs, self.head.loss_name
            self.per_row, self.cancellation = self.head.per == "sequence", self.head.cancellation

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        """Compute the outputs that ``outputs`` names.

        Args:
            input_ids: token ids, int64, (B, L): at least one real token per row, and padding (any ids) on the right.
            attention_mask: 1 for real tokens, 0 for padding, int64, (B, L).
            token_type_ids: segment ids, int64, (B, L), for encoders with segment embeddings.

        Returns:
            float32, (B, L, ...), with meaningless values for padding, or (B, ...).
        """
        rows, length = input_ids.shape
        real_BL = attention_mask.bool()
        batch = PaddedRows.of(input_ids, real_BL, token_type_ids)
        states = self._read(self.encoder(batch).layers, real_BL.sum(1))
        if self.composition is not None:
            states = self.composition.pool_padded(states.view(rows, length, -1), real_BL).flatten(0, -2)
        outputs = self._outputs(states)
        if self.per_row:
            return outputs
        return tuple(output.view(rows, length, *output.shape[1:]) for output in outputs)

    def run_packed(self, batch: PackedBatch) -> tuple[Tensor, ...]:
        """Compute the same outputs on packed sequences, as training and prediction do: (T, ...) or (B, ...)."""
        offsets = batch.cu_seqlens.long()
        states = self._read(self.encoder(batch).layers, offsets.diff())
        if self.composition is not None:
            tokens = self.composition.tokens
            if tokens != "all":
                states = states[offsets[:-1] if tokens == "first" else offsets[1:] - 1]
            states = self.composition(states, offsets.diff())
        return self._outputs(states)

    def _read(self, layers: Sequence[Tensor], lengths: Tensor) -> Tensor:
        if self.reading is None:
            return layers[-1]
        return self.reading([layers[index] for index in self.reading.indices], lengths)

    def _outputs(self, states: Tensor) -> tuple[Tensor, ...]:
        if self.head is not None:
            pooler = self.encoder.pooler if self.use_pooler else None
            logits = self.head(states if pooler is None else pooler(states))
            return (logits,) if len(self.outputs) == 1 else logits.unbind(1)
        head_logits = None if self.objective is None else self.objective.token_logits(states)
        return (states if head_logits is None else head_logits,)


def _problem(encoder: Encoder, task: TaskLearner | None) -> str | None:
    """Explain why an encoder or a task's model does not support padded rows; None if both do."""
    if not encoder.reads_padded:
        return (
            f"{type(encoder).__name__} is not a plain stack of transformer layers; only such stacks (BERT, RoBERTa, "
            "ALBERT, ELECTRA, DistilBERT, GPT, modern) give the same results on padded rows; export the run with "
            "format=auto"
        )
    if task is None:
        return None
    if not task.composition.reads_padded:
        return (
            f"{type(task.composition).__name__} (transfer.pooling, transfer.pairs) needs packed sequences; train "
            "the head with transfer.pooling=family, cls, last_token, mean, max or attention and transfer.pairs=together"
        )
    if not task.reading.reads_padded:
        return "transfer.mix_layer_norm=true normalizes over packed sequences; train with transfer.mix_layer_norm=false"
    if not task.head.graph_outputs:
        return "a head that answers questions with yes, no or unknown in addition to spans has no published counterpart"
    return None


def write_onnx(run: OpenRun, folder: Path) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Write ``model.onnx`` and the tokenizer's files, and return notes and results of checks."""
    notes = list(run.notes)
    try:
        words = run.write_tokenizer(folder)
        notes += words.notes
        if words.pad_id == run.encoder.vocab_size:
            _add_padding_row(run)
    except CheckpointError as error:
        run.saved.tokenizer.save(folder / "tokenizer")
        notes.append(
            "the tokenizer was written to tokenizer/ in lmtransfer's own format, because transformers has no such "
            f"tokenizer: {error}"
        )
    written = _graph(run, folder, notes)
    what = f"{written.path.name}: inputs {', '.join(written.inputs)}; outputs {', '.join(written.outputs)}"
    if written.difference is None:
        return (*notes, *written.notes), (what,)
    check = f"verified with onnxruntime on batches of mixed lengths, largest difference {written.difference:.0e}"
    return (*notes, *written.notes), (what, check)


@torch.no_grad()
def _add_padding_row(run: OpenRun) -> None:
    """Add one row of zeros for padding to the token embedding and to all other tensors with one row per token."""
    encoder = run.encoder
    if encoder.token_embedding is None:
        return
    _grow(encoder.token_embedding, "weight")
    encoder.token_embedding.num_embeddings += 1
    encoder.vocab_size += 1
    for objective in run.objectives:
        for name in objective.vocabulary_tensors:
            path, _, own = name.rpartition(".")
            _grow(objective.get_submodule(path), own)


def _grow(module: nn.Module, name: str) -> None:
    rows = module.get_parameter(name)
    setattr(module, name, nn.Parameter(torch.cat([rows, rows.new_zeros(1, *rows.shape[1:])])))


def _graph(run: OpenRun, folder: Path, notes: list[str]) -> OnnxFile:
    """Write the graph, with the head of the first objective that has logits for each token."""
    if isinstance(run.learner, TaskLearner):
        return export_onnx(encoder=run.encoder, folder=folder, task=run.learner, labels=run.labels)
    state_TD = torch.zeros(1, run.encoder.dim)
    exportable = [objective for objective in run.objectives if objective.token_logits(state_TD) is not None]
    first = exportable[0] if exportable else None
    rest = [objective.name for objective in run.objectives if objective is not first]
    if rest:
        notes.append(f"the head of {', '.join(rest)} is left out: an ONNX file holds only one head for tokens")
    return export_onnx(encoder=run.encoder, folder=folder, objective=first)


@dataclass(frozen=True, slots=True)
class OnnxFile:
    """A written graph.

    Attributes:
        difference: largest relative difference from the packed model, as in ``TOLERANCE``; None if not compared.
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
    task: TaskLearner | None = None,
    labels: Sequence[str] = (),
) -> OnnxFile:
    """Write ``model.onnx``, check it, and compare it with the packed model if onnxruntime is installed.

    The graph accepts any numbers of rows and tokens; rows are padded on the right. The file appears only after all
    checks have succeeded.

    Args:
        encoder: encoder in float32 on the CPU; this function sets all modules to evaluation mode.
        labels: names of the outputs of a task's head, in order; they are stored in the file's metadata as JSON, under
            the key ``labels``.
    """
    onnx = import_optional("onnx", work="ONNX export", error=CheckpointError)
    model = DenseModel(encoder=encoder, objective=objective, task=task).eval()
    size = sum(tensor.nbytes for tensor in model.state_dict().values())
    if size > _MAX_BYTES:
        raise CheckpointError(
            f"no ONNX export: the weights take {size / 2**30:.1f} GB, but a single ONNX file can hold at most 2 GB; "
            "export the run with format=auto"
        )
    folder.mkdir(parents=True, exist_ok=True)
    path, unchecked = folder / "model.onnx", folder / ".model.onnx.unchecked"
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
    """Measure the largest relative difference between a file and the packed model, as in ``TOLERANCE``.

    If onnxruntime is not installed, return None and a note.
    """
    unavailable = install_hint("onnxruntime")
    if unavailable is not None:
        return None, (f"{path.name} was not compared: {unavailable}",)
    runtime = import_optional("onnxruntime", work="ONNX export", error=CheckpointError)
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    encoder = model.encoder
    rng, worst = np.random.default_rng(0), 0.0
    scale = max(1.0, model.cancellation)
    for lengths in _COMPARED:
        cut = [min(length, encoder.max_length) for length in lengths]
        tokens = [rng.integers(0, encoder.vocab_size, length) for length in cut]
        segments = [np.arange(length) * encoder.num_segments // length for length in cut]
        with torch.no_grad():
            expected = [output.numpy() for output in model.run_packed(pack(tokens, segments))]
        inputs = pad_rows(tokens, segments, filler=int(rng.integers(0, encoder.vocab_size)))
        real = inputs["attention_mask"].astype(bool)
        outputs = session.run(None, {node.name: inputs[node.name] for node in session.get_inputs()})
        for reference, output in zip(expected, outputs, strict=True):
            output = output if model.per_row else output[real]
            if output.shape != reference.shape or not np.isfinite(output).all():
                worst = float("inf")
            else:
                worst = max(worst, float(np.abs(output - reference).max()) / max(scale, float(np.abs(reference).max())))
    if worst > TOLERANCE:
        raise CheckpointError(
            f"the ONNX graph of {type(encoder).__name__} ({model.what}) differs from the model by {worst:.1e} of the "
            f"largest output, more than {TOLERANCE:.0e}: nothing was exported; please report this error"
        )
    return worst, ()


def pad_rows(
    tokens: list[np.ndarray], segments: list[np.ndarray] | None = None, *, filler: int = 0
) -> dict[str, np.ndarray]:
    """Pad rows on the right to the length of the longest row, and return them as inputs of a graph."""
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
    fed = pad_rows([np.zeros(4, np.int64), np.zeros(3, np.int64)])
    sizes = {0: "batch", 1: "length"}
    with torch.no_grad(), _missing_operators(), warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # see the docstring of this module
        # TracerWarnings are about constant sizes, which the comparison detects.
        warnings.simplefilter("ignore", torch.jit.TracerWarning)
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
    """Export the in-place ``left |= right`` as ``left | right``."""
    return graph.op("Or", left, right)


_OPERATORS: dict[str, Callable[..., Any]] = {"aten::rms_norm": _rms_norm, "aten::__ior_": _or}


@contextmanager
def _missing_operators() -> Iterator[None]:
    """Register, inside the block, operators that our layers need and the exporter lacks."""
    for name, operator in _OPERATORS.items():
        register_custom_op_symbolic(name, operator, OPSET)
    try:
        yield
    finally:
        for name in _OPERATORS:
            unregister_custom_op_symbolic(name, OPSET)
