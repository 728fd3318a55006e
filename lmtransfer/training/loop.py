"""The training loop; it uses a learner and a stream of steps, and does not depend on model, objective or task."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from lmtransfer.errors import Interrupted
from lmtransfer.training import distributed
from lmtransfer.training.averaging import Average
from lmtransfer.training.budget import Budget
from lmtransfer.training.callbacks import Callback, NonFiniteGuard
from lmtransfer.training.checkpoints import Checkpoints
from lmtransfer.training.learner import BatchStream, Learner
from lmtransfer.training.micro_batches import OutOfDeviceMemory, StepSource
from lmtransfer.training.model_selection import Validation
from lmtransfer.training.optim.optimizer import Optimizer
from lmtransfer.training.plan import Plan
from lmtransfer.training.progress import Progress
from lmtransfer.training.saving import Saving, Snapshot
from lmtransfer.training.signals import StopDuringEvaluation, agreed_stop, first_stop, stop_on_signals, stop_requested
from lmtransfer.training.state import TrainState
from lmtransfer.training.trackers.base import Tracker
from lmtransfer.training.update import Launched, Outcome, Updater


@dataclass(frozen=True, slots=True)
class Place:
    """How far a run is between two steps: what schedule and budget depend on.

    Attributes:
        step: number of steps taken from the stream.
        updates: number of these that changed the weights.
        tokens: real tokens of the updates, over all ranks.
        seconds: training time.
    """

    step: int
    updates: int
    tokens: int
    seconds: float

    @classmethod
    def of(cls, state: TrainState) -> Place:
        """Where a run is whose steps are all noted."""
        return cls(step=state.step, updates=state.updates, tokens=state.tokens, seconds=state.seconds)

    def share_of(self, budget: Budget, *, prepared: float) -> float:
        """The share of a budget that is used up here; ``prepared`` as in ``Budget.fraction``."""
        return budget.fraction(steps=self.updates, tokens=self.tokens, seconds=self.seconds, prepared=prepared)


@dataclass(frozen=True, slots=True)
class InFlight:
    """A step that is launched.

    Attributes:
        launched: its tokens, and later its outcome.
        fraction: share of the budget that was used up before it.
        epoch: number of epochs seen after it, with fraction.
        after: the place after it, if it changes the weights.
    """

    launched: Launched
    fraction: float
    epoch: float
    after: Place

    def after_skipped(self, tokens: int) -> InFlight:
        """The same step after one with so many tokens that turned out to be skipped, which its own rate has counted."""
        return replace(
            self, after=replace(self.after, updates=self.after.updates - 1, tokens=self.after.tokens - tokens)
        )


class Launcher:
    """Launches the steps of a run.

    Args:
        updater: makes the steps.
        source: the source of their data.
        plan: the settings.
        state: the state of the run; only read here.
        elapsed: returns the training time in seconds, without interruptions.
        note: shows a message to the user.
        ahead: whether a step may ever begin before the outcome of the previous one is known.
        goes_on: whether the step before a place leaves weights that are neither evaluated nor saved, so that the next
            step may change them at once.
    """

    def __init__(
        self,
        *,
        updater: Updater,
        source: StepSource,
        plan: Plan,
        state: TrainState,
        elapsed: Callable[[], float],
        note: Callable[[str], None],
        ahead: bool,
        goes_on: Callable[[Place], bool],
    ) -> None:
        self.updater, self.source, self.plan, self.state = updater, source, plan, state
        self.elapsed, self.note, self.goes_on = elapsed, note, goes_on
        self._ahead = ahead
        self._next: InFlight | None = None  # the step that the device makes while the host notes the one before

    @property
    def is_ahead(self) -> bool:
        """Whether the device makes a step that ``take`` has not returned yet."""
        return self._next is not None

    def take(self) -> InFlight:
        """The next step, launched; the device may begin the one after it.

        Raises:
            TrainingError: the memory of the device does not suffice.
        """
        made = self._next or self._launch(Place.of(self.state))
        self._next = self._launch(made.after) if self._may_follow(made) else None
        return made

    def outcome(self, made: InFlight) -> Outcome:
        """Wait for the outcome of a step from ``take``; call it once."""
        outcome = made.launched.outcome()
        if not outcome.updated and self._next is not None:
            self._next = self._next.after_skipped(outcome.tokens)
        return outcome

    def _launch(self, place: Place) -> InFlight:
        """Let the device make the step after ``place``."""
        budget, prepared = self.plan.budget, self.state.prepared
        fraction = place.share_of(budget, prepared=prepared)

        def factor(tokens: int) -> float:
            timed = budget.by_the_clock and not place.updates  # only the first update needs the time
            seconds = distributed.from_main(self.elapsed()) if timed else 0.0
            fraction_after = budget.fraction_after(
                fraction, place.updates, tokens=place.tokens + tokens, seconds=seconds, prepared=prepared
            )
            return self.plan.schedule(step=place.updates, fraction=fraction, fraction_after=fraction_after)

        self.updater.learner.on_progress(fraction)
        ahead = place.updates > 0 and self._ahead  # a budget in seconds times the first update
        step, launched = self.source.next(), None
        while launched is None:
            try:
                launched = self.updater.launch(step, factor=factor, ahead=ahead)
            except OutOfDeviceMemory as error:
                step, note = self.source.again(step, error)
                self.note(note)
        after = Place(
            step=step.number + 1,
            updates=place.updates + 1,
            tokens=place.tokens + launched.tokens,
            # for the schedule of the next step, if it is launched before this one is noted
            seconds=distributed.from_main(self.elapsed()) if launched.is_ahead else place.seconds,
        )
        return InFlight(launched=launched, fraction=fraction, epoch=step.epoch, after=after)

    def _may_follow(self, made: InFlight) -> bool:
        """Whether the next step may begin before the outcome of this one is known."""
        return (
            made.launched.is_ahead
            and self.goes_on(made.after)
            and made.after.share_of(self.plan.budget, prepared=self.state.prepared) < self.plan.until
            and not agreed_stop()
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """The files that a training writes, and its output on the screen.

    Attributes:
        checkpoints: where to save checkpoints; None saves nothing.
        trackers: receive the records, such as ``Jsonl``; they are opened and closed by the caller.
        progress: the line on the screen.
        callbacks: called after every step; they can add to its record and return messages for the user.
    """

    checkpoints: Checkpoints | None = None
    trackers: Sequence[Tracker] = ()
    progress: Progress = field(default_factory=lambda: Progress(quiet=True))
    callbacks: Sequence[Callback] = ()


class Trainer:
    """Trains a learner on a stream until the budget is used up.

    Args:
        learner: the learner, already on its device.
        stream: the optimiser steps of this rank.
        optimizer: optimiser of the trainable parameters.
        plan: the settings.
        validation: how to measure the learner on held-out data; None: no validation.
        average: average of the parameters of the optimiser, which is measured and saved instead of the parameters;
            None: no average.
        output: files and screen output; by default none.
        state: state of an earlier training that this one continues; by default the beginning.
        clock: function that returns the time in seconds.
    """

    def __init__(
        self,
        *,
        learner: Learner,
        stream: BatchStream,
        optimizer: Optimizer | torch.optim.Optimizer,
        plan: Plan,
        validation: Validation | None = None,
        average: Average | None = None,
        output: Output | None = None,
        state: TrainState | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not isinstance(optimizer, Optimizer):
            optimizer = Optimizer(learner, [optimizer])
        output = output or Output()
        self.learner, self.stream, self.optimizer = learner, stream, optimizer
        self.plan, self.validation, self.average = plan, validation, average
        self.progress = output.progress
        self.trackers = output.trackers if distributed.is_main() else ()
        self.callbacks = [NonFiniteGuard(max_bad_steps=plan.max_bad_steps), *output.callbacks]
        self.clock = clock
        self.state = state or TrainState()
        self.updater = Updater(
            learner=learner,
            optimizer=optimizer,
            seed=plan.seed,
            device=plan.device,
            precision=plan.precision,
            max_grad_norm=plan.max_grad_norm,
        )
        self.snapshot = Snapshot(updater=self.updater, state=self.state, callbacks=self.callbacks, average=average)
        self.saving = Saving(self.snapshot, output.checkpoints, save_at=plan.save_at)
        self._started_at = 0.0  # time of the start, corrected as if there had been no interruptions
        self._unlogged_tokens, self._unlogged_seconds = 0, 0.0

    def resume(self) -> None:
        """Resume from the newest complete checkpoint, or from the start if there is none.

        Logs and revisions are cut back to it: what came later is made again.

        Raises:
            CheckpointError: no checkpoint is complete, or it does not fit.
        """
        notes = self.saving.restore()
        if self.state.finished == "budget" and self._fraction() < self.plan.until:
            self.state.finished = None  # the budget was raised
        for tracker in self.trackers:
            tracker.rewind(self.state.step)
        self.saving.drop_later_revisions()
        for note in notes:
            self.progress.note(note)

    def train(self) -> TrainState:
        """Train until the share ``until`` of the budget is used up, or until early stopping.

        Raises:
            Interrupted: SIGTERM or Ctrl-C was received; the step was finished and everything is saved.
            TrainingError: the loss was not finite several steps in a row, or the memory of the device does not suffice.
            CheckpointError: a checkpoint cannot be written.
        """
        state = self.state
        self.saving.check()
        distributed.share_weights(self.learner)
        self._started_at = self.clock() - state.seconds
        with ExitStack() as stack:
            stack.enter_context(stop_on_signals())
            stack.enter_context(self.progress)
            steps = self._launcher(stack.enter_context(StepSource(self.stream, start=state.step)))
            self.learner.train()
            if state.step == 0:
                self.saving.keep_revisions(seen=-1)
            while state.finished is None or state.evaluation_due:
                improved = False
                if state.evaluation_due:  # it is due if the run was interrupted during an evaluation and resumed
                    stop = agreed_stop()
                else:
                    seen = state.tokens
                    stop = self._step(steps)
                    self.saving.keep_revisions(seen=seen)
                if state.evaluation_due and not stop:
                    improved, stop = self._evaluate(), agreed_stop()
                if not state.evaluation_due:
                    self._log()
                if improved:
                    self.saving.save("best")
                if stop or state.finished or self._is_due(self.plan.save_every):
                    self.saving.save("last")
                if stop:
                    saved = (
                        "; all is saved, continue with resume=true"
                        if self.saving.checkpoints
                        else " (nothing is saved)"
                    )
                    raise Interrupted(f"{stop}: stopped after step {state.step:,}{saved}")
        return state

    def _launcher(self, source: StepSource) -> Launcher:
        return Launcher(
            updater=self.updater,
            source=source,
            plan=self.plan,
            state=self.state,
            elapsed=self._elapsed,
            note=self.progress.note,
            ahead=self.average is None,
            goes_on=self._goes_on,
        )

    def _elapsed(self) -> float:
        return self.clock() - self._started_at

    def _goes_on(self, place: Place) -> bool:
        """Whether the weights at a place are neither evaluated nor saved."""
        every = (self.plan.save_every, None if self.validation is None else self.validation.every)
        if any(number is not None and place.step % number == 0 for number in every):
            return False
        return not self.saving.reached(seen=self.state.tokens, tokens=place.tokens)

    def _is_due(self, every: int | None) -> bool:
        return every is not None and self.state.step % every == 0

    def _fraction(self) -> float:
        return Place.of(self.state).share_of(self.plan.budget, prepared=self.state.prepared)

    def _step(self, steps: Launcher) -> str | None:
        """Make one step of the optimiser, and its record; the device may begin the next step before it.

        Returns:
            The name of a signal that requested any rank to stop, or None; None also while a step is in flight.
        """
        start_time = self.clock()
        made = steps.take()
        outcome = steps.outcome(made)
        state = self.state
        state.step, state.epoch = made.after.step, made.epoch
        state.skipped += not outcome.updated
        state.tokens += outcome.tokens * outcome.updated
        now = self.clock()
        of_ranks = distributed.gather((now - self._started_at, stop_requested()))
        state.seconds = of_ranks[0][0]
        self._unlogged_tokens += outcome.tokens
        self._unlogged_seconds += now - start_time
        if self.plan.budget.by_the_clock:
            state.shares_used.append(made.fraction)
        state.record = self._record(outcome)
        fraction = self._fraction()
        if fraction >= self.plan.until and not steps.is_ahead:
            state.finished = "budget"
        if self.average is not None and outcome.updated:
            self.average.on_progress(fraction=fraction)
        for callback in self.callbacks:
            for note in callback.on_step_end(outcome, state, fraction=fraction):
                self.progress.note(note)
        state.evaluation_due = self.validation is not None and (
            self._is_due(self.validation.every) or state.finished is not None
        )
        return None if steps.is_ahead else first_stop(stop for _, stop in of_ranks)

    def _record(self, outcome: Outcome) -> dict[str, Any]:
        """The line of the log about a step, as far as it is known."""
        return {
            "step": self.state.step,
            "tokens": self.state.tokens,
            "seconds": round(self.state.seconds, 3),
            "epoch": self.state.epoch,
            "loss": outcome.loss,
            **{f"loss/{name}": value for name, value in outcome.losses.items()},
            "learning_rate": self.optimizer.learning_rate_at(outcome.factor),
            "gradient_norm": outcome.gradient_norm,
            "skipped": self.state.skipped,
        }

    def _evaluate(self) -> bool:
        """Evaluate; returns whether it is the best so far; after an interruption, a resumed run evaluates first."""
        assert self.validation is not None
        try:
            with nullcontext() if self.average is None else self.average.in_place():
                metrics = self.validation.measure()
        except StopDuringEvaluation:
            return False
        self.learner.train()
        self.state.evaluation_due, self.state.metrics = False, metrics
        self.state.record.update({f"validation/{name}": value for name, value in metrics.items()})
        selection = self.validation.selection
        return selection is not None and selection.observe(metrics, self.state)

    def _log(self) -> None:
        state = self.state
        evaluated = any(name.startswith("validation/") for name in state.record)
        self._set_rate()
        self.progress.show(
            state.record,
            fraction=self._fraction(),
            prepared=state.prepared,
            last=state.finished is not None or evaluated,
        )
        if not (self._is_due(self.plan.log_every) or evaluated or state.finished):
            return
        if state.shares_used:
            state.record["shares_used"], state.shares_used = state.shares_used, []
        for tracker in self.trackers:
            tracker.log(state.record)
        self._unlogged_tokens, self._unlogged_seconds = 0, 0.0

    def _set_rate(self) -> None:
        """Record the real tokens per second since the latest logged step, without evaluations and saves."""
        rate = self._unlogged_tokens / self._unlogged_seconds if self._unlogged_seconds else 0.0
        self.state.record["tokens_per_second"] = round(rate, 1)
