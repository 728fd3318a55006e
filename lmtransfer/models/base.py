"""What every encoder promises, whatever its family.

Shape legend: T tokens of a packed batch, N read positions, D width, B sequences.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from lmtransfer.data.batch import PackedBatch
from lmtransfer.errors import ConfigError, DataError

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
class OutputPositions:
    """The positions at which the last layer is needed; an encoder may skip computing it elsewhere.

    Attributes:
        positions_N: indices into T, int64, ascending (so grouped by sequence).
        counts: how many of them lie in each of the B sequences, as Python integers.
    """

    positions_N: Tensor
    counts: tuple[int, ...]

    @classmethod
    def of(cls, positions_N: np.ndarray, cu_seqlens: np.ndarray) -> OutputPositions:
        """Build from ascending positions and the batch's offsets (numpy, on the host)."""
        edges = np.searchsorted(positions_N, cu_seqlens)
        return cls(torch.from_numpy(positions_N.astype(np.int64)), tuple(int(n) for n in np.diff(edges)))

    def to(self, device: torch.device | str) -> OutputPositions:
        """The same positions on ``device``."""
        return OutputPositions(self.positions_N.to(device, non_blocking=True), self.counts)


@dataclass(frozen=True, slots=True)
class EncoderOutput:
    """What an encoder returns.

    Attributes:
        layers: ``num_layers + 1`` tensors of shape (T, D); layer 0 is the embedding layer. When the call named
            ``output_positions``, the last one has shape (N, D) and holds only those positions.
        recurrent_state: state for the next contiguous batch (LSTM state, Transformer-XL memory), or None.
    """

    layers: tuple[Tensor, ...]
    recurrent_state: Any = None

    @property
    def last(self) -> Tensor:
        """The last layer."""
        return self.layers[-1]


