"""Callbacks that see the results of every step, add to its log record, and return messages for the user."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from typing_extensions import override

from lmtransfer.errors import ConfigError, TrainingError
from lmtransfer.training.update import StepResult

#: Approximate number of steps in the running mean of the monitored loss.
_SMOOTHED_STEPS = 50
#: Steps before a forecast, and how many of them are not timed because they build kernels and buffers.
_STEPS, _UNTIMED = 10, 3


class Callback:
    """Called once a step's results are read: on a CPU after each step, on a GPU whenever a record is logged."""

    name: str  #: key of the callback's state in a checkpoint

    def on_step_end(self, outcome: StepResult, record: dict[str, Any], *, fraction: float) -> Sequence[str]:
        """Process one step and return messages for the user.

        Args:
            record: the log record, with ``step``, ``tokens`` and ``seconds`` as of the end of the step; callbacks may
                add entries.
        """
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        """Return the state that must survive a restart, as plain values."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state from ``state_dict``."""


class NonFiniteGuard(Callback):
    """Reports every non-finite loss with the keys of its batch, and ends training after several in a row."""

    name = "non_finite_guard"

    def __init__(self, *, max_bad_steps: int = 3) -> None:
        self.max_bad_steps = max_bad_steps
        self.in_a_row = 0

    @override
    def on_step_end(self, outcome: StepResult, record: dict[str, Any], *, fraction: float) -> Sequence[str]:
        if outcome.updated:
            self.in_a_row = 0
            return ()
        if outcome.overflowed:
            if outcome.loss_scale < 1:
                raise TrainingError(
                    f"step {record['step']}: the float16 gradients overflow even at a loss scale of "
                    f"{outcome.loss_scale:g}; lower optimizer.learning_rate, or set hardware.precision=fp32"
                )
            return [
                f"step {record['step']}: the float16 gradients overflowed; the weights were not updated, and the loss "
                f"scale is now {outcome.loss_scale:g}"
            ]
        self.in_a_row += 1
        keys = outcome.bad_keys
        listing = ", ".join(keys[:8]) + (f" and {len(keys) - 8} more" if len(keys) > 8 else "")
        parts = ", ".join(f"{name} {value:g}" for name, value in outcome.losses.items())
        where = f"Batch keys: {listing}" if keys else "The losses are finite, but the gradient is not"
        norm = f"gradient norm {outcome.gradient_norm:g}"
        message = f"step {record['step']}: not finite ({parts}; {norm}), so the weights were not updated. {where}"
        if self.in_a_row >= self.max_bad_steps:
            raise TrainingError(
                f"{message}\n{self.in_a_row} steps in a row were not finite, so training stops; the last checkpoint is "
                "kept. Lower optimizer.learning_rate, set train.max_grad_norm=1, or look at these examples with "
                "lmtransfer inspect"
            )
        return [message]

    @override
    def state_dict(self) -> dict[str, Any]:
        return {"in_a_row": self.in_a_row}

    @override
    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.in_a_row = int(state["in_a_row"])


class PhaseName(Callback):
    """Adds the name of the phase of the run to every record."""

    name = "phase_name"

    def __init__(self, phase: str) -> None:
        self.phase = phase

    @override
    def on_step_end(self, outcome: StepResult, record: dict[str, Any], *, fraction: float) -> Sequence[str]:
        record["phase"] = self.phase
        return ()


