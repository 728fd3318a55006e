"""The interface of all objectives, and the distributions over the vocabulary that they predict.

Shape legend: T tokens of a packed batch, M prediction positions, m positions of a chunk, B sequences, D width, E width
of the output embedding, V vocabulary, K logits or best ids.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from types import MappingProxyType
from typing import Any, Literal, Protocol

import numpy as np
import torch
from torch import Tensor, nn

import lmtransfer.objectives
from lmtransfer.config.types import NonNegative
from lmtransfer.data.batch import PackedBatch
from lmtransfer.data.token_shards import MixedStore, TokenStore
from lmtransfer.errors import ConfigError
from lmtransfer.models.base import Direction, Encoder, EncoderOutput, OutputPositions
from lmtransfer.objectives.batch import PretrainingBatch
from lmtransfer.training.learner import Loss

#: Where an objective needs the last layer: at the masked positions, at the first token of each row, or everywhere.
Read = Literal["masked", "starts", "all"]


class Encode(Protocol):
    """Runs the encoder, once per micro-batch for all objectives that read the same tokens."""

    def __call__(self, packed: PackedBatch, output_positions: OutputPositions | None) -> EncoderOutput:
        """Encode ``packed``; the last layer is computed at ``output_positions`` only."""
        ...

    def with_recurrent_state(self, forward: Callable[[Any], EncoderOutput]) -> EncoderOutput:
        """Run another encoder pass, given the current recurrent state; its output contains the next state."""
        ...


class TokenHead(Protocol):
    """A head that predicts tokens from states, with an output matrix over the vocabulary."""

    num_sampled: int | None

    def score(self, hidden_MD: Tensor, targets_M: Tensor, weights_M: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the weighted sum of cross entropies and the total weight of correct predictions."""
        ...

    def softmax(self, hidden_MD: Tensor) -> Softmax:
        """Return the distributions over the vocabulary."""
        ...

    def token_logits(self, hidden_TD: Tensor) -> Tensor:
        """Compute the logits: (T, D) -> (T, V)."""
        ...