class Encoder(nn.Module):
    """A text encoder over packed batches: the base class of every model.

    A subclass sets ``attention`` and ``family_head``, says its sizes in ``__init__``, defines ``forward``, and has a
    ``token_embedding``: a submodule, a property, or None. What it can do besides, it says by overriding.

    Args:
        dim: width D of every layer it returns.
        num_layers: layers above the embedding layer.
        max_length: longest sequence in tokens that it can read.
        vocab_size: rows of its token embedding.
        num_segments: how many segment ids it tells apart (1: none).

    Attributes:
        attention: which tokens a token may see, in batches that do not say so of their rows; see ``attend``.
        attentions: what ``attend`` can set it to, its class's own first; empty: what it is cannot be changed.
        family_head: how the family's published classifier reads the last layer.
        token_embedding: the input embedding, which objectives may tie; None where words are read as characters.
        pooler: the family's published pooler over [CLS] (a module (B, D) -> (B, D)), or None.
        reads_characters: it reads words as characters, ``PackedBatch.chars_TC``.
        reads_padded: it computes of ``models.padded.PaddedRows`` what it computes of packed sequences, as an exported
            graph must.
        compiles: ``torch.compile`` may take each of its ``blocks``.
        has_two_streams: it defines ``two_stream``.
    """

    attention: Direction
    attentions: tuple[Direction, ...] = ()
    family_head: FamilyHead
    pooler: nn.Module | None
    reads_characters: bool = False
    reads_padded: bool = False
    compiles: bool = False
    has_two_streams: bool = False

    def __init__(self, *, dim: int, num_layers: int, max_length: int, vocab_size: int, num_segments: int = 1) -> None:
        super().__init__()
        self.dim, self.num_layers, self.max_length = dim, num_layers, max_length
        self.vocab_size, self.num_segments = vocab_size, num_segments
        self.pooler = None  # of the instance: one of the class would hide a submodule

    if TYPE_CHECKING:  # as above: a property here would hide a submodule

        @property
        def token_embedding(self) -> nn.Embedding | None:
            """See above."""

        def __call__(
            self, batch: PackedBatch, recurrent_state: Any = None, output_positions: OutputPositions | None = None
        ) -> EncoderOutput:
            """``forward``."""

    def forward(
        self, batch: PackedBatch, recurrent_state: Any = None, output_positions: OutputPositions | None = None
    ) -> EncoderOutput:
        """Encode a batch.

        Args:
            batch: the tokens.
            recurrent_state: what the pass over the batch before left, which this one goes on from; None: stateless.
            output_positions: where the last layer is needed; None: everywhere.
        """
        raise NotImplementedError

    def attend(self, attention: Direction) -> None:
        """Set which tokens a token may see, from here on; no weight depends on it.

        Raises:
            ConfigError: it cannot do that.
        """
        if attention != self.attention and attention not in self.attentions:
            can = " or ".join(self.attentions or (self.attention,))
            raise ConfigError(f"{type(self).__name__} has {can} attention, and can have no {attention} attention")
        self.attention = attention

    @property
    def is_causal(self) -> bool:
        """Whether a token may see itself and those before it only."""
        return self.attention == "causal"

    def check_length(self, batch: PackedBatch) -> None:
        """Refuse a sequence longer than it can read, before an index error deep in a kernel would.

        Raises:
            DataError: naming both lengths and the keys to change.
        """
        if batch.max_seqlen > self.max_length:
            raise DataError(
                f"a sequence of {batch.max_seqlen} tokens is longer than model.max_length={self.max_length}: "
                "lower objective.max_length or task.max_length, or raise model.max_length"
            )

    def blocks(self) -> list[nn.Module]:
        """The repeated layers, each one unit to unfreezing, layer-wise rates, Muon and ``torch.compile``.

        Unless a subclass says otherwise, the members of its innermost module lists.
        """
        members = [block for stack in self.modules() if isinstance(stack, nn.ModuleList) for block in stack]
        return [block for block in members if not any(isinstance(part, nn.ModuleList) for part in block.modules())]

    def generator(self, *, size: float, own_embeddings: bool = False, copied_layers: bool = False) -> Encoder | None:
        """A smaller encoder (ELECTRA's generator); None: it makes none.

        Args:
            size: width over this encoder's, above 0 and at most 1; the generator has as many layers.
            own_embeddings: give it a copy of the embeddings; else it shares them.
            copied_layers: its layers begin as copies of this encoder's; else with random weights.

        Raises:
            ConfigError: layers to copy that are not of the generator's shape.
        """
        return None

    def two_stream(
        self, batch: PackedBatch, *, order_T: Tensor, output_positions: OutputPositions, recurrent_state: Any = None
    ) -> EncoderOutput:
        """Encode in an order of factorisation (Yang et al. 2019, section 2.3), if it ``has_two_streams``.

        Args:
            batch: the tokens, as they are.
            order_T: place of each token in the order, int64; tokens of place 0 are seen by all, and a token of place k
                by itself and those of higher places.
            output_positions: positions of the query stream, which do not see themselves.
            recurrent_state: see ``forward``.

        Returns:
            The content stream below the last layer, (T, D) each, and the query stream at the top, (N, D).
        """
        raise NotImplementedError

    def set_memory(self, length: int, *, clamp_length: int | None, same_length: bool) -> None:
        """Change how far back it looks, for an evaluation.

        Args:
            length: most tokens of memory.
            clamp_length: distances beyond this count as this; None: as they are.
            same_length: each token sees at most ``length`` tokens.

        Raises:
            ConfigError: it has no memory.
        """
        raise ConfigError(
            f"memory_lengths: {type(self).__name__} has no memory; leave them out, or give a run of "
            f"model=transformer_xl_laptop"
        )

    def input_rows(self, token: int, spelling: np.ndarray | None) -> tuple[nn.Embedding, list[int]] | None:
        """The table that a token is read from, and the rows of it, in order; None: it is read from no table.

        Args:
            token: its id.
            spelling: its characters' ids, where the tokenizer gives characters.
        """
        return None if self.token_embedding is None else (self.token_embedding, [token])


def encoders_in(module: nn.Module) -> list[Encoder]:
    """The encoders of a learner, each once; one inside another is a part of that one."""
    if isinstance(module, Encoder):
        return [module]
    return list(dict.fromkeys(encoder for child in module.children() for encoder in encoders_in(child)))