@dataclass(kw_only=True)
class UnigramPlateau(Callback):
    """Reports when a masked language model has learned more than the token frequencies.

    Every record contains the entropy as ``unigram_entropy``, so that it is visible during the run.

    The loss of small models stays at the entropy of the unigram distribution (the plateau) for a long time. On the
    plateau, a model finetunes no better than random weights. The loss is smoothed over about 50 steps, and counts as on
    the plateau until it is ``margin`` below the entropy.

    Args:
        margin: distance below the entropy, as a share of the entropy.
        warn_after: share of the budget after which a loss on the plateau triggers a warning.
        warns: whether to warn; a run that starts from pretrained weights may transfer well even on the plateau.
        remedies: changes that the warning recommends first, such as another optimizer.
    """

    name = "unigram_plateau"
    entropy: float
    loss: str = "mlm"
    margin: float = 0.02
    warn_after: float = 0.5
    warns: bool = True
    remedies: Sequence[str] = ()
    num_seen: int = field(default=0, init=False)
    mean: float = field(default=0.0, init=False)
    left_at: int | None = field(default=None, init=False)
    warned: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        if self.entropy <= 0:
            raise ConfigError(
                f"the unigram entropy is {self.entropy} nats: the training text must contain at least two different "
                "tokens"
            )

    @override
    def on_step_end(self, outcome: StepResult, record: dict[str, Any], *, fraction: float) -> Sequence[str]:
        record["unigram_entropy"] = round(self.entropy, 4)
        if self.left_at is not None:
            record["plateau_left_at"] = self.left_at
        value = outcome.losses.get(self.loss)
        if value is None or not outcome.updated or self.left_at is not None:
            return ()
        self.num_seen += 1
        self.mean += (value - self.mean) * max(1 / self.num_seen, 1 / _SMOOTHED_STEPS)
        if self.num_seen >= _SMOOTHED_STEPS and self.mean < (1 - self.margin) * self.entropy:
            self.left_at = record["step"]
            record["plateau_left_at"] = record["step"]
            return [
                f"step {record['step']:,}: the {self.loss} loss has left the unigram plateau ({self.mean:.2f}, below "
                f"the {self.entropy:.2f} nats of the token frequencies): the model now uses context"
            ]
        if self.warns and fraction >= self.warn_after and self.num_seen >= _SMOOTHED_STEPS and not self.warned:
            self.warned = True
            return [
                f"warning: step {record['step']:,}: the {self.loss} loss ({self.mean:.2f}) is still at the unigram "
                f"plateau ({self.entropy:.2f} nats), so the model knows little more than token frequencies, and "
                "transfer will hardly be better than from random weights. Try "
                f"{''.join(f'{remedy}, ' for remedy in self.remedies)}more steps with fewer tokens each "
                "(train.batch_tokens), a larger budget, or a smaller model"
            ]
        return ()

    @override
    def state_dict(self) -> dict[str, Any]:
        return {"num_seen": self.num_seen, "mean": self.mean, "left_at": self.left_at, "warned": self.warned}

    @override
    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.num_seen, self.mean = state["num_seen"], state["mean"]
        self.left_at, self.warned = state["left_at"], state["warned"]


class TokenForecast(Callback):
    """Reports how many tokens a run with a budget in seconds will see; a resumed run reports it again.

    Args:
        meaning: returns additional lines to report, given the expected number of tokens and the tokens per second.
    """

    name = "token_forecast"

    def __init__(self, *, seconds: float, meaning: Callable[[float, float], Sequence[str]] = lambda *_: ()) -> None:
        self.seconds = seconds
        self.meaning = meaning
        self.seen: list[tuple[float, int]] = []

    @override
    def on_step_end(self, outcome: StepResult, record: dict[str, Any], *, fraction: float) -> Sequence[str]:
        if len(self.seen) == _STEPS:
            return ()
        self.seen.append((record["seconds"], record["tokens"]))
        if len(self.seen) < _STEPS:
            return ()
        (start_time, before), (now, tokens) = self.seen[_UNTIMED - 1], self.seen[-1]
        if now >= self.seconds or now <= start_time or tokens == before:
            return ()
        rate = (tokens - before) / (now - start_time)
        expected = tokens + rate * (self.seconds - now)
        forecast = f"at {rate:,.0f} tokens/s, training will see about {millions(expected)} tokens in {self.seconds:g} s"
        return [forecast, *self.meaning(expected, rate)]


def millions(number: float) -> str:
    """Format a number of tokens in millions, with one decimal from a million on, otherwise two."""
    return f"{number / 1e6:.1f} million" if number >= 1e6 else f"{number / 1e6:.2f} million"
