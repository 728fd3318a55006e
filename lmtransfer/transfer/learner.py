"""The learner of a task, built on an encoder, for the training loop.

Shape legend: T tokens of a packed batch, B sequences, D width, E width of a composed vector, C logits, L layers.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import override

from lmtransfer.data.batch import PackedBatch
from lmtransfer.models.base import Encoder, OutputPositions
from lmtransfer.models.layers.lora import merge_updates
from lmtransfer.tasks.source import TaskBatch
from lmtransfer.training.learner import Learner, Loss
from lmtransfer.transfer.freezing import Freezing
from lmtransfer.transfer.heads import Head
from lmtransfer.transfer.layer_selection import LayerSelection
from lmtransfer.transfer.pooling import Pooling
from lmtransfer.transfer.standardizer import Standardizer


class ComposedEncoder(nn.Module):
    """Runs an encoder, a reading, a composition and, optionally, the encoder's own pooler, in this order."""

    def __init__(
        self, *, encoder: Encoder, reading: LayerSelection, composition: Pooling, use_pooler: bool = False
    ) -> None:
        super().__init__()
        self.encoder, self.reading, self.composition = encoder, reading, composition
        self.use_pooler = use_pooler

    @property
    def output_dim(self) -> int:
        """Width of a composed vector, E."""
        return self.composition.output_dim

    def vectors(self, packed: PackedBatch) -> Tensor:
        """Return the vectors of a batch, float32, (B, E) or (T, E), without filler."""
        return self._pool(self._compose(self._layers(packed), packed))

    def _layers(self, packed: PackedBatch) -> Sequence[Tensor]:
        """Return the layers that the reading needs, for the real tokens that the composition uses."""
        encoder = self.encoder
        indices = self.reading.indices
        tokens = self.composition.tokens
        if tokens == "all":
            output = encoder(packed)
            return [output.layers[index][: packed.num_tokens] for index in indices]
        offsets = packed.cu_seqlens[: packed.num_real + 1].long()
        positions_B = offsets[:-1] if tokens == "first" else offsets[1:] - 1
        last = encoder.num_layers
        skip = last in indices
        num_filler = packed.num_sequences - packed.num_real
        output_positions = OutputPositions(positions_B, (1,) * packed.num_real + (0,) * num_filler) if skip else None
        output = encoder(packed, output_positions=output_positions)
        return [
            output.layers[index] if index == last and skip else output.layers[index][positions_B] for index in indices
        ]

    def _compose(self, layers: Sequence[Tensor], packed: PackedBatch) -> Tensor:
        composition = self.composition
        lengths = torch.from_numpy(np.array(packed.lengths[: packed.num_real], dtype=np.int64))
        per_token = lengths if composition.tokens == "all" else torch.ones_like(lengths)
        composed: Tensor = composition(self.reading(layers, per_token), lengths)
        return composed

    def _pool(self, composed_BE: Tensor) -> Tensor:
        pooler = self.encoder.pooler
        return pooler(composed_BE) if self.use_pooler and pooler is not None else composed_BE


def depths_below_head(encoder: Encoder, sample: PackedBatch, *, read: Collection[int]) -> dict[str, int]:
    """Return the depth of each named encoder parameter: 1 for the topmost layer read, the maximum for the embeddings.

    Only layers with their own parameters count, so layers that share parameters count as one (ALBERT: Lan et al. 2020).
    Parameters after the topmost block, such as a last norm, belong to that block. Parameters that no read layer depends
    on have no depth: poolers, higher layers, and parameters that only pretraining uses. The encoder is left unchanged;
    ``sample`` is any batch on the encoder's device.
    """
    parameters = dict(encoder.named_parameters())
    flags, was_training = {name: parameter.requires_grad for name, parameter in parameters.items()}, encoder.training
    encoder.requires_grad_(True).eval()
    try:
        with torch.enable_grad():
            layers = encoder(sample).layers[: max(read) + 1]
    finally:
        encoder.train(was_training)
        for name, parameter in parameters.items():
            parameter.requires_grad_(flags[name])
    visited: set[Any] = set()
    place_of: dict[int, int] = {}
    for place, layer in enumerate(layers):
        for leaf in _new_leaves(layer, visited):
            place_of.setdefault(id(leaf), place)
    in_blocks: list[int] = []
    for block in encoder.blocks():
        own = [id(parameter) for parameter in block.parameters() if id(parameter) in place_of]
        place_of.update(dict.fromkeys(own, max((place_of[leaf] for leaf in own), default=0)))
        in_blocks += own
    topmost = max((place_of[leaf] for leaf in in_blocks), default=0) or len(layers)
    place_of = {leaf: min(place, topmost) for leaf, place in place_of.items()}  # a last norm above shared layers
    places = sorted(
        {place_of[id(parameter)] for parameter in parameters.values() if id(parameter) in place_of}, reverse=True
    )
    depths = {place: depth for depth, place in enumerate(places, start=1)}
    return {
        name: depths[place_of[id(parameter)]] for name, parameter in parameters.items() if id(parameter) in place_of
    }


