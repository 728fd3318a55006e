"""The stream's steps one after the other, and again with smaller micro-batches where memory did not suffice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Self

import torch

from lmtransfer.errors import LmtransferError, TrainingError
from lmtransfer.training.accumulate import OutOfDeviceMemory
from lmtransfer.training.learner import BatchStream, Step


class StepSource:
    """Reads a stream. No batch is ever left out: a step is a pure function of its number, so it can be cut anew.

    Args:
        stream: the steps.
        start: number of the first.
        set_micro_batch_tokens: tells the stream how many tokens a forward pass may hold from the next call of its
            ``steps`` on; None if it cannot be told.
    """

    def __init__(
        self, stream: BatchStream, *, start: int, set_micro_batch_tokens: Callable[[int], None] | None = None
    ) -> None:
        self.stream = stream
        self.set_micro_batch_tokens = set_micro_batch_tokens
        self.steps: Iterator[Step] = iter(stream.steps(start))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Let the stream's workers go."""
        self._close()

    def next(self) -> Step:
        """The next step."""
        return next(self.steps)

    def again(self, step: Step, error: OutOfDeviceMemory) -> tuple[Step, str]:
        """The same step in micro-batches of half the tokens, and what the user should be told.

        Raises:
            TrainingError: the stream cannot be told, or a row is longer than that.
        """
        tokens = error.largest // 2
        advice = "lower train.micro_batch_tokens or objective.max_length, or take a smaller model"
        if self.set_micro_batch_tokens is None or not tokens:
            raise TrainingError(f"step {step.number + 1}: out of memory at {error.largest} tokens; {advice}") from error
        self._close()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        self.set_micro_batch_tokens(tokens)
        self.steps = iter(self.stream.steps(step.number))
        try:
            smaller = next(self.steps)
        except LmtransferError as refused:
            raise TrainingError(
                f"step {step.number + 1}: out of memory at {error.largest} tokens, and half of them is too few "
                f"({refused}); {advice}"
            ) from refused
        note = (
            f"step {step.number + 1}: out of memory at {error.largest:,} tokens a forward pass; it is done again, and "
            f"training goes on, with {tokens:,} and more passes a step, which changes no gradient. "
            f"Set train.micro_batch_tokens={tokens} to begin so"
        )
        return smaller, note

    def _close(self) -> None:
        close = getattr(self.steps, "close", None)
        if close is not None:
            close()
