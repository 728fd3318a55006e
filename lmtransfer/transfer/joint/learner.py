"""A learner of a task and pretraining objectives with one encoder."""

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
    """The task's loss on batches of labelled examples, and the objectives' losses on batches of text.

    Args:
        task: the task; it has the same encoder as ``text``.
        text: the objectives.
        share: weight of the objectives' losses, and until when text is read.

    Attributes:
        reads_text: whether the next step reads text; set by ``on_progress``.
    """

    def __init__(self, task: TaskLearner, text: PretrainingLearner, share: TextShare) -> None:
        super().__init__()
        if task.encoder is not text.encoder:
            raise ValueError("the task and the objectives have different encoders")
        self.task, self.text, self.share = task, text, share
        self.reads_text = True

    def arrange(self, sample: TaskBatch) -> None:
        """See ``TaskLearner.arrange``; encoder parameters that only the text objectives use are trained too.

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
        """See ``training.learner.Learner``: text is read until its share of the budget is used up.

        Args:
            fraction: share of the budget that is used up, in [0, 1].
        """
        self.task.on_progress(fraction)
        self.reads_text = fraction < self.share.until - 1e-9

    def counts(self, batch: TaskBatch | PretrainingBatch) -> Mapping[str, float]:
        """See ``training.learner.Learner``."""
        return self.text.counts(batch) if isinstance(batch, PretrainingBatch) else self.task.counts(batch)

    def losses(self, batch: TaskBatch | PretrainingBatch, recurrent_state: Any = None) -> tuple[dict[str, Loss], None]:
        """The task's loss, or the objectives' losses times the weight of text; rows of text are independent."""
        if not isinstance(batch, PretrainingBatch):
            return self.task.losses(batch)
        losses, _ = self.text.losses(batch)
        return {name: replace(loss, weight=loss.weight * self.share.weight) for name, loss in losses.items()}, None

    def parts(self) -> Mapping[str, nn.Module]:
        """See ``training.learner.Learner``: the model is the task's learner; only training needs the objectives."""
        return {"model": self.task, "objectives": self.text.objectives}
