"""The learner of a task, built on an encoder, for the training loop.

Shape legend: T tokens of a packed batch, B sequences, D width, E width of a composed vector, C logits, L layers.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from lmtransfer.data.batch import PackedBatch
from lmtransfer.models.base import Encoder
from lmtransfer.models.layers.lora import merge_updates
from lmtransfer.tasks.source import TaskBatch
from lmtransfer.training.learner import Learner, Loss
from lmtransfer.transfer.composed_encoder import ComposedEncoder
from lmtransfer.transfer.depth import depths_below_head
from lmtransfer.transfer.freezing import Freezing
from lmtransfer.transfer.heads.base import Head
from lmtransfer.transfer.layer_selection import LayerSelection
from lmtransfer.transfer.pooling import Pooling
from lmtransfer.transfer.standardizer import Standardizer


class TaskLearner(ComposedEncoder, Learner):
    """Runs a task's modules in this order: encoder, reading, composition, head.

    A frozen encoder runs under ``no_grad``. Its features for an example never change, so a batch can contain them
    (``TaskBatch.features``), and then only the trained modules run. ``frozen_features`` computes the features,
    and ``head_logits`` computes logits from them.

    Args:
        encoder: the encoder.
        reading: builds one vector per token from the encoder's layers, such as the last layer or a scalar mix.
        composition: turns tokens into the head's input: one vector per sequence or one per token.
        head: turns its input, (B, E) or (T, E), into logits.
        freezing: decides which encoder parameters are trained.
        use_pooler: whether to apply the encoder's own pooler between composition and head (the family's published
            head).
        standardise: whether to standardize the head's input with a mean and deviation computed before training. With a
            frozen encoder, this happens only if everything below the head is fixed.

    Attributes:
        standardising: the standardizer, after ``fit`` on the training part; None if the head's input is not
            standardized. The name is part of the names of saved weights.
        depths: depth of each trained encoder parameter below the head, by its name in the encoder; set by ``arrange``.
    """

    def __init__(
        self,
        *,
        encoder: Encoder,
        reading: LayerSelection,
        composition: Pooling,
        head: Head,
        freezing: Freezing,
        use_pooler: bool = False,
        standardise: bool = False,
    ) -> None:
        super().__init__(encoder=encoder, reading=reading, composition=composition, use_pooler=use_pooler)
        self.head = head
        self.freezing = freezing
        self.depths: dict[str, int] = {}
        self._is_trained: list[bool] = []  # by depth, as last set
        encoder.requires_grad_(False)
        for parameter in freezing.parameters(encoder):
            parameter.requires_grad_(True)
        if encoder.pooler is not None:  # part of the head; an unused pooler would never get a gradient
            encoder.pooler.requires_grad_(use_pooler and not freezing.is_frozen)
        standardise = standardise and (self.composes_once or not freezing.is_frozen)
        self.standardising = Standardizer(dim=composition.output_dim) if standardise else None
        self.train()

    @property
    def composes_once(self) -> bool:
        """Whether everything below the head is fixed, so that only the head's inputs need to be stored."""
        above = [*self.reading.parameters(), *self.composition.parameters()]
        return self.freezing.is_frozen and not above

    @property
    def is_convex(self) -> bool:
        """Whether training is a convex problem: a linear head without dropout on fixed features."""
        head = self.head
        return self.composes_once and head.convex and head.hidden is None and head.dropout.probability == 0

    @property
    def keeps_tokens(self) -> bool:
        """Whether ``frozen_features`` returns one row per token rather than one per sequence."""
        every_token = self.composition.tokens == "all"
        return every_token and (self.head.per == "token" or not self.composes_once)

    def arrange(self, sample: TaskBatch) -> None:
        """Compute the depths of the encoder's parameters before an optimizer is built; do nothing if it is frozen.

        Gradients are disabled for unused parameters (layers above those read, parameters that only pretraining uses)
        and for parameters that the rule never trains.

        Args:
            sample: any batch of the task, on the learner's device.
        """
        if self.freezing.is_frozen:
            return
        indices = self.reading.indices
        depths = depths_below_head(self.encoder, sample.packed, read=indices)
        trained = {id(parameter) for parameter in self.freezing.parameters(self.encoder)}
        parameters = dict(self.encoder.named_parameters())
        self.depths = {name: depth for name, depth in depths.items() if id(parameters[name]) in trained}
        pooler = self.encoder.pooler if self.use_pooler else None
        above = {id(parameter) for parameter in pooler.parameters()} if pooler is not None else set()
        is_trained = self._trained_depths(1.0)
        for name, parameter in parameters.items():
            parameter.requires_grad_(is_trained[self.depths.get(name, 0)] or id(parameter) in above)
        self._is_trained = []

    @override
    def on_progress(self, fraction: float) -> None:
        """Enable gradients for the layers that are trained from now on."""
        is_trained = self._trained_depths(fraction)
        if is_trained == self._is_trained:  # nearly every step
            return
        self._is_trained = is_trained
        for name, parameter in self.encoder.named_parameters():
            if name in self.depths:
                parameter.requires_grad_(is_trained[self.depths[name]])

    def _trained_depths(self, fraction: float) -> list[bool]:
        """Return whether each depth is trained at this fraction of the budget; index 0 (no depth) is always False."""
        deepest = max(self.depths.values(), default=0)
        layers = range(1, deepest + 1)
        return [False, *(self.freezing.is_trained_at(depth, deepest=deepest, fraction=fraction) for depth in layers)]

    def train(self, mode: bool = True) -> TaskLearner:
        """Set the mode; a frozen encoder stays in evaluation mode."""
        super().train(mode)
        self.freezing.set_mode(self.encoder, mode)
        return self

    def counts(self, batch: TaskBatch) -> dict[str, float]:
        """Return the head's count: examples, their weights or words."""
        return {self.head.loss_name: self.head.count(batch)}

    def losses(self, batch: TaskBatch, recurrent_state: Any = None) -> tuple[dict[str, Loss], None]:
        """Return the head's loss; all examples need gold answers."""
        return {self.head.loss_name: self.head.loss(self.logits(batch), batch)}, None

    def logits(self, batch: TaskBatch) -> Tensor:
        """Return the head's logits, from the batch's features if present, otherwise from its tokens."""
        if batch.features is not None:
            return self.head_logits(batch.features, batch)
        if self.freezing.is_frozen:
            return self.head_logits(self.frozen_features(batch), batch)
        return self._answer(self.head_input(batch))

    @torch.no_grad()
    def predict(self, batch: TaskBatch) -> Tensor:
        """Return the head's outputs, float32, (R, K); requires evaluation mode."""
        return self.head.outputs(self.logits(batch), batch)

    @torch.no_grad()
    def frozen_features(self, batch: TaskBatch) -> Tensor:
        """Return a batch's features from a frozen encoder: everything that does not change during training.

        Returns:
            If neither reading nor composition has parameters, the head's input, (B, E) or (T, E). Otherwise the layers
            that the reading needs, (T or B, layers, D), with B if the composition uses one token per sequence.
        """
        if self.composes_once:
            return self.head_input(batch)
        return torch.stack([layer.float() for layer in self._layers(self._read(batch))], dim=1)

    def head_logits(self, features: Tensor, batch: TaskBatch) -> Tensor:
        """Compute logits from the result of ``frozen_features`` for the same batch."""
        if not self.composes_once:
            features = self._pool(self._compose(features.unbind(1), self._read(batch)))
        return self._answer(features)

    def head_input(self, batch: TaskBatch) -> Tensor:
        """Return the head's input, (B, E) or (T, E), before standardization."""
        return self.vectors(self._read(batch))

    def _answer(self, head_input: Tensor) -> Tensor:
        return self.head(head_input if self.standardising is None else self.standardising(head_input))

    def fold(self) -> None:
        """Convert what other formats cannot express into ordinary weights, without changing the outputs.

        The mean and deviation are folded into the head's first layer, which then reads vectors that are not
        standardized; low-rank updates are added to their matrices.
        """
        merge_updates(self.encoder)
        if self.standardising is not None:
            self.head.fold(self.standardising)
            self.standardising = None

    def _read(self, batch: TaskBatch) -> PackedBatch:
        """Return the sequences that the encoder reads; a composition of pairs gets the two texts as two sequences."""
        if not self.composition.reads_pairs or batch.first_lengths is None:
            return batch.packed
        return batch.packed.halve(batch.first_lengths)
