"""Load a saved pretraining run with the head that scores sentences or fills masks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from omegaconf import OmegaConf

from lmtransfer.errors import ConfigError, RunDirectoryError
from lmtransfer.objectives.base import Objective, known_objectives
from lmtransfer.objectives.learner import PretrainingLearner
from lmtransfer.pretraining.parts import learned
from lmtransfer.runs.saved import SavedRun
from lmtransfer.training.hardware import Hardware
from lmtransfer.zero_shot.queries import Frame


@dataclass(frozen=True, slots=True)
class Pretrained:
    """A pretrained encoder with its objectives.

    Attributes:
        learner: encoder and objectives with the run's weights, in evaluation mode, on the device.
        frame: the special tokens around a text, as in training.
    """

    learner: PretrainingLearner
    frame: Frame


def open_pretrained(saved: SavedRun, *, hardware: Hardware) -> Pretrained:
    """Load encoder and objectives of a pretraining run.

    Args:
        saved: the run.
        hardware: device and precision.

    Raises:
        RunDirectoryError: the run is not a pretraining run, or has no checkpoint.
        CheckpointError: its checkpoint is incomplete.
    """
    if "objective" not in saved.config or "task" in saved.config:
        raise RunDirectoryError(
            f"run={saved.path}: was not pretrained on text, and has no head that predicts tokens; give a run of "
            f"pretrain, such as runs/pretrain/<name>"
        )
    config: Any = OmegaConf.create(saved.config)
    config.init = None  # the weights come from the run itself, not from its init
    parts, learner = learned(saved, config)
    frame = Frame(tokenizer=saved.tokenizer, encoder=learner.encoder, rows=parts.rows)
    return Pretrained(learner.to(hardware.device).eval(), frame)


def token_predictor(learner: PretrainingLearner) -> Objective:
    """The first objective that gives probabilities of tokens.

    Raises:
        ConfigError: there is none: objectives of pairs, replaced tokens or word vectors give no token probabilities.
    """
    found = [objective for objective in learner.listed() if objective.predicts]
    if not found:
        names = _or_list(objective.name for objective in known_objectives() if objective.predicts)
        raise ConfigError(
            f"run: its objective ({', '.join(learner.objectives)}) gives no token probabilities: give a run of "
            f"objective={names}, or of one that includes mlm (such as mlm_nsp)"
        )
    return found[0]


def masked_predictor(learner: PretrainingLearner) -> Objective:
    """The first objective that predicts a masked token from the context on both sides.

    Raises:
        ConfigError: there is none.
    """
    found = [objective for objective in learner.listed() if objective.predicts == "masked"]
    if not found:
        names = _or_list(objective.name for objective in known_objectives() if objective.predicts == "masked")
        raise ConfigError(
            f"run: its objective ({', '.join(learner.objectives)}) cannot fill a [MASK]: give a run of "
            f"objective={names}, or of one that includes mlm (such as mlm_nsp)"
        )
    return found[0]


def _or_list(names: Iterable[str]) -> str:
    """``a, b or c``."""
    *others, last = names
    return f"{', '.join(others)} or {last}" if others else last