class Objective(nn.Module):
    """A self-supervised task with a head, which ``bind`` creates: the base class of every objective.

    A subclass defines ``name``, ``directions``, ``count`` and ``losses``, and overrides other attributes and methods
    where necessary. Other code depends only on these attributes, never on the name or type of an objective.

    Attributes:
        title: readable name of the targets; empty if ``name`` is clear enough.
        directions: supported attentions; an encoder must have one of them, or support one in ``attend``.
        output_positions: the positions at which the objective needs the last layer.
        head_reads: the positions at which the head is applied.
        output_reads: the positions at which the output matrix over the vocabulary is applied.
        label: the row label that the objective needs, or None.
        label_rows: the file in ``conf/objective/rows`` whose rows have this label.
        needs: names of the integers per target or per token that the corruption must provide.
        needs_from: the file in ``conf/objective/corruption`` that provides these integers.
        supports_contiguous_rows: whether the objective supports rows that continue the rows of the previous step.
        supports_mixed_attention: whether the objective can learn from the rows with its own attention in a batch whose
            other rows have a different attention.
        reads_before: whether the state before a token predicts this token; rows must then begin with [CLS].
        published_arguments: arguments with which the head equals that of published models.
        selection_loss: the loss that selects the best checkpoint, if the total does not reflect the encoder's quality.
        masked_loss: name of the loss of predicting masked tokens from their context, or None if there is no such loss.
        predicts: the tokens for which ``predict`` returns a probability. "masked": tokens that are replaced by [MASK];
            "unmasked": any token, because predictions do not see their targets; None if ``predict`` is not defined.
        vocabulary_tensors: names of the parameters with an entry or a row for each token of the vocabulary.
        joint_parameters: names of parameters that are meaningful only together, so that either all or none of them are
            loaded from another run.
        num_sampled: number of classes of the sampled softmax in training; None, or the size of the vocabulary, for the
            full softmax.
        borrowed_heads: modules that start from the head of another objective, with the name of that objective. This
            applies if the loaded run has a head for that objective but none for this one.
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
    supports_contiguous_rows: bool = False
    supports_mixed_attention: bool = False
    reads_before: bool = False
    published_arguments: Mapping[str, Any] = MappingProxyType({})
    selection_loss: str = "loss"
    masked_loss: str | None = None
    predicts: Literal["masked", "unmasked"] | None = None
    vocabulary_tensors: tuple[str, ...] = ()
    joint_parameters: tuple[str, ...] = ()
    num_sampled: int | None = None
    borrowed_heads: Mapping[str, str] = MappingProxyType({})

    def __init__(self, *, weight: NonNegative = 1.0) -> None:
        super().__init__()
        self.weight = weight

    def receive_all(self, objectives: Sequence[Objective]) -> None:
        """Receive all objectives of the run, including this one; called before ``bind``."""

    def bind(self, encoder: Encoder) -> None:
        """Create the head for ``encoder``, and tie weights; the base class checks and stores the encoder."""
        problem = self.direction_problem(encoder)
        if problem:
            raise ConfigError(problem)
        self._encoder = (encoder,)  # a tuple, so that PyTorch does not register the encoder here too
        if self.ties_embedding:
            _ = self.tied_embedding

    def observe(self, store: TokenStore | MixedStore) -> None:
        """Read statistics of the training text, such as word frequencies, before the first step; by default, nothing.

        The statistics must be part of the weights, so that a saved run contains them.
        """

    def count(self, batch: PretrainingBatch) -> int:
        """Return the number of items over which the loss is summed, which is known before the forward pass."""
        raise NotImplementedError

    def counts(self, batch: PretrainingBatch) -> dict[str, int]:
        """Return the counts of ``losses``, keyed by name."""
        count = self.count(batch)
        return {self.name: count} if self.active_num_sampled else {self.name: count, f"{self.name}_accuracy": count}

    def losses(self, batch: PretrainingBatch, encode: Encode) -> dict[str, Loss]:
        """Compute the losses, keyed by name; a loss of weight 0 is a metric."""
        raise NotImplementedError

    def loss_and_accuracy(self, total: Tensor, hits: Tensor | None, count: int) -> dict[str, Loss]:
        """Build the two losses that most objectives have: the loss, and the accuracy.

        Args:
            hits: number of correct predictions; None with a sampled softmax, which makes no predictions.
        """
        losses = {self.name: Loss(total, count, self.weight)}
        return losses if hits is None else {**losses, f"{self.name}_accuracy": Loss(hits, count, 0.0)}

    def predict(self, packed: PackedBatch, positions_M: np.ndarray, *, mask_id: int) -> list[Softmax]:
        """Predict the tokens at some positions; see ``predicts``.

        Args:
            positions_M: indices into T, int64, ascending; not the first or last token of a sequence.

        Returns:
            M distributions; or M distributions for each of two independent directions.
        """
        raise NotImplementedError

    def token_logits(self, hidden_TD: Tensor) -> Tensor | None:
        """Compute the head's logits for each token of an unmasked text, (T, D) -> (T, K) or (T,); None if undefined."""
        return None

    def text_logits(self, pooled_BD: Tensor) -> Tensor | None:
        """Compute the head's logits from the pooler's output for each text, (B, D) -> (B, K); None if undefined."""
        return None

    def next_token_head(self) -> TokenHead | None:
        """Return a head for next-token prediction that other objectives can share; None if there is none."""
        return None

    def inner(self) -> Mapping[str, Objective]:
        """Return the objectives inside this one, each with its own encoder, keyed by the name of its head."""
        return {}

    def fold_weights(self) -> None:
        """Convert specially parametrized weights of the encoder to ordinary weights, at the end of training."""

    def output_weights(self) -> int:
        """Return the number of output-matrix entries that one prediction reads in training; 0 without such a matrix."""
        return self.entries_read(self.tied_embedding.weight) if self.ties_embedding else 0

    def entries_read(self, weight_VE: Tensor) -> int:
        """Return the number of matrix entries that one prediction reads in training: all, or the sampled rows."""
        vocabulary, width = weight_VE.shape
        return width * (vocabulary if self.num_sampled is None else min(vocabulary, 1 + self.num_sampled))

    @property
    def active_num_sampled(self) -> int | None:
        """``num_sampled`` in training if less than the vocabulary size; otherwise None, for the full softmax."""
        samples = self.training and self.num_sampled is not None and self.num_sampled < self.encoder.vocab_size
        return self.num_sampled if samples else None

    @property
    def encoder(self) -> Encoder:
        """The encoder given to ``bind``."""
        return self._encoder[0]

    @property
    def tied_embedding(self) -> nn.Embedding:
        """The encoder's token embedding, which also serves as the output matrix."""
        embedding = self.encoder.token_embedding
        if embedding is None:
            raise ConfigError(
                f"objective={self.name} ties its output to the token embedding, and {type(self.encoder).__name__} "
                f"reads characters: use objective=bilm with this model"
            )
        return embedding

    @classmethod
    def direction_problem(cls, encoder: Encoder) -> str | None:
        """Explain why the encoder supports none of this objective's attentions; None if it supports one."""
        attentions = encoder.attentions or (encoder.attention,)
        if set(attentions) & set(cls.directions):
            return None
        candidates = [cls for cls in builtin_objectives() if set(attentions) & set(cls.directions)]
        names = ", ".join(candidate.name for candidate in candidates)
        alternative = "an encoder of your own" if cls.directions == ("backward",) else "another model"
        return (
            f"objective={cls.name} needs {' or '.join(cls.directions)} attention, but model.attention is "
            f"{' or '.join(attentions)}: use another objective with this model (it supports {names}), or {alternative} "
            f"with this objective (see `lmtransfer list models`)"
        )


