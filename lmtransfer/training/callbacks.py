"""Small observers of every step: they may add to its record, and warn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from lmtransfer.errors import ConfigError, TrainingError
from lmtransfer.training import distributed
from lmtransfer.training.state import TrainState
from lmtransfer.training.update import Outcome

#: The loss is watched as a running mean over about this many steps.
_SMOOTHED_STEPS = 50
#: Steps that a forecast waits for, and how many of them are not timed since they build kernels and buffers.
_STEPS, _UNTIMED = 10, 3


class Callback(Protocol):
    """Sees each step after its update."""

    name: str  #: its state is saved under this name

    def on_step_end(self, outcome: Outcome, state: TrainState, *, fraction: float) -> Sequence[str]:
        """Look at one step; returns what the user should be told. May add to ``state.record``.

        Args:
            outcome: what the step did.
            state: where the run stands after it.
            fraction: share of the budget used.
        """
        ...

    def state_dict(self) -> dict[str, Any]:
        """What must survive a restart, as plain values."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The reverse of ``state_dict``."""
        ...


class NonFiniteGuard:
    """Shows every loss that is not finite, with the keys of its batch, and gives up after several in a row.

    Args:
        max_bad_steps: that many in a row end training.
    """

    name = "non_finite_guard"

    def __init__(self, *, max_bad_steps: int = 3) -> None:
        self.max_bad_steps = max_bad_steps
        self.in_a_row = 0

    def on_step_end(self, outcome: Outcome, state: TrainState, *, fraction: float) -> Sequence[str]:
        """See the class.

        Raises:
            TrainingError: the loss was not finite ``max_bad_steps`` times in a row, or the float16 gradients overflow
                without any loss scale.
        """
        if outcome.updated:
            self.in_a_row = 0
            return ()
        if outcome.overflowed:
            if outcome.loss_scale < 1:
                raise TrainingError(
                    f"step {state.step}: the float16 gradients overflow even at a loss scale of "
                    f"{outcome.loss_scale:g}; lower optimizer.learning_rate, or set hardware.precision=fp32"
                )
            return [
                f"step {state.step}: the float16 gradients overflowed; no update, the loss scale is now "
                f"{outcome.loss_scale:g}"
            ]
        self.in_a_row += 1
        keys = [key for of_rank in distributed.gather(outcome.bad_keys) for key in of_rank]
        shown = ", ".join(keys[:8]) + (f" and {len(keys) - 8} more" if len(keys) > 8 else "")
        parts = ", ".join(f"{name} {value:g}" for name, value in outcome.losses.items())
        message = f"step {state.step}: not finite ({parts}; gradient norm {outcome.gradient_norm:g}); no update. " + (
            f"Batch keys: {shown}" if keys else "The losses are finite, only the gradient is not"
        )
        if self.in_a_row >= self.max_bad_steps:
            raise TrainingError(
                f"{message}\n{self.in_a_row} steps in a row were not finite, so training stops; the last checkpoint is "
                "kept. Lower optimizer.learning_rate, set train.max_grad_norm=1, or look at these examples with "
                "lmtransfer inspect"
            )
        return [message]

    def state_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {"in_a_row": self.in_a_row}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The reverse of ``state_dict``."""
        self.in_a_row = int(state["in_a_row"])


class PhaseName:
    """Names the phase of the run in every record.

    Args:
        phase: its name.
    """

    name = "phase_name"

    def __init__(self, phase: str) -> None:
        self.phase = phase

    def on_step_end(self, outcome: Outcome, state: TrainState, *, fraction: float) -> Sequence[str]:
        """See the class."""
        state.record["phase"] = self.phase
        return ()

    def state_dict(self) -> dict[str, Any]:
        """Nothing: it is in the state of the run."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The reverse of ``state_dict``."""


