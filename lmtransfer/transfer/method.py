"""The transfer method in a config: which parameters are trained, which layers are read, and how they are pooled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from lmtransfer.config.component import resolve
from lmtransfer.config.types import Count, DropoutProb, LargeCount, NonNegative, Positive
from lmtransfer.errors import ConfigError
from lmtransfer.models.base import Direction, Encoder
from lmtransfer.randomness import derive_seed
from lmtransfer.tasks.heads import HeadSpec
from lmtransfer.transfer.freezing import (
    BiasTraining,
    FixedEmbeddings,
    Freezing,
    FrozenEncoder,
    FullTraining,
    GradualUnfreezing,
    LowRankTraining,
)
from lmtransfer.transfer.heads.base import Head, Pieces
from lmtransfer.transfer.layer_selection import LayerSelection
from lmtransfer.transfer.learner import TaskLearner
from lmtransfer.transfer.lora import Lora
from lmtransfer.transfer.pooling import BiLstmStates, EveryToken, PairComparison, Pooling
from lmtransfer.transfer.rates import FreezeName, Rates
from lmtransfer.transfer.vector_method import Layers, PoolingName, VectorMethod


@dataclass(frozen=True, slots=True)
class TextShare:
    """Weight, amount and duration of text in joint training (TLM: Yao et al. 2021, arXiv 2111.04130).

    Each step's loss is the task's loss on a batch of labelled examples plus ``weight`` times the pretraining
    objective's loss on a batch of text. After a share of the budget, only labels are used, as in the paper's second
    stage. Differences from the paper: the paper selects text similar to the task's from a large corpus, and also reads
    the task's text without labels. Here the text is a given corpus without selection.

    Attributes:
        weight: weight of the objective's loss.
        tokens: maximum number of text tokens per step, over all ranks and micro-batches; only whole rows are used.
        until: share of the budget after which no text is read.

    Raises:
        ConfigError: ``until`` is not in (0, 1].
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


#: The base class of the heads that a task may name.
_HEADS = ("lmtransfer.transfer.heads.base.Head",)


