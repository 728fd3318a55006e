"""The examples of a training run as its learner reads them, with the features that runs of a frozen encoder share."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from torch import Tensor

from lmtransfer.tasks.encoded import EncodedExamples
from lmtransfer.tasks.source import TaskSource
from lmtransfer.transfer.experiment.data import Parts
from lmtransfer.transfer.experiment.setting import Part
from lmtransfer.transfer.features import FeatureTable, compute_features, sampled_features
from lmtransfer.transfer.learner import TaskLearner


class Examples:
    """Sources of the command's examples, with features if the encoder is frozen, and the head's inputs for them.

    A pretrained frozen encoder gives the same features for every seed, so they are computed once for all seeds. The
    features of a control are computed for its own examples, and deleted when the next seed starts.

    Args:
        part: the run.
        learner: learner of the run; its encoder gives the features.
    """

    def __init__(self, part: Part, learner: TaskLearner) -> None:
        setting = self.setting = part.setting
        self.learner = learner
        self.frozen = learner.freezing.frozen
        shared = part.weights is not None
        every = np.arange(len(setting.data.train.examples))
        self.rows = every if shared else setting.data.used(part.draw)
        key = "pretrained" if shared else f"{part.condition} {part.seed}"
        if self.frozen and key not in setting.features:
            for stale in [other for other in setting.features if other != "pretrained"]:
                del setting.features[stale]
            setting.features[key] = {}
        self.tables = setting.features.get(key, {})

    def training(self, rows: np.ndarray) -> TaskSource:
        """Examples of the training split, by their index in ``TaskData.train``."""
        encoded = self.setting.data.train.select(rows)
        if not self.frozen or len(rows) == 0:
            return TaskSource(encoded, few_sizes=self.setting.training.hardware.compile)
        kept = self.setting.data.train.select(self.rows)
        sequences = kept.sequences_of(np.searchsorted(self.rows, rows))
        return TaskSource(encoded, self._table("train", kept).select(sequences))

    def scored(self, part: Parts) -> TaskSource:
        """The examples that the run is scored on: a fold of the training split, or the evaluation split."""
        if part.scored is not None:
            return self.training(part.scored)
        return self.split("evaluation", self.setting.data.evaluation)

    def split(self, name: str, encoded: EncodedExamples) -> TaskSource:
        """All examples of another split."""
        return TaskSource(encoded, self._table(name, encoded) if self.frozen else None)

    def seen(self, source: TaskSource) -> Iterator[Tensor]:
        """The head's inputs for training examples before the first step."""
        if isinstance(source.features, FeatureTable):
            return source.features.parts()
        hardware = self.setting.training.hardware
        return sampled_features(self.learner, source, device=hardware.device, autocast=hardware.precision.autocast)

    def _table(self, name: str, encoded: EncodedExamples) -> FeatureTable:
        if name not in self.tables:
            hardware = self.setting.training.hardware
            self.tables[name] = compute_features(
                self.learner,
                TaskSource(encoded),
                folder=self.setting.cache_dir / "features",
                device=hardware.device,
                autocast=hardware.precision.autocast,
            )
        return self.tables[name]
