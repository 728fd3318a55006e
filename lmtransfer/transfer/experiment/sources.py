"""The command's examples as sources of batches, with features that runs of a frozen encoder share."""

from __future__ import annotations

import numpy as np

from lmtransfer.tasks.encoded import EncodedExamples
from lmtransfer.tasks.source import TaskSource
from lmtransfer.transfer.experiment.setting import Member
from lmtransfer.transfer.features import FeatureTable, compute_features
from lmtransfer.transfer.learner import TaskLearner


class Examples:
    """Sources of the command's examples, with features where the encoder is frozen.

    A pretrained frozen encoder gives the same for every seed, so its features are made once for all of them; those of
    a control are made for its own examples, and dropped with the next seed's.

    Args:
        member: the run.
        learner: of the run, whose encoder gives the features.
    """

    def __init__(self, member: Member, learner: TaskLearner) -> None:
        setting = self.setting = member.setting
        self.learner = learner
        self.frozen = learner.freezing.frozen
        shared = member.weights is not None
        every = np.arange(len(setting.data.train.examples))
        self.rows = every if shared else setting.data.whole[member.seed].train
        key = "pretrained" if shared else f"{member.arm} {member.seed}"
        if self.frozen and key not in setting.features:
            for stale in [other for other in setting.features if other != "pretrained"]:
                del setting.features[stale]
            setting.features[key] = {}
        self.tables = setting.features.get(key, {})

    def training(self, rows: np.ndarray) -> TaskSource:
        """Examples of the training split, by their place in ``TaskData.train``."""
        encoded = self.setting.data.train.select(rows)
        if not self.frozen or len(rows) == 0:
            return TaskSource(encoded, few_sizes=self.setting.training.hardware.compile)
        kept = self.setting.data.train.select(self.rows)
        sequences = kept.sequences_of(np.searchsorted(self.rows, rows))
        return TaskSource(encoded, self._table("train", kept).select(sequences))

    def split(self, name: str, encoded: EncodedExamples) -> TaskSource:
        """All examples of another split."""
        return TaskSource(encoded, self._table(name, encoded) if self.frozen else None)

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
