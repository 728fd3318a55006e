"""ELMo's bidirectional language model over subword ids.

Shape legend: T tokens, D width.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from lmtransfer.data.batch import PackedBatch
from lmtransfer.models.base import Encoder, EncoderOutput, FamilyHead, Reads
from lmtransfer.models.bilm import BidirectionalLstm, carry_of, states_of
from lmtransfer.models.elmo import check_widths
from lmtransfer.models.transformer import check_length


class ElmoSubwordEncoder(Encoder):
    """``ElmoEncoder`` with a token embedding of width D / 2 in place of its characters; own variant.

    The embedding starts from a normal of variance 2 / D, so that it can be the output matrix too.

    Args:
        vocab_size: rows of the token embedding.
        dim: width D of both directions together; even.
        num_layers: LSTM layers of each direction.
        cell_dim: cells of each layer and direction, projected to D / 2.
        skip_connections: every layer but the first adds its input to its output.
        max_length: longest sequence in tokens.
        dropout: of each layer's input, and of the last one's output.
        cell_clip: largest magnitude of a cell; None: no limit, and the fused LSTM on CUDA.
        proj_clip: the same of a projection.

    Raises:
        ConfigError: ``dim`` is odd, or a direction is not narrower than its cells.
    """

    attention = "concatenated"
    token_embedding: nn.Embedding
    family_head = FamilyHead(token="mean")

    def __init__(
        self,
        *,
        vocab_size: int,
        dim: int,
        num_layers: int,
        cell_dim: int,
        skip_connections: bool = True,
        max_length: int = 512,
        dropout: float = 0.1,
        cell_clip: float | None = None,
        proj_clip: float | None = None,
    ) -> None:
        super().__init__(dim=dim, num_layers=num_layers, max_length=max_length, vocab_size=vocab_size)
        check_widths(dim, cell_dim)
        self.token_embedding = nn.Embedding(vocab_size, dim // 2)
        nn.init.normal_(self.token_embedding.weight, std=(dim // 2) ** -0.5)
        self.lstms = BidirectionalLstm(
            num_layers=num_layers,
            dim=dim,
            cell_dim=cell_dim,
            skip_connections=skip_connections,
            dropout=dropout,
            cell_clip=cell_clip,
            proj_clip=proj_clip,
        )

    def forward(self, batch: PackedBatch, carry: Any = None, reads: Reads | None = None) -> EncoderOutput:
        """Encode; see ``models.base.Encoder``."""
        check_length(batch, self.max_length)
        words_TP = self.token_embedding(batch.tokens_T)
        layers, states, _ = self.lstms(words_TP, batch, forward_states=states_of(carry, batch), reads=reads)
        return EncoderOutput(layers=layers, carry=carry_of(states, batch))
