"""What every encoder promises, whatever its family.

Shape legend: T tokens of a packed batch, N read positions, D width, B sequences.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn

from lmtransfer.data.batch import PackedBatch

#: Which tokens the state of a token has seen: all ("bidirectional"), itself and those before it ("causal"), itself and
#: those after it ("backward"), a causal half followed by a backward half of the same width ("concatenated": ELMo), or
#: itself alone ("none": static word vectors).
Direction = Literal["bidirectional", "causal", "backward", "concatenated", "none"]


@dataclass(frozen=True, slots=True)
class FamilyHead:
    """How a family's published classifier reads the last layer of a sequence.

    Attributes:
        token: the state it takes: the first token's, the last token's, or the mean of all.
        pooled: put the encoder's own ``pooler`` upon it.
        hidden: activation of a new dense layer of the encoder's width before the output layer; None: no such layer.
    """

    token: Literal["first", "last", "mean"]
    pooled: bool = False
    hidden: Literal["tanh", "gelu", "relu"] | None = None


@dataclass(frozen=True, slots=True)
class Reads:
    """The positions at which the last layer is needed; an encoder may skip computing it elsewhere.

    Attributes:
        positions_N: indices into T, int64, ascending (so grouped by sequence).
        counts: how many of them lie in each of the B sequences, as Python integers.
    """

    positions_N: Tensor
    counts: tuple[int, ...]

    @classmethod
    def of(cls, positions_N: np.ndarray, cu_seqlens: np.ndarray) -> Reads:
        """Build from ascending positions and the batch's offsets (numpy, on the host)."""
        edges = np.searchsorted(positions_N, cu_seqlens)
        return cls(torch.from_numpy(positions_N.astype(np.int64)), tuple(int(n) for n in np.diff(edges)))

    def to(self, device: torch.device | str) -> Reads:
        """The same positions on ``device``."""
        return Reads(self.positions_N.to(device, non_blocking=True), self.counts)


@dataclass(frozen=True, slots=True)
class EncoderOutput:
    """What an encoder returns.

    Attributes:
        layers: ``num_layers + 1`` tensors of shape (T, D); layer 0 is the embedding layer. When the call named
            ``reads``, the last one has shape (N, D) and holds only those positions.
        carry: state for the next contiguous batch (LSTM state, Transformer-XL memory), or None.
    """

    layers: tuple[Tensor, ...]
    carry: Any = None

    @property
    def last(self) -> Tensor:
        """The last layer."""
        return self.layers[-1]


@runtime_checkable
class Encoder(Protocol):
    """A text encoder over packed batches (always an ``nn.Module``).

    Attributes:
        dim: width D of every layer it returns.
        num_layers: layers above the embedding layer.
        max_length: longest sequence in tokens that it can read.
        vocab_size: rows of its token embedding.
        num_segments: how many segment ids it tells apart (1: none).
        attention: which tokens a token may see; stays so in transfer.
        token_embedding: the input embedding, which objectives may tie; None where words are read as characters.
        pooler: the family's published pooler over [CLS] (a module (B, D) -> (B, D)), or None.
        family_head: how the family's published classifier reads the last layer.
    """

    dim: int
    num_layers: int
    max_length: int
    vocab_size: int
    num_segments: int
    attention: Direction
    token_embedding: nn.Embedding | None
    pooler: nn.Module | None
    family_head: FamilyHead

    def __call__(self, batch: PackedBatch, carry: Any = None, reads: Reads | None = None) -> EncoderOutput:
        """Encode; stateless when ``carry`` is None."""
        ...


@runtime_checkable
class MakesTwin(Protocol):
    """An encoder that can make a smaller one which shares its embeddings (ELECTRA's generator)."""

    def generator(self, *, size: float) -> Encoder:
        """The twin, with random weights, of ``size`` times the width and as many layers.

        Raises:
            ConfigError: ``size`` is not above 0 and at most 1.
        """
        ...