def _new_leaves(output: Tensor, visited: set[Any]) -> list[Tensor]:
    """Return the leaves of ``output``'s autograd graph, except those below nodes that were visited before."""
    leaves, stack = [], [output.grad_fn]
    while stack:
        node: Any = stack.pop()
        if node is None or node in visited:
            continue
        visited.add(node)
        if hasattr(node, "variable"):
            leaves.append(node.variable)
        stack += [below for below, _ in node.next_functions]
    return leaves


class TaskLearner(ComposedEncoder, Learner):
    """Runs a task's modules in this order: encoder, reading, composition, head.

    A frozen encoder runs under ``no_grad``. Its features for an example never change, so a batch can contain them
    (``TaskBatch.features``), and then only the trained modules run. ``frozen_features`` computes the features, and
    ``head_logits`` computes logits from them.

    With ``standardise``, the head's input is standardized with a mean and deviation computed before training, except if
    the encoder is frozen but the reading or the composition is trained.

    Attributes:
        standardising: the standardizer, or None; this name is part of the names of saved weights.
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
        """Compute the depths of the encoder's parameters before an optimizer is built; a frozen encoder has none.

        Gradients are disabled for unused parameters (layers above those read, parameters that only pretraining uses)
        and for parameters that the rule never trains. ``sample`` is any batch of the task, on the learner's device.
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
        deepest = max(self.depths.values(), default=0)
        layers = range(1, deepest + 1)
        return [False, *(self.freezing.is_trained_at(depth, deepest=deepest, fraction=fraction) for depth in layers)]

    def train(self, mode: bool = True) -> TaskLearner:
        """Set the mode; a frozen encoder stays in evaluation mode."""
        super().train(mode)
        self.freezing.set_mode(self.encoder, mode)
        return self

    def counts(self, batch: TaskBatch) -> dict[str, float]:
        """Return the divisor of the head's loss; see ``Head.count``."""
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
        return self._run_head(self.head_input(batch))

    @torch.no_grad()
    def predict(self, batch: TaskBatch) -> Tensor:
        """Return the head's outputs, float32, (R, K); requires evaluation mode."""
        return self.head.outputs(self.logits(batch), batch)

    @torch.no_grad()
    def frozen_features(self, batch: TaskBatch) -> Tensor:
        """Return a batch's features from a frozen encoder: everything that does not change during training.

        If neither the reading nor the composition has parameters, this is the head's input, (B, E) or (T, E). Otherwise
        it is the layers that the reading needs, (T or B, layers, D), with B if the composition uses one token per
        sequence.
        """
        if self.composes_once:
            return self.head_input(batch)
        return torch.stack([layer.float() for layer in self._layers(self._read(batch))], dim=1)

    def head_logits(self, features: Tensor, batch: TaskBatch) -> Tensor:
        """Compute logits from the ``frozen_features`` of the same batch."""
        if not self.composes_once:
            features = self._pool(self._compose(features.unbind(1), self._read(batch)))
        return self._run_head(features)

    def head_input(self, batch: TaskBatch) -> Tensor:
        """Return the head's input, (B, E) or (T, E), before standardization."""
        return self.vectors(self._read(batch))

    def _run_head(self, head_input: Tensor) -> Tensor:
        output: Tensor = self.head(head_input if self.standardising is None else self.standardising(head_input))
        return output

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
