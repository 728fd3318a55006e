"""A pretraining run with its heads, as it was saved: what scores sentences and fills masks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

from omegaconf import OmegaConf

from lmtransfer.commands._pretraining import build_parts
from lmtransfer.commands._runs import SavedRun
from lmtransfer.errors import RunDirectoryError
from lmtransfer.models.base import Encoder
from lmtransfer.objectives.learner import PretrainingLearner
from lmtransfer.scoring.queries import Frame
from lmtransfer.training.hardware import Hardware
from lmtransfer.training.weights import load_weights, read_weights


@dataclass(frozen=True, slots=True)
class SavedObjectives:
    """A pretrained encoder with its objectives.

    Attributes:
        learner: both, with the run's weights, in eval mode on the device.
        frame: the marks that training put around a text.
    """

    learner: PretrainingLearner
    frame: Frame


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
    parts = build_parts(config, saved.tokenizer)
    learner = PretrainingLearner(parts.encoder, list(parts.objectives))
    load_weights(learner, read_weights(saved.checkpoint()), source=str(saved.checkpoint()))
    frame = Frame(tokenizer=saved.tokenizer, encoder=cast(Encoder, learner.encoder), rows=parts.rows)
    return SavedObjectives(learner.to(hardware.device).eval(), frame)
