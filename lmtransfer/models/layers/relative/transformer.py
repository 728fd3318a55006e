"""The transformer layer with relative attention, for one or two streams of queries over the same keys.

Shape legend: N queries, X packed keys, P distances, D width.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from lmtransfer.models.layers.dropout import Dropout
from lmtransfer.models.layers.relative.attention import RelativeAttention, RelativeBiases
from lmtransfer.models.layers.relative.layout import RelativeLayout
from lmtransfer.models.layers.transformer import TransformerSettings

#: The states of the queries, and which keys they see.
Stream = tuple[Tensor, RelativeLayout]


class RelativeLayer(nn.Module):
    """Relative attention and feed-forward, each with a residual connection and LayerNorm.

    Args:
        settings: settings of the stack; ``norm`` is "post" as published (Dai et al. 2019; Yang et al. 2019), or "pre".
        biases: biases of this layer; None if each call passes them.
    """

    def __init__(self, settings: TransformerSettings, *, biases: RelativeBiases | None) -> None:
        super().__init__()
        self.pre_norm = settings.norm == "pre"
        self.attention = RelativeAttention(
            dim=settings.dim, num_heads=settings.num_heads, dropout=settings.attention_dropout
        )
        self.biases = biases
        self.attention_norm = settings.layer_norm()
        self.feed_forward = settings.feed_forward()
        self.feed_forward_norm = settings.layer_norm()
        self.dropout = Dropout(settings.dropout)

    def forward(
        self, streams: Sequence[Stream], keys_XD: Tensor, distances_PD: Tensor, biases: RelativeBiases | None = None
    ) -> list[Tensor]:
        """The next states (N, D) of each stream.

        Args:
            streams: the states of the queries, one or two streams.
            keys_XD: the input of the layer at all keys, which are the memory and all tokens.
            distances_PD: sinusoids of the distances.
            biases: biases of the queries, if the layer has no biases.
        """
        biases = self.biases or biases
        assert biases is not None
        normed_XD = self.attention_norm(keys_XD) if self.pre_norm else keys_XD
        key_value = self.attention.key_value(normed_XD)
        by_distance_PD = self.attention.position(distances_PD)
        outputs = []
        for hidden_ND, at in streams:
            normed_ND = hidden_ND
            if self.pre_norm:
                normed_ND = self.attention_norm(hidden_ND) if at.layout.selected else normed_XD
            attended_ND = self.dropout(self.attention(normed_ND, key_value, by_distance_PD, biases, at))
            if self.pre_norm:
                hidden_ND = hidden_ND + attended_ND
                hidden_ND = hidden_ND + self.dropout(self.feed_forward(self.feed_forward_norm(hidden_ND)))
            else:
                hidden_ND = self.attention_norm(hidden_ND + attended_ND)
                hidden_ND = self.feed_forward_norm(hidden_ND + self.dropout(self.feed_forward(hidden_ND)))
            outputs.append(hidden_ND)
        return outputs
