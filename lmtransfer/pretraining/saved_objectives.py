"""A pretraining run with its heads, as it was saved."""

from __future__ import annotations

from omegaconf import DictConfig

from lmtransfer.config.build import build
from lmtransfer.objectives.learner import PretrainingLearner
from lmtransfer.pretraining.assembly import Parts, build_parts
from lmtransfer.runs.saved import SavedRun, new_encoder
from lmtransfer.training.weights import load_weights, read_weights


def learnt(saved: SavedRun, config: DictConfig) -> tuple[Parts, PretrainingLearner]:
    """What a pretraining run is made of, and its learner with the weights that it learnt.

    Args:
        saved: the run.
        config: its configuration; ``init`` is null.

    Raises:
        RunDirectoryError: a component of it cannot be built.
        CheckpointError: its checkpoint is torn, or does not fit its configuration.
    """
    model, folder = saved.model_node, saved.checkpoint()
    for part in ("rows", "corruption"):
        saved.component(f"objective.{part}", "tokenizer")
    losses = [saved.component(f"objective.losses.{name}", "tokenizer") for name in saved.config["objective"]["losses"]]
    tensors = read_weights(folder)

    def made() -> PretrainingLearner:
        objectives = [build(node, tokenizer=saved.tokenizer) for node in losses]
        return PretrainingLearner(new_encoder(model, saved.tokenizer, seed=0), objectives)

    saved.hold_against(made, tensors, checkpoint=folder, keys="model and objective")
    parts = build_parts(config, saved.tokenizer)
    learner = PretrainingLearner(parts.encoder, list(parts.objectives))
    load_weights(learner, tensors, source=str(folder))
    return parts, learner
