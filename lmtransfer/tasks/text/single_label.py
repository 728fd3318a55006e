"""The base class of classification tasks: one label per text or text pair."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Literal

import numpy as np
from typing_extensions import override

from lmtransfer.config.types import DropoutProb
from lmtransfer.errors import ConfigError
from lmtransfer.tasks.answers import LabelAnswer
from lmtransfer.tasks.base import Answer
from lmtransfer.tasks.encoded import EncodedExamples
from lmtransfer.tasks.heads import ClassificationSpec, HeadSpec, weights_in_order
from lmtransfer.tasks.label_checks import list_labels, to_nfc
from lmtransfer.tasks.metrics.calibration import calibration
from lmtransfer.tasks.metrics.scored_examples import Ratio, ScoredExamples, scored_examples
from lmtransfer.tasks.subsets import fold_of
from lmtransfer.tasks.targets import NO_LABEL, LabelTargets
from lmtransfer.tasks.text.example import TextExample
from lmtransfer.tasks.text.task import CHUNK, TextTask

#: Number of parts into which the scored examples are divided for temperature scaling.
CALIBRATION_PARTS = 5

LabelMetric = Literal["accuracy", "f1", "macro_f1", "matthews"]


class Classification(TextTask):
    """The base of all classification tasks: label names, metrics, encoding, and the choice of training examples.

    A task with its own source derives from this class and implements ``splits`` and ``examples``. A task that reads
    files or the hub is a ``TextClassification`` and needs no code.
    """

    kind = ClassificationSpec.kind

    class Settings(TextTask.Settings):
        """The settings of a classification task.

        Attributes:
            labels: names of the labels in order; null: ``discover_labels`` discovers them when they are first needed.
            metrics: names of the metrics; the first is the main one.
            positive_label: the label whose F1 counts; null: the second of two labels.
            class_weights: weight of each label in the training loss, by name (1 for labels that are not named);
                balanced: each label has the same total weight; null: all weights are 1.
            label_smoothing: share of each training target that is spread evenly over all labels, 0 to 1 (Szegedy et
                al. 2016, section 7).
        """

        labels: Sequence[str] | None
        metrics: Sequence[LabelMetric] = ("accuracy",)
        positive_label: str | None = None
        class_weights: Literal["balanced"] | Mapping[str, float] | None = None
        label_smoothing: DropoutProb = 0.0

    settings: Settings

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        labels = self.settings.labels
        if labels is not None:
            self.labels = self._check([to_nfc(label, "task.labels") for label in labels])

    @cached_property
    @override
    def labels(self) -> tuple[str, ...]:  # type: ignore[override]
        return self._check(self.discover_labels())

    def discover_labels(self) -> list[str]:
        """Discover the label names in the data, for tasks that do not list them."""
        raise ConfigError(
            f"task.labels=null: {type(self).__name__} cannot discover the labels; list their names in order"
        )

    def _check(self, labels: Sequence[str]) -> tuple[str, ...]:
        positive, names = self.settings.positive_label, list_labels(labels)
        if len(labels) < 2 or len(set(labels)) != len(labels):
            raise ConfigError(f"task.labels=[{list_labels(labels)}]: there must be at least two different names")
        if positive is not None and positive not in labels:
            raise ConfigError(f"task.positive_label={positive}: must be one of {names}")
        if "f1" in self.metric_names and positive is None and len(labels) > 2:
            raise ConfigError(
                f"task.metrics: f1 is computed for one label, but there are {names}; set task.positive_label to one of "
                "them, or use macro_f1"
            )
        weights_in_order(self.settings.class_weights, labels)  # raises an error if they do not fit the labels
        return tuple(labels)

    @property
    def head(self) -> HeadSpec:
        """A head that predicts one of the labels."""
        weights = weights_in_order(self.settings.class_weights, self.labels)
        return ClassificationSpec(len(self.labels), self.pairs, weights, self.settings.label_smoothing)

    @override
    def gold(self, examples: Sequence[TextExample]) -> LabelTargets[np.ndarray]:
        labels = [NO_LABEL if example.label is None else example.label for example in examples]
        return LabelTargets(np.array(labels, dtype=np.int64))

    def number_of(self, answer: LabelAnswer) -> float:
        """Return the label's index."""
        return answer.label

    @override
    def answers(self, encoded: EncodedExamples, outputs: np.ndarray) -> Iterator[LabelAnswer]:
        """Yield the most probable label of each example."""
        for start in range(0, len(encoded.examples), CHUNK):
            logits = outputs[start : start + CHUNK].astype(np.float64)
            powers = np.exp(logits - logits.max(1, keepdims=True))
            probabilities = powers / powers.sum(1, keepdims=True)
            for label, row in zip(logits.argmax(1).tolist(), probabilities.tolist(), strict=True):
                yield LabelAnswer(label, self.labels[label], dict(zip(self.labels, row, strict=True)))

    @override
    def scored_examples(self, examples: Sequence[TextExample], answers: Sequence[LabelAnswer]) -> ScoredExamples:
        predicted = np.array([answer.label for answer in answers], dtype=np.int64)
        gold = self.gold(examples).labels
        return scored_examples(
            examples,
            kind="classification",
            labels=self.labels,
            predicted=predicted,
            gold=gold,
            ratios={"accuracy": Ratio.mean(predicted == gold)},
            classes=gold,
            class_names=self.labels,
            positive=self.positive,
            confidences=[
                None if answer.probabilities is None else answer.probabilities[answer.name] for answer in answers
            ],
        )

    @override
    def calibration(self, encoded: EncodedExamples, outputs: np.ndarray) -> dict[str, Any] | None:
        """Return the calibration error before and after temperature scaling.

        The examples are divided into parts without common texts; each part's temperature is fitted on the others.
        """
        gold, groups = LabelTargets.of(encoded.targets).labels, [example.group for example in encoded.examples]
        if not np.isfinite(outputs).all():
            return None
        few = groups.count("") + len({*groups} - {""}) < CALIBRATION_PARTS
        parts = None
        if not few:
            parts = fold_of(np.full(len(groups), -1), groups, folds=CALIBRATION_PARTS, seed=0, names=())
        return calibration(outputs, gold, parts).as_values()

    def baseline(self, train: Sequence[TextExample], examples: Sequence[TextExample]) -> list[Answer]:
        """Answer every example with the training examples' most frequent label (on a tie, the first label)."""
        gold = [example.label for example in train if example.label is not None]
        label = int(np.bincount(gold, minlength=len(self.labels)).argmax())
        return [LabelAnswer(label, self.labels[label])] * len(examples)

    @property
    def positive(self) -> int:
        """Index of the label whose F1 counts: the second label, unless another is named."""
        return 1 if self.settings.positive_label is None else self.labels.index(self.settings.positive_label)
