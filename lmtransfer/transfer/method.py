"""The transfer method in a config: which parameters are trained, which layers are read, and how they are pooled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import torch

from lmtransfer.config.component import resolve
from lmtransfer.config.types import Count, DropoutProb, LargeCount, NonNegative, Positive
from lmtransfer.errors import ConfigError
from lmtransfer.models.base import Encoder
from lmtransfer.randomness import derive_seed
from lmtransfer.tasks.heads import HeadSpec
from lmtransfer.transfer.freezing import (
    BiasTraining,
    FixedEmbeddings,
    Freezing,
    FrozenEncoder,
    GradualUnfreezing,
    Lora,
    LowRankTraining,
)
from lmtransfer.transfer.heads import Head, HeadLayers, Pieces
from lmtransfer.transfer.layer_selection import LayerSelection, OneLayer, ScalarMix, SideBySide
from lmtransfer.transfer.learner import ComposedEncoder, TaskLearner
from lmtransfer.transfer.pooling import (
    AttentionPooling,
    BiLstm,
    BiLstmStates,
    EveryToken,
    Max,
    Mean,
    OneToken,
    PairComparison,
    Pooling,
)

PoolingName = Literal["family", "cls", "last_token", "mean", "max", "bilstm", "attention"]
#: A pooling with "family" resolved.
ResolvedPooling = Literal["cls", "last_token", "mean", "max", "bilstm", "attention"]
#: ``last``, a layer index (0: embeddings), a list of layers, or ``mix`` (ELMo's scalar mix of all layers).
Layers = Literal["last", "mix"] | int | Sequence[Literal["last"] | int]
FreezeName = Literal["frozen", "full", "gradual", "joint", "lora", "bitfit"]

#: The base class of the heads that a task may name.
_HEADS = ("lmtransfer.transfer.heads.Head",)
#: The settings of whole layers and of unfreezing, each with the value that has no effect.
_LAYER_SETTINGS = {"layer_decay": 1.0, "layer_decay_gap": False, "embedding_rate": 1.0, "unfreeze_share": 0.5}
#: The parts that are trained by methods that do not train whole layers.
_TRAINED_PARTS = {
    "frozen": "no layer is trained",
    "lora": "only low-rank updates are trained, in all layers at the same rate",
    "bitfit": "only biases are trained, in all layers at the same rate",
}


@dataclass(kw_only=True, eq=False, repr=False)
class VectorMethod:
    """Builds the modules between an encoder and the vector of a text.

    ``prefix`` is the prefix of the user's settings ``layers`` and ``pooling`` in messages.

    Args:
        layers: last; a layer index (0: embeddings); a list such as [0,last], whose vectors are concatenated; or mix:
            ELMo's scalar mix of all layers.
        pooling: family (the published head of the encoder family), cls, last_token, mean, max, bilstm or attention.
        mix_layer_norm: true: normalize each layer before mixing, with layers=mix.
        lstm_dim: units per direction, with pooling=bilstm.
        attention_dim: width of the scoring layer, with pooling=attention.
    """

    layers: Layers = "last"
    pooling: PoolingName = "family"
    mix_layer_norm: bool = False
    lstm_dim: Count = 256
    attention_dim: Count = 128
    prefix: str = "transfer."

    @property
    def layers_text(self) -> str:
        """The setting ``layers`` as a user writes it."""
        return str(self.layers) if isinstance(self.layers, int | str) else f"[{','.join(map(str, self.layers))}]"

    def __str__(self) -> str:
        return f"pooling={self.pooling}, layers={self.layers_text}"

    def resolve_pooling(self, encoder: Encoder) -> ResolvedPooling:
        """Return the pooling for this encoder, with "family" resolved."""
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


@dataclass(frozen=True, slots=True)
class TextShare:
    """How much text joint training uses, how long, and with what weight (TLM: Yao et al. 2021, arXiv 2111.04130).

    Each step's loss is the task's loss on a batch of labeled examples plus ``weight`` times the pretraining
    objective's loss on a batch of text. After a share of the budget, only labels are used, as in the paper's second
    stage. Differences from the paper: the paper selects text similar to the task's from a large corpus, and also reads
    the task's text without labels. Here the whole of a given corpus is used.
    """

    weight: float
    tokens: int
    until: float

    def __post_init__(self) -> None:
        if not 0 < self.until <= 1:
            raise ConfigError(
                f"transfer.text_until={self.until}: the share of the budget after which only labels are used must be "
                "in (0, 1], such as 0.8; with 1, text is used until the end"
            )


@dataclass(kw_only=True, eq=False, repr=False)
class TransferMethod(VectorMethod):
    """Builds a task's learner on an encoder.

    ``pooling=family`` is the encoder family's published classification head (``encoder.family_head``): BERT's own tanh
    pooler over [CLS] (Devlin et al. 2019), a new dense layer over the first token with tanh (RoBERTa: Liu et al. 2019),
    GELU (ELECTRA: Clark et al. 2020) or ReLU (DistilBERT), the last token of a causal model (Radford et al. 2018), and
    so on. A new dense layer has dropout before and after it, as published with RoBERTa. This differs from the published
    XLNet head, which has dropout only after it.

    A pooler is trained as part of the head: at the full rate, from the first step on.

    Tagging and spans need one vector for each token, so nothing is pooled. The only value of ``pooling`` that then has
    an effect is ``bilstm``, which puts the states of an LSTM between encoder and head.

    Args:
        freeze: what is trained: frozen (only the head), full (everything), gradual (the head first, then one layer
            after the other), joint (everything, together with the objective on text), lora (low-rank updates and the
            head) or bitfit (biases and the head).
        pairs: together: encode two texts as one sequence; apart: encode each text alone, and pass [u, v, |u - v|, u *
            v] to the head (Conneau et al. 2017); auto: apart if all tokens are pooled.
        pieces: vector of a word for tagging: its first token, its last token, or the mean of its tokens; auto: last for
            causal models, mean for word vectors, otherwise first.
        head_hidden_dim: width of a hidden layer in the head; null: a linear head, or the family's head.
        dropout: dropout probability of the head's input.
        layer_decay: learning rate of each layer divided by that of the layer above; 0.8 for ELECTRA-base, 0.9 for large
            (Clark et al. 2020, appendix B); 1: the same for all layers.
        layer_decay_gap: true: one more factor between the head and the top layer, as in the published ELECTRA code
            (google-research/electra, issues 51, 64).
        embedding_rate: factor on the learning rate of the embedding layer (tokens, positions, segments, their norm), 0
            to 10; 0 freezes it.
        head_rate: factor on the learning rate of new parameters: the head, the scalar mix and the pooling layers.
        encoder_rate: factor on the learning rate of the encoder's trained parameters: with lora, of the updates, which
            start at 0; with bitfit, of the biases. Between 1 and 30, 3 and 5 were best in our measurement with 1,000
            labels.
        standardise: true: scale each input feature of the head to mean 0 and deviation 1, computed on the training set
            before the first step.
        fit: optimum: fit a linear head without dropout to its optimum, with an L2 penalty chosen by 3-fold
            cross-validation of the training examples; trainer: train every head. Heads with a hidden layer, dropout,
            bilstm, attention, a mix of layers or spans, and heads for more than 20,000 examples (words, for tags) are
            always trained.
        unfreeze_share: share of the budget after which everything is trained; at first only the head is trained, then
            layers join at equal intervals.
        attention: bidirectional or causal, for an encoder that supports both; auto: as in its last pretraining.
        text_weight: weight of the objective's loss; the task's loss has weight 1.
        text_tokens: tokens of text per step, in addition to train.batch_examples labeled examples; a budget in tokens
            counts both.
        text_until: share of the budget spent on text and labels; the rest is spent on labels alone; 1: text until the
            end.
        lora_rank: rank of each update; in the paper, 4 to 8 are enough (section 7.2).
        lora_alpha: the updates are scaled by lora_alpha / lora_rank, so that the learning rate does not depend on the
            rank.
        lora_dropout: probability of dropping an input feature of an update.
        lora_matrices: a list of query, key, value, output (attention), expand, contract (feed-forward), gate (GeGLU),
            position (XLNet, Transformer-XL); or all.
    """

    freeze: FreezeName
    pairs: Literal["auto", "together", "apart"] = "together"
    pieces: Pieces | Literal["auto"] = "auto"
    head_hidden_dim: Count | None = None
    dropout: DropoutProb = 0.1
    layer_decay: float = 1.0
    layer_decay_gap: bool = False
    embedding_rate: float = 1.0
    head_rate: float = 1.0
    encoder_rate: float = 1.0
    standardise: bool = False
    fit: Literal["optimum", "trainer"] = "optimum"
    unfreeze_share: float = 0.5
    attention: Literal["auto", "bidirectional", "causal"] = "auto"
    text_weight: NonNegative = 1.0
    text_tokens: LargeCount = 1024
    text_until: float = 0.8
    lora_rank: Count = 8
    lora_alpha: Positive = 16.0
    lora_dropout: DropoutProb = 0.0
    lora_matrices: Literal["all"] | str | Sequence[str] = ("query", "value")
    prefix: str = field(default="transfer.", init=False)

    def __post_init__(self) -> None:
        self._check_rates()
        self.freezing = _freezing(self.freeze, self.unfreeze_share)
        if self.embedding_rate == 0:
            self.freezing = FixedEmbeddings(self.freezing)
        self.text = TextShare(self.text_weight, self.text_tokens, self.text_until) if self.freeze == "joint" else None
        self.lora = None
        if self.freeze == "lora":
            self.lora = Lora(
                rank=self.lora_rank, alpha=self.lora_alpha, dropout=self.lora_dropout, matrices=self.lora_matrices
            )

    def _check_rates(self) -> None:
        """Reject rates that are out of range, and settings that have no effect on what the method trains."""
        if not 0 < self.layer_decay <= 1:
            raise ConfigError(
                f"transfer.layer_decay={self.layer_decay}: the ratio of a layer's rate to the rate of the layer above "
                "must be in (0, 1], such as 0.8; with 1, all layers have the same rate"
            )
        if not 0 <= self.embedding_rate <= 10:
            raise ConfigError(
                f"transfer.embedding_rate={self.embedding_rate}: the factor on the embeddings' learning rate must be "
                "in [0, 10], such as 0.1; 0 freezes them, and 1 gives them the rate that layer_decay sets"
            )
        for name, factor in (("head_rate", self.head_rate), ("encoder_rate", self.encoder_rate)):
            if not factor > 0:
                raise ConfigError(
                    f"transfer.{name}={factor}: the factor on the learning rate must be above 0, such as 10; 1 gives "
                    "the optimizer's learning rate"
                )
        if self.freeze not in _TRAINED_PARTS:
            return
        settings = {name: getattr(self, name) for name in _LAYER_SETTINGS}
        problems = [
            f"transfer.{name}={value} with transfer.freeze={self.freeze}: {_TRAINED_PARTS[self.freeze]}; choose "
            f"transfer=full or transfer=gradual, or set transfer.{name}={_LAYER_SETTINGS[name]}"
            for name, value in settings.items()
            if value != _LAYER_SETTINGS[name]
        ]
        problems += [
            f"transfer.{name}={factor} with transfer.freeze=frozen: only the head is trained; set "
            "optimizer.learning_rate, and keep this factor at 1"
            for name, factor in (("head_rate", self.head_rate), ("encoder_rate", self.encoder_rate))
            if self.freeze == "frozen" and factor != 1
        ]
        if problems:
            raise ConfigError(problems)

    def lr_scales(self, learner: TaskLearner) -> dict[str, float]:
        """Return factors on the learning rate by parameter name (1 for others), for a learner after ``arrange``."""
        lowest = max(learner.depths.values(), default=0)
        scales = {
            f"encoder.{name}": self.layer_decay ** (depth + self.layer_decay_gap)
            * (self.embedding_rate if depth == lowest else 1.0)
            * self.encoder_rate
            for name, depth in learner.depths.items()
        }
        new = (name for name, _ in learner.named_parameters() if not name.startswith("encoder."))
        return scales | dict.fromkeys(new, self.head_rate)

    def attend(self, encoder: Encoder) -> None:
        """Set the encoder's attention, unless it is "auto"."""
        if self.attention == "auto":
            return
        try:
            encoder.attend(self.attention)
        except ConfigError as error:
            raise ConfigError(f"transfer.attention={self.attention}: {error}; use auto") from error

    def resolve_pieces(self, encoder: Encoder) -> Pieces:
        """Return which of a word's tokens determine its label with this encoder, for tagging."""
        if self.pieces != "auto":
            return self.pieces
        return "last" if encoder.attention == "causal" else "mean" if encoder.attention == "none" else "first"

    def learner(self, encoder: Encoder, *, head: HeadSpec, seed: int) -> TaskLearner:
        """Build the task's learner; new parameters depend on ``seed`` only, and torch's generator is unchanged."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive_seed(seed, "head"))
            self.attend(encoder)
            is_per_token = head.per == "token"
            reading = self.reading(encoder.num_layers)
            dim = encoder.dim * reading.widths
            composition = self._token_states(dim) if is_per_token else self.composition(encoder, dim)
            if head.pairs and self._reads_apart(composition):
                composition = PairComparison(composition)
            module = self._head(encoder, head, input_dim=composition.output_dim)
            self._adapt(encoder, reading)  # last, so that a seed gives the same head with all methods
            return TaskLearner(
                encoder=encoder,
                reading=reading,
                composition=composition,
                head=module,
                freezing=self.freezing,
                use_pooler=not is_per_token and self.uses_pooler(encoder),
                standardise=self.standardise,
            )

    def _adapt(self, encoder: Encoder, reading: LayerSelection) -> None:
        if self.lora is None:
            return
        self.lora.adapt(encoder)
        if max(reading.indices) == 0:
            raise ConfigError(
                f"transfer.layers={self.layers_text} with transfer=lora: the head reads only the embeddings, but the "
                "updates are in higher layers; choose a higher layer, or transfer=frozen"
            )

    def _reads_apart(self, composition: Pooling) -> bool:
        pools = composition.tokens == "all"
        if self.pairs == "apart" and not pools:
            raise ConfigError(
                f"transfer.pairs=apart with transfer.pooling={self.pooling}: this pooling uses one token for both "
                "texts; set transfer.pooling to mean, max, bilstm or attention, or transfer.pairs to auto or together"
            )
        return self.pairs != "together" and pools

    def _token_states(self, dim: int) -> Pooling:
        if self.pooling == "bilstm":
            return BiLstmStates(dim=dim, hidden_dim=self.lstm_dim)
        return EveryToken(dim=dim)

    def _head(self, encoder: Encoder, head: HeadSpec, *, input_dim: int) -> Head:
        layers = HeadLayers(input_dim=input_dim, hidden_dim=self.head_hidden_dim, dropout=self.dropout)
        is_family_head = self.pooling == "family" and head.per == "sequence"
        if is_family_head and (activation := encoder.family_head.hidden_activation) is not None:
            hidden_dim = self.head_hidden_dim or encoder.dim
            layers = replace(layers, hidden_dim=hidden_dim, activation=activation, hidden_dropout=self.dropout)
        cls: type[Head] = resolve(head.module, key="task.head", bases=_HEADS)
        return cls.of(head, encoder, layers, pieces=self.resolve_pieces(encoder))


def _freezing(freeze: str, unfreeze_share: float) -> Freezing:
    if freeze == "gradual":
        return GradualUnfreezing(share=unfreeze_share)
    rules: dict[str, Freezing] = {"frozen": FrozenEncoder(), "lora": LowRankTraining(), "bitfit": BiasTraining()}
    return rules.get(freeze, Freezing())
