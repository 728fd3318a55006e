"""The interface of all objectives, with their optional abilities.

Shape legend: T tokens of a packed batch, M prediction positions, B sequences, D width, E width of the token embedding,
V vocabulary, K logits.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from types import MappingProxyType
from typing import Any, Literal, Protocol

import numpy as np
from torch import Tensor, nn

import lmtransfer.objectives
from lmtransfer.config.types import NonNegative
from lmtransfer.data.batch import PackedBatch
from lmtransfer.data.store.store import MixedStore, TokenStore
from lmtransfer.errors import ConfigError
from lmtransfer.models.base import Direction, Encoder, EncoderOutput, OutputPositions
from lmtransfer.objectives.batch import PretrainingBatch
from lmtransfer.objectives.softmax import Softmax
from lmtransfer.training.learner import Loss

#: Where an objective needs the last layer: at the masked positions, at the first token of each row, or everywhere.
Read = Literal["masked", "starts", "all"]


class Encode(Protocol):
    """The encoder; it runs once per micro-batch for all objectives that read the same tokens."""

    def __call__(self, packed: PackedBatch, output_positions: OutputPositions | None) -> EncoderOutput:
        """Encode ``packed``; the last layer is computed at ``output_positions`` only."""
        ...

    def with_recurrent_state(self, forward: Callable[[Any], EncoderOutput]) -> EncoderOutput:
        """Run another pass of the encoder as a function of the current recurrent state; its output holds the next."""
        ...


class TokenHead(Protocol):
    """A head that predicts tokens from states: a transformation and an output matrix over the vocabulary."""

    num_sampled: int | None

    def scored(self, hidden_MD: Tensor, targets_M: Tensor, weights_M: Tensor) -> tuple[Tensor, Tensor | None]:
        """The weighted sum of cross entropies, and the weight of the correct predictions; ``vocabulary_loss``."""
        ...

    def softmax(self, hidden_MD: Tensor) -> Softmax:
        """The distributions over the vocabulary."""
        ...

    def token_logits(self, hidden_TD: Tensor) -> Tensor:
        """(T, D) -> (T, V)."""
        ...


class Objective(nn.Module):
    """A self-supervised task with its head, which ``bind`` creates: the base class of every objective.

    A subclass defines ``name``, ``directions``, ``count`` and ``losses``, and overrides those other attributes and
    methods whose defaults do not fit. No other code depends on the name or type of an objective: it reads these
    attributes.

    Args:
        weight: weight of its loss in the total.

    Attributes:
        name: name of its loss in logs, and of its weights in checkpoints.
        title: what it predicts, in words, for people; empty: the name is enough.
        directions: attentions that it supports; an encoder must have one of them, or support it in ``attend``.
        output_positions: where it needs the last layer.
        head_reads: the positions at which its head is applied.
        output_reads: the positions at which its output matrix over the vocabulary is applied.
        label: label of whole rows that it needs, or None; ``label_rows``: the file of ``conf/objective/rows`` with rows
            that have this label.
        needs: numbers per target or per token that the corruption must provide; ``needs_from``: the file of
            ``conf/objective/corruption`` that provides them.
        uses_pooler: whether it trains the pooler of the encoder.
        ties_embedding: whether its output matrix is the token embedding of the encoder.
        continues: whether it supports contiguous rows, which continue each other from step to step.
        row_by_row: whether it can learn from the rows with its own attention while other rows of the batch have another
            attention.
        reads_before: whether it needs the state before each token that it predicts; rows must then begin with [CLS].
        as_published: arguments with which its head equals the head of published models.
        chosen_by: the loss that chooses the best checkpoint, if the total does not reflect the quality of the encoder.
        masked_loss: name of the loss of predicting masked tokens from their context, or None if it has no such loss.
        predicts: for which tokens of a text ``predict`` returns a probability: "masked": a token that [MASK] replaces;
            "unmasked": any token, because its prediction does not see it; None: ``predict`` is not defined.
        vocabulary_sized: its parameters with a number or a row for each token of the vocabulary.
        inseparable: its parameters that are only meaningful together: from another run, all or none are loaded.
        num_sampled: number of classes of its sampled softmax in training; None, or as many as the vocabulary has: the
            full softmax.
        borrowed_heads: modules of this objective that begin as the head of another objective, with the name of that
            objective. It applies if the loaded encoder comes with such a head and without a head of this objective.
    """

    name: str
    title: str = ""
    directions: tuple[Direction, ...]
    output_positions: Read = "all"
    head_reads: Read = "masked"
    output_reads: Read = "masked"
    label: str | None = None
    label_rows: str = ""
    needs: tuple[str, ...] = ()
    needs_from: str = ""
    uses_pooler: bool = False
    ties_embedding: bool = False
    continues: bool = False
    row_by_row: bool = False
    reads_before: bool = False
    as_published: Mapping[str, Any] = MappingProxyType({})
    chosen_by: str = "loss"
    masked_loss: str | None = None
    predicts: Literal["masked", "unmasked"] | None = None
    vocabulary_sized: tuple[str, ...] = ()
    inseparable: tuple[str, ...] = ()
    num_sampled: int | None = None
    borrowed_heads: Mapping[str, str] = MappingProxyType({})

    def __init__(self, *, weight: NonNegative = 1.0) -> None:
        super().__init__()
        self.weight = weight

    def receive_all(self, objectives: Sequence[Objective]) -> None:
        """Receive all objectives of the run, including itself, before ``bind``."""

    def bind(self, encoder: Encoder) -> None:
        """Create the head for ``encoder`` and tie weights; the base class checks the encoder and keeps it.

        Raises:
            ConfigError: the encoder lacks what the objective needs.
        """
        problem = self.direction_problem(encoder)
        if problem:
            raise ConfigError(problem)
        self._encoder = (encoder,)  # a tuple, so that PyTorch does not register the encoder here too
        if self.ties_embedding:
            _ = self.tied_embedding

    def observe(self, store: TokenStore | MixedStore) -> None:
        """Read statistics of the training text before the first step, such as word frequencies; by default nothing.

        The statistics must be part of its weights, so that a saved run contains them.
        """

    def count(self, batch: PretrainingBatch) -> int:
        """The number of items that its loss sums over, known before the forward pass."""
        raise NotImplementedError

    def counts(self, batch: PretrainingBatch) -> dict[str, int]:
        """The counts of ``losses``, by name."""
        count = self.count(batch)
        return {self.name: count} if self.sampled_now else {self.name: count, f"{self.name}_accuracy": count}

    def losses(self, batch: PretrainingBatch, encode: Encode) -> dict[str, Loss]:
        """Losses by name; losses of weight 0 are metrics."""
        raise NotImplementedError

    def loss_and_accuracy(self, total: Tensor, hits: Tensor | None, count: int) -> dict[str, Loss]:
        """The two losses of most objectives: a sum of losses, and the number of correct predictions among ``count``.

        A sampled softmax has no predictions, so ``hits`` is None and there is no accuracy.
        """
        losses = {self.name: Loss(total, count, self.weight)}
        return losses if hits is None else {**losses, f"{self.name}_accuracy": Loss(hits, count, 0.0)}

    def predict(self, packed: PackedBatch, positions_M: np.ndarray, *, mask_id: int) -> list[Softmax]:
        """Predict the tokens at some positions; see ``predicts``.

        Args:
            packed: the sequences, on the device of the encoder.
            positions_M: indices into T, int64, ascending; not the first or last token of a sequence.
            mask_id: id of [MASK], which stands at masked positions.

        Returns:
            M distributions; or M distributions for each of two independent directions.
        """
        raise NotImplementedError

    def token_logits(self, hidden_TD: Tensor) -> Tensor | None:
        """The logits of the head for each token of an unmasked text: (T, D) -> (T, K) or (T,); None: no such logits."""
        return None

    def text_logits(self, pooled_BD: Tensor) -> Tensor | None:
        """The logits of the head for each text, from the pooler of the encoder: (B, D) -> (B, K); None: no logits."""
        return None

    def next_token_head(self) -> TokenHead | None:
        """Its head that predicts the next token, which other objectives can share; None: it has no such head."""
        return None

    def inner(self) -> Mapping[str, Objective]:
        """Objectives that are part of it, each with its own encoder, by the name of their heads."""
        return {}

    def fold_weights(self) -> None:
        """Turn specially parametrised weights of the encoder into ordinary weights, when its training is over."""

    def output_weights(self) -> int:
        """The number of entries of the output matrix that one prediction in training reads; 0: no such matrix."""
        return self.entries_read(self.tied_embedding.weight) if self.ties_embedding else 0

    def entries_read(self, weight_VE: Tensor) -> int:
        """The number of entries of an output matrix that one prediction in training reads: all, or the sampled rows."""
        vocabulary, width = weight_VE.shape
        return width * (vocabulary if self.num_sampled is None else min(vocabulary, 1 + self.num_sampled))

    @property
    def sampled_now(self) -> int | None:
        """``num_sampled`` in training, if it is less than the vocabulary; None for the full softmax."""
        samples = self.training and self.num_sampled is not None and self.num_sampled < self.encoder.vocab_size
        return self.num_sampled if samples else None

    @property
    def encoder(self) -> Encoder:
        """The encoder that it is bound to."""
        return self._encoder[0]

    @property
    def tied_embedding(self) -> nn.Embedding:
        """The token embedding of the encoder, which is also the output matrix.

        Raises:
            ConfigError: the encoder reads words as characters and has no token embedding.
        """
        embedding = self.encoder.token_embedding
        if embedding is None:
            raise ConfigError(
                f"objective={self.name} ties its output to the token embedding, and {type(self.encoder).__name__} "
                f"reads characters: use objective=bilm with this model"
            )
        return embedding

    @classmethod
    def direction_problem(cls, encoder: Encoder) -> str | None:
        """Why this objective does not fit the attentions that the encoder supports; None if it fits."""
        attentions = encoder.attentions or (encoder.attention,)
        if set(attentions) & set(cls.directions):
            return None
        known = known_objectives()
        fitting = ", ".join(objective.name for objective in known if set(attentions) & set(objective.directions))
        others = "an encoder of your own" if cls.directions == ("backward",) else "another model"
        return (
            f"objective={cls.name} needs {' or '.join(cls.directions)} attention, but model.attention is "
            f"{' or '.join(attentions)}: use another objective with this model (it supports {fitting}), or {others} "
            f"with this objective (lmtransfer list models)"
        )


def output_positions_at(packed: PackedBatch, positions_M: np.ndarray) -> OutputPositions:
    """Ascending positions of packed sequences as ``OutputPositions`` for an encoder."""
    edges = np.append(0, np.cumsum(packed.lengths))
    return OutputPositions.of(positions_M, edges).to(packed.tokens_T.device)


def known_objectives() -> list[type[Objective]]:
    """All objectives of this package, sorted by name."""
    for info in pkgutil.iter_modules(lmtransfer.objectives.__path__, "lmtransfer.objectives."):
        if not info.ispkg:
            import_module(info.name)
    classes = {cls for cls in _below(Objective) if hasattr(cls, "name") and cls.__module__.startswith("lmtransfer.")}
    return sorted(classes, key=lambda cls: cls.name)


def _below(cls: type[Objective]) -> Iterator[type[Objective]]:
    for child in cls.__subclasses__():
        yield child
        yield from _below(child)


def shared_attention(encoder: Encoder, objectives: Sequence[Objective | type[Objective]]) -> Direction | None:
    """The attention for training an encoder with these objectives: the first of its attentions that all support.

    None if no attention fits all objectives.
    """
    attentions = encoder.attentions or (encoder.attention,)
    return next((one for one in attentions if all(one in objective.directions for objective in objectives)), None)


def selection_metric(objectives: Sequence[Objective]) -> str:
    """The validation loss that chooses the best checkpoint: the total, unless an objective names another loss."""
    return next((objective.chosen_by for objective in objectives if objective.chosen_by != "loss"), "loss")


def masked_loss(objectives: Sequence[Objective]) -> str | None:
    """The name of the loss of predicting masked tokens, or None if no objective has one."""
    return next((objective.masked_loss for objective in objectives if objective.masked_loss is not None), None)
