"""The length of training (optimizer steps, tokens, epochs or wall-clock seconds), and the share used so far."""

from __future__ import annotations

import math

from lmtransfer.errors import ConfigError


class Budget:
    """One or several limits; training ends at the first limit reached.

    Steps are rounded up: ``epochs=2.5`` with 3 steps per epoch plans 8 full steps.

    Args:
        steps: optimizer steps, including steps without an update (a non-finite loss, an fp16 overflow).
        tokens: real tokens trained on, over all ranks.
        seconds: wall-clock time since training began, including evaluation and saving, excluding interruptions.

    Attributes:
        lengthening: planned steps divided by the steps in ``epochs``: above 1 if ``min_steps`` is larger, else 1.
    """

    def __init__(
        self,
        *,
        steps: int | None = None,
        tokens: int | None = None,
        epochs: float | None = None,
        min_steps: int | None = None,
        seconds: float | None = None,
        steps_per_epoch: int | None = None,
    ) -> None:
        if all(limit is None for limit in (steps, tokens, epochs, seconds)):
            raise ConfigError(
                "no budget is set: set train.steps, train.tokens, train.epochs or train.seconds, for example "
                "train.steps=1000"
            )
        self.lengthening = 1.0
        if epochs is not None:
            assert steps_per_epoch, "a budget in epochs needs steps_per_epoch"
            in_epochs = math.ceil(epochs * steps_per_epoch - 1e-9)
            self.lengthening = max(1.0, (min_steps or 0) / in_epochs)
            in_epochs = max(in_epochs, min_steps or 0)
            steps = in_epochs if steps is None else min(steps, in_epochs)
        self.steps = steps
        self.tokens = tokens
        self.seconds = seconds

    @property
    def by_the_clock(self) -> bool:
        """Whether the share used depends on the clock, so that reproducing a run requires a log of the shares."""
        return self.seconds is not None

    def fraction(self, *, steps: int, tokens: int, seconds: float, prepared: float = 0.0) -> float:
        """Return the share of the budget used up, in [0, 1]; 1 means done.

        Args:
            prepared: the part of ``seconds`` before the first step, which is subtracted from the time and from the
                budget.
        """
        shares = []
        if self.steps is not None:
            shares.append(steps / self.steps)
        if self.tokens is not None:
            shares.append(tokens / self.tokens)
        if self.seconds is not None:
            left = self.seconds - prepared
            shares.append((seconds - prepared) / left if left > 0 else 1.0)
        return min(1.0, max(shares))

    def fraction_after(
        self, fraction: float, steps: int, *, tokens: int, seconds: float, prepared: float = 0.0
    ) -> float:
        """Return the share that will be used up after one more update, for warm-ups given as a fraction.

        The result is exact for budgets in steps and epochs. For tokens and seconds, the update is assumed to be like
        the mean of the updates so far, so the result depends only on ``fraction`` and ``steps``. At the first update
        there is no mean, so the tokens and seconds of this update are used.

        Args:
            tokens: real tokens trained on, including this update.
            seconds: training time once the gradients of this update are known.
        """
        if steps == 0:
            return self.fraction(steps=1, tokens=tokens, seconds=seconds, prepared=prepared)
        return min(1.0, fraction * (steps + 1) / steps)
