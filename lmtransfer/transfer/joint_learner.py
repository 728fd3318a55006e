"""A learner that combines a task and pretraining objectives on one encoder."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import nn
from typing_extensions import override

from lmtransfer.objectives.batch import PretrainingBatch
from lmtransfer.objectives.learner import PretrainingLearner
from lmtransfer.tasks.source import TaskBatch
from lmtransfer.training.callbacks import Callback
from lmtransfer.training.learner import BatchStream, Learner, Loss, Step
from lmtransfer.training.update import StepResult
from lmtransfer.transfer.experiment.settings import Part
from lmtransfer.transfer.learner import TaskLearner
from lmtransfer.transfer.method import TextShare


class JointStream(BatchStream):
    """Steps of the task stream, extended by the micro-batches of the text stream's step with the same number.

    Step k depends only on k and on whether it has text. Losses, metrics and dropout of the task's micro-batches are the
    same as without text.

    Args:
        task: the labelled examples, which define epochs.
        text: the stream of text.
        reads_text: returns whether the next step has text; called before each step. After a step without text, no later
            step has text.
    """

    def __init__(self, task: BatchStream, text: BatchStream, *, reads_text: Callable[[], bool]) -> None:
        self.task, self.text, self.reads_text = task, text, reads_text

    @property
    @override
    def steps_per_epoch(self) -> int:
        return self.task.steps_per_epoch

    @override
    def steps(self, start: int = 0) -> Iterator[Step]:
        text: Iterator[Step] | None = None
        for step in self.task.steps(start):
            if not self.reads_text():
                text = None  # ends the text's workers
                yield step
                continue
            text = text or self.text.steps(step.number)
            text_step = next(text)
            yield replace(
                step,
                micro_batches=(*step.micro_batches, *text_step.micro_batches),
                other_keys=[("text", *text_step.key(place)) for place in range(len(text_step.micro_batches))],
                fillers=[*step.fillers, *(len(step.micro_batches) + place for place in text_step.fillers)],
            )

    @override
    def set_micro_batch_tokens(self, tokens: int) -> None:
        self.task.set_micro_batch_tokens(tokens)
        self.text.set_micro_batch_tokens(tokens)


class LastLosses(Callback):
    """Stores the latest value of every loss by name, because the text's losses end before training does."""

    name = "last_losses"

    def __init__(self) -> None:
        self.losses: dict[str, float] = {}

    @override
    def on_step_end(self, outcome: StepResult, record: dict[str, Any], *, fraction: float) -> Sequence[str]:
        self.losses.update(outcome.losses)
        return ()

    @override
    def state_dict(self) -> dict[str, Any]:
        return dict(self.losses)

    @override
    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.losses = {str(name): float(value) for name, value in state.items()}


class JointLearner(Learner):
    """The task's loss on batches of labelled examples, and the objectives' losses on batches of text.

    Args:
        task: the task's learner, with the same encoder as ``text``.
        text: the objectives.
        share: weight of the objectives' losses, and the share of the budget with text.

    Attributes:
        reads_text: whether the next step reads text; set by ``on_progress``.
    """

    def __init__(self, task: TaskLearner, text: PretrainingLearner, share: TextShare) -> None:
        super().__init__()
        if task.encoder is not text.encoder:
            raise ValueError("the task and the objectives must have the same encoder")
        self.task, self.text, self.share = task, text, share
        self.reads_text = True

    def arrange(self, sample: TaskBatch) -> None:
        """Arrange the task's learner; encoder parameters that only the text objectives use are trained too.

        Args:
            sample: any batch of the task, on the learner's device.
        """
        encoder, pooler = self.task.encoder, self.task.encoder.pooler
        self.task.arrange(sample)
        unread = set()
        if pooler is not None and not any(objective.uses_pooler for objective in self.text.objective_list()):
            unread = {id(parameter) for parameter in pooler.parameters()}
        for name, parameter in encoder.named_parameters():
            if name not in self.task.depths and id(parameter) not in unread:
                parameter.requires_grad_(True)

    @override
    def on_progress(self, fraction: float) -> None:
        """Read text until its share of the budget is used up."""
        self.task.on_progress(fraction)
        self.reads_text = fraction < self.share.until - 1e-9

    @override
    def counts(self, batch: TaskBatch | PretrainingBatch) -> Mapping[str, float]:
        return self.text.counts(batch) if isinstance(batch, PretrainingBatch) else self.task.counts(batch)

    def losses(self, batch: TaskBatch | PretrainingBatch, recurrent_state: Any = None) -> tuple[dict[str, Loss], None]:
        """Return the task's loss, or the objectives' losses times the text weight; rows of text are independent."""
        if not isinstance(batch, PretrainingBatch):
            return self.task.losses(batch)
        losses, _ = self.text.losses(batch)
        return {name: replace(loss, weight=loss.weight * self.share.weight) for name, loss in losses.items()}, None

    @override
    def parts(self) -> Mapping[str, nn.Module]:
        """Return the task's learner as the model, because only training needs the objectives."""
        return {"model": self.task, "objectives": self.text.objectives}


def with_text(part: Part, learner: TaskLearner, stream: BatchStream) -> tuple[TaskLearner | JointLearner, BatchStream]:
    """Return the learner and stream to train: unchanged without text, joint with text.

    Args:
        part: the run; a control reads the same text, and its objectives' heads have random weights too.
        learner: learner of the task, on its device, with its initial weights.
        stream: the labelled examples.
    """
    text = part.setting.text
    if text is None:
        return learner, stream
    parts = text.parts(learner.encoder)
    objectives, _ = text.learner(parts, seed=part.seed, keep_heads=not part.is_control)
    for objective in objectives.objective_list():
        objective.observe(text.text.prepared.train)
    joint = JointLearner(learner, objectives, text.share)
    train, hardware = part.setting.train, part.setting.hardware
    text_stream = text.stream(parts, hardware=hardware, micro_batch_tokens=train.micro_batch_tokens, seed=part.seed)
    return joint, JointStream(stream, text_stream, reads_text=lambda: joint.reads_text)