class TransferMethod(VectorMethod):
    """Builds a task's learner on an encoder.

    ``pooling=family`` is the encoder family's published classification head (``encoder.family_head``): BERT's own tanh
    pooler over [CLS] (Devlin et al. 2019), a new dense layer over the first token with tanh (RoBERTa: Liu et al.
    2019), GELU (ELECTRA: Clark et al. 2020) or ReLU (DistilBERT), the last token of a causal model (Radford et al.
    2018), and so on. A new dense layer has dropout before and after it, as published with RoBERTa. This differs from
    the published XLNet head, which has dropout only after it.

    A pooler is trained as part of the head: at the full rate, from the first step on.

    Tagging and spans need one vector for each token, so nothing is pooled. The only value of ``pooling`` that then has
    an effect is ``bilstm``, which puts the states of an LSTM between encoder and head.

    Args:
        freeze: "frozen" trains only the head (with scalar mix and pooling layers); "full" trains everything; "gradual"
            unfreezes one layer at a time, from the top (Howard & Ruder 2018, section 3.3); "joint" trains everything,
            on labels and text (Yao et al. 2021); "lora" trains low-rank updates of some matrices and the head (Hu et
            al. 2021); "bitfit" trains the biases and the head (Ben Zaken et al. 2022).
        layers: ``last``, the number of a layer (0: embeddings), a list of layers, whose vectors are concatenated
            (``[0, last]``: word vectors without and with context), or ``mix`` for ELMo's scalar mix of all layers.
        pooling: how the tokens of a sequence become one vector.
        pairs: how two texts are read. "together": as one sequence with one vector (Devlin et al. 2019). "apart": as two
            sequences; the head gets both vectors, their absolute difference and their product (Conneau et al. 2017,
            section 3.1). "auto": "apart" if all tokens are pooled, because a short pretraining does not teach the
            encoder to compare tokens across texts.
        pieces: how a word's tokens become one vector, for tagging: its "first" token (Devlin et al. 2019, section 5.3),
            its "last" token, or their "mean". "auto" uses a vector that has seen the whole word: the last token in
            causal encoders, the mean for static word vectors, else the first token.
        head_hidden_dim: width of a hidden layer in the head, with tanh unless the family has another activation; null:
            a linear head, or the family's head.
        dropout: dropout in the head.
        mix_layer_norm: normalize layers before mixing them.
        lstm_dim: units of each direction with ``pooling=bilstm``.
        attention_dim: width of the scoring layer with ``pooling=attention``.
        layer_decay: ratio of the learning rate of each layer to that of the layer above it. The head has the
            optimizer's learning rate, the topmost layer ``layer_decay`` times that rate, and the embeddings of an
            encoder with L layers ``layer_decay ** (L + 1)`` times (Howard & Ruder 2018, section 3.2; Clark et al.
            2020).
        layer_decay_gap: one more factor between head and topmost layer, as in the published ELECTRA code; its author
            calls this a mistake (google-research/electra, issues 51 and 64).
        embedding_rate: factor on the learning rate of the embedding layer, in addition to ``layer_decay``; 0 freezes
            it. The embedding layer is everything that layer 0 depends on (tables of tokens, positions and segments,
            their norm and projection).
        head_rate: factor on the learning rate of new parameters: the head, scalar mix and pooling layers. The encoder's
            own pooler is not new.
        encoder_rate: factor on the learning rate of everything else that is trained, except the encoder's own pooler;
            with ``freeze=lora`` and ``freeze=bitfit`` few parameters are trained, which need a higher rate.
        standardise: scale each input feature of the head to mean 0 and deviation 1 over the training part, so that the
            head does not depend on the scale of the encoder's vectors. If the encoder is trained, mean and deviation
            are computed before the first step and stay fixed. With ``freeze=frozen`` this applies to fixed features
            only: with ``layers=mix`` (which learns its own scale), ``pooling=bilstm`` and ``pooling=attention`` vectors
            are not scaled.
        fit: "optimum": a linear head without dropout on fixed features is fitted to its optimum, with an L2 penalty
            (``transfer.convex_fit``), unless there are too many examples; all other heads are trained. "trainer": every
            head is trained.
        unfreeze_share: with ``freeze=gradual``, the share of the budget after which everything is trained.
        attention: "bidirectional" or "causal", for encoders that support both; "auto": as in the last pretraining.
        text_weight: with ``freeze=joint``, weight of the pretraining objective's loss relative to the task's loss.
        text_tokens: with ``freeze=joint``, tokens of text in each step.
        text_until: with ``freeze=joint``, the share of the budget after which only labels are used.
        lora_rank: with ``freeze=lora``, rank of the updates.
        lora_alpha: with ``freeze=lora``, the updates are scaled by ``lora_alpha / lora_rank``.
        lora_dropout: with ``freeze=lora``, probability of dropping an input feature of an update.
        lora_matrices: with ``freeze=lora``, names of the matrices that get an update, or "all".

    Attributes:
        lora: the settings of LoRA; None with other methods.
        text: weight, amount and duration of text; None if only labels are used.
    """

    def __init__(
        self,
        *,
        freeze: FreezeName,
        layers: Layers = "last",
        pooling: PoolingName = "family",
        pairs: Literal["auto", "together", "apart"] = "together",
        pieces: Pieces | Literal["auto"] = "auto",
        head_hidden_dim: Count | None = None,
        dropout: DropoutProb = 0.1,
        mix_layer_norm: bool = False,
        lstm_dim: Count = 256,
        attention_dim: Count = 128,
        layer_decay: float = 1.0,
        layer_decay_gap: bool = False,
        embedding_rate: float = 1.0,
        head_rate: float = 1.0,
        encoder_rate: float = 1.0,
        standardise: bool = False,
        fit: Literal["optimum", "trainer"] = "optimum",
        unfreeze_share: float = 0.5,
        attention: Literal["auto", "bidirectional", "causal"] = "auto",
        text_weight: NonNegative = 1.0,
        text_tokens: LargeCount = 1024,
        text_until: float = 0.8,
        lora_rank: Count = 8,
        lora_alpha: Positive = 16.0,
        lora_dropout: DropoutProb = 0.0,
        lora_matrices: Literal["all"] | str | Sequence[str] = ("query", "value"),
    ) -> None:
        self.rates = Rates(
            layer_decay=layer_decay,
            layer_decay_gap=layer_decay_gap,
            embedding_rate=embedding_rate,
            head_rate=head_rate,
            encoder_rate=encoder_rate,
        )
        self.rates.check(freeze, unfreeze_share=unfreeze_share)
        super().__init__(
            layers=layers,
            pooling=pooling,
            mix_layer_norm=mix_layer_norm,
            lstm_dim=lstm_dim,
            attention_dim=attention_dim,
        )
        self.freezing = _freezing(freeze, unfreeze_share)
        if embedding_rate == 0:
            self.freezing = FixedEmbeddings(self.freezing)
        self.text = TextShare(text_weight, text_tokens, text_until) if freeze == "joint" else None
        self.lora = None
        if freeze == "lora":
            self.lora = Lora(rank=lora_rank, alpha=lora_alpha, dropout=lora_dropout, matrices=lora_matrices)
        self.pairs = pairs
        self.pieces: Pieces | Literal["auto"] = pieces
        self.head_hidden_dim = head_hidden_dim
        self.dropout = dropout
        self.standardise = standardise
        self.fit = fit
        self.attention: Direction | Literal["auto"] = attention

    def attend(self, encoder: Encoder) -> None:
        """Set the encoder's attention, unless it is "auto".

        Raises:
            ConfigError: the encoder does not support this kind of attention.
        """
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
        """Build the task's learner; new parameters depend on ``seed`` only, and torch's generator is unchanged.

        Args:
            encoder: the encoder; becomes part of the learner.

        Raises:
            ConfigError: the method does not suit the encoder.
        """
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

    def lr_scales(self, learner: TaskLearner) -> dict[str, float]:
        """Return factors on the learning rate by parameter name; parameters without an entry have factor 1.

        Args:
            learner: a learner of this method, after ``arrange``.
        """
        return self.rates.scales(learner)

    def _adapt(self, encoder: Encoder, reading: LayerSelection) -> None:
        """Add LoRA's low-rank updates to the encoder."""
        if self.lora is None:
            return
        self.lora.adapt(encoder)
        if max(reading.indices) == 0:
            raise ConfigError(
                f"transfer.layers={self.layers_text} with transfer=lora: the head reads only the embeddings, but the "
                "updates are in higher layers; choose a higher layer, or transfer=frozen"
            )

    def _reads_apart(self, composition: Pooling) -> bool:
        """Whether the texts of a pair are read as two sequences."""
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
        layers: dict[str, Any] = {"input_dim": input_dim, "hidden_dim": self.head_hidden_dim, "dropout": self.dropout}
        activation = (
            encoder.family_head.hidden_activation if self.pooling == "family" and head.per == "sequence" else None
        )
        if activation is not None:
            layers |= {
                "hidden_dim": self.head_hidden_dim or encoder.dim,
                "activation": activation,
                "hidden_dropout": self.dropout,
            }
        cls: type[Head] = resolve(head.module, key="task.head", bases=_HEADS)
        return cls.of(head, encoder, layers, pieces=self.resolve_pieces(encoder))


def _freezing(freeze: str, unfreeze_share: float) -> Freezing:
    if freeze == "gradual":
        return GradualUnfreezing(share=unfreeze_share)
    rules: dict[str, Freezing] = {"frozen": FrozenEncoder(), "lora": LowRankTraining(), "bitfit": BiasTraining()}
    return rules.get(freeze, FullTraining())
