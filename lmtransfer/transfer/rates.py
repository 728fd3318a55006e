"""The learning rates of a learner's parts, as multipliers for the optimizer's rate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from lmtransfer.errors import ConfigError
from lmtransfer.transfer.learner import TaskLearner, rate_scales

FreezeName = Literal["frozen", "full", "gradual", "joint", "lora", "bitfit"]

#: The settings of whole layers and of unfreezing, each with the value that has no effect.
_LAYER_SETTINGS = {"layer_decay": 1.0, "layer_decay_gap": False, "embedding_rate": 1.0, "unfreeze_share": 0.5}
#: The parts that are trained by methods that do not train whole layers.
_TRAINED_PARTS = {
    "frozen": "no layer is trained",
    "lora": "only low-rank updates are trained, in all layers at the same rate",
    "bitfit": "only biases are trained, in all layers at the same rate",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """The factors; see the arguments of ``TransferMethod`` with the same names.

    Raises:
        ConfigError: a factor is out of range.
    """

    layer_decay: float
    layer_decay_gap: bool
    embedding_rate: float
    head_rate: float
    encoder_rate: float

    def __post_init__(self) -> None:
        if not 0 < self.layer_decay <= 1:
            raise ConfigError(
                f"transfer.layer_decay={self.layer_decay}: the ratio of a layer's rate to that of the layer above it "
                "must be in (0, 1], such as 0.8; 1 gives every layer the same rate"
            )
        if not 0 <= self.embedding_rate <= 10:
            raise ConfigError(
                f"transfer.embedding_rate={self.embedding_rate}: the factor on the embeddings' learning rate must be "
                "in [0, 10], such as 0.1; 0 freezes them, and 1 gives them the rate that layer_decay sets"
            )
        for name, factor in (("head_rate", self.head_rate), ("encoder_rate", self.encoder_rate)):
            if not factor > 0:
                raise ConfigError(
                    f"transfer.{name}={factor}: the factor on the learning rate must be above 0, such as 10; 1 gives "
                    "the optimizer's learning rate"
                )

    def check(self, freeze: FreezeName, *, unfreeze_share: float) -> None:
        """Reject settings that have no effect on what a method trains.

        Args:
            unfreeze_share: the share of the budget after which everything is trained.

        Raises:
            ConfigError: some settings have no effect; the message lists them all.
        """
        if freeze not in _TRAINED_PARTS:
            return
        settings = {name: getattr(self, name, unfreeze_share) for name in _LAYER_SETTINGS}
        problems = [
            f"transfer.{name}={value} with transfer.freeze={freeze}: {_TRAINED_PARTS[freeze]}; choose transfer=full or "
            f"transfer=gradual, or set it to {_LAYER_SETTINGS[name]}"
            for name, value in settings.items()
            if value != _LAYER_SETTINGS[name]
        ]
        problems += [
            f"transfer.{name}={factor} with transfer.freeze=frozen: only the head is trained; set "
            "optimizer.learning_rate, and keep this factor at 1"
            for name, factor in (("head_rate", self.head_rate), ("encoder_rate", self.encoder_rate))
            if freeze == "frozen" and factor != 1
        ]
        if problems:
            raise ConfigError(problems)

    def scales(self, learner: TaskLearner) -> dict[str, float]:
        """Return factors on the learning rate by parameter name; parameters without an entry have factor 1.

        Args:
            learner: a learner, after ``arrange``.
        """
        layers = rate_scales(learner.depths, decay=self.layer_decay, gap=self.layer_decay_gap)
        lowest = max(learner.depths.values(), default=0)
        scales = {
            f"encoder.{name}": scale * (self.embedding_rate if learner.depths[name] == lowest else 1.0)
            for name, scale in layers.items()
        }
        scales = {name: scale * self.encoder_rate for name, scale in scales.items()}
        new = (name for name, _ in learner.named_parameters() if not name.startswith("encoder."))
        return scales | dict.fromkeys(new, self.head_rate)
