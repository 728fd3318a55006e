"""The interface of all encoders.

Shape legend: T tokens of a packed batch, N output positions, D width, B sequences.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from lmtransfer.config.types import Count, SmallCount
from lmtransfer.data.batch import PackedBatch
from lmtransfer.errors import ConfigError, DataError
from lmtransfer.models.layers.char_cnn import CharacterCnn

#: The tokens on which the state of a token depends: all ("bidirectional"), itself and those before it ("causal"),
#: itself and those after it ("backward"), a causal half followed by a backward half of the same width ("concatenated":
#: ELMo), or only itself ("none": static word vectors).
Direction = Literal["bidirectional", "causal", "backward", "concatenated", "none"]


@dataclass(frozen=True, slots=True)
class FamilyHead:
    """How a family's published classifier reads the last layer of a sequence.

    Attributes:
        hidden_activation: activation of a new dense layer of the encoder's width before the output layer; None for no
            such layer.
    """

    token: Literal["first", "last", "mean"]
    uses_pooler: bool = False
    hidden_activation: Literal["tanh", "gelu", "relu"] | None = None


@dataclass(frozen=True, slots=True)
class OutputPositions:
    """The positions at which the last layer is needed; an encoder need not compute it elsewhere.

    Attributes:
        counts: number of these positions in each of the B sequences, as Python integers.
    """

    positions_N: Tensor
    counts: tuple[int, ...]

    @classmethod
    def of(cls, positions_N: np.ndarray, cu_seqlens: np.ndarray) -> OutputPositions:
        """Build from ascending positions and the offsets of the batch (numpy, on the host)."""
        edges = np.searchsorted(positions_N, cu_seqlens)
        return cls(torch.from_numpy(positions_N.astype(np.int64)), tuple(int(n) for n in np.diff(edges)))

    def to(self, device: torch.device | str) -> OutputPositions:
        """Return the same positions on ``device``."""
        return OutputPositions(self.positions_N.to(device, non_blocking=True), self.counts)


@dataclass(frozen=True, slots=True)
class EncoderOutput:
    """The output of an encoder.

    Attributes:
        layers: ``num_layers + 1`` tensors of shape (T, D); layer 0 is the embedding layer. If the call had
            ``output_positions``, the last tensor has shape (N, D) and contains only those positions.
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

    A subclass sets ``attention`` and ``family_head``, passes its sizes to ``__init__``, defines ``forward``, and has a
    ``token_embedding``: a submodule, a property, or None. The other attributes and methods are optional.

    Args:
        dim: width D of every layer that it returns.

    Attributes:
        attention: which tokens a token may see, unless the batch states this for each row; see ``attend``.
        attentions: the values that ``attend`` can set, starting with the class's default; empty if ``attention`` cannot
            be changed.
        token_embedding: the input embedding, which objectives may tie; None if the encoder reads words as characters.
        pooler: the published pooler of the family over [CLS] (a module (B, D) -> (B, D)), or None.
        reads_characters: whether it reads words as characters, ``PackedBatch.chars_TC``.
        reads_padded: whether it can read ``models.padded.PaddedRows``, with the same results as for packed sequences,
            as an exported graph requires.
    """

    attention: Direction
    attentions: tuple[Direction, ...] = ()
    family_head: FamilyHead
    pooler: nn.Module | None
    reads_characters: bool = False
    reads_padded: bool = False
    compiles: bool = False
    has_two_streams: bool = False

    def __init__(
        self, *, dim: Count, num_layers: SmallCount, max_length: Count, vocab_size: Count, num_segments: SmallCount = 1
    ) -> None:
        super().__init__()
        self.dim, self.num_layers, self.max_length = dim, num_layers, max_length
        self.vocab_size, self.num_segments = vocab_size, num_segments
        self.pooler = None  # set on the instance: a class attribute would hide a submodule of this name

    if TYPE_CHECKING:  # a property at run time would hide a submodule of this name

        @property
        def token_embedding(self) -> nn.Embedding | None:
            """The input embedding; see the attributes of the class."""

        def __call__(
            self, batch: PackedBatch, recurrent_state: Any = None, output_positions: OutputPositions | None = None
        ) -> EncoderOutput:
            """Call ``forward``."""

    def forward(
        self, batch: PackedBatch, recurrent_state: Any = None, output_positions: OutputPositions | None = None
    ) -> EncoderOutput:
        """Encode a batch.

        Args:
            recurrent_state: state returned by the pass over the previous batch, from which this pass continues; None
                for no state.
            output_positions: where the last layer is needed; None for everywhere.
        """
        raise NotImplementedError

    def attend(self, attention: Direction) -> None:
        """Set which tokens a token may see from now on; weights do not depend on this."""
        if attention != self.attention and attention not in self.attentions:
            supported = " or ".join(self.attentions or (self.attention,))
            raise ConfigError(f"{type(self).__name__} supports {supported} attention, not {attention} attention")
        self.attention = attention

    @property
    def is_causal(self) -> bool:
        """Whether a token may see only itself and the tokens before it."""
        return self.attention == "causal"

    def check_length(self, batch: PackedBatch) -> None:
        """Reject a sequence that is too long; otherwise it would cause an index error deep in a kernel."""
        if batch.max_seqlen > self.max_length:
            raise DataError(
                f"a sequence of {batch.max_seqlen} tokens is longer than model.max_length={self.max_length}: "
                "lower objective.max_length or task.max_length, or raise model.max_length"
            )

    def blocks(self) -> list[nn.Module]:
        """Return the repeated layers; each is one unit for unfreezing, layer-wise rates, Muon and ``torch.compile``.

        By default these are the members of the innermost module lists.
        """
        members = [block for stack in self.modules() if isinstance(stack, nn.ModuleList) for block in stack]
        return [block for block in members if not any(isinstance(part, nn.ModuleList) for part in block.modules())]

    @property
    def word_network(self) -> CharacterCnn | None:
        """The network that computes word vectors from characters; None if the encoder reads token ids."""
        return None

    def generator(self, *, size: float, own_embeddings: bool = False, copied_layers: bool = False) -> Encoder | None:
        """Create a smaller encoder (ELECTRA's generator); None if this encoder cannot create one.

        Args:
            size: width of the generator divided by the width of this encoder, above 0 and at most 1; the number of
                layers is the same.
            own_embeddings: whether the generator gets a copy of the embeddings instead of sharing them.
            copied_layers: whether the layers start as copies of this encoder's layers; otherwise they are random.
        """
        return None

    def two_stream(
        self, batch: PackedBatch, *, order_T: Tensor, output_positions: OutputPositions, recurrent_state: Any = None
    ) -> EncoderOutput:
        """Encode in a factorization order (Yang et al. 2019, section 2.3), if it ``has_two_streams``.

        Args:
            order_T: rank of each token in the order, int64. All tokens see the tokens of rank 0; a token of rank k is
                seen by itself and by tokens of higher rank.
            output_positions: positions of the query stream, which do not see themselves.

        Returns:
            The layers of the content stream below the last layer, (T, D) each; then the last layer of the query stream,
            (N, D).
        """
        raise NotImplementedError

    def set_memory(self, length: int, *, clamp_length: int | None, same_length: bool) -> None:
        """Change the memory length for an evaluation.

        Args:
            length: maximum number of tokens in the memory, from now on.
            same_length: each token sees at most ``length`` tokens, itself included, so that the last token of a
                segment has no more context than the first.
        """
        raise ConfigError(
            f"memory_lengths: {type(self).__name__} has no memory; leave memory_lengths out, or give a run of "
            f"model=transformer_xl_laptop"
        )

    def input_rows(self, token: int, character_ids: np.ndarray | None) -> tuple[nn.Embedding, list[int]] | None:
        """Return a token's input table and its rows in that table, in order; None if the encoder has no table."""
        return None if self.token_embedding is None else (self.token_embedding, [token])


def encoders_in(module: nn.Module) -> list[Encoder]:
    """Return the encoders of a learner, each once; an encoder inside another encoder is not listed."""
    if isinstance(module, Encoder):
        return [module]
    return list(dict.fromkeys(encoder for child in module.children() for encoder in encoders_in(child)))
