"""Language modeling: left to right, right to left, and in both directions (ELMo).

Shape legend: T tokens of a packed batch, M positions, V vocabulary, D width, H width of a direction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import override

from lmtransfer.config.types import Count, NonNegative
from lmtransfer.data.batch import PackedBatch
from lmtransfer.models.base import Encoder
from lmtransfer.models.layers.building_blocks import truncated_normal_
from lmtransfer.objectives.base import Encode, Objective, Softmax, TokenHead, output_positions_at
from lmtransfer.objectives.batch import PretrainingBatch
from lmtransfer.objectives.token_prediction import TokenPrediction, vocabulary_loss
from lmtransfer.training.learner import Loss

#: The token after or before a token. Contiguous rows have a label of this name: the token just outside the row.
Neighbor = Literal["next_token", "previous_token"]


class OneWayLanguageModel(TokenPrediction):
    """Predicts the next or previous token; the output matrix is the token embedding or a separate one, without a bias.

    If the width of the embedding differs from that of the encoder, a linear layer projects the states, as in ALBERT's
    head for masked tokens (Lan et al. 2020). A subclass defines ``name``, ``directions`` and ``neighbor``.

    Losses: "<name>", the cross entropy in nats summed over predicted tokens; and "<name>_accuracy" (not with sampled
    classes).
    """

    neighbor: ClassVar[Neighbor]
    supports_contiguous_rows = True
    supports_mixed_attention = True
    predicts = "unmasked"

    @override
    def bind(self, encoder: Encoder) -> None:
        super().bind(encoder)
        width = self.tied_embedding.embedding_dim
        own = self.head is self and width != encoder.dim
        self.project: nn.Module = nn.Linear(encoder.dim, width) if own else nn.Identity()
        self.project.apply(truncated_normal_)

    @property
    def head(self) -> OneWayLanguageModel | TokenHead:
        """The head that reads the states."""
        return self

    @override
    def transform(self, hidden_MD: Tensor) -> Tensor:
        return self.project(hidden_MD)

    @override
    def count(self, batch: PretrainingBatch) -> int:
        """Return the number of tokens with a known neighbor."""
        return num_neighbors(batch, self.neighbor)

    @override
    def losses(self, batch: PretrainingBatch, encode: Encode) -> dict[str, Loss]:
        targets_T, weights_T = neighbors(batch, self.neighbor)
        # A single encoder pass reads all rows, of which those with another attention are corrupted.
        packed = batch.original if batch.original.num_causal is None else batch.inputs
        hidden_TD = encode(packed, None).last[: len(targets_T)]
        return self.loss_and_accuracy(*self.head.score(hidden_TD, targets_T, weights_T), self.count(batch))

    @override
    def predict(self, packed: PackedBatch, positions_M: np.ndarray, *, mask_id: int) -> list[Softmax]:
        step = -1 if self.neighbor == "next_token" else 1
        if self.encoder.attention not in self.directions:
            packed = replace(packed, num_causal=packed.num_sequences)
        return [
            self.head.softmax(
                self.encoder(packed, output_positions=output_positions_at(packed, positions_M + step)).last
            )
        ]


class LanguageModel(OneWayLanguageModel):
    """Predicts each token of a row from the tokens before it (Radford et al. 2018, section 3.1).

    The output matrix is the token embedding, without a bias as in GPT-2. The last token of a row predicts nothing,
    unless rows are contiguous and the first token of the next row is known. If another objective of the run has a head
    for next-token prediction (``MaskedLanguageModel`` with ``predict="next"``), this objective shares that head. In
    batches with causal and other rows, it learns from the causal rows.

    Losses: "lm", the cross entropy in nats summed over predicted tokens; and "lm_accuracy".

    Args:
        num_sampled: number of classes of a sampled softmax in training; see ``TokenPrediction``. With a shared head,
            the head's own ``num_sampled`` applies.
    """

    _shared: tuple[TokenHead, ...] = ()  # a tuple, so that PyTorch does not register its weights here too

    name = "lm"
    title = "next token"
    directions = ("causal",)
    neighbor = "next_token"

    @override
    def receive_all(self, objectives: Sequence[Objective]) -> None:
        self._shared = tuple(head for objective in objectives if (head := objective.next_token_head()) is not None)
        for head in self._shared:
            self.ties_embedding = True  # a separate output matrix would not be trained
            self.num_sampled = head.num_sampled

    @property
    def head(self) -> OneWayLanguageModel | TokenHead:
        """The head that reads the states: the shared head of another objective, or this objective's own."""
        return self._shared[0] if self._shared else self

    @override
    def token_logits(self, hidden_TD: Tensor) -> Tensor:
        if self._shared:
            return self._shared[0].token_logits(hidden_TD)
        # With a bias, this becomes a single ONNX operator that also transposes, so the export contains the tied table
        # only once.
        weight_VE, hidden_TE = self.output_embedding.weight, self.project(hidden_TD)
        return nn.functional.linear(hidden_TE, weight_VE, hidden_TE.new_zeros(len(weight_VE)))


