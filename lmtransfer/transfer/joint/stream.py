"""Steps of labelled examples with text beside them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from lmtransfer.training.learner import BatchStream, Step


class JointStream:
    """The steps of one stream, each with the micro-batches of another's step of the same number after its own.

    So step k is a function of its number, and of whether there is text in it. Losses, metrics and dropout of the first
    stream's micro-batches are as they are without the second's.

    Args:
        task: the labelled examples; epochs are theirs.
        text: the text.
        reads_text: whether the step to come has text; asked before each step. Once it has none, no later one has any.
    """

    def __init__(self, task: BatchStream, text: BatchStream, *, reads_text: Callable[[], bool]) -> None:
        self.task, self.text, self.reads_text = task, text, reads_text

    @property
    def steps_per_epoch(self) -> int:
        """See ``BatchStream``."""
        return self.task.steps_per_epoch

    def steps(self, start: int = 0) -> Iterator[Step]:
        """See ``BatchStream``."""
        text: Iterator[Step] | None = None
        for step in self.task.steps(start):
            if not self.reads_text():
                text = None  # lets its workers go
                yield step
                continue
            text = text or self.text.steps(step.number)
            yield replace(step, micro_batches=(*step.micro_batches, *next(text).micro_batches))

    def set_micro_batch_tokens(self, tokens: int) -> None:
        """See ``BatchStream``."""
        self.task.set_micro_batch_tokens(tokens)
        self.text.set_micro_batch_tokens(tokens)
