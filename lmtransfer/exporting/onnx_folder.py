"""An export for onnxruntime: the graph and the tokenizer's files."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from lmtransfer.errors import CheckpointError
from lmtransfer.exporting.run import OpenRun
from lmtransfer.interop.onnx.export import OnnxFile, export_onnx
from lmtransfer.transfer.learner import TaskLearner


def write_onnx(run: OpenRun, folder: Path) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Write ``model.onnx`` and the tokenizer's files.

    Args:
        run: the run.
        folder: an existing folder.

    Returns:
        Notes for the user, and one line for each check.

    Raises:
        CheckpointError: the model or its head has no ONNX form, a package is missing, or the comparison failed.
    """
    notes = list(run.notes)
    try:
        words = run.write_tokenizer(folder)
        notes += words.notes
        if words.pad_id == run.encoder.vocab_size:
            _add_row_of_padding(run)
    except CheckpointError as error:
        run.saved.tokenizer.save(folder / "tokenizer")
        notes.append(
            "the tokenizer is written to tokenizer/ in the format of lmtransfer, because transformers has none for "
            f"this model: {error}"
        )
    written = _graph(run, folder, notes)
    what = f"{written.path.name}: inputs {', '.join(written.inputs)}; outputs {', '.join(written.outputs)}"
    if written.difference is None:
        return (*notes, *written.notes), (what,)
    checked = f"verified with onnxruntime on batches of mixed lengths, largest difference {written.difference:.0e}"
    return (*notes, *written.notes), (what, checked)


@torch.no_grad()
def _add_row_of_padding(run: OpenRun) -> None:
    """Add one row of zeros for padding to the token embedding and all other tensors with one row per token."""
    encoder = run.encoder
    if encoder.token_embedding is None:
        return
    _grow(encoder.token_embedding, "weight")
    encoder.token_embedding.num_embeddings += 1
    encoder.vocab_size += 1
    for objective in run.objectives:
        for name in objective.vocabulary_sized:
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
    chosen = next((objective for objective in run.objectives if objective.token_logits(state_TD) is not None), None)
    left = [objective.name for objective in run.objectives if objective is not chosen]
    if left:
        notes.append(f"the graph has no head of {', '.join(left)}")
    return export_onnx(encoder=run.encoder, folder=folder, objective=chosen)
