"""An export for onnxruntime: the graph, and the tokenizer beside it."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

from lmtransfer.errors import CheckpointError
from lmtransfer.export.run import OpenRun
from lmtransfer.interop.onnx.export import OnnxFile, export_onnx
from lmtransfer.objectives.learner import PretrainingLearner
from lmtransfer.transfer.learner import TaskLearner


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
    for objective in run.learner.listed() if isinstance(run.learner, PretrainingLearner) else ():
        for name in objective.per_token:
            parameter = objective.get_parameter(name)
            rows = (0, 0) * (parameter.ndim - 1)
            setattr(objective, name, nn.Parameter(functional.pad(parameter, (*rows, 0, 1))))


def _graph(run: OpenRun, folder: Path, notes: list[str]) -> OnnxFile:
    """Write the graph, with the head of the first objective that has something to say of each token."""
    encoder, learner = run.encoder, run.learner
    if isinstance(learner, TaskLearner):
        return export_onnx(encoder=encoder, folder=folder, task=learner)
    objectives = learner.listed() if isinstance(learner, PretrainingLearner) else []
    any_states = torch.zeros(1, encoder.dim)
    chosen = next((one for one in objectives if one.token_logits(any_states) is not None), None)
    left = [objective.name for objective in objectives if objective is not chosen]
    if left:
        notes.append(f"the graph has no head of {', '.join(left)}")
    return export_onnx(encoder=encoder, folder=folder, objective=chosen)
