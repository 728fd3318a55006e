"""The settings that a probe or finetuning command's training runs share, and the settings of one run (a part)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from lmtransfer.config.settings import TrainSettings
from lmtransfer.randomness import derive_seed
from lmtransfer.runs.saved import new_encoder
from lmtransfer.system.units import format_metric
from lmtransfer.tasks.base import Task
from lmtransfer.tokenizers.base import Tokenizer
from lmtransfer.training.hardware import Hardware
from lmtransfer.training.weights import load_weights
from lmtransfer.transfer.experiment.data import Draw, TaskData
from lmtransfer.transfer.features import FeatureTable
from lmtransfer.transfer.joint.text import JointText
from lmtransfer.transfer.learner import TaskLearner
from lmtransfer.transfer.method import TransferMethod


@dataclass(frozen=True, slots=True)
class Setting:
    """The shared settings of all training runs of one command.

    Attributes:
        task: the task.
        tokenizer: tokenizer of the run that training starts from.
        model_node: component node of the encoder.
        weights: pretrained weights of the encoder by name; None for random weights.
        method: the transfer method.
        data: the examples.
        train: budget, batch sizes, and intervals of logging, validating and saving.
        hardware: device and number format.
        optimizer: component node; each run has its own learning rate.
        schedule: component node.
        checkpoint: which checkpoint of a run is scored.
        solves: whether heads are fitted to their optimum (``transfer.convex_fit``) instead of being trained.
        cache_dir: folder for large features.
        init: the run that the weights come from; None for random weights.
        origin: the hub repository and commit of ``init``; None if it is not from the hub.
        pretraining_seed: seed of the run in ``init``; None if unknown.
        features: features of frozen encoders, by condition (and seed, for controls).
        text: text and objective of joint training; None to use labels only.
    """

    task: Task
    tokenizer: Tokenizer
    model_node: Mapping[str, Any]
    weights: Mapping[str, Tensor] | None
    method: TransferMethod
    data: TaskData
    train: TrainSettings
    hardware: Hardware
    optimizer: Mapping[str, Any]
    schedule: Mapping[str, Any]
    checkpoint: Literal["best", "last"]
    cache_dir: Path
    solves: bool = False
    init: str | None = None
    origin: str | None = None
    pretraining_seed: int | None = None
    features: dict[str, dict[str, FeatureTable]] = field(default_factory=dict)
    text: JointText | None = None

    def score_text(self, score: float) -> str:
        """Format a score of the task for messages: ``accuracy 78.3``."""
        metric = self.task.main_metric
        return f"{metric} {format_metric(score, metric)}"


#: "pretrained" starts from the run's weights (random without ``init``), "control" from other random weights.
Condition = Literal["pretrained", "control"]
#: Names of the conditions in messages.
CONDITION_NAMES: Mapping[Condition, str] = {"pretrained": "run", "control": "control"}


@dataclass(frozen=True, slots=True)
class Part:
    """One training run of a command.

    Attributes:
        setting: the shared settings, with the pretrained weights.
        condition: "pretrained" or "control".
        seed: seed of the subset, the head, the order, dropout, and a control's weights.
        learning_rate: peak learning rate; None if the head is fitted to its optimum.
        fold: the fold to score; None to score another split.
        folder: the run's folder in the command's directory; "" if this is the only run, in the command's own directory.
        title: the run's name in messages.
    """

    setting: Setting
    condition: Condition
    seed: int
    learning_rate: float | None
    fold: int | None = None
    folder: str = ""
    title: str = ""

    @property
    def rate(self) -> float:
        """The peak learning rate of a run that has one."""
        assert self.learning_rate is not None
        return self.learning_rate

    @property
    def draw(self) -> Draw:
        """The seed and fold that determine which examples the run uses."""
        return self.seed, self.fold

    @property
    def is_control(self) -> bool:
        """Whether the run is a control, which starts from random weights."""
        return self.condition == "control"

    @property
    def is_deterministic(self) -> bool:
        """Whether every seed has the same score because nothing is random: neither examples, weights nor order."""
        task = self.setting.task
        return self.setting.solves and self.weights is not None and task.num_train is None and task.folds is None

    @property
    def weights(self) -> Mapping[str, Tensor] | None:
        """The pretrained weights that the run starts from; None for random weights."""
        return None if self.is_control else self.setting.weights

    @property
    def pretraining_seed(self) -> int | None:
        """Seed of the pretraining run that this run starts from; None if there is none or it is unknown."""
        return None if self.is_control else self.setting.pretraining_seed

    def new_learner(self) -> TaskLearner:
        """Return a new learner with the weights before training."""
        setting = self.setting
        encoder_seed = derive_seed(self.seed, "control") if self.is_control else self.seed
        encoder = new_encoder(setting.model_node, setting.tokenizer, seed=encoder_seed)
        if self.weights is not None:
            load_weights(encoder, self.weights, source="init")
        return setting.method.learner(encoder, head=setting.task.head, seed=self.seed)