class BackwardLanguageModel(OneWayLanguageModel):
    """Predicts each token of a row from the tokens after it: ``LanguageModel`` for encoders that read right to left.

    Losses: "backward_lm", the cross entropy in nats summed over predicted tokens; and "backward_lm_accuracy".
    """

    name = "backward_lm"
    title = "previous token"
    directions = ("backward",)
    neighbor = "previous_token"


def num_neighbors(batch: PretrainingBatch, neighbor: Neighbor) -> int:
    """Count the tokens with a known neighbor: all but one per row, or all in contiguous rows.

    If a batch also has rows that are not causal, only causal rows count.
    """
    packed = batch.original
    rows = packed.num_real if packed.num_causal is None else packed.num_causal
    return sum(packed.lengths[:rows]) - (0 if neighbor in batch.labels else rows)


def neighbors(batch: PretrainingBatch, neighbor: Neighbor) -> tuple[Tensor, Tensor]:
    """Return the neighbor of each token, int64, (T,), and its weight, 1 if the neighbor is known, otherwise 0, (T,).

    If a batch also has rows that are not causal, only the causal rows, which come first, are returned.
    """
    packed = batch.original
    if neighbor == "next_token":
        shift, edges = -1, packed.cu_seqlens[1:].long() - 1
    else:
        shift, edges = 1, packed.cu_seqlens[:-1].long()
    targets_T = packed.tokens_T.roll(shift)
    weights_T = torch.ones(len(targets_T), device=targets_T.device)
    if neighbor in batch.labels:
        targets_T[edges[: packed.num_real]] = batch.labels[neighbor]
    else:
        weights_T.index_fill_(0, edges, 0.0)
    weights_T[packed.num_tokens :] = 0.0  # filler
    end = None if packed.num_causal is None else sum(packed.lengths[: packed.num_causal])
    return targets_T[:end], weights_T[:end]


class OutputEmbedding(nn.Module):
    """The softmax layer of both directions: the token embedding if it has the right width, else a separate matrix.

    Args:
        dim: width H of a direction.
    """

    def __init__(self, encoder: Encoder, dim: int) -> None:
        super().__init__()
        tied = encoder.token_embedding
        self.own = None
        if tied is None or tied.embedding_dim != dim:
            self.own = nn.Embedding(encoder.vocab_size, dim)
            nn.init.normal_(self.own.weight, std=dim**-0.5)
        self.bias = nn.Parameter(torch.zeros(encoder.vocab_size))
        self._encoder = (encoder,)  # a tuple, so that PyTorch does not register the encoder here too

    @property
    def weight(self) -> Tensor:
        """The output matrix, (V, H)."""
        module = self._encoder[0].token_embedding if self.own is None else self.own
        assert module is not None
        return module.weight


