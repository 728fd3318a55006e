"""An export for onnxruntime: the graph, and the tokenizer beside it."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import torch
from torch import nn
from torch.nn import functional

from lmtransfer.errors import CheckpointError
from lmtransfer.export.run import OpenRun
from lmtransfer.interop.onnx.export import OnnxFile, export_onnx
from lmtransfer.interop.onnx.graph import Kind
from lmtransfer.objectives.learner import PretrainingLearner
from lmtransfer.objectives.masked_lm import MaskedLanguageModel
from lmtransfer.transfer.learner import TaskLearner

#: The objectives whose predictions a graph can give, the first that a run has.
_PREDICTING: tuple[Kind, ...] = ("mlm", "lm", "rtd")


def write_onnx(run: OpenRun, folder: Path) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Write ``model.onnx`` and the tokenizer's files.

    Args:
        run: the run.
        folder: where to; exists.

    Returns:
        What there is to note, and what was checked, a line each.

    Raises:
        CheckpointError: the model or its head cannot be written so, a package is missing, or the comparison failed.
    """
    notes = list(run.notes)
    try:
        words = run.write_tokenizer(folder, model_type=run.model_type)
        notes += words.notes
        if words.pad_id == run.encoder.vocab_size:
            _add_row_of_padding(run)
    except CheckpointError as error:
        run.saved.tokenizer.save(folder / "tokenizer")
        notes.append(f"the tokenizer is ours, in tokenizer/, as transformers has none for this model: {error}")
    written = _graph(run, folder, notes)
    what = f"{written.path.name}: inputs {', '.join(written.inputs)}; outputs {', '.join(written.outputs)}"
    if written.difference is None:
        return (*notes, *written.notes), (what,)
    checked = f"verified with onnxruntime on batches of mixed lengths, largest difference {written.difference:.0e}"
    return (*notes, *written.notes), (what, checked)


@torch.no_grad()
def _add_row_of_padding(run: OpenRun) -> None:
    """One more row of the token embedding, and of what the head has for each token: zeros, which nothing reads."""
    encoder = run.encoder
    embedding = encoder.token_embedding
    if embedding is None:
        return
    embedding.weight = nn.Parameter(functional.pad(embedding.weight, (0, 0, 0, 1)))
    embedding.num_embeddings += 1
    encoder.vocab_size += 1
    if isinstance(run.learner, PretrainingLearner):
        for objective in run.learner.objectives.values():
            if isinstance(objective, MaskedLanguageModel):
                objective.bias = nn.Parameter(functional.pad(objective.bias, (0, 1)))


def _graph(run: OpenRun, folder: Path, notes: list[str]) -> OnnxFile:
    learner = run.learner
    if isinstance(learner, TaskLearner):
        return export_onnx(
            encoder=run.encoder,
            kind=cast(Kind, run.kind),
            folder=folder,
            head=cast(nn.Module, learner.head),
            reading=learner.reading,
            composition=learner.composition,
            use_pooler=learner.use_pooler,
        )
    losses = list(learner.objectives) if isinstance(learner, PretrainingLearner) else []
    kind: Kind = next((kind for kind in _PREDICTING if kind in losses), "encoder")
    head = None
    if isinstance(learner, PretrainingLearner) and kind in ("mlm", "rtd"):
        head = learner.objectives[kind]
    left = [loss for loss in losses if loss != kind]
    if left:
        notes.append(f"the graph has no head of {', '.join(left)}")
    return export_onnx(encoder=run.encoder, kind=kind, folder=folder, head=head)
