"""A pretraining run with its heads, as it was saved: what scores sentences and fills masks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from omegaconf import DictConfig, OmegaConf

from lmtransfer.config.build import build
from lmtransfer.errors import RunDirectoryError
from lmtransfer.objectives.learner import PretrainingLearner
from lmtransfer.pretraining.assembly import Parts, build_parts
from lmtransfer.runs.saved import SavedRun, new_encoder
from lmtransfer.training.hardware import Hardware
from lmtransfer.training.weights import load_weights, read_weights
from lmtransfer.zero_shot.queries import Frame


@dataclass(frozen=True, slots=True)
class SavedObjectives:
    """A pretrained encoder with its objectives.

    Attributes:
        learner: both, with the run's weights, in eval mode on the device.
        frame: the marks that training put around a text.
    """

    learner: PretrainingLearner
    frame: Frame


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


def open_objectives(saved: SavedRun, *, hardware: Hardware) -> SavedObjectives:
    """Build what a pretraining run has learnt.

    Args:
        saved: the run.
        hardware: where to compute.

    Raises:
        RunDirectoryError: the run was not pretrained, or has no checkpoint.
        CheckpointError: its checkpoint is torn.
    """
    if "objective" not in saved.config or "task" in saved.config:
        raise RunDirectoryError(
            f"run={saved.path}: was not pretrained on text, and holds no head that predicts tokens; give a run of "
            f"pretrain, such as runs/pretrain/<name>"
        )
    config: Any = OmegaConf.create(saved.config)
    config.init = None  # the weights are the run's own, whatever it began from
    parts, learner = learnt(saved, config)
    frame = Frame(tokenizer=saved.tokenizer, encoder=learner.encoder, rows=parts.rows)
    return SavedObjectives(learner.to(hardware.device).eval(), frame)
