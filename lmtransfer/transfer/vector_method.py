"""The settings that define how a text becomes a vector: which layers to read, and how to pool the tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from lmtransfer.config.types import Count
from lmtransfer.errors import ConfigError
from lmtransfer.models.base import Encoder
from lmtransfer.transfer.layer_selection import LayerSelection, OneLayer, ScalarMix, SideBySide
from lmtransfer.transfer.learner import ComposedEncoder
from lmtransfer.transfer.pooling import AttentionPooling, BiLstm, Max, Mean, OneToken, Pooling

PoolingName = Literal["family", "cls", "last_token", "mean", "max", "bilstm", "attention"]
#: A pooling with "family" resolved.
ResolvedPooling = Literal["cls", "last_token", "mean", "max", "bilstm", "attention"]
#: ``last``, a layer number (0: embeddings), a list of layers, or ``mix`` (ELMo's scalar mix of all layers).
Layers = Literal["last", "mix"] | int | Sequence[Literal["last"] | int]


class VectorMethod:
    """Builds the modules between an encoder and the vector of a text; see ``TransferMethod`` for the choices.

    Args:
        layers: the layers to read.
        pooling: how the tokens of a text become one vector.
        mix_layer_norm: whether to normalize layers before mixing them.
        lstm_dim: units per direction with ``pooling=bilstm``.
        attention_dim: width of the scoring layer with ``pooling=attention``.
        prefix: the prefix of the user's settings ``layers`` and ``pooling``, for messages.
    """

    def __init__(
        self,
        *,
        layers: Layers = "last",
        pooling: PoolingName = "family",
        mix_layer_norm: bool = False,
        lstm_dim: Count = 256,
        attention_dim: Count = 128,
        prefix: str = "transfer.",
    ) -> None:
        self.layers = layers
        self.pooling: PoolingName = pooling
        self.mix_layer_norm = mix_layer_norm
        self.lstm_dim = lstm_dim
        self.attention_dim = attention_dim
        self.prefix = prefix

    @property
    def layers_text(self) -> str:
        """The setting ``layers`` as a user writes it."""
        return str(self.layers) if isinstance(self.layers, int | str) else f"[{','.join(map(str, self.layers))}]"

    def __str__(self) -> str:
        return f"pooling={self.pooling}, layers={self.layers_text}"

    def resolve_pooling(self, encoder: Encoder) -> ResolvedPooling:
        """Return the pooling for this encoder, with "family" resolved.

        Raises:
            ConfigError: the pooling uses a token that has seen only itself (the first in a causal encoder, the last in
                a backward encoder, any token of static word vectors), or combines a family's pooler with a layer other
                than the last.
        """
        key = f"{self.prefix}pooling"
        if encoder.attention == "none" and self.pooling in ("cls", "last_token"):
            raise ConfigError(
                f"{key}={self.pooling}: static word vectors do not depend on the other words; "
                "set mean, max, bilstm or attention"
            )
        if self.pooling == "cls" and encoder.attention == "causal":
            raise ConfigError(
                f"{key}=cls: a causal encoder's first token sees no other token; "
                "set last_token, mean, max, bilstm or attention"
            )
        if self.pooling == "last_token" and encoder.attention == "backward":
            raise ConfigError(
                f"{key}=last_token: a backward encoder's last token sees no other token; "
                "set cls, mean, max, bilstm or attention"
            )
        if self.pooling != "family":
            return self.pooling
        if self.uses_pooler(encoder) and self.layers not in ("last", encoder.num_layers):
            raise ConfigError(
                f"{key}=family with {self.prefix}layers={self.layers_text}: the encoder's pooler was trained on the "
                f"last layer; set {key} to cls, mean, max, bilstm or attention, or set {self.prefix}layers=last"
            )
        token = encoder.family_head.token
        if token == "last" and encoder.attention == "backward":
            return "cls"  # a backward encoder reads the first token last
        if token == "first" and encoder.attention == "causal":
            return "last_token"
        return "cls" if token == "first" else "last_token" if token == "last" else "mean"

    def uses_pooler(self, encoder: Encoder) -> bool:
        """Whether the encoder's own pooler is part of the head."""
        return self.pooling == "family" and encoder.family_head.uses_pooler and encoder.pooler is not None

    def compose(self, encoder: Encoder) -> ComposedEncoder:
        """Combine the encoder with its reading and composition; new parameters are random."""
        reading = self.reading(encoder.num_layers)
        return ComposedEncoder(
            encoder=encoder,
            reading=reading,
            composition=self.composition(encoder, encoder.dim * reading.widths),
            use_pooler=self.uses_pooler(encoder),
        )

    def reading(self, num_layers: int) -> LayerSelection:
        """Build the module that turns an encoder's layers into one vector per token."""
        key = f"{self.prefix}layers"
        if self.layers == "mix":
            return ScalarMix(num_layers=num_layers, layer_norm=self.mix_layer_norm)
        if isinstance(self.layers, int | str):
            index = num_layers if self.layers == "last" else int(self.layers)
            return OneLayer(index=index, num_layers=num_layers, key=key)
        indices = [num_layers if layer == "last" else int(layer) for layer in self.layers]
        return SideBySide(indices=indices, num_layers=num_layers, key=key)

    def composition(self, encoder: Encoder, dim: int) -> Pooling:
        """Build the module that turns the vectors of a text's tokens, of width ``dim``, into one vector."""
        pooling = self.resolve_pooling(encoder)
        if pooling == "cls":
            return OneToken(dim=dim, which="first")
        if pooling == "last_token":
            return OneToken(dim=dim, which="last")
        if pooling == "bilstm":
            return BiLstm(dim=dim, hidden_dim=self.lstm_dim)
        if pooling == "attention":
            return AttentionPooling(dim=dim, attention_dim=self.attention_dim)
        return Mean(dim=dim) if pooling == "mean" else Max(dim=dim)
