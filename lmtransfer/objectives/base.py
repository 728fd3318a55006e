"""What every objective promises, and what it may be able to do besides.

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
from lmtransfer.data.batch import PackedBatch
from lmtransfer.data.store.store import MixedStore, TokenStore
from lmtransfer.errors import ConfigError
from lmtransfer.models.base import Direction, Encoder, EncoderOutput, OutputPositions
from lmtransfer.objectives.batch import PretrainingBatch
from lmtransfer.objectives.softmax import Softmax
from lmtransfer.training.learner import Loss

#: Where an objective needs the last layer: at the hidden tokens, at each row's first token, or everywhere.
Read = Literal["masked", "starts", "all"]


class Encode(Protocol):
    """The encoder, run once a step for all objectives that read the same tokens."""

    def __call__(self, packed: PackedBatch, output_positions: OutputPositions | None) -> EncoderOutput:
        """Encode ``packed``, the last layer at ``output_positions`` only."""
        ...

    def with_recurrent_state(self, forward: Callable[[Any], EncoderOutput]) -> EncoderOutput:
        """Another pass of the encoder, a function of the recurrent state so far; it leaves the next one."""
        ...


class TokenHead(Protocol):
    """What says of states which token they stand for: a transformation and an output matrix over the vocabulary."""

    def scored(self, hidden_MD: Tensor, targets_M: Tensor, weights_M: Tensor) -> tuple[Tensor, Tensor]:
        """The weighted sum of cross entropies, and which targets are the most probable; see ``cross_entropy_sum``."""
        ...

    def softmax(self, hidden_MD: Tensor) -> Softmax:
        """The distributions."""
        ...

    def token_logits(self, hidden_TD: Tensor) -> Tensor:
        """(T, D) -> (T, V)."""
        ...


class Objective(nn.Module):
    """A self-supervised task with its head, which ``bind`` makes: the base class of every objective.

    A subclass gives its ``name`` and ``directions``, ``count`` and ``losses``, and of the rest what is not as it is
    here. Nothing else knows objectives by name or type: what they can do is asked of them.

    Args:
        weight: of its loss in the total.

    Attributes:
        name: of its loss in logs, and of its weights in checkpoints.
        title: what it predicts, in words, for people; empty: its name says it.
        directions: attention that it fits, of the encoders that have it or can be set to it.
        output_positions: where it needs the last layer.
        head_reads: where the matrices of its own are applied.
        output_reads: where its output matrix over the vocabulary is.
        label: label of whole rows that it needs, or None; ``label_rows``: the file of ``conf/objective/rows`` that has
            rows with it.
        needs: numbers of each target or token that the corruption must give; ``needs_from``: the file of
            ``conf/objective/corruption`` that does.
        uses_pooler: whether it trains the encoder's pooler.
        ties_embedding: whether its output matrix is the encoder's token embedding.
        goes_on: whether it may read rows that go on from one another.
        row_by_row: whether it learns from the rows of its own attention where others are read in another way.
        reads_before: whether it needs the state before each token to predict, so that rows must begin with [CLS].
        as_published: arguments with which its head is the one that published models have.
        chosen_by: the loss by which the best checkpoint is chosen where its total is not what an encoder is judged by.
        masked_loss: the loss of predicting masked tokens by their context, or None where none are.
        predicts: which tokens of a text ``predict`` gives a probability: one that [MASK] stands for ("masked"), any
            one, as its prediction does not see it ("unmasked"), or None where there is no such method.
        vocabulary_sized: its parameters with a number or a row for each token of the vocabulary.
        inseparable: its parameters that mean something only together: another run's are taken all, or none.
        borrowed_heads: modules of its own that begin as the head of another objective, by the name of that, where the
            encoder comes with such a head and with none of this objective.
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
    goes_on: bool = False
    row_by_row: bool = False
    reads_before: bool = False
    as_published: Mapping[str, Any] = MappingProxyType({})
    chosen_by: str = "loss"
    masked_loss: str | None = None
    predicts: Literal["masked", "unmasked"] | None = None
    vocabulary_sized: tuple[str, ...] = ()
    inseparable: tuple[str, ...] = ()
    borrowed_heads: Mapping[str, str] = MappingProxyType({})

    def __init__(self, *, weight: float = 1.0) -> None:
        super().__init__()
        self.weight = weight

    def beside(self, objectives: Sequence[Objective]) -> None:
        """Be told all that is learnt in the same run, itself too, before ``bind``."""

    def bind(self, encoder: Encoder) -> None:
        """Make the head for ``encoder`` and tie what is tied; here: see that it fits, and keep it.

        Raises:
            ConfigError: the encoder lacks what the objective needs.
        """
        problem = self.direction_problem(encoder)
        if problem:
            raise ConfigError(problem)
        self._encoder = (encoder,)  # a tuple, so that the encoder's weights are not this module's a second time
        if self.ties_embedding:
            _ = self.tied_embedding

    def observe(self, store: TokenStore | MixedStore) -> None:
        """Learn what it must know of the training text before the first step, such as how often words occur: nothing.

        What it learns is part of its weights, so a run that is read again knows it.
        """

    def count(self, batch: PretrainingBatch) -> int:
        """What its loss is a sum over, known before the forward pass."""
        raise NotImplementedError

    def counts(self, batch: PretrainingBatch) -> dict[str, int]:
        """The counts of ``losses``, by name."""
        count = self.count(batch)
        return {self.name: count, f"{self.name}_accuracy": count}

    def losses(self, batch: PretrainingBatch, encode: Encode) -> dict[str, Loss]:
        """Named losses; those of weight 0 are metrics."""
        raise NotImplementedError

    def loss_and_accuracy(self, total: Tensor, hits: Tensor, count: int) -> dict[str, Loss]:
        """The two that most objectives have: a sum of losses, and how many of the ``count`` predictions are right."""
        return {self.name: Loss(total, count, self.weight), f"{self.name}_accuracy": Loss(hits, count, 0.0)}

    def predict(self, packed: PackedBatch, positions_M: np.ndarray, *, mask_id: int) -> list[Softmax]:
        """What the head says of the tokens at some positions; see ``predicts``.

        Args:
            packed: the sequences, on the encoder's device.
            positions_M: indices into T, int64, ascending; no sequence's first or last token.
            mask_id: of [MASK], which stands at hidden places.

        Returns:
            M distributions; two times M from two directions that know nothing of one another.
        """
        raise NotImplementedError

    def token_logits(self, hidden_TD: Tensor) -> Tensor | None:
        """What the head says of each token of a text as it is: (T, D) -> (T, K) or (T,); None: nothing."""
        return None

    def text_logits(self, pooled_BD: Tensor) -> Tensor | None:
        """What the head says of each text by the encoder's pooler: (B, D) -> (B, K); None: nothing."""
        return None

    def next_token_head(self) -> TokenHead | None:
        """A head of its own that says which token follows a state, for others to share; None: it has none."""
        return None

    def inner(self) -> Mapping[str, Objective]:
        """Objectives that are part of it, over encoders of its own, by what their heads are called."""
        return {}

    def settle(self) -> None:
        """Make weights of the encoder that it trains in a way of its own ordinary ones; it is trained no more."""

    def output_weights(self) -> int:
        """Entries of the output matrix over the vocabulary that a prediction passes through; 0: there is none."""
        return self.tied_embedding.weight.numel() if self.ties_embedding else 0

    @property
    def encoder(self) -> Encoder:
        """What it is bound to."""
        return self._encoder[0]

    @property
    def tied_embedding(self) -> nn.Embedding:
        """The input embedding, which is the output matrix too.

        Raises:
            ConfigError: the encoder reads words as characters and has none.
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
        """Why it is meaningless for an encoder with the attention that this one can have, or None if it is not."""
        attentions = encoder.attentions or (encoder.attention,)
        if set(attentions) & set(cls.directions):
            return None
        known = known_objectives()
        fitting = ", ".join(objective.name for objective in known if set(attentions) & set(objective.directions))
        return (
            f"objective={cls.name} needs {' or '.join(cls.directions)} attention, and model.attention is "
            f"{' or '.join(attentions)}: use another objective with this model (its kind has {fitting}), or another "
            f"model with this objective (lmtransfer list models)"
        )


def output_positions_at(packed: PackedBatch, positions_M: np.ndarray) -> OutputPositions:
    """Some positions of packed sequences, ascending, as an encoder is told them."""
    edges = np.append(0, np.cumsum(packed.lengths))
    return OutputPositions.of(positions_M, edges).to(packed.tokens_T.device)


def known_objectives() -> list[type[Objective]]:
    """All objectives of this package, by name."""
    for info in pkgutil.iter_modules(lmtransfer.objectives.__path__, "lmtransfer.objectives."):
        if not info.ispkg:
            import_module(info.name)
    found = {cls for cls in _below(Objective) if hasattr(cls, "name") and cls.__module__.startswith("lmtransfer.")}
    return sorted(found, key=lambda cls: cls.name)


def _below(cls: type[Objective]) -> Iterator[type[Objective]]:
    for child in cls.__subclasses__():
        yield child
        yield from _below(child)


def shared_attention(encoder: Encoder, objectives: Sequence[Objective | type[Objective]]) -> Direction | None:
    """The attention that an encoder has where it is trained by some objectives: the first of its own that all fit.

    None where they share none.
    """
    attentions = encoder.attentions or (encoder.attention,)
    return next((one for one in attentions if all(one in objective.directions for objective in objectives)), None)


def selection_metric(objectives: Sequence[Objective]) -> str:
    """The validation loss by which the best checkpoint is chosen: the total, unless an objective names another."""
    return next((objective.chosen_by for objective in objectives if objective.chosen_by != "loss"), "loss")


def masked_loss(objectives: Sequence[Objective]) -> str | None:
    """The name of the loss of predicting masked tokens, or None where none are."""
    return next((objective.masked_loss for objective in objectives if objective.masked_loss is not None), None)