class UnigramPlateau:
    """Tells when a masked language model has learnt more than how often each token occurs.

    The entropy stands in every record as ``unigram_entropy``, so that a run that is not finished shows it too.

    Small models sit for long at the entropy of the unigram distribution, and finetune no better than random weights
    until they leave it. The loss is smoothed over about 50 steps; it is on the plateau while it is no more than
    ``margin`` below the entropy.

    Args:
        entropy: of the distribution of target tokens, in nats.
        loss: name of the watched loss.
        margin: as a share of the entropy.
        warn_after: share of the budget after which being on the plateau is worth a warning.
        warns: whether to warn at all; weights that are not random may transfer before they leave it.
    """

    name = "unigram_plateau"

    def __init__(
        self,
        *,
        entropy: float,
        loss: str = "mlm",
        margin: float = 0.02,
        warn_after: float = 0.5,
        warns: bool = True,
    ) -> None:
        if entropy <= 0:
            raise ConfigError(f"a unigram entropy of {entropy} nats: the training text must hold at least two tokens")
        self.entropy = entropy
        self.loss = loss
        self.margin = margin
        self.warn_after = warn_after
        self.warns = warns
        self.num_seen = 0
        self.mean = 0.0
        self.left_at: int | None = None
        self.warned = False

    def on_step_end(self, outcome: Outcome, state: TrainState, *, fraction: float) -> Sequence[str]:
        """See the class; once the plateau is left, each record has the step of that as ``plateau_left_at``."""
        state.record["unigram_entropy"] = round(self.entropy, 4)
        if self.left_at is not None:
            state.record["plateau_left_at"] = self.left_at
        value = outcome.losses.get(self.loss)
        if value is None or not outcome.updated or self.left_at is not None:
            return ()
        self.num_seen += 1
        self.mean += (value - self.mean) * max(1 / self.num_seen, 1 / _SMOOTHED_STEPS)
        if self.num_seen >= _SMOOTHED_STEPS and self.mean < (1 - self.margin) * self.entropy:
            self.left_at = state.step
            state.record["plateau_left_at"] = state.step
            return [
                f"step {state.step:,}: the {self.loss} loss has left the unigram plateau ({self.mean:.2f}, below the "
                f"{self.entropy:.2f} nats of token frequencies): the model has begun to use context"
            ]
        if self.warns and fraction >= self.warn_after and self.num_seen >= _SMOOTHED_STEPS and not self.warned:
            self.warned = True
            return [
                f"warning: step {state.step:,}: the {self.loss} loss ({self.mean:.2f}) is still at the unigram plateau "
                f"({self.entropy:.2f} nats), so the model knows little more than token frequencies, and transfer will "
                "hardly beat random weights. Try optimizer=muon, more steps of fewer tokens (train.batch_tokens), a "
                "larger budget, or a smaller model"
            ]
        return ()

    def state_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {"num_seen": self.num_seen, "mean": self.mean, "left_at": self.left_at, "warned": self.warned}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The reverse of ``state_dict``."""
        self.num_seen, self.mean = state["num_seen"], state["mean"]
        self.left_at, self.warned = state["left_at"], state["warned"]


class TokenForecast:
    """A callback that says how many tokens a budget in seconds will see; it says it again where a run goes on.

    Args:
        seconds: the budget.
        meaning: given the tokens that are expected and tokens a second, what is known of so many, as lines.
    """

    name = "token_forecast"

    def __init__(self, *, seconds: float, meaning: Callable[[float, float], Sequence[str]] = lambda *_: ()) -> None:
        self.seconds = seconds
        self.meaning = meaning
        self.seen: list[tuple[float, int]] = []

    def on_step_end(self, outcome: Outcome, state: TrainState, *, fraction: float) -> Sequence[str]:
        """See the class."""
        if len(self.seen) == _STEPS:
            return ()
        self.seen.append((state.seconds, state.tokens))
        if len(self.seen) < _STEPS:
            return ()
        (began, before), (now, tokens) = self.seen[_UNTIMED - 1], self.seen[-1]
        if now >= self.seconds or now <= began or tokens == before:
            return ()
        rate = (tokens - before) / (now - began)
        expected = tokens + rate * (self.seconds - now)
        said = f"at {rate:,.0f} tokens/s, {self.seconds:g} s will see about {millions(expected)} tokens"
        return [said, *self.meaning(expected, rate)]

    def state_dict(self) -> dict[str, Any]:
        """Nothing: what was measured on one machine says little of the next."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The reverse of ``state_dict``."""


def millions(number: float) -> str:
    """A number of tokens in millions, with two figures."""
    return f"{number / 1e6:.1f} million" if number >= 1e6 else f"{number / 1e6:.2f} million"
