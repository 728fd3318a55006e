"""The encoder of a run, as a test looks at it."""

from __future__ import annotations

from pathlib import Path

from omegaconf import DictConfig

from lmtransfer.interop.open_run import open_saved
from lmtransfer.models.base import Encoder
from lmtransfer.runs.saved_run import new_encoder
from lmtransfer.tokenizers.base import Tokenizer
from lmtransfer.training.weights import read_weights


def load_encoder(path: str | Path) -> tuple[Encoder, Tokenizer, DictConfig]:
    """The encoder of a run with its tokenizer and its component node."""
    run = open_saved(path, key="init")
    node, folder = run.model_node, run.checkpoint()
    tensors = read_weights(folder, prefix="encoder.")
    return (
        run.with_weights(lambda: new_encoder(node, run.tokenizer, seed=0), tensors, checkpoint=folder),
        run.tokenizer,
        node,
    )
