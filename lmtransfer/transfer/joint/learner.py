"""A task and pretraining objectives over one encoder, as the training loop sees them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import nn

from lmtransfer.objectives.batch import PretrainingBatch
from lmtransfer.objectives.learner import PretrainingLearner
from lmtransfer.tasks.source import TaskBatch
from lmtransfer.training.learner import Learner, Loss
from lmtransfer.transfer.joint.share import TextShare
from lmtransfer.transfer.learner import TaskLearner


class JointLearner(Learner):
    """The task's loss on batches of labelled examples, and that of the objectives on batches of text.

    Args:
        task: the task; its encoder is the one of ``text``.
        text: the objectives.
        share: how much they count, and how long.

    Attributes:
        reads_text: whether text counts in the step to come; ``on_progress`` says so.
    """

    def __init__(self, task: TaskLearner, text: PretrainingLearner, share: TextShare) -> None:
        super().__init__()
        if task.encoder is not text.encoder:
            raise ValueError("the task and the objectives have encoders of their own")
        self.task, self.text, self.share = task, text, share
        self.reads_text = True

    def arrange(self, sample: TaskBatch) -> None:
        """See ``TaskLearner.arrange``; what only text needs of the encoder learns all the same.

        Args:
            sample: any batch of the task, on the learner's device.
        """
        encoder, pooler = self.task.encoder, self.task.encoder.pooler
        self.task.arrange(sample)
        unread = set()
        if pooler is not None and not any(objective.uses_pooler for objective in self.text.listed()):
            unread = {id(parameter) for parameter in pooler.parameters()}
        for name, parameter in encoder.named_parameters():
            if name not in self.task.depths and id(parameter) not in unread:
                parameter.requires_grad_(True)

    def on_progress(self, fraction: float) -> None:
        """See ``training.learner.Learner``: text counts until its share of the budget is used up.

        Args:
            fraction: share of the budget that is used up, in [0, 1].
        """
        self.task.on_progress(fraction)
        self.reads_text = fraction < self.share.until - 1e-9

    def counts(self, batch: TaskBatch | PretrainingBatch) -> dict[str, int]:
        """See ``training.learner.Learner``."""
        return self.text.counts(batch) if isinstance(batch, PretrainingBatch) else self.task.counts(batch)

    def losses(self, batch: TaskBatch | PretrainingBatch, recurrent_state: Any = None) -> tuple[dict[str, Loss], None]:
        """The task's loss, or those of the objectives times the weight of text; rows of text stand alone."""
        if not isinstance(batch, PretrainingBatch):
            return self.task.losses(batch)
        losses, _ = self.text.losses(batch)
        return {name: replace(loss, weight=loss.weight * self.share.weight) for name, loss in losses.items()}, None

    def parts(self) -> Mapping[str, nn.Module]:
        """See ``training.learner.Learner``: the model is the task's; the objectives' heads serve training alone."""
        return {"model": self.task, "objectives": self.text.objectives}
