"""A task's learner, built on an encoder, for the training loop.

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
from lmtransfer.transfer.standardising import Standardising


class TaskLearner(ComposedEncoder, Learner):
    """Runs a task's modules in this order: encoder, reading, composition, head.

    A frozen encoder runs under ``no_grad``. Its features for an example never change, so a batch can contain them
    (``TaskBatch.features``), and then only the trained modules run. ``fixed`` computes the features, and ``head_of``
    computes logits from them.

    Args:
        encoder: the encoder.
        reading: builds one vector per token from the encoder's layers, such as the last layer or a scalar mix.
        composition: turns tokens into the head's input: one vector per sequence or one per token.
        head: turns its input, (B, E) or (T, E), into logits.
        freezing: decides which encoder parameters are trained.
        use_pooler: whether to apply the encoder's own pooler between composition and head (the family's published
            head).
        standardise: whether to standardise the head's input with a mean and deviation computed before training. With a
            frozen encoder, this happens only if everything below the head is fixed.

    Attributes:
        standardising: the standardising module, after ``fit`` on the training part; None if the head's input is not
            standardised.
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
        self._learning: list[bool] = []  # indexed by depth, as last set
        encoder.requires_grad_(False)
        for parameter in freezing.parameters(encoder):
            parameter.requires_grad_(True)
        if encoder.pooler is not None:  # part of the head; an unused pooler would never get a gradient
            encoder.pooler.requires_grad_(use_pooler and not freezing.frozen)
        standardise = standardise and (self.composes_once or not freezing.frozen)
        self.standardising = Standardising(dim=composition.output_dim) if standardise else None
        self.train()

    @property
    def composes_once(self) -> bool:
        """Whether everything below the head is fixed, so that only the head's inputs need to be stored."""
        above = [*self.reading.parameters(), *self.composition.parameters()]
        return self.freezing.frozen and not above

    @property
    def is_convex(self) -> bool:
        """Whether training is a convex problem: a linear head without dropout on fixed features."""
        head = self.head
        return self.composes_once and head.convex and head.hidden is None and head.dropout.probability == 0

    @property
    def keeps_tokens(self) -> bool:
        """Whether ``fixed`` returns one row per token rather than one per sequence."""
        every_token = self.composition.tokens == "all"
        return every_token and (self.head.per == "token" or not self.composes_once)

    def arrange(self, sample: TaskBatch) -> None:
        """Compute the depths of the encoder's parameters before an optimiser is built; do nothing if it is frozen.

        Gradients are disabled for unused parameters (layers above those read, parameters that only pretraining uses)
        and for parameters that the rule never trains.

        Args:
            sample: any batch of the task, on the learner's device.
        """
        if self.freezing.frozen:
            return
        indices = self.reading.indices
        depths = depths_below_head(self.encoder, sample.packed, read=indices)
        trained = {id(parameter) for parameter in self.freezing.parameters(self.encoder)}
        named = dict(self.encoder.named_parameters())
        self.depths = {name: depth for name, depth in depths.items() if id(named[name]) in trained}
        pooler = self.encoder.pooler if self.use_pooler else None
        above = {id(parameter) for parameter in pooler.parameters()} if pooler is not None else set()
        learning = self._learning_at(1.0)
        for name, parameter in named.items():
            parameter.requires_grad_(learning[self.depths.get(name, 0)] or id(parameter) in above)
        self._learning = []

    @override
    def on_progress(self, fraction: float) -> None:
        """Enable gradients for the layers that are trained from now on."""
        learning = self._learning_at(fraction)
        if learning == self._learning:  # nearly every step
            return
        self._learning = learning
        for name, parameter in self.encoder.named_parameters():
            if name in self.depths:
                parameter.requires_grad_(learning[self.depths[name]])

    def _learning_at(self, fraction: float) -> list[bool]:
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
            return self.head_of(batch.features, batch)
        if self.freezing.frozen:
            return self.head_of(self.fixed(batch), batch)
        return self._answer(self.composed(batch))

    @torch.no_grad()
    def predict(self, batch: TaskBatch) -> Tensor:
        """Return the head's outputs, float32, (R, K); requires evaluation mode."""
        return self.head.outputs(self.logits(batch), batch)

    @torch.no_grad()
    def fixed(self, batch: TaskBatch) -> Tensor:
        """Return a batch's features from a frozen encoder: everything that does not change during training.

        Returns:
            If neither reading nor composition has parameters, the head's input, (B, E) or (T, E). Otherwise the layers
            that the reading needs, (T or B, layers, D), with B if the composition uses one token per sequence.
        """
        if self.composes_once:
            return self.composed(batch)
        return torch.stack([layer.float() for layer in self._layers(self._read(batch))], dim=1)

    def head_of(self, fixed: Tensor, batch: TaskBatch) -> Tensor:
        """Compute logits from the result of ``fixed`` for the same batch."""
        if not self.composes_once:
            fixed = self._pooled(self._compose(fixed.unbind(1), self._read(batch)))
        return self._answer(fixed)

    def composed(self, batch: TaskBatch) -> Tensor:
        """Return the head's input, (B, E) or (T, E), before standardisation."""
        return self.vectors(self._read(batch))

    def _answer(self, composed: Tensor) -> Tensor:
        return self.head(composed if self.standardising is None else self.standardising(composed))

    def fold(self) -> None:
        """Convert what other formats cannot express into ordinary weights, without changing the outputs.

        The mean and deviation are folded into the head's first layer, which then reads unstandardised vectors; low-rank
        updates are added to their matrices.
        """
        merge_updates(self.encoder)
        if self.standardising is not None:
            self.head.fold(self.standardising)
            self.standardising = None

    def _read(self, batch: TaskBatch) -> PackedBatch:
        """Return the sequences that the encoder reads; a composition of pairs gets the two texts as two sequences."""
        if not self.composition.of_pairs or batch.first_lengths is None:
            return batch.packed
        return batch.packed.halve(batch.first_lengths)
