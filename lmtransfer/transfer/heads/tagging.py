"""The head for tagging: one of C labels per word.

Shape legend: T real tokens of a packed batch, W words to tag, E width of a token's vector, C labels.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional
from typing_extensions import override

from lmtransfer.models.base import Encoder
from lmtransfer.tasks.heads import NO_LABEL, HeadSpec, TagTargets, Targets
from lmtransfer.tasks.source import TaskBatch
from lmtransfer.transfer.heads.base import Activation, Head, Pieces


class TaggingHead(Head):
    """A softmax over labels for each word; the loss is the cross-entropy in nats summed over words with known labels.

    Outputs are the C logits of each word, from its tokens in ``pieces``: ``first`` (Devlin et al. 2019, section 5.3);
    ``last``, the only token that has seen the whole word in a causal encoder; or ``mean``, the mean of the logits of
    all its tokens. Without a hidden layer, these are the logits of the mean vector.
    """

    loss_name: ClassVar[str] = "tagging"
    per: ClassVar[Literal["sequence", "token"]] = "token"
    convex: ClassVar[bool] = True

    def __init__(
        self,
        *,
        input_dim: int,
        num_labels: int,
        pieces: Pieces = "first",
        hidden_dim: int | None = None,
        activation: Activation = "tanh",
        dropout: float = 0.1,
        hidden_dropout: float = 0.0,
    ) -> None:
        super().__init__(
            input_dim=input_dim,
            num_labels=num_labels,
            hidden_dim=hidden_dim,
            activation=activation,
            dropout=dropout,
            hidden_dropout=hidden_dropout,
        )
        self.pieces = pieces

    @classmethod
    @override
    def of(cls, spec: HeadSpec, encoder: Encoder, layers: Mapping[str, Any], *, pieces: Pieces) -> TaggingHead:
        return cls(num_labels=spec.num_labels, pieces=pieces, **layers)

    def count(self, batch: TaskBatch) -> int:
        """Return the number of words with a known label."""
        return int((TagTargets.of(batch.host_batch.targets).tags.numpy() != NO_LABEL).sum())

    def rows(self, values: Tensor, batch: TaskBatch) -> Tensor:
        """Return the values of each word, (T, K) -> (W, K)."""
        words = TagTargets.of(batch.targets)
        first_W, counts_W = batch.target_starts_R + words.first, words.counts
        if self.pieces == "mean":
            return _word_means(values, first_W, counts_W)
        return values[first_W if self.pieces == "first" else first_W + counts_W - 1]

    @override
    def row_loss(self, logits: Tensor, targets: Targets[Tensor]) -> Tensor:
        return functional.cross_entropy(logits, TagTargets.of(targets).tags, ignore_index=NO_LABEL, reduction="sum")


def _word_means(values_TC: Tensor, first_W: Tensor, counts_W: Tensor) -> Tensor:
    """Return the mean over the tokens of each word, (T, C) -> (W, C)."""
    num_tokens, num_words = len(values_TC), len(first_W)
    place_T = torch.arange(num_tokens, device=values_TC.device)
    row_T = torch.searchsorted(first_W, place_T, right=True)  # row 0 is for tokens before all words
    end_R = functional.pad(first_W + counts_W, (1, 0))
    inside_T = place_T < end_R[row_T]
    sums_RC = values_TC.new_zeros(num_words + 1, values_TC.shape[1])
    sums_RC = sums_RC.index_add(0, row_T, values_TC.masked_fill(~inside_T[:, None], 0.0))
    return sums_RC[1:] / counts_W[:, None]
