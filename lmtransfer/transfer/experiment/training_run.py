"""A single training run of a probe or finetuning command.

Shape legend for embedding tables: V rows, of which U are in use, D width, T tokens.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from lmtransfer.data.micro_batches import PlannedStream
from lmtransfer.models.base import Encoder
from lmtransfer.models.layers.disentangled import merge
from lmtransfer.runs.run_directory import RunDirectory
from lmtransfer.runs.training_setup import prepare_encoders, trainer_config
from lmtransfer.tasks.encoded import EncodedExamples
from lmtransfer.tasks.source import TaskSource
from lmtransfer.training import process_group
from lmtransfer.training.checkpoints import TrainState, open_checkpoint
from lmtransfer.training.evaluation import SelectionWithTies, Validation
from lmtransfer.training.hardware import peak_memory, reset_peak_memory
from lmtransfer.training.learner import BatchStream
from lmtransfer.training.loop import Trainer
from lmtransfer.training.progress import ProgressLine
from lmtransfer.training.trackers.base import Tracker
from lmtransfer.training.weights import aliases, load_weights, weights
from lmtransfer.transfer.convex_fit import Optimum, fit_head
from lmtransfer.transfer.experiment.data import RunExamples
from lmtransfer.transfer.experiment.settings import Part, Setting
from lmtransfer.transfer.features import FeatureTable, compute_features, sample_features
from lmtransfer.transfer.joint import JointLearner, JointStream, LastLosses
from lmtransfer.transfer.learner import TaskLearner
from lmtransfer.transfer.scoring import Evaluation, evaluate

#: Maximum share of used rows for which it is worthwhile to train them separately.
_MAX_USED_SHARE = 0.8


class UsedRows(nn.Embedding):
    """An embedding whose used rows (ids ``used_U``, ascending) are a separate parameter, ``rows``.

    With gradients enabled, ids are looked up in ``rows``, and unused ids raise an error. Without gradients, ids are
    looked up in the whole table. The trained rows are copied to the table before it is read or saved. Only the table is
    saved.
    """

    used_U: Tensor
    place_V: Tensor

    def __init__(self, table: nn.Embedding, used_U: Tensor) -> None:
        super().__init__(table.num_embeddings, table.embedding_dim, _weight=table.weight.detach(), _freeze=True)
        used_U = used_U.to(table.weight.device)
        self.rows = nn.Parameter(table.weight.detach()[used_U])
        place_V = torch.full((table.num_embeddings,), -1, device=used_U.device)
        place_V[used_U] = torch.arange(len(used_U), device=used_U.device)
        self.register_buffer("used_U", used_U, persistent=False)
        self.register_buffer("place_V", place_V, persistent=False)
        self._learned = False
        self._version = self.weight._version

    def forward(self, ids_T: Tensor) -> Tensor:
        """Look up ids, (T,) -> (T, D)."""
        if not torch.is_grad_enabled():
            self.restore_rows()
            return super().forward(ids_T)
        self._follow()
        self._learned = True
        return nn.functional.embedding(self.place_V[ids_T], self.rows)

    @torch.no_grad()
    def restore_rows(self) -> None:
        """Copy the trained ``rows`` to the table."""
        self._follow()
        if self._learned:
            self.weight[self.used_U] = self.rows
            self._learned, self._version = False, self.weight._version

    @torch.no_grad()
    def _follow(self) -> None:
        if self.weight._version != self._version:
            self.rows.copy_(self.weight[self.used_U])
            self._learned, self._version = False, self.weight._version

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        self.restore_rows()
        super()._save_to_state_dict(destination, prefix, keep_vars)
        del destination[prefix + "rows"]


def train_used_rows(encoder: Encoder, tokens: np.ndarray) -> bool:
    """Train only the used rows of an encoder's token embeddings, and return whether the encoder was changed.

    A row whose token never occurs gets a zero gradient at every step, and without weight decay it never changes.
    Therefore only the used rows need gradients, moments and updates. With 4,000 sentences of SST-2 and a vocabulary of
    30,522, a third of the rows is used, which saves a tenth of a step's time on two cores. With a vocabulary of
    250,000, almost none of the memory for the embeddings' gradients and moments is needed.

    The encoder is unchanged if it reads characters, if its token embeddings are not trained, or if most rows are used.
    """
    table = encoder.token_embedding
    if table is None or not table.weight.requires_grad:
        return False
    used_U = np.union1d(tokens, [0])  # 0 is the filler id
    if len(used_U) > _MAX_USED_SHARE * table.num_embeddings:
        return False
    replacement = UsedRows(table, torch.from_numpy(used_U.astype(np.int64)))
    for module in list(encoder.modules()):
        for name, child in list(module.named_children()):
            if child is table:
                setattr(module, name, replacement)
    return True


class ExampleSources:
    """Sources of the command's examples, with their features if the encoder is frozen, and the inputs to the head.

    A pretrained frozen encoder produces the same features for every seed, so they are computed once for all seeds. A
    control's features are computed for its own examples, and deleted when the next seed starts.
    """

    def __init__(self, part: Part, learner: TaskLearner) -> None:
        setting = self.setting = part.setting
        self.learner = learner
        self.is_frozen = learner.freezing.is_frozen
        shared = part.weights is not None
        every = np.arange(len(setting.data.train.examples))
        self.rows = every if shared else setting.data.examples_in_use(part.draw)
        key = "pretrained" if shared else f"{part.condition} {part.seed}"
        if self.is_frozen and key not in setting.features:
            for stale in [other for other in setting.features if other != "pretrained"]:
                del setting.features[stale]
            setting.features[key] = {}
        self.tables = setting.features.get(key, {})

    def training_source(self, rows: np.ndarray) -> TaskSource:
        """Return training examples, by their index in ``TaskData.train``."""
        encoded = self.setting.data.train.select(rows)
        if not self.is_frozen or len(rows) == 0:
            return TaskSource(encoded, few_sizes=self.setting.hardware.compile)
        selection = self.setting.data.train.select(self.rows)
        sequences = selection.sequences_of(np.searchsorted(self.rows, rows))
        return TaskSource(encoded, self._table("train", selection).select(sequences))

    def evaluation_source(self, part: RunExamples) -> TaskSource | None:
        """Return the examples to score: a fold of the training split, or the evaluation split; None without any."""
        if not self.setting.data.is_scored:
            return None
        if part.scored is not None:
            return self.training_source(part.scored)
        return self.split("evaluation", self.setting.data.evaluation)

    def split(self, name: str, encoded: EncodedExamples) -> TaskSource:
        """Return all examples of another split."""
        return TaskSource(encoded, self._table(name, encoded) if self.is_frozen else None)

    def head_inputs(self, source: TaskSource) -> Iterator[Tensor]:
        """Yield the head's inputs for training examples before the first step."""
        if isinstance(source.features, FeatureTable):
            return source.features.parts()
        hardware = self.setting.hardware
        return sample_features(self.learner, source, device=hardware.device, autocast=hardware.precision.autocast)

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


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one training run.

    Attributes:
        evaluation: evaluation on the scored split; None if the run only tries a learning rate, or if nothing is scored.
        choosing_score: the main metric at the chosen checkpoint, on the examples by which it was chosen; None if there
            are no such examples.
        num_trained: number of parameters that the optimizer updated; of the token embeddings, only the used rows count
            if no others were updated.
        was_lengthened: whether ``train.min_steps`` made training longer than its epochs.
        losses: the latest value of each loss by name, in joint training; otherwise empty.
    """

    learner: TaskLearner
    state: TrainState
    evaluation: Evaluation | None
    choosing_score: float | None
    num_held_out: int
    num_train: int
    num_trained: int
    peak_memory: int
    was_lengthened: bool
    choosing_loss: float | None = None
    losses: Mapping[str, float] = field(default_factory=dict)
    optimum: Optimum | None = None


def train_once(
    part: Part, *, run: RunDirectory | None, progress: ProgressLine, trackers: Sequence[Tracker] = ()
) -> Outcome:
    """Train one encoder and head, and score it.

    A ``run`` that has started is resumed. If ``run`` is None, training only tries a learning rate: nothing is saved or
    scored on the evaluation split. Raises Interrupted on SIGTERM or Ctrl-C.
    """
    setting, seed = part.setting, part.seed
    data, train, hardware = setting.data, setting.train, setting.hardware
    reset_peak_memory(hardware.device)
    start_time = time.monotonic()
    learner = part.new_learner().to(hardware.device)
    has_choice = not setting.solves and (run is None or setting.checkpoint == "best")
    run_examples = (data.parts if has_choice else data.whole)[part.draw]
    examples = ExampleSources(part, learner)
    source = examples.training_source(run_examples.train)
    held_out = examples.training_source(run_examples.held_out)
    learner.head.begin(source.encoded.targets)
    if learner.standardising is not None:
        learner.standardising.fit(examples.head_inputs(source))
    if setting.solves:
        scored = examples.evaluation_source(run_examples)
        return _solve(setting, learner, source, scored, run=run, start_time=start_time)
    choosing = held_out if data.choosing is None else examples.split("choosing", data.choosing)
    stream = PlannedStream(
        source,
        seed=seed,
        batch_examples=train.batch_examples,
        micro_batch_tokens=train.micro_batch_tokens,
        num_workers=hardware.num_workers,
        rank=process_group.rank(),
        world_size=process_group.world_size(),
        pin_memory=hardware.device.type == "cuda",
    )
    ties = SelectionWithTies(metric=setting.task.main_metric, higher_is_better=True, patience=train.patience)
    config = trainer_config(train, hardware, stream=stream, schedule=setting.schedule.build(), seed=seed)
    validation = Validation(
        measure=lambda: _score(setting, learner, choosing).metrics,
        every=train.eval_every or math.ceil(stream.steps_per_epoch * config.budget.lengthening),
        selection=ties if setting.checkpoint == "best" else None,
    )
    trained, steps = _with_text(part, learner, stream)
    last = LastLosses()
    trainer = Trainer(
        learner=trained,
        stream=steps,
        optimizer=_optimizer(part, learner, trained, source),
        config=config,
        validation=validation if has_choice else None,
        checkpoints=None if run is None else run.checkpoints,
        trackers=trackers,
        progress=progress,
        callbacks=[] if trained is learner else [last],
    )
    prepare_encoders(trained, hardware, are_trained=not learner.freezing.is_frozen)
    has_started = run is not None and (run.metrics_path.exists() or run.checkpoints.exists())
    if process_group.broadcast(has_started):
        trainer.resume()
    state = trainer.train()
    peak = peak_memory(hardware.device)
    merge(learner.encoder)  # joint training may have trained tables as sums
    if run is not None:
        _load_checkpoint(learner, run, setting.checkpoint)
    metrics = {} if not has_choice else state.best_metrics if setting.checkpoint == "best" else state.metrics
    scored = None if run is None else examples.evaluation_source(run_examples)
    return Outcome(
        learner=learner,
        state=state,
        evaluation=None if scored is None else _score(setting, learner, scored, keep=True),
        choosing_score=metrics.get(setting.task.main_metric),
        choosing_loss=metrics.get("loss"),
        num_held_out=len(choosing.encoded.examples) if has_choice else 0,
        num_train=len(source.encoded.examples),
        num_trained=sum(parameter.numel() for parameter in trainer.optimizer.parameters),
        peak_memory=peak,
        was_lengthened=config.budget.lengthening > 1 and state.finished == "budget",
        losses=last.losses,
    )


def _with_text(part: Part, learner: TaskLearner, stream: BatchStream) -> tuple[TaskLearner | JointLearner, BatchStream]:
    """Return the learner and stream to train: unchanged without text, joint with text."""
    text = part.setting.text
    if text is None:
        return learner, stream
    parts = text.parts(learner.encoder)
    objectives, _ = text.learner(parts, seed=part.seed, keep_heads=not part.is_control)
    for objective in objectives.objective_list():
        objective.observe(text.text.prepared.train)
    joint = JointLearner(learner, objectives, text.share)
    train, hardware = part.setting.train, part.setting.hardware
    text_stream = text.stream(parts, hardware=hardware, micro_batch_tokens=train.micro_batch_tokens, seed=part.seed)
    return joint, JointStream(stream, text_stream, reads_text=lambda: joint.reads_text)


def _solve(
    setting: Setting,
    learner: TaskLearner,
    source: TaskSource,
    scored: TaskSource | None,
    *,
    run: RunDirectory | None,
    start_time: float,
) -> Outcome:
    """Fit the head to its optimum on rank 0, save and score it; an interrupted fit starts again."""
    device = setting.hardware.device
    optimum = process_group.broadcast(fit_head(learner, source, setting.task) if process_group.is_main() else None)
    process_group.share_weights(learner.head)
    state = TrainState(
        tokens=int(source.encoded.lengths.sum()), seconds=time.monotonic() - start_time, finished="optimum"
    )
    if run is not None and process_group.is_main():
        plain = {**state.state_dict(), "aliases": aliases(learner), "files": ["model"]}
        run.checkpoints.save("last", tensors={"model": weights(learner)}, state=plain)
    process_group.barrier()
    return Outcome(
        learner=learner,
        state=state,
        evaluation=None if scored is None else _score(setting, learner, scored, keep=True),
        choosing_score=optimum.score,
        num_held_out=0,
        num_train=len(source.encoded.examples),
        num_trained=sum(parameter.numel() for parameter in learner.head.parameters()),
        peak_memory=peak_memory(device),
        was_lengthened=False,
        optimum=optimum,
    )


def _optimizer(part: Part, learner: TaskLearner, trained: TaskLearner | JointLearner, source: TaskSource) -> Any:
    """Return the optimizer of the trainable parameters, with a learning rate for each layer.

    Without weight decay on the token embeddings, rows that the examples do not use would never change. These rows are
    then not optimized, except in joint training.
    """
    setting = part.setting
    sample = source.build(0, source.plan(0), [0]).to(setting.hardware.device)
    node = setting.optimizer.replace(learning_rate=part.learning_rate)

    def build_optimizer() -> Any:
        trained.arrange(sample)
        scales, names = setting.method.lr_scales(learner), {id(p): name for name, p in trained.named_parameters()}
        own = {names[id(p)]: scales[name] for name, p in learner.named_parameters() if name in scales}
        return node.build(learner=trained, lr_scales=own)

    optimizer = build_optimizer()
    table = learner.encoder.token_embedding
    decays = table is None or optimizer.decay_of(table.weight) != 0.0
    if trained is learner and not decays and train_used_rows(learner.encoder, source.encoded.tokens_T):
        optimizer = build_optimizer()
    return optimizer


def _score(setting: Setting, learner: TaskLearner, source: TaskSource, *, keep: bool = False) -> Evaluation:
    hardware = setting.hardware
    with torch.compiler.set_stance("force_eager"):  # each batch has a new shape and occurs once
        return evaluate(
            learner,
            setting.task,
            source,
            device=hardware.device,
            autocast=hardware.precision.autocast,
            keep=keep,
        )


def _load_checkpoint(learner: TaskLearner, run: RunDirectory, checkpoint: Literal["best", "last"]) -> None:
    """Load the checkpoint's weights into the learner, and delete the optimizer state of the finished run."""
    names = ["best", "last"] if checkpoint == "best" else ["last"]
    for name in names:
        folder = run.path / "checkpoints" / name
        if not folder.is_dir():
            continue
        saved = open_checkpoint(folder)
        tensors = saved.tensors("model")
        if name == checkpoint:
            load_weights(learner, tensors, source=str(folder))
        process_group.barrier()
        if process_group.is_main() and saved.tensors("optimizer"):
            run.checkpoints.save(name, tensors={"model": tensors}, state={**saved.state, "files": ["model"]})
        process_group.barrier()
