"""How many tokens a budget in seconds will be, told once the first steps have shown this machine's speed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from lmtransfer.training.state import TrainState
from lmtransfer.training.update import Outcome

#: Steps that are waited for, and how many of them are not timed since they build kernels and buffers.
_STEPS, _UNTIMED = 10, 3


class TokenForecast:
    """A watcher that says how many tokens a budget in seconds will see; it says it again where a run goes on.

    Args:
        seconds: the budget.
        meaning: given the tokens that are expected and tokens a second, what is known of so many, as lines.
    """

    name = "token_forecast"

    def __init__(self, *, seconds: float, meaning: Callable[[float, float], Sequence[str]] = lambda *_: ()) -> None:
        self.seconds = seconds
        self.meaning = meaning
        self.seen: list[tuple[float, int]] = []

    def observe(self, outcome: Outcome, state: TrainState, *, used: float) -> Sequence[str]:
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