class BidirectionalLanguageModel(Objective):
    """Predicts each token from the tokens before it and, separately, from those after it (Peters et al. 2018, 3.1).

    This objective is for encoders with concatenated directions. The first half of the last layer's features predicts
    the next token, and the second half predicts the previous token, with the same softmax layer. The last token of a
    row has no next token, and the first token has no previous token, unless rows are contiguous.

    Losses: "bilm", the mean cross entropy of both directions in nats; "bilm_forward" and "bilm_backward", the cross
    entropy of each direction; and "bilm_accuracy", the accuracy of both together (not with sampled classes).

    Args:
        num_sampled: number of classes of a sampled softmax in training (8,192 in ELMo); see ``TokenPrediction``. The
            sampled loss is computed as in ELMo, and is lower than that of the full softmax.
    """

    name = "bilm"
    title = "next and previous token"
    directions = ("concatenated",)
    supports_contiguous_rows = True
    predicts = "unmasked"
    vocabulary_tensors: tuple[str, ...] = ("output.bias",)

    def __init__(self, *, weight: NonNegative = 1.0, num_sampled: Count | None = None) -> None:
        super().__init__(weight=weight)
        self.num_sampled = num_sampled

    @override
    def bind(self, encoder: Encoder) -> None:
        super().bind(encoder)
        self.output = OutputEmbedding(encoder, encoder.dim // 2)
        if self.output.own is not None:
            self.vocabulary_tensors = ("output.bias", "output.own.weight")

    @override
    def counts(self, batch: PretrainingBatch) -> dict[str, int]:
        """Count the tokens with a known neighbor in each direction."""
        forward, backward = num_neighbors(batch, "next_token"), num_neighbors(batch, "previous_token")
        assert forward == backward, "rows know both outside neighbors or none"
        counts = {"bilm": forward, "bilm_forward": forward, "bilm_backward": backward}
        return counts if self.active_num_sampled else {**counts, "bilm_accuracy": forward + backward}

    @override
    def losses(self, batch: PretrainingBatch, encode: Encode) -> dict[str, Loss]:
        counts = self.counts(batch)
        last_TD = encode(batch.original, None).last
        width = last_TD.shape[1] // 2
        halves = last_TD.split([width, width], dim=1)
        forward, forward_hits = self._direction(halves[0], *neighbors(batch, "next_token"))
        backward, backward_hits = self._direction(halves[1], *neighbors(batch, "previous_token"))
        losses = {
            "bilm": Loss((forward + backward) / 2, counts["bilm"], self.weight),
            "bilm_forward": Loss(forward.detach(), counts["bilm_forward"], 0.0),
            "bilm_backward": Loss(backward.detach(), counts["bilm_backward"], 0.0),
        }
        if forward_hits is not None and backward_hits is not None:
            losses["bilm_accuracy"] = Loss(forward_hits + backward_hits, counts["bilm_accuracy"], 0.0)
        return losses

    @override
    def predict(self, packed: PackedBatch, positions_M: np.ndarray, *, mask_id: int) -> list[Softmax]:
        """Return the distributions given the tokens before, then those given the tokens after."""
        last_TD = self.encoder(packed).last
        width = last_TD.shape[1] // 2
        places_M = torch.from_numpy(positions_M).to(last_TD.device)
        forward_MH = last_TD.index_select(0, places_M - 1)[:, :width]
        backward_MH = last_TD.index_select(0, places_M + 1)[:, width:]
        return [Softmax(states, self.output.weight, self.output.bias) for states in (forward_MH, backward_MH)]

    @override
    def output_weights(self) -> int:
        return 2 * self.entries_read(self.output.weight)

    def _direction(self, hidden_TH: Tensor, targets_T: Tensor, weights_T: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the sum of the losses in one direction and the number of correct predictions."""
        weight_VH, bias_V = self.output.weight, self.output.bias
        hidden_TH = hidden_TH.contiguous()
        num_sampled = self.active_num_sampled
        return vocabulary_loss(
            hidden_TH, weight_VH, bias_V, targets_T, weights_T, num_sampled=num_sampled, corrects_target=True
        )
