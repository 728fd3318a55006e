"""Predicting the words of a row from its pooled state.

Shape legend: T tokens of a packed batch, B rows, D width, E width of the token embedding, V vocabulary.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import override

from lmtransfer.config.types import NonNegative
from lmtransfer.data.batch import PackedBatch
from lmtransfer.data.token_frequencies import token_information
from lmtransfer.data.token_shards import MixedStore, TokenStore
from lmtransfer.models.base import Encoder
from lmtransfer.models.layers.building_blocks import truncated_normal_
from lmtransfer.objectives.base import Encode, Objective
from lmtransfer.objectives.batch import PretrainingBatch
from lmtransfer.tokenizers.base import Tokenizer
from lmtransfer.training.learner import Loss

#: The state that predicts the words of a row: the mean of the last layer over all tokens, including special tokens, or
#: the last layer at the first token.
RowPooling = Literal["mean", "first"]


class BagOfWords(Objective):
    """Predicts the words of a row, including masked words, from the row's pooled state, and thereby trains this state.

    FastSent (Hill et al. 2016, https://arxiv.org/abs/1602.03483) also predicts the words of a text, and TF-IDF has
    similar weights. Combined with masked language modeling, variants of both beat masked language modeling alone
    (Aroca-Ouellette and Rudzicz 2020, https://arxiv.org/abs/2010.01694). Where we differ: we predict the words of the
    row itself, not of its neighbor; there is one softmax over the vocabulary; and the weight of a token is its
    information ``-log p``, where p is its share of the tokens in the training text (TF-IDF counts documents instead).

    The target of a row is a distribution over the vocabulary, ``q(v) = n(v) w(v) / sum_u n(u) w(u)``. n(v) is the
    number of occurrences of v in the uncorrupted row, and the weight w is 0 for special tokens. The head is a linear
    layer to the width of the token embedding, followed by the token embedding as output matrix, with a bias.

    Losses: "bow", the cross entropies ``-sum_v q(v) log p(v)`` in nats summed over rows; and "bow_accuracy", the share
    of rows that contain the most probable token. A row of special tokens only adds nothing to the sums.

    The encoder reads the corrupted row. Combined with masked language modeling, this objective therefore needs no
    additional encoder pass, only the last layer at all positions and one row of logits for each row. Combined with an
    objective that reads other tokens (replaced tokens), it needs an additional encoder pass.

    Args:
        pooling: state of a row: mean of its positions, or that of the first position.
    """

    name = "bow"
    title = "words of rows"
    directions = ("bidirectional", "causal", "backward", "concatenated")
    head_reads = "starts"
    output_reads = "starts"
    ties_embedding = True
    vocabulary_tensors = ("bias",)

    def __init__(self, *, weight: NonNegative = 1.0, pooling: RowPooling = "mean", tokenizer: Tokenizer) -> None:
        super().__init__(weight=weight)
        self.pooling = pooling
        self.output_positions = "all" if pooling == "mean" else "starts"
        self.special = np.flatnonzero(tokenizer.is_special)

    @override
    def bind(self, encoder: Encoder) -> None:
        """Create the head; until ``observe`` is called, all words have the same weight."""
        super().bind(encoder)
        self.dense = nn.Linear(encoder.dim, self.tied_embedding.embedding_dim)
        self.bias = nn.Parameter(torch.zeros(encoder.vocab_size))
        self.dense.apply(truncated_normal_)
        self.register_buffer("information", torch.zeros(encoder.vocab_size))
        self._set_information(np.ones(encoder.vocab_size))

    @override
    def observe(self, store: TokenStore | MixedStore) -> None:
        self._set_information(token_information(store, size=len(self.bias)))

    @torch.no_grad()
    def _set_information(self, information_V: np.ndarray) -> None:
        """Set the weights of the words; the weight of special tokens is 0."""
        information_V[self.special[self.special < len(information_V)]] = 0.0
        self.get_buffer("information").copy_(torch.from_numpy(information_V))

    @override
    def count(self, batch: PretrainingBatch) -> int:
        return batch.original.num_real

    def pool(self, batch: PretrainingBatch, encode: Encode) -> Tensor:
        """Return the pooled state of each row, (B, D)."""
        output = encode(batch.inputs, batch.output_positions)
        if self.pooling == "first":
            return batch.read("starts", output)
        lengths_B, rows_T = _rows(batch.inputs)
        hidden_TD = output.last[: batch.inputs.num_tokens]  # filler comes last
        return _row_sums(hidden_TD.to(_precise(hidden_TD)), rows_T, lengths_B) / lengths_B[:, None]

    @override
    def losses(self, batch: PretrainingBatch, encode: Encode) -> dict[str, Loss]:
        hidden_BE = self.dense(self.pool(batch, encode))
        logits_BV = nn.functional.linear(hidden_BE, self.tied_embedding.weight, self.bias)
        logits_BV = logits_BV.to(_precise(logits_BV))
        tokens_T = batch.original.tokens_T[: batch.original.num_tokens]
        lengths_B, rows_T = _rows(batch.original)
        weights_T = self.get_buffer("information")[tokens_T].to(logits_BV.dtype)
        sums_B = _row_sums(weights_T, rows_T, lengths_B)
        shares_T = weights_T / sums_B.clamp_min(torch.finfo(sums_B.dtype).tiny)[rows_T]
        log_sums_B = torch.where(sums_B > 0, logits_BV.logsumexp(1), 0.0)
        total = log_sums_B.sum() - (shares_T * logits_BV[rows_T, tokens_T]).sum()
        found_T = (tokens_T == logits_BV.detach().argmax(1)[rows_T]) & (weights_T > 0)
        hits = _row_sums(found_T.float(), rows_T, lengths_B).count_nonzero()
        return self.loss_and_accuracy(total, hits.float(), self.count(batch))


def _rows(packed: PackedBatch) -> tuple[Tensor, Tensor]:
    """Return the length of each real row, (B,), and the row index of each real token, (T,)."""
    lengths_B = packed.cu_seqlens.diff()[: packed.num_real].long()
    rows_B = torch.arange(packed.num_real, device=lengths_B.device)
    return lengths_B, rows_B.repeat_interleave(lengths_B, output_size=packed.num_tokens)


def _row_sums(values: Tensor, rows_T: Tensor, lengths_B: Tensor) -> Tensor:
    """Sum the values of each row: (T, ...) -> (B, ...)."""
    return values.new_zeros(len(lengths_B), *values.shape[1:]).index_add(0, rows_T, values)


def _precise(tensor: Tensor) -> torch.dtype:
    return torch.promote_types(tensor.dtype, torch.float32)
