"""A task over an encoder, as the training loop sees it.

Shape legend: T tokens of a packed batch, B sequences, D width, E width of a composed vector, C logits, L layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lmtransfer.data.batch import PackedBatch
from lmtransfer.models.base import Encoder, OutputPositions
from lmtransfer.tasks.source import TaskBatch
from lmtransfer.training.learner import Learner, Loss
from lmtransfer.transfer.composing import Composition
from lmtransfer.transfer.depth import depths_below_head
from lmtransfer.transfer.freezing import Freezing
from lmtransfer.transfer.heads.base import Head
from lmtransfer.transfer.reading import Reading
from lmtransfer.transfer.standardising import Standardising


class TaskLearner(Learner):
    """Encoder, reading, composition and head.

    A frozen encoder is run under ``no_grad``; what it gives for an example never changes, so a batch may carry it
    (``TaskBatch.features``), and then only what learns is computed: see ``fixed`` and ``head_of``.

    Args:
        encoder: gives the layers.
        reading: which layers are read.
        composition: what the head sees: one vector a sequence, or one a token.
        head: what it sees, (B, E) or (T, E), to logits.
        freezing: what of the encoder learns.
        use_pooler: put the encoder's own pooler between composition and head (the family's published head).
        standardise: put what the head sees on one scale, that of the learner as it begins. Over a frozen encoder only
            where all below the head is fixed.

    Attributes:
        standardising: does so, once it is fitted to the training part; None: the head sees vectors as they are.
        depths: how far below the head each parameter of the encoder lies, by its name there; known once arranged.
    """

    def __init__(
        self,
        *,
        encoder: Encoder,
        reading: Reading,
        composition: Composition,
        head: Head,
        freezing: Freezing,
        use_pooler: bool = False,
        standardise: bool = False,
    ) -> None:
        super().__init__()
        self.encoder, self.reading, self.composition = encoder, reading, composition
        self.head = head
        self.freezing = freezing
        self.use_pooler = use_pooler
        self.depths: dict[str, int] = {}
        self._learning: list[bool] = []  # by depth, as last set
        freezing.prepare(encoder)
        pooler = encoder.pooler
        if pooler is not None and not use_pooler:
            pooler.requires_grad_(False)  # nothing reads it, so it would never get a gradient
        standardise = standardise and (self.composes_once or not freezing.frozen)
        self.standardising = Standardising(dim=composition.output_dim) if standardise else None
        self.train()

    @property
    def composes_once(self) -> bool:
        """Whether everything below the head is fixed, so that what the head sees is all that need be kept."""
        above = [*self.reading.parameters(), *self.composition.parameters()]
        return self.freezing.frozen and not above

    @property
    def keeps_tokens(self) -> bool:
        """Whether ``fixed`` has a row a token; else it has a row a sequence."""
        every_token = self.composition.tokens == "all"
        return every_token and (self.head.per == "token" or not self.composes_once)

    def arrange(self, sample: TaskBatch) -> None:
        """Tell the encoder's layers apart, before an optimiser is made; a frozen encoder needs none of it.

        What nothing reads is turned off: layers above those that are read, and what only pretraining uses; and so is
        what never learns.

        Args:
            sample: any batch of the task, on the learner's device.
        """
        if self.freezing.frozen:
            return
        indices = self.reading.indices
        self.depths = depths_below_head(self.encoder, sample.packed, read=indices)
        pooler = self.encoder.pooler if self.use_pooler else None
        above = {id(parameter) for parameter in pooler.parameters()} if pooler is not None else set()
        learning = self._learning_at(1.0)
        for name, parameter in self.encoder.named_parameters():
            parameter.requires_grad_(learning[self.depths.get(name, 0)] or id(parameter) in above)
        self._learning = []

    def on_progress(self, fraction: float) -> None:
        """Let those layers learn whose time has come; see ``training.learner.Learner``.

        Args:
            fraction: share of the budget that is used up, in [0, 1].
        """
        learning = self._learning_at(fraction)
        if learning == self._learning:  # of nearly every step
            return
        self._learning = learning
        for name, parameter in self.encoder.named_parameters():
            if name in self.depths:
                parameter.requires_grad_(learning[self.depths[name]])

    def _learning_at(self, fraction: float) -> list[bool]:
        """By depth, whether a layer learns where so much of the budget is used up; what has no depth (0) does not."""
        deepest = max(self.depths.values(), default=0)
        layers = range(1, deepest + 1)
        return [False, *(self.freezing.learns(depth, deepest=deepest, fraction=fraction) for depth in layers)]

    def train(self, mode: bool = True) -> TaskLearner:
        """Set the mode; a frozen encoder stays in evaluation mode."""
        super().train(mode)
        self.freezing.set_mode(self.encoder, mode)
        return self

    def counts(self, batch: TaskBatch) -> dict[str, int]:
        """What the head counts: examples, or words."""
        return {self.head.loss_name: self.head.count(batch)}

    def losses(self, batch: TaskBatch, recurrent_state: Any = None) -> tuple[dict[str, Loss], None]:
        """The head's loss; needs every gold answer."""
        return {self.head.loss_name: self.head.loss(self.logits(batch), batch)}, None

    def logits(self, batch: TaskBatch) -> Tensor:
        """The head's logits, from tokens or from the features where the batch carries them."""
        if batch.features is not None:
            return self.head_of(batch.features, batch)
        if self.freezing.frozen:
            return self.head_of(self.fixed(batch), batch)
        return self._answer(self.composed(batch))

    @torch.no_grad()
    def predict(self, batch: TaskBatch) -> Tensor:
        """What the head answers, float32, (R, K); call in evaluation mode."""
        return self.head.outputs(self.logits(batch), batch)

    @torch.no_grad()
    def fixed(self, batch: TaskBatch) -> Tensor:
        """What a frozen encoder has to say about a batch: all that does not change while the rest learns.

        Returns:
            What the head sees, (B, E) or (T, E), if neither reading nor composition has parameters, else the layers
            that the reading needs, (T or B, layers, D): B where the composition looks at one token a sequence.
        """
        if self.composes_once:
            return self.composed(batch)
        return torch.stack([layer.float() for layer in self._layers(batch)], dim=1)

    def head_of(self, fixed: Tensor, batch: TaskBatch) -> Tensor:
        """Logits from what ``fixed`` gave for the same batch."""
        if not self.composes_once:
            fixed = self._pooled(self._compose(fixed.unbind(1), batch))
        return self._answer(fixed)

    def composed(self, batch: TaskBatch) -> Tensor:
        """What the head sees, (B, E) or (T, E), before it is standardised."""
        return self._pooled(self._compose(self._layers(batch), batch))

    def _answer(self, composed: Tensor) -> Tensor:
        return self.head(composed if self.standardising is None else self.standardising(composed))

    def fold_standardising(self) -> None:
        """Put mean and deviation into the head's first layer, which then says the same of vectors as they are."""
        if self.standardising is not None:
            self.head.fold(self.standardising)
            self.standardising = None

    def _read(self, batch: TaskBatch) -> PackedBatch:
        """The sequences as the encoder reads them: the texts of a pair apart, where the composition compares them."""
        if not self.composition.of_pairs or batch.first_lengths is None:
            return batch.packed
        return batch.packed.halved(batch.first_lengths)

    def _layers(self, batch: TaskBatch) -> Sequence[Tensor]:
        """The layers that the reading needs, at the real tokens that the composition looks at."""
        encoder = self.encoder
        indices = self.reading.indices
        tokens = self.composition.tokens
        packed = self._read(batch)
        if tokens == "all":
            output = encoder(packed)
            return [output.layers[index][: packed.num_tokens] for index in indices]
        offsets = packed.cu_seqlens[: packed.num_real + 1].long()
        wanted_B = offsets[:-1] if tokens == "first" else offsets[1:] - 1
        last = encoder.num_layers
        skip = last in indices
        num_filler = packed.num_sequences - packed.num_real
        output_positions = OutputPositions(wanted_B, (1,) * packed.num_real + (0,) * num_filler) if skip else None
        output = encoder(packed, output_positions=output_positions)
        return [output.layers[index] if index == last and skip else output.layers[index][wanted_B] for index in indices]

    def _compose(self, layers: Sequence[Tensor], batch: TaskBatch) -> Tensor:
        composition = self.composition
        packed = self._read(batch)
        lengths = packed.cu_seqlens[: packed.num_real + 1].diff().long()
        per_token = lengths if composition.tokens == "all" else torch.ones_like(lengths)
        return composition(self.reading(layers, per_token), lengths)

    def _pooled(self, composed_BE: Tensor) -> Tensor:
        pooler = self.encoder.pooler
        return pooler(composed_BE) if self.use_pooler and pooler is not None else composed_BE
