"""Steps with labelled examples and text."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from lmtransfer.training.learner import BatchStream, Step


class JointStream:
    """Steps of the task stream; to each step the micro-batches of the text stream's step of the same number are added.

    Step k depends only on k and on whether it has text. Losses, metrics and dropout of the task's micro-batches are the
    same as without text.

    Args:
        task: the labelled examples; epochs are counted on them.
        text: the text.
        reads_text: whether the next step has text; called before each step. After a step without text, no later step
            has text.
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
                text = None  # ends its workers
                yield step
                continue
            text = text or self.text.steps(step.number)
            more = next(text)
            yield replace(
                step,
                micro_batches=(*step.micro_batches, *more.micro_batches),
                other_keys=[("text", *more.key(place)) for place in range(len(more.micro_batches))],
            )

    def set_micro_batch_tokens(self, tokens: int) -> None:
        """See ``BatchStream``."""
        self.task.set_micro_batch_tokens(tokens)
        self.text.set_micro_batch_tokens(tokens)
