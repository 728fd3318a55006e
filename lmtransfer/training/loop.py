"""The training loop; it uses a learner and a stream of steps, and does not depend on model, objective or task."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field, replace

import torch

from lmtransfer.errors import Interrupted
from lmtransfer.training import distributed
from lmtransfer.training.averaging import Average
from lmtransfer.training.callbacks import Callback, NonFiniteGuard
from lmtransfer.training.checkpoint import Checkpoints, preflight, revision_name
from lmtransfer.training.learner import BatchStream, Learner
from lmtransfer.training.micro_batches import OutOfDeviceMemory, StepSource
from lmtransfer.training.model_selection import Validation
from lmtransfer.training.optim.optimizer import Optimizer
from lmtransfer.training.plan import Plan
from lmtransfer.training.progress import Progress
from lmtransfer.training.signals import StopDuringEvaluation, agreed_stop, first_stop, stop_on_signals, stop_requested
from lmtransfer.training.snapshot import Snapshot
from lmtransfer.training.state import TrainState
from lmtransfer.training.trackers.base import Tracker
from lmtransfer.training.update import Launched, Updater


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


@dataclass(frozen=True, slots=True)
class _Progress:
    """How far a run is after a step: what schedule and budget depend on."""

    step: int
    updates: int
    tokens: int
    seconds: float


@dataclass(frozen=True, slots=True)
class _InFlight:
    """A step that is launched.

    Attributes:
        launched: its tokens, and later its outcome.
        fraction: share of the budget that was used up before it.
        epoch: number of epochs seen after it, with fraction.
        progress: the progress after it, if it changes the weights.
    """

    launched: Launched
    fraction: float
    epoch: float
    progress: _Progress

    def after_skipped(self, tokens: int) -> _InFlight:
        """The same step after one with so many tokens that turned out to be skipped, which its own rate has counted."""
        progress = replace(self.progress, updates=self.progress.updates - 1, tokens=self.progress.tokens - tokens)
        return replace(self, progress=progress)


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
        self.checkpoints, self.progress = output.checkpoints, output.progress
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
        self._started_at = 0.0  # time of the start, corrected as if there had been no interruptions
        self._unlogged_tokens, self._unlogged_seconds = 0, 0.0
        self._in_flight: _InFlight | None = None  # the step that the device makes while the host notes the one before

    def resume(self) -> None:
        """Resume from the newest complete checkpoint, or from the start if there is none.

        Logs and revisions are cut back to it: what came later is made again.

        If the newest checkpoint is ``best``, a crash happened before ``last`` was saved, possibly at the end of
        training. Then ``last`` is saved now.

        Raises:
            CheckpointError: no checkpoint is complete, or it does not fit.
        """
        if self.checkpoints is None:
            raise ValueError("a trainer without checkpoints cannot resume")
        checkpoint, problems = self.checkpoints.newest_complete()
        notes = [f"warning: {problem}; this checkpoint is skipped" for problem in problems]
        if checkpoint is None:
            notes.append("the run was interrupted before its first checkpoint: it starts again from the beginning")
        else:
            notes += self.snapshot.restore(checkpoint)
            notes.append(f"resuming after step {self.state.step:,} from {checkpoint.folder}")
            if checkpoint.folder.name != "last":
                self._save("last")
        if self.state.finished == "budget" and self._fraction() < self.plan.until:
            self.state.finished = None  # the budget was raised
        for tracker in self.trackers:
            tracker.rewind(self.state.step)
        if distributed.is_main():
            self.checkpoints.drop_revisions(after=self.state.step)
        distributed.barrier()
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
        if self.checkpoints is not None and distributed.is_main():
            num_ahead = sum(point >= state.tokens for point in self.plan.save_at)
            preflight(
                self.checkpoints.folder,
                num_bytes=self.snapshot.num_bytes(),
                kept_bytes=num_ahead * self.snapshot.num_model_bytes(),
            )
        distributed.share_weights(self.learner)
        self._started_at = self.clock() - state.seconds
        with ExitStack() as stack:
            stack.enter_context(stop_on_signals())
            stack.enter_context(self.progress)
            steps = stack.enter_context(StepSource(self.stream, start=state.step))
            self.learner.train()
            if state.step == 0:
                self._keep_revisions(seen=-1)
            while state.finished is None or state.evaluation_due:
                improved = False
                if state.evaluation_due:  # it is due if the run was interrupted during an evaluation and resumed
                    stop = agreed_stop()
                else:
                    seen = state.tokens
                    stop = self._step(steps)
                    self._keep_revisions(seen=seen)
                if state.evaluation_due and not stop:
                    improved, stop = self._evaluate(), agreed_stop()
                if not state.evaluation_due:
                    self._log()
                if improved:
                    self._save("best")
                if stop or state.finished or self._is_due(self.plan.save_every):
                    self._save("last")
                if stop:
                    raise Interrupted(
                        f"{stop}: stopped after step {state.step:,}"
                        + ("; all is saved, continue with resume=true" if self.checkpoints else " (nothing is saved)")
                    )
        return state

    def _is_due(self, every: int | None) -> bool:
        return every is not None and self.state.step % every == 0

    def _fraction(self) -> float:
        return self._fraction_at(self._progress())

    def _fraction_at(self, at: _Progress) -> float:
        return self.plan.budget.fraction(
            steps=at.updates, tokens=at.tokens, seconds=at.seconds, prepared=self.state.prepared
        )

    def _progress(self) -> _Progress:
        state = self.state
        return _Progress(step=state.step, updates=state.updates, tokens=state.tokens, seconds=state.seconds)

    def _step(self, steps: StepSource) -> str | None:
        """Make one step of the optimiser, and its record; the device may begin the next step before it.

        Returns:
            The name of a signal that requested any rank to stop, or None; None also while a step is in flight.
        """
        start_time = self.clock()
        made = self._in_flight or self._launch(steps, after=self._progress())
        self._in_flight = self._launch(steps, after=made.progress) if self._goes_ahead(made) else None
        stop = self._account(made, start_time=start_time)
        return None if self._in_flight else stop

    def _launch(self, steps: StepSource, *, after: _Progress) -> _InFlight:
        """Let the device make one step.

        Args:
            steps: the source of its data.
            after: the progress before this step.
        """
        fraction = self._fraction_at(after)

        def factor(tokens: int) -> float:
            timed = self.plan.budget.by_the_clock and not after.updates  # only the first update needs the time
            seconds = distributed.from_main(self.clock() - self._started_at) if timed else 0.0
            fraction_after = self.plan.budget.fraction_after(
                fraction, after.updates, tokens=after.tokens + tokens, seconds=seconds, prepared=self.state.prepared
            )
            return self.plan.schedule(step=after.updates, fraction=fraction, fraction_after=fraction_after)

        self.learner.on_progress(fraction)
        ahead = after.updates > 0 and self.average is None  # a budget in seconds times the first update
        step, launched = steps.next(), None
        while launched is None:
            try:
                launched = self.updater.launch(step, factor=factor, ahead=ahead)
            except OutOfDeviceMemory as error:
                step, note = steps.again(step, error)
                self.progress.note(note)
        return _InFlight(
            launched=launched,
            fraction=fraction,
            epoch=step.epoch,
            progress=_Progress(
                step=step.number + 1,
                updates=after.updates + 1,
                tokens=after.tokens + launched.tokens,
                # for the schedule of the next step, if it is launched before this one is noted
                seconds=distributed.from_main(self.clock() - self._started_at) if launched.is_ahead else after.seconds,
            ),
        )

    def _goes_ahead(self, made: _InFlight) -> bool:
        """Whether the next step may begin before the outcome of this one is known.

        It may not if the weights after this step are to be evaluated or saved.
        """
        if not made.launched.is_ahead:
            return False
        every = (self.plan.save_every, None if self.validation is None else self.validation.every)
        if any(number is not None and made.progress.step % number == 0 for number in every):
            return False
        if self._reached(seen=self.state.tokens, tokens=made.progress.tokens):
            return False
        return self._fraction_at(made.progress) < self.plan.until and not agreed_stop()

    def _account(self, made: _InFlight, *, start_time: float) -> str | None:
        """Wait for the outcome of a step, and note it; returns the signal that requested any rank to stop."""
        state, outcome = self.state, made.launched.outcome()
        state.step, state.epoch = made.progress.step, made.epoch
        state.skipped += not outcome.updated
        if not outcome.updated and self._in_flight is not None:
            self._in_flight = self._in_flight.after_skipped(outcome.tokens)
        state.tokens += outcome.tokens * outcome.updated
        now = self.clock()
        of_ranks = distributed.gather((now - self._started_at, stop_requested()))
        state.seconds = of_ranks[0][0]
        self._unlogged_tokens += outcome.tokens
        self._unlogged_seconds += now - start_time
        if self.plan.budget.by_the_clock:
            state.shares_used.append(made.fraction)
        state.record = {
            "step": state.step,
            "tokens": state.tokens,
            "seconds": round(state.seconds, 3),
            "epoch": state.epoch,
            "loss": outcome.loss,
            **{f"loss/{name}": value for name, value in outcome.losses.items()},
            "learning_rate": self.optimizer.learning_rate_at(outcome.factor),
            "gradient_norm": outcome.gradient_norm,
            "skipped": state.skipped,
        }
        fraction = self._fraction()
        if fraction >= self.plan.until and self._in_flight is None:
            state.finished = "budget"
        if self.average is not None and outcome.updated:
            self.average.on_progress(fraction=fraction)
        for callback in self.callbacks:
            for note in callback.on_step_end(outcome, state, fraction=fraction):
                self.progress.note(note)
        state.evaluation_due = self.validation is not None and (
            self._is_due(self.validation.every) or state.finished is not None
        )
        return first_stop(stop for _, stop in of_ranks)

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

    def _keep_revisions(self, *, seen: int) -> None:
        """Keep the model for each point of ``plan.save_at`` that was reached since ``seen`` tokens.

        This comes before the next save of ``last``, so that a run resumed from there has all earlier revisions.
        """
        reached = self._reached(seen=seen, tokens=self.state.tokens)
        if self.checkpoints is None or not reached:
            return
        tensors, state = self.snapshot.take_model()
        if distributed.is_main():
            for point in reached:
                self.checkpoints.save(revision_name(point), tensors=tensors, state=state)
        distributed.barrier()

    def _reached(self, *, seen: int, tokens: int) -> list[int]:
        """The points of ``plan.save_at`` after ``seen`` tokens, up to ``tokens``."""
        return [point for point in self.plan.save_at if seen < point <= tokens]

    def _save(self, name: str) -> None:
        if self.checkpoints is None:
            return
        tensors, state = self.snapshot.take()
        if distributed.is_main():
            self.checkpoints.save(name, tensors=tensors, state=state)
        distributed.barrier()
