"""The training loop, which depends on a learner and a stream of steps but not on a model, objective or task."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch

from lmtransfer.errors import Interrupted
from lmtransfer.training import process_group
from lmtransfer.training.averaging import Average
from lmtransfer.training.budget import Budget
from lmtransfer.training.callbacks import Callback, NonFiniteGuard
from lmtransfer.training.checkpoint_saver import CheckpointSaver
from lmtransfer.training.checkpoints import Checkpoints, TrainState
from lmtransfer.training.evaluation import Validation
from lmtransfer.training.learner import BatchStream, Learner
from lmtransfer.training.optim.optimizers import Optimizer
from lmtransfer.training.optim.schedules import Factor
from lmtransfer.training.precision import Precision
from lmtransfer.training.progress import ProgressLine
from lmtransfer.training.signals import StopDuringEvaluation, agreed_stop, first_stop, requested_stop, stop_on_signals
from lmtransfer.training.trackers.base import Tracker
from lmtransfer.training.update import OutOfDeviceMemory, PendingStep, StepSource, Updater


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerConfig:
    """Settings of the training loop, for any learner.

    Attributes:
        until: share of the budget at which training ends; less than 1 if another training run continues from there.
        save_every: steps between saves of ``last``, which is also saved at the end and on interruption.
        save_at: token counts, ascending, at which the model is saved as a revision.
    """

    budget: Budget
    until: float = 1.0
    schedule: Factor
    schedule_start: int = 0
    seed: int
    device: torch.device | str = "cpu"
    precision: Precision = field(default_factory=Precision)
    max_grad_norm: float | None = None
    save_every: int | None = None
    save_at: tuple[int, ...] = ()
    log_every: int = 10
    max_bad_steps: int = 3


@dataclass(frozen=True, slots=True)
class _Unread:
    pending: PendingStep
    record: dict[str, Any]
    fraction: float


class Trainer:
    """Trains a learner on a stream until the budget is used up.

    Args:
        average: average of the optimized parameters, which is evaluated and saved in their place; None disables
            averaging.
    """

    def __init__(
        self,
        *,
        learner: Learner,
        stream: BatchStream,
        optimizer: Optimizer | torch.optim.Optimizer,
        config: TrainerConfig,
        validation: Validation | None = None,
        average: Average | None = None,
        checkpoints: Checkpoints | None = None,
        trackers: Sequence[Tracker] = (),
        progress: ProgressLine | None = None,
        callbacks: Sequence[Callback] = (),
        state: TrainState | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not isinstance(optimizer, Optimizer):
            optimizer = Optimizer(learner, [optimizer])
        self.learner, self.stream, self.optimizer = learner, stream, optimizer
        self.config, self.validation, self.average = config, validation, average
        self.progress = progress or ProgressLine(quiet=True)
        self.trackers = trackers if process_group.is_main() else ()
        self.callbacks = [NonFiniteGuard(max_bad_steps=config.max_bad_steps), *callbacks]
        self.clock = clock
        self.state = state or TrainState()
        self.updater = Updater(
            learner=learner,
            optimizer=optimizer,
            seed=config.seed,
            device=config.device,
            precision=config.precision,
            max_grad_norm=config.max_grad_norm,
        )
        self.saver = CheckpointSaver(
            updater=self.updater,
            state=self.state,
            callbacks=self.callbacks,
            average=average,
            checkpoints=checkpoints,
            save_at=config.save_at,
        )
        self._started_at = 0.0  # start time, shifted so that interruptions do not count
        self._unread: list[_Unread] = []
        self._unlogged_tokens, self._unlogged_seconds = 0, 0.0

    def resume(self) -> None:
        """Resume from the newest complete checkpoint, or start afresh if there is none.

        Log records and revisions from after the checkpoint are removed, because training will produce them again.
        """
        notes = self.saver.restore()
        if self.state.finished == "budget" and self._fraction() < self.config.until:
            self.state.finished = None  # the budget was raised
        for tracker in self.trackers:
            tracker.rewind(self.state.step)
        self.saver.drop_later_revisions()
        for note in notes:
            self.progress.note(note)

    def train(self) -> TrainState:
        """Train until the share ``until`` of the budget is used up, or until early stopping.

        Raises:
            Interrupted: SIGTERM or Ctrl-C was received; the step was finished and everything was saved.
        """
        state = self.state
        self.saver.check()
        self._started_at = self.clock() - state.seconds
        with ExitStack() as stack:
            stack.enter_context(stop_on_signals())
            stack.enter_context(self.progress)
            source = stack.enter_context(closing(StepSource(self.stream, start=state.step)))
            self.learner.train()
            if state.step == 0:
                self.saver.keep_revisions(seen=-1)
            while state.finished is None or state.evaluation_due:
                improved = False
                if state.evaluation_due:  # due if a resumed run was interrupted during an evaluation
                    stop = agreed_stop()
                else:
                    seen = state.tokens
                    stop = self._step(source)
                    self.saver.keep_revisions(seen=seen)
                saves = stop or state.finished or self._is_due(self.config.save_every)
                if (
                    not self.updater.asynchronous
                    or saves
                    or state.evaluation_due
                    or self._is_due(self.config.log_every)
                ):
                    self._read()
                if state.evaluation_due and not stop:
                    improved, stop = self._evaluate(), agreed_stop()
                if not self._unread and not state.evaluation_due:
                    self._log()
                if improved:
                    self.saver.save("best")
                if saves or stop or state.finished:
                    self.saver.save("last")
                if stop:
                    saved = (
                        "; everything is saved, continue with resume=true"
                        if self.saver.checkpoints
                        else " (nothing was saved)"
                    )
                    raise Interrupted(f"{stop}: stopped after step {state.step:,}{saved}")
        return state

    def _is_due(self, every: int | None) -> bool:
        return every is not None and self.state.step % every == 0

    def _fraction(self) -> float:
        state = self.state
        return self.config.budget.fraction(
            steps=state.step, tokens=state.tokens, seconds=state.seconds, prepared=state.prepared
        )

    def _step(self, source: StepSource) -> str | None:
        """Launch one optimizer step; return the name of a signal that asked any rank to stop, or None."""
        start_time, state = self.clock(), self.state
        fraction = self._fraction()
        self.learner.on_progress(fraction)
        step, update = source.next(), None
        while update is None:
            try:
                update = self.updater.launch_step(step, factor=lambda tokens: self._factor(fraction, tokens))
            except OutOfDeviceMemory as error:
                step, note = source.split_again(step, error)
                self.progress.note(note)
        state.step, state.epoch = step.number + 1, step.epoch
        state.tokens += update.tokens
        now = self.clock()
        of_ranks = process_group.gather((now - self._started_at, requested_stop()))
        state.seconds = of_ranks[0][0]
        self._unlogged_tokens += update.tokens
        self._unlogged_seconds += now - start_time
        if self.config.budget.by_the_clock:
            state.shares_used.append(fraction)
        fraction = self._fraction()
        if fraction >= self.config.until:
            state.finished = "budget"
        if self.average is not None:
            self.average.on_progress(fraction=fraction)
        record = {
            "step": state.step,
            "tokens": state.tokens,
            "seconds": round(state.seconds, 3),
            "epoch": state.epoch,
        }
        self._unread.append(_Unread(update, record, fraction))
        state.evaluation_due = self.validation is not None and (
            self._is_due(self.validation.every) or state.finished is not None
        )
        return first_stop(stop for _, stop in of_ranks)

    def _factor(self, fraction: float, tokens: int) -> float:
        """Return the factor on the peak learning rates for a step of ``tokens`` tokens that begins at ``fraction``."""
        state, budget = self.state, self.config.budget
        timed = budget.by_the_clock and not state.step  # only the first step needs the time
        if timed and self.updater.asynchronous:
            torch.cuda.synchronize(self.config.device)
        fraction_after = budget.fraction_after(
            fraction,
            state.step,
            tokens=state.tokens + tokens,
            seconds=process_group.broadcast(self.clock() - self._started_at) if timed else 0.0,
            prepared=state.prepared,
        )
        return self.config.schedule(
            step=state.step - self.config.schedule_start, fraction=fraction, fraction_after=fraction_after
        )

    def _read(self) -> None:
        """Read the results of all pending steps and pass them to the callbacks."""
        start_time = self.clock() if self.updater.asynchronous else 0.0
        unread, self._unread = self._unread, []
        for step, outcome in zip(unread, self.updater.read([step.pending for step in unread]), strict=True):
            self.state.skipped += not outcome.updated
            self.state.record = step.record
            step.record.update(
                {
                    "loss": outcome.loss,
                    **{f"loss/{name}": value for name, value in outcome.losses.items()},
                    "learning_rate": self.optimizer.learning_rate_at(outcome.factor),
                    "gradient_norm": outcome.gradient_norm,
                    "skipped": self.state.skipped,
                }
            )
            for callback in self.callbacks:
                for note in callback.on_step_end(outcome, step.record, fraction=step.fraction):
                    self.progress.note(note)
        if self.updater.asynchronous:  # by now the device has finished these steps
            self._unlogged_seconds += self.clock() - start_time

    def _evaluate(self) -> bool:
        """Evaluate and return whether the result is the best so far; resuming repeats an interrupted evaluation."""
        assert self.validation is not None
        try:
            with nullcontext() if self.average is None else self.average.swap_in():
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
        rate = self._unlogged_tokens / self._unlogged_seconds if self._unlogged_seconds else 0.0
        state.record["tokens_per_second"] = round(rate, 1)  # since the last logged step, without evaluations and saves
        self.progress.show(
            state.record,
            fraction=self._fraction(),
            prepared=state.prepared,
            last=state.finished is not None or evaluated,
        )
        if not (self._is_due(self.config.log_every) or evaluated or state.finished):
            return
        if state.shares_used:
            state.record["shares_used"], state.shares_used = state.shares_used, []
        for tracker in self.trackers:
            tracker.log(state.record)
        self._unlogged_tokens, self._unlogged_seconds = 0, 0.0
