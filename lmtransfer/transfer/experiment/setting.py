"""What the training runs of one command have in common, and what tells one of them from the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from lmtransfer.randomness import derived_seed
from lmtransfer.runs.saved import new_encoder
from lmtransfer.runs.training import TrainingSetup
from lmtransfer.tasks.base import Task
from lmtransfer.tokenizers.base import Tokenizer
from lmtransfer.training.weights import load_weights
from lmtransfer.transfer.experiment.data import TaskData
from lmtransfer.transfer.features import FeatureTable
from lmtransfer.transfer.joint.text import JointText
from lmtransfer.transfer.learner import TaskLearner
from lmtransfer.transfer.method import TransferMethod

#: "pretrained" starts from the run's weights (or from none, without ``init``); "control" from others, at random.
Condition = Literal["pretrained", "control"]


@dataclass(frozen=True, slots=True)
class Setting:
    """What all training runs of one command have in common.

    Attributes:
        task: the task.
        tokenizer: of the run that is started from.
        model_node: component node of the encoder.
        weights: its pretrained tensors by name; None: random initialisation.
        method: how it is transferred.
        data: the examples.
        training: budget, optimiser and the like, and where to compute.
        checkpoint: which checkpoint of a run is scored.
        cache_dir: where large features may lie.
        init: the run that the weights are of; None: random initialisation.
        pretraining_seed: of that run; None where it is not known.
        features: what frozen encoders gave, by condition (and seed, for controls).
        text: what is learnt from beside the examples; None: nothing.
    """

    task: Task
    tokenizer: Tokenizer
    model_node: Mapping[str, Any]
    weights: Mapping[str, Tensor] | None
    method: TransferMethod
    data: TaskData
    training: TrainingSetup
    checkpoint: Literal["best", "last"]
    cache_dir: Path
    init: str | None = None
    pretraining_seed: int | None = None
    features: dict[str, dict[str, FeatureTable]] = field(default_factory=dict)
    text: JointText | None = None


@dataclass(frozen=True, slots=True)
class Member:
    """One training run of a command.

    Attributes:
        setting: what all of them share, and the weights that this one starts from.
        condition: pretrained, or from random initialisation.
        seed: of the subset, the head, the order, dropout, and a control's weights.
        learning_rate: peak rate.
    """

    setting: Setting
    condition: Condition
    seed: int
    learning_rate: float

    @property
    def is_control(self) -> bool:
        """Whether it starts from random weights as the control of the others."""
        return self.condition == "control"

    @property
    def weights(self) -> Mapping[str, Tensor] | None:
        """The pretrained tensors that it starts from; None: random initialisation."""
        return None if self.is_control else self.setting.weights

    @property
    def pretraining_seed(self) -> int | None:
        """Of the run that it starts from; None where there is none, or it is not known."""
        return None if self.is_control else self.setting.pretraining_seed

    def new_learner(self) -> TaskLearner:
        """The learner as it is before training."""
        setting = self.setting
        encoder_seed = derived_seed(self.seed, "control") if self.is_control else self.seed
        encoder = new_encoder(setting.model_node, setting.tokenizer, seed=encoder_seed)
        if self.weights is not None:
            load_weights(encoder, self.weights, source="init")
        return setting.method.learner(encoder, head=setting.task.head, seed=self.seed)
