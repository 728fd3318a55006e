"""The way of transfer that a configuration names: what learns, what is read, how it is composed."""

from __future__ import annotations

from typing import Literal, cast

import torch
from torch import nn

from lmtransfer.errors import ConfigError
from lmtransfer.models.base import Encoder
from lmtransfer.randomness import derived_seed
from lmtransfer.transfer.composing import AttentionPooling, BiLstm, Max, Mean, OneToken
from lmtransfer.transfer.freezing import Freezing, Frozen, Full
from lmtransfer.transfer.head import ClassificationHead
from lmtransfer.transfer.learner import TaskLearner
from lmtransfer.transfer.reading import OneLayer, ScalarMix

Pooling = Literal["family", "cls", "last_token", "mean", "max", "bilstm", "attention"]


class TransferMethod:
    """Builds the learner of a task over an encoder.

    ``pooling=family`` is the encoder family's published classification head: BERT's own tanh pooler over [CLS]
    (Devlin et al. 2019), the last token of a causal model (Radford et al. 2018), the mean where a family has
    published none.

    Args:
        freeze: "frozen" trains the head (and what mixes and composes) only; "full" trains everything.
        layers: ``last``, the number of a layer (0: embeddings), or ``mix`` for ELMo's scalar mix of all.
        pooling: how the tokens of a sequence become one vector.
        head_hidden_dim: width of a hidden layer in the head; null: a linear head.
        dropout: in the head.
        mix_layer_norm: normalise layers before mixing them.
        lstm_dim: units of each direction with ``pooling=bilstm``.
        attention_dim: width of the scoring layer with ``pooling=attention``.
    """

    def __init__(
        self,
        *,
        freeze: Literal["frozen", "full"],
        layers: Literal["last", "mix"] | int = "last",
        pooling: Pooling = "family",
        head_hidden_dim: int | None = None,
        dropout: float = 0.1,
        mix_layer_norm: bool = False,
        lstm_dim: int = 256,
        attention_dim: int = 128,
    ) -> None:
        self.freeze = freeze
        self.layers = layers
        self.pooling: Pooling = pooling
        self.head_hidden_dim = head_hidden_dim
        self.dropout = dropout
        self.mix_layer_norm = mix_layer_norm
        self.lstm_dim = lstm_dim
        self.attention_dim = attention_dim

    def resolved_pooling(self, encoder: Encoder) -> Pooling | Literal["pooler"]:
        """What ``pooling`` comes to for this encoder.

        Raises:
            ConfigError: [CLS] of a causal encoder, which has seen nothing but itself; or a family's pooler over
                anything but the last layer.
        """
        causal = encoder.attention == "causal"
        if self.pooling == "cls" and causal:
            raise ConfigError(
                "transfer.pooling=cls: a causal encoder's first token has seen nothing but itself; "
                "use last_token, mean, max, bilstm or attention"
            )
        if self.pooling != "family":
            return self.pooling
        if causal:
            return "last_token"
        if encoder.pooler is None:
            return "mean"
        if self.layers not in ("last", encoder.num_layers):
            raise ConfigError(
                f"transfer.pooling=family with transfer.layers={self.layers}: the encoder's pooler was made for the "
                "last layer; set transfer.pooling to cls, mean, max, bilstm or attention, or transfer.layers=last"
            )
        return "pooler"

    def learner(self, encoder: Encoder, *, num_labels: int, seed: int) -> TaskLearner:
        """The task's learner; new parameters depend on ``seed`` alone, and torch's generator is left as it was.

        Args:
            encoder: what is transferred; becomes part of the learner.
            num_labels: how many labels the task has.
            seed: the run's seed.

        Raises:
            ConfigError: the method does not fit the encoder.
        """
        pooling = self.resolved_pooling(encoder)
        freezing: Freezing = Frozen() if self.freeze == "frozen" else Full()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derived_seed(seed, "head"))
            composition = self._composition(pooling, encoder.dim)
            return TaskLearner(
                encoder=cast(nn.Module, encoder),
                reading=self._reading(encoder.num_layers),
                composition=composition,
                head=ClassificationHead(
                    input_dim=composition.output_dim,
                    num_labels=num_labels,
                    hidden_dim=self.head_hidden_dim,
                    dropout=self.dropout,
                ),
                freezing=freezing,
                use_pooler=pooling == "pooler",
            )

    def _reading(self, num_layers: int) -> nn.Module:
        if self.layers == "mix":
            return ScalarMix(num_layers=num_layers, layer_norm=self.mix_layer_norm)
        return OneLayer(index=num_layers if self.layers == "last" else int(self.layers), num_layers=num_layers)

    def _composition(self, pooling: str, dim: int) -> OneToken | Mean | Max | BiLstm | AttentionPooling:
        if pooling in ("pooler", "cls"):
            return OneToken(dim=dim, which="first")
        if pooling == "last_token":
            return OneToken(dim=dim, which="last")
        if pooling == "bilstm":
            return BiLstm(dim=dim, hidden_dim=self.lstm_dim)
        if pooling == "attention":
            return AttentionPooling(dim=dim, attention_dim=self.attention_dim)
        return Mean(dim=dim) if pooling == "mean" else Max(dim=dim)
