"""One training run of a probe or of finetuning, and the features that runs of a frozen encoder share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import torch
from torch import Tensor

from lmtransfer.config.build import build
from lmtransfer.config.schema import TrainSettings
from lmtransfer.data.stream.stream import PlannedStream
from lmtransfer.models.compilation import compile_blocks
from lmtransfer.randomness import derived_seed
from lmtransfer.runs.run_directory import RunDirectory
from lmtransfer.runs.saved import new_encoder
from lmtransfer.runs.training import TrainingSetup
from lmtransfer.tasks.base import Task
from lmtransfer.tasks.encoded import EncodedExamples
from lmtransfer.tasks.source import TaskSource
from lmtransfer.tokenizers.base import Tokenizer
from lmtransfer.training import distributed
from lmtransfer.training.checkpoint import open_checkpoint
from lmtransfer.training.hardware import Hardware
from lmtransfer.training.loop import Trainer
from lmtransfer.training.model_selection import SelectionWithTies, Validation
from lmtransfer.training.progress import Progress
from lmtransfer.training.state import TrainState
from lmtransfer.training.weights import load_weights
from lmtransfer.transfer.evaluation import Evaluation, evaluate
from lmtransfer.transfer.experiment.data import TaskData
from lmtransfer.transfer.features import FeatureTable, compute_features
from lmtransfer.transfer.learner import TaskLearner
from lmtransfer.transfer.method import TransferMethod
from lmtransfer.transfer.used_rows import learn_used_rows

#: "pretrained" starts from the run's weights (or from none, without ``init``); "control" from others, at random.
Arm = Literal["pretrained", "control"]


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
        optimizer: component node.
        schedule: component node.
        tracker: component node.
        train: budget, batch sizes, and what happens how often.
        hardware: where to compute.
        checkpoint: which checkpoint of a run is scored.
        cache_dir: where large features may lie.
        init: the run that the weights are of; None: random initialisation.
        pretraining_seed: of that run; None where it is not known.
        features: what frozen encoders gave, by arm (and seed, for controls).
    """

    task: Task
    tokenizer: Tokenizer
    model_node: Mapping[str, Any]
    weights: Mapping[str, Tensor] | None
    method: TransferMethod
    data: TaskData
    optimizer: Mapping[str, Any]
    schedule: Mapping[str, Any]
    tracker: Mapping[str, Any]
    train: TrainSettings
    hardware: Hardware
    checkpoint: Literal["best", "last"]
    cache_dir: Path
    init: str | None = None
    pretraining_seed: int | None = None
    features: dict[str, dict[str, FeatureTable]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one training run came to.

    Attributes:
        learner: as it was at the chosen checkpoint.
        state: where training stood at its end.
        evaluation: of the split that is scored; None for a try of a learning rate.
        choosing_score: the main metric on the examples to choose by, at the chosen checkpoint; None without any.
        num_held_out: examples to choose by.
        num_train: examples trained on.
    """

    learner: TaskLearner
    state: TrainState
    evaluation: Evaluation | None
    choosing_score: float | None
    num_held_out: int
    num_train: int


def train_once(
    setting: Setting,
    *,
    arm: Arm,
    seed: int,
    learning_rate: float | None,
    run: RunDirectory | None,
    progress: Progress,
) -> Outcome:
    """Train one encoder and head, and score it.

    Args:
        setting: what all runs share.
        arm: pretrained, or from random initialisation.
        seed: of the subset, the head, the order, dropout, and a control's weights.
        learning_rate: peak rate; None takes the optimiser's own.
        run: where checkpoints and metrics go, resumed if it has begun; None for a try of a learning rate, which is
            neither saved nor scored on the evaluation split.
        progress: what the user sees.

    Raises:
        Interrupted: SIGTERM or Ctrl-C.
    """
    data, train, hardware = setting.data, setting.train, setting.hardware
    learner = new_learner(setting, arm=arm, seed=seed).to(hardware.device)
    choose = run is None or setting.checkpoint == "best"
    part = (data.parts if choose else data.whole)[seed]
    examples = Examples(setting, learner, arm, seed)
    source, held_out = examples.training(part.train), examples.training(part.held_out)
    if learner.standardising is not None:
        learner.standardising.fit(cast(FeatureTable, source.features).parts())
    choosing = held_out if data.choosing is None else examples.split("choosing", data.choosing)
    setup = TrainingSetup(
        train=train,
        hardware=hardware,
        optimizer=setting.optimizer,
        schedule=setting.schedule,
        tracker=setting.tracker,
    )
    stream = PlannedStream(
        source,
        seed=seed,
        batch_examples=train.batch_examples,
        micro_batch_tokens=train.micro_batch_tokens,
        num_workers=train.num_workers,
        rank=distributed.rank(),
        world_size=distributed.world_size(),
        pin_memory=hardware.device.type == "cuda",
    )
    ties = SelectionWithTies(metric=setting.task.main_metric, higher_is_better=True, patience=train.patience)
    validation = Validation(
        measure=lambda: score(setting, learner, choosing).metrics,
        every=train.eval_every or stream.steps_per_epoch,
        selection=ties if setting.checkpoint == "best" else None,
    )
    trainer = Trainer(
        learner=learner,
        stream=stream,
        optimizer=_optimizer(setting, learner, source, learning_rate),
        plan=setup.plan(stream, seed=seed),
        validation=validation if choose else None,
        output=setup.output(run, progress=progress),
    )
    if hardware.compile and not learner.freezing.frozen:
        compile_blocks(learner)
    begun = run is not None and (run.metrics_path.exists() or run.checkpoints.exists())
    if distributed.from_main(begun):
        trainer.resume()
    state = trainer.train()
    if run is not None:
        _use_chosen(learner, run, setting.checkpoint)
    return Outcome(
        learner=learner,
        state=state,
        evaluation=None
        if run is None
        else score(setting, learner, examples.split("evaluation", data.evaluation), keep=True),
        choosing_score=_choosing_score(setting, state) if choose else None,
        num_held_out=len(choosing.encoded.examples) if choose else 0,
        num_train=len(source.encoded.examples),
    )


def new_learner(setting: Setting, *, arm: Arm, seed: int) -> TaskLearner:
    """The learner as it is before training."""
    pretrained = arm == "pretrained" and setting.weights is not None
    encoder_seed = seed if arm == "pretrained" else derived_seed(seed, "control")
    encoder = new_encoder(setting.model_node, setting.tokenizer, seed=encoder_seed)
    if pretrained and setting.weights is not None:
        load_weights(encoder, setting.weights, source="init")
    return setting.method.learner(encoder, head=setting.task.head, seed=seed)


def _optimizer(setting: Setting, learner: TaskLearner, source: TaskSource, learning_rate: float | None) -> Any:
    """The optimiser of what is to learn, each layer at its rate.

    Where word vectors do not decay, those that the examples do not use are left out: they would stay as they are.
    """
    sample = source.build(0, source.plan(0), [0]).to(setting.hardware.device)
    node = {**setting.optimizer, **({} if learning_rate is None else {"learning_rate": learning_rate})}

    def arranged() -> Any:
        learner.arrange(sample)
        return build(node, learner=learner, lr_scales=setting.method.lr_scales(learner))

    optimizer = arranged()
    table = learner.encoder.token_embedding
    decays = table is None or optimizer.decay_of(table.weight) != 0.0
    if not decays and learn_used_rows(learner.encoder, source.encoded.tokens_T):
        optimizer = arranged()
    return optimizer


def score(setting: Setting, learner: TaskLearner, source: TaskSource, *, keep: bool = False) -> Evaluation:
    """The task's metrics of a learner; with ``keep``, and what it answers to each example."""
    hardware = setting.hardware
    with torch.compiler.set_stance("force_eager"):  # each batch is of another shape, and met once
        return evaluate(
            learner,
            setting.task,
            source,
            device=hardware.device,
            autocast=hardware.precision.autocast,
            keep=keep,
        )


class Examples:
    """Sources of the command's examples, with features where the encoder is frozen.

    A pretrained frozen encoder gives the same for every seed, so its features are made once for all of them; those of
    a control are made for its own examples, and dropped with the next seed's.

    Args:
        setting: what all runs share.
        learner: whose encoder gives the features.
        arm: of the learner.
        seed: of the learner.
    """

    def __init__(self, setting: Setting, learner: TaskLearner, arm: Arm, seed: int) -> None:
        self.setting, self.learner = setting, learner
        self.frozen = learner.freezing.frozen
        shared = arm == "pretrained" and setting.weights is not None
        every = np.arange(len(setting.data.train.examples))
        self.rows = every if shared else setting.data.whole[seed].train
        key = "pretrained" if shared else f"{arm} {seed}"
        if self.frozen and key not in setting.features:
            for stale in [other for other in setting.features if other != "pretrained"]:
                del setting.features[stale]
            setting.features[key] = {}
        self.tables = setting.features.get(key, {})

    def training(self, rows: np.ndarray) -> TaskSource:
        """Examples of the training split, by their place in ``TaskData.train``."""
        encoded = self.setting.data.train.select(rows)
        if not self.frozen or len(rows) == 0:
            return TaskSource(encoded, few_sizes=self.setting.hardware.compile)
        kept = self.setting.data.train.select(self.rows)
        sequences = kept.sequences_of(np.searchsorted(self.rows, rows))
        return TaskSource(encoded, self._table("train", kept).select(sequences))

    def split(self, name: str, encoded: EncodedExamples) -> TaskSource:
        """All examples of another split."""
        return TaskSource(encoded, self._table(name, encoded) if self.frozen else None)

    def _table(self, name: str, encoded: EncodedExamples) -> FeatureTable:
        if name not in self.tables:
            hardware = self.setting.hardware
            self.tables[name] = compute_features(
                self.learner,
                TaskSource(encoded),
                folder=self.setting.cache_dir / "features",
                device=hardware.device,
                autocast=hardware.precision.autocast,
            )
        return self.tables[name]


def _choosing_score(setting: Setting, state: TrainState) -> float | None:
    if setting.checkpoint == "best":
        return state.best
    return state.metrics.get(setting.task.main_metric)


def _use_chosen(learner: TaskLearner, run: RunDirectory, checkpoint: Literal["best", "last"]) -> None:
    """Put the chosen checkpoint's weights into the learner, and keep no optimiser state of a finished run."""
    names = ["best", "last"] if checkpoint == "best" else ["last"]
    for name in names:
        folder = run.path / "checkpoints" / name
        if not folder.is_dir():
            continue
        saved = open_checkpoint(folder)
        tensors = saved.tensors("model")
        if name == checkpoint:
            load_weights(learner, tensors, source=str(folder))
        distributed.barrier()
        if distributed.is_main() and saved.tensors("optimizer"):
            run.checkpoints.save(name, tensors={"model": tensors}, state={**saved.state, "files": ["model"]})
        distributed.barrier()
