"""The learner of pretraining: one encoder and its objectives, for the training loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import nn
from typing_extensions import override

from lmtransfer.data.batch import PackedBatch
from lmtransfer.errors import ConfigError
from lmtransfer.models.base import Encoder, EncoderOutput, OutputPositions
from lmtransfer.models.layers.disentangled import merge
from lmtransfer.objectives.base import Objective, Read, shared_attention
from lmtransfer.objectives.batch import PretrainingBatch
from lmtransfer.training.learner import Learner, Loss


class _EncodeOnce:
    """Runs the encoder once for each distinct input of a micro-batch, so that objectives share a forward pass."""

    def __init__(self, encoder: Encoder, recurrent_state: Any) -> None:
        self.encoder, self.recurrent_state, self.next_state = encoder, recurrent_state, None
        self.outputs: dict[tuple[int, int], EncoderOutput] = {}
        self.inputs: list[Any] = []  # keeps the inputs alive, so that no other object gets the same id

    def __call__(self, packed: PackedBatch, output_positions: OutputPositions | None) -> EncoderOutput:
        place = (id(packed), id(output_positions))
        if place not in self.outputs:
            self.inputs.extend((packed, output_positions))
            self.outputs[place] = self.encoder(
                packed, recurrent_state=self.recurrent_state, output_positions=output_positions
            )
            self.next_state = self.outputs[place].recurrent_state
        return self.outputs[place]

    def with_recurrent_state(self, forward: Callable[[Any], EncoderOutput]) -> EncoderOutput:
        output = forward(self.recurrent_state)
        self.next_state = output.recurrent_state
        return output


class PretrainingLearner(Learner):
    """One encoder with one or more objectives.

    A pooler that no objective trains is frozen, so that every trainable parameter receives a gradient. The encoder is
    set to the attention that all objectives share, and keeps this setting until another learner takes it over. If the
    objectives share no attention, the encoder gets its class's default, and batches set the attention of each row.
    """

    def __init__(self, encoder: Encoder, objectives: Sequence[Objective]) -> None:
        super().__init__()
        names = [objective.name for objective in objectives]
        if not names or len(set(names)) < len(names):
            raise ConfigError(f"objective.losses={names} is not allowed: list at least one objective, each once")
        generators = [objective.name for objective in objectives if objective.inner()]
        if len(generators) > 1:
            raise ConfigError(
                f"objective.losses={generators} is not allowed: each of them has a generator; list only one of them"
            )
        merge(encoder)  # an earlier learner may have disentangled the token embedding
        own = encoder.attentions[0] if encoder.attentions else encoder.attention
        encoder.attend(shared_attention(encoder, objectives) or own)
        for objective in objectives:
            objective.receive_all(objectives)
            objective.bind(encoder)
        if encoder.pooler is not None and not any(objective.uses_pooler for objective in objectives):
            encoder.pooler.requires_grad_(False)
        self.encoder = encoder
        self.objectives = nn.ModuleDict({objective.name: objective for objective in objectives})

    @override
    def counts(self, batch: PretrainingBatch) -> dict[str, int]:
        counts: dict[str, int] = {}
        for objective in self.objective_list():
            counts.update(objective.counts(batch))
        return counts

    @override
    def losses(self, batch: PretrainingBatch, recurrent_state: Any = None) -> tuple[dict[str, Loss], Any]:
        encode = _EncodeOnce(self.encoder, recurrent_state if batch.follows else None)
        losses: dict[str, Loss] = {}
        for objective in self.objective_list():
            losses.update(objective.losses(batch, encode))
        return losses, None if batch.follows is None else encode.next_state

    def objective_list(self) -> list[Objective]:
        """Return the objectives, in the order of their losses."""
        return [module for module in self.objectives.values() if isinstance(module, Objective)]


def collect_output_positions(objectives: Sequence[Objective]) -> frozenset[Read]:
    """Return the positions at which any of the objectives needs the last layer."""
    return frozenset(objective.output_positions for objective in objectives)
