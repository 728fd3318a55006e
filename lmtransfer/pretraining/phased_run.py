"""The course of a pretraining run: each phase is trained by the same loop. A run without phases has one phase.

These carry over from phase to phase:

- the encoder;
- the heads, by name, where they fit;
- the state of the optimiser, if the losses and the kind of optimiser stay the same;
- the average of the weights, if the losses stay the same; otherwise a new average begins;
- the position in the text, in passes;
- step numbers, tokens, seconds and the budget.

The next phase starts from the weights themselves, never from their average. Losses of different phases cannot be
compared. Therefore the best checkpoint is a checkpoint of the last phase, and patience applies to the last phase only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from omegaconf import DictConfig, OmegaConf

from lmtransfer.config.component import build
from lmtransfer.config.phases import Phase, phases_of
from lmtransfer.data.stream.stream import RenumberedStream
from lmtransfer.errors import CheckpointError
from lmtransfer.models.token_vectors import TokenVectors, standardise
from lmtransfer.objectives.base import selection_metric
from lmtransfer.objectives.learner import PretrainingLearner
from lmtransfer.pretraining.continued import TakenHeads, take_heads
from lmtransfer.pretraining.counted.start import Start
from lmtransfer.pretraining.data import PretrainingData
from lmtransfer.pretraining.diagnostics import watchers_of
from lmtransfer.pretraining.parts import Parts
from lmtransfer.pretraining.save_points import check_reached, passed, save_points
from lmtransfer.pretraining.text import Text
from lmtransfer.pretraining.utilisation import output_share, pretraining_flops
from lmtransfer.randomness import derived_seed
from lmtransfer.runs.run_directory import RunDirectory
from lmtransfer.runs.training import TrainingSetup, averaging, build_optimizer, prepare_encoders
from lmtransfer.training.averaging import Average
from lmtransfer.training.callbacks import Callback, PhaseName
from lmtransfer.training.flops import peak_flops
from lmtransfer.training.loop import Output, Trainer
from lmtransfer.training.model_selection import ModelSelection, Validation
from lmtransfer.training.optim.optimizer import Optimizer
from lmtransfer.training.optim.schedules import PartOfBudget
from lmtransfer.training.parallel import shard
from lmtransfer.training.progress import Progress
from lmtransfer.training.state import PhaseStart, TrainState
from lmtransfer.training.trackers.base import Tracker
from lmtransfer.training.weights import weights


@dataclass(frozen=True, slots=True)
class Transition:
    """The transition to a phase from the phase before it.

    Attributes:
        same_losses: the phase has the same objectives.
        same_optimizer: the phase has the same optimiser, with the same settings.
        same_kind: the phase has the same kind of optimiser, perhaps with other settings.
        restarts: the learning rate schedule restarts.
    """

    same_losses: bool
    same_optimizer: bool
    same_kind: bool
    restarts: bool


#: The first phase follows no other.
_BEGINNING = Transition(same_losses=False, same_optimizer=False, same_kind=False, restarts=True)


def transitions_of(cfg: DictConfig, phases: Sequence[Phase], parts: Sequence[Parts]) -> list[Transition]:
    """The transition to each phase.

    Args:
        cfg: the settled configuration, which has the optimiser of each phase.
        phases: the phases, in their order.
        parts: the parts of each phase; phases with the same losses share their objectives.

    Returns:
        One transition for each phase, the first included.
    """
    optimizers = [OmegaConf.select(cfg, phase.optimizer) for phase in phases]
    found = [_BEGINNING]
    for place, (old, new) in enumerate(pairwise(optimizers), start=1):
        same_losses = parts[place].objectives is parts[place - 1].objectives
        same_kind = str(old["_target_"]) == str(new["_target_"])
        restart = phases[place].restart
        found.append(
            Transition(
                same_losses=same_losses,
                same_optimizer=old == new,
                same_kind=same_kind,
                restarts=not (same_losses and same_kind) if restart is None else restart,
            )
        )
    return found


def span_of_schedule(phases: Sequence[Phase], transitions: Sequence[Transition], place: int) -> tuple[int, float]:
    """Where the learning rate schedule of phase ``place`` begins and ends.

    Returns:
        The place of the phase that began the schedule, and the share of the budget at which it ends: where the next
        phase restarts it, or 1.
    """
    first = max(one for one in range(place + 1) if transitions[one].restarts)
    later = range(place + 1, len(phases))
    return first, next((phases[one].begins for one in later if transitions[one].restarts), 1.0)


class PhasedRun:
    """The phases of a run, one after the other.

    Args:
        cfg: the checked config of the command.
        setup: budget, batch sizes, schedule and hardware.
        parts: encoder, rows, corruption and objectives of each phase; consecutive phases with the same losses share
            their objectives.
        start: result of counting token embeddings; None if they start at random.

    Attributes:
        learner: the learner of the current phase.
        heads: which heads of ``init`` were loaded for the first phase.
    """

    def __init__(
        self, cfg: DictConfig, setup: TrainingSetup, parts: Sequence[Parts], start: Start | None = None
    ) -> None:
        self.cfg, self.setup, self.parts, self.start = cfg, setup, parts, start
        self.phases = phases_of(cfg)
        self.transitions = transitions_of(cfg, self.phases, parts)
        self.save_at = save_points(setup.train)
        self.state = TrainState()
        self.state.seconds = self.state.prepared = 0.0 if start is None else start.seconds
        self.place = 0
        self.learner, self.heads = self._new_learner()

    def begin(
        self, directory: RunDirectory, text: Text, *, entropy: float | None, trackers: Sequence[Tracker] = ()
    ) -> None:
        """Prepare the training.

        Args:
            directory: the run directory.
            text: the tokenised corpus.
            entropy: entropy of the token frequencies, in nats; None if no tokens are masked.
            trackers: receive the numbers of the training.

        Raises:
            ConfigError: ``train.save_at`` is beyond a budget in epochs.
            DataError: the text gives no rows for one of the phases.
        """
        self.directory, self.entropy, self.text, self.trackers = directory, entropy, text, trackers
        trains = [self.setup.train.model_copy(update=phase.train or {}) for phase in self.phases]
        self.data = [
            PretrainingData(text, parts, train=train, hardware=self.setup.hardware, seed=self.cfg.seed)
            for parts, train in zip(self.parts, trains, strict=True)
        ]
        if len(self.phases) > 1 or (self.save_at and self.setup.train.epochs):
            lengths = [data.stream.steps_per_epoch for data in self.data]  # raises now, not after hours of training
            check_reached(self.setup.train, self.phases, steps_per_epoch=max(lengths))
        self.optimizer = self._new_optimizer()
        self.average = self._new_average()
        self.callbacks = self._new_callbacks()
        self._enter()

    def resume(self) -> None:
        """Resume from the newest complete checkpoint, in the phase that saved it.

        Raises:
            CheckpointError: see ``Trainer.resume``; or the checkpoint has other phases than the run.
        """
        if len(self.phases) > 1:
            started = self._started_phases()
            if len(started) > 1:
                self.state.phases = started
                self.place = len(started) - 1
                self.learner, _ = self._new_learner()
                self.optimizer = self._new_optimizer()
                self.average = self._new_average()
                self.callbacks = self._new_callbacks()
                self.trainer = self._new_trainer()
        self.trainer.resume()
        kept = self.directory.checkpoints.revisions()
        for note in passed(self.save_at, tokens=self.state.tokens if self.state.step else -1, kept=kept):
            self.trainer.progress.note(note)

    def train(self) -> TrainState:
        """Train the current phase and all later phases, each until its share of the budget is used up.

        Raises:
            Interrupted: see ``Trainer.train``.
        """
        while True:
            state = self.trainer.train()
            if self.place == len(self.phases) - 1:
                return state
            self._go_over()

    @property
    def phase(self) -> Phase:
        """The phase that is being trained."""
        return self.phases[self.place]

    @property
    def flops(self) -> float | None:
        """FLOP of the whole training, once it is finished; None with several phases and for static word vectors."""
        if len(self.phases) > 1 or isinstance(self.parts[0].encoder, TokenVectors):
            return None
        return pretraining_flops(self.data[0], self.learner) * self.state.tokens or None

    @property
    def output_share(self) -> float:
        """The share of the FLOP that predicting the vocabulary takes in the current phase, 0 to 1."""
        return output_share(self.data[self.place], self.learner)

    def _started_phases(self) -> list[PhaseStart]:
        """The phases that had begun when the newest checkpoint was saved."""
        newest, _ = self.directory.checkpoints.newest_complete()
        started = [] if newest is None else list(newest.state.get("phases", []))
        if (
            newest is not None
            and [one["name"] for one in started] != [phase.name for phase in self.phases][: len(started)]
        ):
            raise CheckpointError(
                f"{newest.folder} has the phases {', '.join(one['name'] for one in started)}, but the run has "
                f"{', '.join(phase.name for phase in self.phases)}: restore the folder from a copy"
            )
        return started

    def _new_learner(self) -> tuple[PretrainingLearner, TakenHeads]:
        """The learner of the phase, with the heads of ``init`` that fit."""
        parts, hardware = self.parts[self.place], self.setup.hardware
        if self.place and parts.encoder.pooler is not None:
            parts.encoder.pooler.requires_grad_(True)  # the learner freezes it again if no objective trains it
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derived_seed(self.cfg.seed, "heads"))
            learner = PretrainingLearner(parts.encoder, list(parts.objectives)).to(hardware.device)
        if self.start is not None:
            for objective in learner.listed():
                self.start.fill_head(objective)
        heads = take_heads(learner, parts.heads)
        prepare_encoders(learner, hardware)
        if hardware.shard:
            shard(learner, hardware.device)
        return learner, heads

    def _new_optimizer(self) -> Optimizer:
        """The optimiser of the phase, for the current learner."""
        return build_optimizer(OmegaConf.select(self.cfg, self.phase.optimizer), self.learner)

    def _new_average(self) -> Average | None:
        """A new average of the learner's weights; None if the run does not average weights."""
        newest = averaging(self.setup.train)
        return None if newest is None else Average(self.optimizer.parameters, newest)

    def _new_callbacks(self) -> list[Callback]:
        """The callbacks of the phase; with several phases there is no token forecast, because their steps differ."""
        seconds = self.setup.train.seconds if len(self.phases) == 1 else None
        from_scratch = not self.cfg.init and self.start is None
        return watchers_of(
            self.learner,
            seconds=seconds,
            entropy=self.entropy,
            from_scratch=from_scratch,
            optimizer=self.optimizer,
            save_at=self.save_at,
        )

    def _go_over(self) -> None:
        """Move from the finished phase to the next phase."""
        before, old_parts = self.phase, self.parts[self.place]
        table = old_parts.encoder.token_embedding
        if before.after is not None and table is not None:
            standardise(table, centre=before.after.centre, deviation=before.after.deviation)
        self.place += 1
        old_learner, old_optimizer = self.learner, self.optimizer
        transition = self.transitions[self.place]
        if not transition.same_losses:
            self.learner, _ = self._new_learner()
            prefix = "objectives."
            heads = {n.removeprefix(prefix): t for n, t in weights(old_learner).items() if n.startswith(prefix)}
            take_heads(self.learner, heads)
        if not (transition.same_losses and transition.same_optimizer):
            self.optimizer = self._new_optimizer()
            if transition.same_losses and transition.same_kind:
                self.optimizer.load_state_dict(old_optimizer.state_dict())
        if not transition.same_losses:
            self.average = self._new_average()
            self.callbacks = self._new_callbacks()
        self.state.finished = None
        self._enter()

    def _enter(self) -> None:
        """Start the current phase."""
        for objective in self.learner.listed():
            objective.observe(self.text.prepared.train)
        state = self.state
        if self.phase.name:
            state.phases.append(
                {
                    "name": self.phase.name,
                    "step": state.step,
                    "tokens": state.tokens,
                    "seconds": state.seconds,
                    "stream_step": self.data[self.place].stream.step_at(state.epoch),
                }
            )
        self.trainer = self._new_trainer()

    def _new_trainer(self) -> Trainer:
        """The trainer of the current phase, which must be entered already."""
        phase, data, train = self.phase, self.data[self.place], self.setup.train
        is_last = self.place == len(self.phases) - 1
        peak = peak_flops(self.setup.hardware.device)
        known = peak is not None and not isinstance(self.parts[self.place].encoder, TokenVectors)
        flops = pretraining_flops(data, self.learner) if known else None
        progress = Progress(flops_per_token=flops, peak_flops=peak)
        learner = self.learner
        validation = None
        if data.has_validation(note=progress.note):
            selection = ModelSelection(metric=selection_metric(data.parts.objectives), patience=train.patience)
            validation = Validation(
                measure=lambda: data.validate(learner, most_tokens=self.cfg.train.eval_tokens),
                every=train.eval_every,
                selection=selection if is_last else None,
            )
        started = self.state.phases[self.place] if phase.name else {"step": 0, "stream_step": 0}
        stream = RenumberedStream(data.stream, begins=started["stream_step"], number=started["step"])
        plan = self.setup.plan(data.stream, seed=self.cfg.seed)
        return Trainer(
            learner=learner,
            stream=stream,
            optimizer=self.optimizer,
            plan=replace(plan, schedule=self._schedule(), until=phase.ends, save_at=self.save_at),
            validation=validation,
            average=self.average,
            output=Output(
                checkpoints=self.directory.checkpoints,
                trackers=self.trackers,
                progress=progress,
                callbacks=[*self.callbacks, *([PhaseName(phase.name)] if phase.name else [])],
            ),
            state=self.state,
        )

    def _schedule(self) -> PartOfBudget:
        """The learning rate schedule: it runs from a phase that restarts it to the next phase that restarts it."""
        first, ends = span_of_schedule(self.phases, self.transitions, self.place)
        return PartOfBudget(
            build(self.setup.schedule),
            begins=self.phases[first].begins,
            ends=ends,
            first_update=self.state.phases[first]["step"] if self.state.phases else 0,
        )
