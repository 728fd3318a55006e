"""Predictions for the examples of a task, and entities in running text, from one run or from several seeds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from typing_extensions import override

from lmtransfer.data.documents import Notes
from lmtransfer.errors import ConfigError, RunDirectoryError
from lmtransfer.inference.fill_mask import MASK
from lmtransfer.interop.open_run import open_saved, task_run_folders
from lmtransfer.models.base import Encoder
from lmtransfer.runs.saved_run import SavedRun
from lmtransfer.tasks.base import Answer, Example, Task
from lmtransfer.tasks.heads import TaggingSpec
from lmtransfer.tasks.source import TaskSource
from lmtransfer.tasks.tagging.example import TaggedExample, entities, word_spans
from lmtransfer.tasks.text.example import TextExample
from lmtransfer.tasks.text.files import TextReader
from lmtransfer.training.hardware import Hardware
from lmtransfer.training.weights import check_not_nan
from lmtransfer.transfer.experiment.data import encode_examples
from lmtransfer.transfer.experiment.part_run import open_task_learner
from lmtransfer.transfer.scoring import run_head


def open_runs(path: str, *, ensemble: bool, trust: bool) -> list[SavedRun]:
    """Open the first seed of the run at ``path``, or all seeds with ``ensemble``."""
    folders = task_run_folders(path)
    if ensemble and len(folders) == 1:
        raise RunDirectoryError(
            f"ensemble=true: the run {path} has a single model; train with several seeds, such as seeds=5, and without "
            "final=true"
        )
    return [open_saved(folder, key="run", trust=trust) for folder in (folders if ensemble else folders[:1])]


class TaskPredictor:
    """A run's predictions for examples of a task.

    Args:
        runs: one run, or several seeds, whose probabilities (scores for regression) are averaged.
    """

    def __init__(self, runs: Sequence[SavedRun], task: Task, hardware: Hardware, notes: Notes) -> None:
        if len(runs) > 1 and not task.head.has_mean:
            raise ConfigError(
                f"ensemble=true: predictions of a {task.head.kind} task cannot be averaged; leave ensemble out"
            )
        self._task, self._hardware, self._notes = task, hardware, notes
        self._tokenizer = runs[0].tokenizer
        self._learners = [open_task_learner(run, task, hardware) for run in runs]

    @property
    def encoder(self) -> Encoder:
        """The encoder of the first run."""
        return self._learners[0].encoder

    def predict(self, examples: Sequence[Example]) -> list[Answer]:
        """Predict the answer to each example, in order."""
        if not examples:
            return []
        encoded = encode_examples(self._task, examples, self._tokenizer, self.encoder)
        if encoded.num_truncated:
            self._notes.add("inputs truncated to the encoder's max_length", examples[0].id, encoded.num_truncated)
        source, device, autocast = TaskSource(encoded), self._hardware.device, self._hardware.precision.autocast
        outputs = [run_head(learner, source, device=device, autocast=autocast).values for learner in self._learners]
        for values in outputs:
            check_not_nan(values, what="the model's predictions")
        output = outputs[0] if len(outputs) == 1 else self._task.head.mean(outputs)
        return list(self._task.answers(encoded, output))

    def lines(self, examples: Sequence[Example]) -> list[dict[str, Any]]:
        """Return the prediction for each example as a JSON object with the example's id."""
        lines: list[dict[str, Any]] = []
        for example, answer in zip(examples, self.predict(examples), strict=True):
            lines.append({"id": example.id, **self._task.echo(example), **answer.as_dict()})
        return lines


class EntityPredictor:
    """The entities that a tagger finds in running texts."""

    def __init__(self, runs: Sequence[SavedRun], task: Task, hardware: Hardware, notes: Notes) -> None:
        if task.head.kind != TaggingSpec.kind:
            raise ConfigError(
                f"entities=true: the task must tag words, but {task.name} is a {task.head.kind} task; leave "
                "entities out"
            )
        self._task, self._tokenizer = task, runs[0].tokenizer
        self._predictor = TaskPredictor(runs, task, hardware, notes)

    def lines(self, examples: Sequence[TextExample]) -> list[dict[str, Any]]:
        """Return one JSON object per text: ``id``, ``text`` and ``entities``."""
        spans = [word_spans(example.text, self._tokenizer) for example in examples]
        tagged = [
            TaggedExample(example.id, tuple(example.text[start:end] for start, end in words))
            for example, words in zip(examples, spans, strict=True)
        ]
        answers: Iterator[Any] = iter(self._predictor.predict([sentence for sentence in tagged if sentence.words]))
        return [
            {
                "id": example.id,
                "text": example.text,
                "entities": entities(example.text, words, next(answers), self._task.labels) if words else [],
            }
            for example, words in zip(examples, spans, strict=True)
        ]


class MaskedTexts(TextReader):
    """Reads texts with [MASK], the input to a pretraining run."""

    def __init__(self) -> None:
        super().__init__("fill_mask", owner="a pretrained run")

    @override
    def check(self, text: str) -> None:
        """Raise an error if a text has no [MASK]."""
        if MASK not in text:
            raise ValueError(f"there is no {MASK}; write one where a token is to be predicted")
