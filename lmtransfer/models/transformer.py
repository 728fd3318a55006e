"""A stack of transformer layers over packed batches: what BERT and GPT share.

Shape legend: T tokens, N read positions, D width.
"""

from __future__ import annotations

from torch import Tensor, nn

from lmtransfer.data.batch import PackedBatch
from lmtransfer.errors import ConfigError, DataError
from lmtransfer.layers.attention.layout import Layout
from lmtransfer.layers.feed_forward import Activation
from lmtransfer.layers.transformer import NormPlace, TransformerLayer
from lmtransfer.models.base import Reads
from lmtransfer.models.padded import layout_of


class TransformerStack(nn.Module):
    """``num_layers`` transformer layers, and a last LayerNorm where they are pre-norm.

    The arguments are those of ``TransformerLayer``.
    """

    def __init__(
        self,
        *,
        num_layers: int,
        dim: int,
        num_heads: int,
        hidden_dim: int,
        norm: NormPlace,
        norm_eps: float,
        activation: Activation,
        dropout: float,
        attention_dropout: float,
        causal: bool,
    ) -> None:
        super().__init__()
        self.causal = causal
        self.layers = nn.ModuleList(
            TransformerLayer(
                dim=dim,
                num_heads=num_heads,
                hidden_dim=hidden_dim,
                norm=norm,
                norm_eps=norm_eps,
                activation=activation,
                dropout=dropout,
                attention_dropout=attention_dropout,
                causal=causal,
            )
            for _ in range(num_layers)
        )
        self.final_norm = nn.LayerNorm(dim, eps=norm_eps) if norm == "pre" else nn.Identity()

    def forward(self, embedded_TD: Tensor, batch: PackedBatch, reads: Reads | None = None) -> tuple[Tensor, ...]:
        """All layers' outputs, (T, D) each, the embeddings first; the last is (N, D) where ``reads`` is given.

        The last layer's attention queries and feed-forward are then computed at those positions only: with 15 % of
        the tokens masked this saves a sixth of a four-layer encoder's work, exactly.
        """
        device = embedded_TD.device
        layout = layout_of(batch, device)
        outputs, hidden_TD = [embedded_TD], embedded_TD
        *lower, top = self.layers
        for layer in lower:
            hidden_TD = layer(hidden_TD, layout)
            outputs.append(hidden_TD)
        if reads is None:
            last = top(hidden_TD, layout)
        elif self.causal:
            last = top(hidden_TD, layout)[reads.positions_N]
        else:
            last = top(hidden_TD, Layout.of(batch.lengths, reads.counts, device=device), reads.positions_N)
        return (*outputs, self.final_norm(last))


def check_length(batch: PackedBatch, max_length: int) -> None:
    """Refuse a sequence longer than the encoder can read, before an index error deep in a kernel would.

    Raises:
        DataError: naming both lengths and the keys to change.
    """
    if batch.max_seqlen > max_length:
        raise DataError(
            f"a sequence of {batch.max_seqlen} tokens is longer than model.max_length={max_length}: "
            "lower objective.max_length or task.max_length, or raise model.max_length"
        )


def check_heads(*, dim: int, num_heads: int) -> None:
    """Refuse heads that cannot share the width evenly.

    Raises:
        ConfigError: naming both keys.
    """
    if dim % num_heads:
        raise ConfigError(f"model.num_heads={num_heads} does not divide model.dim={dim}: choose a divisor of {dim}")
