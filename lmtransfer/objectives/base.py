"""What every objective promises.

Shape legend: M prediction positions, D width.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, Literal, Protocol, cast, runtime_checkable

from torch import nn

import lmtransfer.objectives
from lmtransfer.data.batch import PackedBatch
from lmtransfer.errors import ConfigError
from lmtransfer.models.base import Direction, Encoder, EncoderOutput, Reads
from lmtransfer.objectives.batch import PretrainingBatch
from lmtransfer.training.learner import Loss

#: Where an objective needs the last layer: at the hidden tokens, at each row's first token, or everywhere.
Read = Literal["masked", "starts", "all"]


class Encode(Protocol):
    """The encoder, run once a step for all objectives that read the same tokens."""

    def __call__(self, packed: PackedBatch, reads: Reads | None) -> EncoderOutput:
        """Encode ``packed``, the last layer at ``reads`` only."""
        ...

    def with_carry(self, forward: Callable[[Any], EncoderOutput]) -> EncoderOutput:
        """Another pass of the encoder, a function of the carry so far; what it leaves is the next carry."""
        ...


@runtime_checkable
class Objective(Protocol):
    """A self-supervised task with its head (always an ``nn.Module``); ``bind`` makes the head.

    Attributes:
        name: of its loss in logs, and of its weights in checkpoints.
        weight: of its loss in the total.
        directions: attention of the encoders that it fits.
        reads: where it needs the last layer.
        label: label of whole rows that it needs, or None.
        uses_pooler: whether it trains the encoder's pooler.
    """

    name: str
    weight: float
    directions: tuple[Direction, ...]
    reads: Read
    label: str | None
    uses_pooler: bool

    def bind(self, encoder: Encoder) -> None:
        """Make the head for ``encoder`` and tie what is tied.

        Raises:
            ConfigError: the encoder lacks what the objective needs.
        """
        ...

    def counts(self, batch: PretrainingBatch) -> dict[str, int]:
        """The counts of ``losses``, by name, known before the forward pass."""
        ...

    def losses(self, batch: PretrainingBatch, encode: Encode) -> dict[str, Loss]:
        """Named losses; those of weight 0 are metrics."""
        ...


@runtime_checkable
class ChosenBy(Protocol):
    """An objective whose total loss is not what its encoder is judged by.

    Attributes:
        chosen_by: the loss by which the best checkpoint is chosen.
    """

    chosen_by: str


def selection_metric(objectives: Sequence[Objective]) -> str:
    """The validation loss by which the best checkpoint is chosen: the total, unless an objective names another."""
    return next((objective.chosen_by for objective in objectives if isinstance(objective, ChosenBy)), "loss")


def direction_problem(objective: Objective | type[Objective], attention: Direction) -> str | None:
    """Why ``objective`` is meaningless for an encoder with this attention, or None if it is not."""
    if attention in objective.directions:
        return None
    fitting = ", ".join(objectives_for(attention))
    return (
        f"objective={objective.name} needs {' or '.join(objective.directions)} attention, and model.attention is "
        f"{attention}: use another objective with this model (its kind has {fitting}), or another model with this "
        f"objective (lmtransfer list models)"
    )


def objectives_for(attention: Direction) -> list[str]:
    """The names of all objectives of this package that fit encoders with this attention."""
    found = set()
    for info in pkgutil.iter_modules(lmtransfer.objectives.__path__, "lmtransfer.objectives."):
        if not info.ispkg:
            for thing in vars(import_module(info.name)).values():
                if isinstance(thing, type) and hasattr(thing, "name") and attention in getattr(thing, "directions", ()):
                    found.add(cast(type[Objective], thing).name)
    return sorted(found)


def check_direction(objective: Objective | type[Objective], attention: Direction) -> None:
    """Refuse an encoder whose direction makes ``objective`` meaningless.

    Raises:
        ConfigError: it does.
    """
    problem = direction_problem(objective, attention)
    if problem:
        raise ConfigError(problem)


def tied_embedding(objective: Objective | type[Objective], encoder: Encoder) -> nn.Embedding:
    """The input embedding, to be the output matrix too.

    Raises:
        ConfigError: the encoder reads words as characters and has none.
    """
    if encoder.token_embedding is None:
        raise ConfigError(
            f"objective={objective.name} ties its output to the token embedding, and {type(encoder).__name__} reads "
            f"characters: use objective=bilm with this model"
        )
    return encoder.token_embedding
