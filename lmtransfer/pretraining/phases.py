"""The phases of a pretraining run, which the training loop runs in turn; a run without ``phases`` has one phase.

``describe_phases`` prepares the phases, ``find_phase`` finds the phase in which a run begins or resumes, and
``Pretraining`` trains this phase and all later phases. The following carry over from phase to phase:

- the encoder;
- the heads, matched by name, if their shapes agree;
- the state of the optimizer, if the losses and the kind of optimizer stay the same;
- the average of the weights, if the losses stay the same; otherwise a new average begins;
- the position in the text, as a number of passes;
- step numbers, tokens, seconds and the budget.

The next phase starts from the weights themselves, never from their average. Losses of different phases cannot be
compared, so the best checkpoint always comes from the last phase, and patience applies only to that phase.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

import torch

from lmtransfer.config.component import Node
from lmtransfer.config.phases import Phase, phases_of
from lmtransfer.config.settings import PretrainSettings, TrainSettings, VectorSettings
from lmtransfer.data.micro_batches import RenumberedStream
from lmtransfer.errors import CheckpointError
from lmtransfer.models.word_embeddings import TokenVectors, standardize
from lmtransfer.objectives.base import selection_metric
from lmtransfer.objectives.learner import PretrainingLearner
from lmtransfer.pretraining.build import PretrainingParts
from lmtransfer.pretraining.continued import InheritedHeads, inherit_heads
from lmtransfer.pretraining.counted_embeddings import Start
from lmtransfer.pretraining.data import PretrainingData
from lmtransfer.pretraining.diagnostics import callbacks_of
from lmtransfer.pretraining.save_points import check_reached, check_track, convert_words, explain_missed, save_points
from lmtransfer.pretraining.text import Text
from lmtransfer.pretraining.utilization import pretraining_flops
from lmtransfer.randomness import derive_seed
from lmtransfer.runs.run_directory import RunDirectory
from lmtransfer.runs.training_setup import build_optimizer, prepare_encoders, trainer_config
from lmtransfer.training.averaging import Average, UpdateWeight
from lmtransfer.training.callbacks import Callback, PhaseName
from lmtransfer.training.checkpoints import PhaseStart, TrainState
from lmtransfer.training.data_parallel import shard
from lmtransfer.training.evaluation import ModelSelection, Validation
from lmtransfer.training.flops import peak_flops
from lmtransfer.training.hardware import Hardware
from lmtransfer.training.loop import Trainer, TrainerConfig
from lmtransfer.training.optim.optimizers import Optimizer
from lmtransfer.training.optim.schedules import PartOfBudget
from lmtransfer.training.progress import ProgressLine
from lmtransfer.training.trackers.base import Tracker
from lmtransfer.training.weights import weights


@dataclass(frozen=True, slots=True)
class Transition:
    """What stays the same in the transition to a phase from the preceding phase.

    Attributes:
        same_kind: whether both phases have the same kind of optimizer, possibly with different settings.
        restarts: whether the learning rate schedule starts again.
    """

    same_losses: bool
    same_optimizer: bool
    same_kind: bool
    restarts: bool


#: The transition to the first phase, which has no predecessor.
_BEGINNING = Transition(same_losses=False, same_optimizer=False, same_kind=False, restarts=True)


def transitions_of(phases: Sequence[Phase], parts: Sequence[PretrainingParts]) -> list[Transition]:
    """Return the transition to each phase."""
    transitions = [_BEGINNING]
    for place, (old, new) in enumerate(pairwise(phases), start=1):
        same_losses = parts[place].objectives is parts[place - 1].objectives
        same_kind = old.optimizer.values["_target_"] == new.optimizer.values["_target_"]
        transitions.append(
            Transition(
                same_losses=same_losses,
                same_optimizer=old.optimizer == new.optimizer,
                same_kind=same_kind,
                restarts=not (same_losses and same_kind) if new.restart is None else new.restart,
            )
        )
    return transitions


def schedule_span(phases: Sequence[Phase], transitions: Sequence[Transition], place: int) -> tuple[int, float]:
    """Return the index of the phase in which the schedule of phase ``place`` starts, and the progress at its end."""
    first = max(index for index in range(place + 1) if transitions[index].restarts)
    later = range(place + 1, len(phases))
    return first, next((phases[index].begins for index in later if transitions[index].restarts), 1.0)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrainingPhase:
    """A phase, ready to be trained.

    Attributes:
        share: share of the budget.
        schedule_phase: index of the phase in which the learning rate schedule starts.
        embedding_after: change of the token embeddings at the end of the phase.
    """

    name: str
    share: float
    parts: PretrainingParts
    data: PretrainingData
    optimizer: Node[Optimizer]
    trainer: TrainerConfig
    schedule_phase: int
    transition: Transition
    embedding_after: VectorSettings | None


def describe_phases(
    settings: PretrainSettings, parts: Sequence[PretrainingParts], text: Text, hardware: Hardware
) -> list[TrainingPhase]:
    """Prepare the phases of a run, in order."""
    phases, train, seed = phases_of(settings), settings.train, settings.seed
    transitions = transitions_of(phases, parts)
    descriptions = []
    data_of_phases = [
        PretrainingData(text, part, train=_train_in(phase, train), hardware=hardware, seed=seed)
        for phase, part in zip(phases, parts, strict=True)
    ]
    check_track(train, text_words=text.prepared.statistics.words)
    train = convert_words(train, partial(text.tokens_per_word, data_of_phases[0].stream))
    save_at = save_points(train)
    for place, (phase, data) in enumerate(zip(phases, data_of_phases, strict=True)):
        schedule_phase, schedule_ends = schedule_span(phases, transitions, place)
        schedule = PartOfBudget(settings.schedule.build(), begins=phases[schedule_phase].begins, ends=schedule_ends)
        trainer = trainer_config(train, hardware, stream=data.stream, schedule=schedule, seed=seed)
        descriptions.append(
            TrainingPhase(
                name=phase.name,
                share=phase.ends - phase.begins,
                parts=parts[place],
                data=data,
                optimizer=phase.optimizer,
                trainer=replace(trainer, until=phase.ends, save_at=save_at),
                schedule_phase=schedule_phase,
                transition=transitions[place],
                embedding_after=phase.after,
            )
        )
    if len(phases) > 1 or (save_at and train.epochs):
        # Fail now rather than after hours of training.
        lengths = [phase.data.stream.steps_per_epoch for phase in descriptions]
        check_reached(train, phases, steps_per_epoch=max(lengths))
    return descriptions


def _train_in(phase: Phase, train: TrainSettings) -> TrainSettings:
    return train if phase.train is None else train.model_copy(update=phase.train.plain())


def find_phase(
    phases: Sequence[TrainingPhase], run: RunDirectory | None, *, start: Start | None
) -> tuple[TrainingPhase, TrainState]:
    """Return the phase in which a run begins, or resumes from its newest complete checkpoint, and the initial state."""
    seconds = 0.0 if start is None else start.seconds
    state = TrainState(seconds=seconds, prepared=seconds)
    newest = None if run is None or len(phases) == 1 else run.checkpoints.recover_newest()[0]
    if newest is None:
        return phases[0], state
    state.phases = list(newest.state.get("phases", []))
    started, names = [phase["name"] for phase in state.phases], [phase.name for phase in phases]
    if started != names[: len(started)]:
        raise CheckpointError(
            f"{newest.folder} has the phases {', '.join(started)}, but the run has {', '.join(names)}: restore the "
            "folder from a backup"
        )
    return phases[max(len(started) - 1, 0)], state


@dataclass(frozen=True, slots=True)
class Training:
    """A phase during training: the learner, and everything else (except the run's state) that steps change."""

    phase: TrainingPhase
    learner: PretrainingLearner
    optimizer: Optimizer
    average: Average | None
    callbacks: Sequence[Callback]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pretraining:
    """Trains the phases of a run.

    Attributes:
        average: how the average of the weights is updated; None for no average.
        start: the result of counting the embeddings; None without counted embeddings.
        entropy: entropy of the token frequencies in nats; None if no tokens are masked.
    """

    phases: Sequence[TrainingPhase]
    text: Text
    train: TrainSettings
    hardware: Hardware
    seed: int
    average: UpdateWeight | None
    start: Start | None
    entropy: float | None
    from_scratch: bool

    def build_learner(self, phase: TrainingPhase) -> tuple[PretrainingLearner, InheritedHeads]:
        """Build the learner of a phase, and return which heads received weights from ``init``."""
        encoder, hardware = phase.parts.encoder, self.hardware
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive_seed(self.seed, "heads"))
            learner = PretrainingLearner(encoder, list(phase.parts.objectives)).to(hardware.device)
        if self.start is not None:
            for objective in learner.objective_list():
                self.start.fill_head(objective)
        heads = inherit_heads(learner, phase.parts.heads)
        prepare_encoders(learner, hardware)
        if hardware.shard:
            shard(learner, hardware.device)
        return learner, heads

    def build_training(self, phase: TrainingPhase, learner: PretrainingLearner) -> Training:
        """Build the optimizer, average and callbacks of a learner."""
        optimizer = build_optimizer(phase.optimizer, learner)
        callbacks = callbacks_of(
            learner,
            seconds=self.train.seconds if len(self.phases) == 1 else None,  # the speed of steps differs between phases
            entropy=self.entropy,
            from_scratch=self.from_scratch,
            optimizer=optimizer,
            save_at=phase.trainer.save_at,
        )
        average = None if self.average is None else Average(optimizer.parameters, self.average)
        return Training(phase, learner, optimizer, average, callbacks)

    def carry_over(self, training: Training, phase: TrainingPhase) -> Training:
        """Prepare the training of a phase, given the finished phase before it; see the top of this file."""
        before, after = training.phase.parts.encoder, training.phase.embedding_after
        if after is not None and before.token_embedding is not None:
            standardize(before.token_embedding, center=after.centre, deviation=after.deviation)
        if not phase.transition.same_losses:
            if phase.parts.encoder.pooler is not None:
                phase.parts.encoder.pooler.requires_grad_(True)  # the learner freezes it if no objective trains it
            learner, _ = self.build_learner(phase)
            inherit_heads(learner, _heads_of(training.learner))
            return self.build_training(phase, learner)
        if phase.transition.same_optimizer:
            return replace(training, phase=phase)
        optimizer = build_optimizer(phase.optimizer, training.learner)
        if phase.transition.same_kind:
            optimizer.load_state_dict(training.optimizer.state_dict())
        return replace(training, phase=phase, optimizer=optimizer)

    def run(
        self,
        phase: TrainingPhase,
        learner: PretrainingLearner,
        state: TrainState,
        *,
        directory: RunDirectory,
        trackers: Sequence[Tracker],
        resume: bool,
    ) -> None:
        """Train a phase and all later phases, each until its share of the budget is used up.

        Args:
            resume: whether to resume from the newest complete checkpoint, which was saved in this phase.
        """
        training = self.build_training(phase, learner)
        trainer = self.build_trainer(training, state, directory, trackers)
        if resume:
            trainer.resume()
            seen, revisions = state.tokens if state.step else -1, directory.checkpoints.revisions()
            for note in explain_missed(phase.trainer.save_at, tokens=seen, revisions=revisions):
                trainer.progress.note(note)
        trainer.train()
        for later in self.phases[self.phases.index(phase) + 1 :]:
            training = self.carry_over(training, later)
            state.finished = None
            trainer = self.build_trainer(training, state, directory, trackers)
            trainer.train()

    def flops(self, learner: PretrainingLearner, state: TrainState) -> float | None:
        """Return the FLOP of a finished run; None (unknown) with several phases or static word vectors."""
        (phase, *others) = self.phases
        if others or isinstance(phase.parts.encoder, TokenVectors):
            return None
        return pretraining_flops(phase.data, learner) * state.tokens or None

    def build_trainer(
        self, training: Training, state: TrainState, directory: RunDirectory, trackers: Sequence[Tracker]
    ) -> Trainer:
        """Build the trainer of a phase; if the phase starts now, record its start in the state."""
        phase, learner = training.phase, training.learner
        for objective in learner.objective_list():
            objective.observe(self.text.prepared.train)
        start = _start_of(phase, state)
        schedule_start = state.phases[phase.schedule_phase]["step"] if state.phases else 0
        peak = peak_flops(self.hardware.device)
        known = peak is not None and not isinstance(phase.parts.encoder, TokenVectors)
        flops = pretraining_flops(phase.data, learner) if known else None
        progress = ProgressLine(flops_per_token=flops, peak_flops=peak)
        return Trainer(
            learner=learner,
            stream=RenumberedStream(phase.data.stream, first=start["stream_step"], number=start["step"]),
            optimizer=training.optimizer,
            config=replace(phase.trainer, schedule_start=schedule_start),
            validation=self._validation(training, progress),
            average=training.average,
            checkpoints=directory.checkpoints,
            trackers=trackers,
            progress=progress,
            callbacks=[*training.callbacks, *([PhaseName(phase.name)] if phase.name else [])],
            state=state,
        )

    def _validation(self, training: Training, progress: ProgressLine) -> Validation | None:
        """Set up validation, None without held-out text; only the last phase selects the best checkpoint."""
        phase, data = training.phase, training.phase.data
        if not data.has_validation(note=progress.note):
            return None
        selection = ModelSelection(metric=selection_metric(phase.parts.objectives), patience=self.train.patience)
        return Validation(
            measure=lambda: data.validate(training.learner, most_tokens=self.train.eval_tokens),
            every=self.train.eval_every,
            selection=selection if phase is self.phases[-1] else None,
        )


def _start_of(phase: TrainingPhase, state: TrainState) -> PhaseStart:
    """Return where a phase starts, or started if it is resumed; record the start of a named phase in the state."""
    starts = [start for start in state.phases if start["name"] == phase.name]
    if starts:
        return starts[0]
    start: PhaseStart = {
        "name": phase.name,
        "step": state.step,
        "tokens": state.tokens,
        "seconds": state.seconds,
        "stream_step": phase.data.stream.step_at(state.epoch) if state.step else 0,
    }
    if phase.name:
        state.phases.append(start)
    return start


def _heads_of(learner: PretrainingLearner) -> dict[str, torch.Tensor]:
    prefix = "objectives."
    return {name.removeprefix(prefix): t for name, t in weights(learner).items() if name.startswith(prefix)}
