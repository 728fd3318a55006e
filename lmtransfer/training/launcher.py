"""Let the device make one step after another; it may begin a step before the outcome of the previous one is known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from lmtransfer.training import distributed
from lmtransfer.training.budget import Budget
from lmtransfer.training.micro_batches import OutOfDeviceMemory, StepSource
from lmtransfer.training.plan import Plan
from lmtransfer.training.signals import agreed_stop
from lmtransfer.training.state import TrainState
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
