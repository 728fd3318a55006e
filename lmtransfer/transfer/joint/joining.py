"""Add joint training on text to a run's learner and steps, if the run has text."""

from __future__ import annotations

from lmtransfer.training.learner import BatchStream
from lmtransfer.transfer.experiment.setting import Part
from lmtransfer.transfer.joint.learner import JointLearner
from lmtransfer.transfer.joint.stream import JointStream
from lmtransfer.transfer.learner import TaskLearner


def with_text(part: Part, learner: TaskLearner, stream: BatchStream) -> tuple[TaskLearner | JointLearner, BatchStream]:
    """The learner and the stream to train: unchanged without text, joint with text.

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
    for objective in objectives.listed():
        objective.observe(text.text.prepared.train)
    joint = JointLearner(learner, objectives, text.share)
    text_stream = text.stream(parts, part.setting.training, seed=part.seed)
    return joint, JointStream(stream, text_stream, reads_text=lambda: joint.reads_text)
