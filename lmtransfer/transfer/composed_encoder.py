"""An encoder with the modules that turn its layers into vectors, one per text or one per token.

Shape legend: T tokens of a packed batch, B sequences, D width, E width of a composed vector, L layers.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from lmtransfer.data.batch import PackedBatch
from lmtransfer.models.base import Encoder, OutputPositions
from lmtransfer.transfer.layer_selection import LayerSelection
from lmtransfer.transfer.pooling import Pooling


class ComposedEncoder(nn.Module):
    """Runs an encoder, a reading, a composition and, optionally, the encoder's own pooler, in this order.

    Args:
        encoder: the encoder.
        reading: builds one vector per token from the encoder's layers, such as the last layer or a scalar mix.
        composition: turns tokens into vectors: one per sequence or one per token.
        use_pooler: whether to apply the encoder's own pooler after the composition.
    """

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
        return composition(self.reading(layers, per_token), lengths)

    def _pool(self, composed_BE: Tensor) -> Tensor:
        pooler = self.encoder.pooler
        return pooler(composed_BE) if self.use_pooler and pooler is not None else composed_BE