#: Number of logits in memory at a time: 4 MiB of float32 on a CPU, 64 MiB on other devices.
_CHUNK_LOGITS = {"cpu": 1 << 20}
_CHUNK_LOGITS_ELSEWHERE = 1 << 24


@dataclass(frozen=True, slots=True)
class Softmax:
    """States, and the output layer that turns each state into a distribution over the vocabulary, chunk by chunk.

    The softmax is over the whole vocabulary. Logits are float32 (float64 for float64 states), whatever the dtype of the
    states, because two sentences can differ so little that bfloat16 would hide the difference.
    """

    states_ME: Tensor
    weight_VE: Tensor
    bias_V: Tensor | None = None

    def at(self, rows_N: Tensor) -> Softmax:
        """Return the distributions at some rows, which may repeat."""
        return Softmax(self.states_ME[rows_N], self.weight_VE, self.bias_V)

    def log_probabilities(self, ids_M: Tensor) -> Tensor:
        """Return the log probability (nats) of one id per distribution: int64 (M,) -> float32 (M,)."""
        parts = [logs.gather(-1, ids_M[part, None])[:, 0] for part, logs in self._chunks()]
        return torch.cat(parts) if parts else self.states_ME.new_zeros(0)

    def best(self, count: int, allowed_V: Tensor) -> tuple[Tensor, Tensor]:
        """Return the most probable ids of each distribution, best first.

        Args:
            allowed_V: True for the ids to choose from; probabilities are not renormalized over these ids.

        Returns:
            The log probabilities, float32, (M, K), and the ids, int64, (M, K).
        """
        parts = [logs.masked_fill(~allowed_V, -torch.inf).topk(count, dim=-1) for _, logs in self._chunks()]
        return torch.cat([part.values for part in parts]), torch.cat([part.indices for part in parts])

    def _chunks(self) -> Iterator[tuple[slice, Tensor]]:
        """Yield slices of m distributions with their log probabilities, (m, V)."""
        device = self.states_ME.device.type
        dtype = torch.promote_types(self.states_ME.dtype, torch.float32)
        weight, bias = self.weight_VE.to(dtype), None if self.bias_V is None else self.bias_V.to(dtype)
        rows = max(1, _CHUNK_LOGITS.get(device, _CHUNK_LOGITS_ELSEWHERE) // len(weight))
        for start in range(0, len(self.states_ME), rows):
            part = slice(start, start + rows)
            with torch.autocast(device, enabled=False):
                logits = torch.nn.functional.linear(self.states_ME[part].to(dtype), weight, bias)
                logs = logits.log_softmax(-1)
            yield part, logs


def output_positions_at(packed: PackedBatch, positions_M: np.ndarray) -> OutputPositions:
    """Convert ascending positions of packed sequences to ``OutputPositions`` for an encoder."""
    edges = np.append(0, np.cumsum(packed.lengths))
    return OutputPositions.of(positions_M, edges).to(packed.tokens_T.device)


def builtin_objectives() -> list[type[Objective]]:
    """Return all objectives in this package, sorted by name."""
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
    """Return the first attention of the encoder that all these objectives support in training, or None."""
    attentions = encoder.attentions or (encoder.attention,)
    return next((attention for attention in attentions if all(attention in o.directions for o in objectives)), None)


def selection_metric(objectives: Sequence[Objective]) -> str:
    """Return the name of the validation loss that selects the best checkpoint: "loss" (the total) by default."""
    return next((objective.selection_loss for objective in objectives if objective.selection_loss != "loss"), "loss")


def masked_loss(objectives: Sequence[Objective]) -> str | None:
    """Return the name of the loss of predicting masked tokens, or None if no objective has such a loss."""
    return next((objective.masked_loss for objective in objectives if objective.masked_loss is not None), None)
