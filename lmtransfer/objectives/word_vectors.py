"""Static word vectors with negative sampling (word2vec): a word predicts its context, or the context predicts the word.

Shape legend: T tokens of a packed batch, N words with context, K noise words of each, V vocabulary, D width.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import softplus
from typing_extensions import override

from lmtransfer.config.types import NonNegative
from lmtransfer.data.batch import PackedBatch, upload
from lmtransfer.data.token_shares import token_information
from lmtransfer.data.token_store import MixedStore, TokenStore
from lmtransfer.models.base import Encoder
from lmtransfer.models.layers.building_blocks import truncated_normal_
from lmtransfer.objectives.base import Encode, Objective
from lmtransfer.objectives.batch import PretrainingBatch
from lmtransfer.tokenizers.base import Tokenizer
from lmtransfer.training.learner import Loss

#: The numbers that the corruption must provide for each token (see ``ContextWindows``).
NEEDS = ("context_left", "context_right")


@dataclass(frozen=True, slots=True)
class Contexts:
    """The words of a batch that have context, end to end, so that the context words of a word are adjacent to it.

    Attributes:
        reach: the maximum number of context words on one side.
    """

    positions_N: Tensor
    words_N: Tensor
    left_N: Tensor
    right_N: Tensor
    noise_NK: Tensor
    reach: int

    @classmethod
    def of(cls, batch: PretrainingBatch) -> Contexts:
        """Extract the contexts of a batch."""
        left_T, right_T = _sides(batch)
        positions = np.flatnonzero(left_T + right_T)
        positions_N = upload(positions, batch.original.tokens_T.device)
        noise = [numbers for name, numbers in batch.per_token.items() if name.startswith("negative_")]
        return cls(
            positions_N=positions_N,
            words_N=batch.original.tokens_T[positions_N],
            left_N=batch.per_token[NEEDS[0]][positions_N],
            right_N=batch.per_token[NEEDS[1]][positions_N],
            noise_NK=torch.stack(noise, dim=1)[positions_N],
            reach=int(np.maximum(left_T, right_T).max(initial=0)),
        )

    def pairs(self) -> Iterator[tuple[slice, slice, Tensor]]:
        """Iterate over pairs of words and context words, one distance and direction after the other.

        Yields:
            The slice of N with the words; the slice of N with their context words; and which pairs count, float32.
        """
        for distance in range(1, self.reach + 1):
            front, back = slice(None, -distance), slice(distance, None)
            yield front, back, (self.right_N[front] >= distance).float()
            yield back, front, (self.left_N[back] >= distance).float()


def _sides(batch: PretrainingBatch) -> tuple[np.ndarray, np.ndarray]:
    """Return the number of context words of each token on the left and on the right, (T,) each, read on the host."""
    left_T, right_T = (batch.host_batch.per_token[name].numpy() for name in NEEDS)
    return left_T, right_T


class NegativeSampling(Objective):
    """Separates true words from noise words with static vectors (Mikolov et al. 2013).

    Contexts and noise come from the corruption ``ContextWindows``. The output vectors are a separate matrix, which
    starts at 0. A subclass defines ``name``, ``count`` and ``sums``.
    Losses: "<name>", binary cross entropies in nats; "<name>_accuracy", how often the true word scores higher than its
    noise words.
    """

    directions = ("none",)
    needs = NEEDS
    needs_from = "windows"
    vocabulary_tensors = ("output.weight",)

    def sums(self, vectors_ND: Tensor, contexts: Contexts) -> tuple[Tensor, Tensor]:
        """Compute the sum of the losses, and how many true words score above the noise, from the words' vectors."""
        raise NotImplementedError

    @override
    def bind(self, encoder: Encoder) -> None:
        super().bind(encoder)
        self.output = nn.Embedding(encoder.vocab_size, encoder.dim)
        nn.init.zeros_(self.output.weight)

    @override
    def losses(self, batch: PretrainingBatch, encode: Encode) -> dict[str, Loss]:
        contexts = Contexts.of(batch)
        vectors_ND = encode(batch.original, None).last.index_select(0, contexts.positions_N)
        with torch.autocast(vectors_ND.device.type, enabled=False):
            total, hits = self.sums(vectors_ND, contexts)
        return self.loss_and_accuracy(total, hits, self.count(batch))


class SkipGram(NegativeSampling):
    """Separates the context words of a word from noise words (Mikolov et al. 2013, "Distributed ...", equation 4).

    Contexts and noise come from the corruption ``ContextWindows``. The output vectors are a separate matrix, which
    starts at 0. Losses: "skipgram", the binary cross entropies in nats of a context word and its noise words, summed
    over pairs of a word and a context word; "skipgram_accuracy", the pairs whose context word scores above the noise.

    As in word2vec.c, a noise word that equals the context word does not count. Where we differ: all context words of a
    word share its noise words, which does not change the expected loss.
    """

    name = "skipgram"
    title = "contexts of words"

    @override
    def count(self, batch: PretrainingBatch) -> int:
        return int(np.add(*_sides(batch)).sum())

    def sums(self, vectors_ND: Tensor, contexts: Contexts) -> tuple[Tensor, Tensor]:
        """Sum over pairs, and count the context words that score above the noise."""
        output_ND = self.output(contexts.words_N)
        noise_NK = torch.einsum("nd,nkd->nk", vectors_ND, self.output(contexts.noise_NK))
        best_N = noise_NK.detach().amax(1)
        times_NK = (contexts.left_N + contexts.right_N).float()[:, None].expand_as(noise_NK).clone()
        total, hits = vectors_ND.new_zeros(()), vectors_ND.new_zeros(())
        for words, around, counted in contexts.pairs():
            scores = (vectors_ND[words] * output_ND[around]).sum(1)
            total = total + (softplus(-scores) * counted).sum()
            hits = hits + ((scores.detach() > best_N[words]) * counted).sum()
            same = contexts.noise_NK[words] == contexts.words_N[around, None]
            times_NK[words] -= same * counted[:, None]
        return total + (softplus(noise_NK) * times_NK).sum(), hits


class ContinuousBagOfWords(NegativeSampling):
    """Separates a word from noise words by its mean context vector (Mikolov et al. 2013, "Efficient ...", 3.1).

    Contexts and noise come from the corruption ``ContextWindows``. The output vectors are a separate matrix, which
    starts at 0. Losses: "cbow", the binary cross entropies in nats of a word and its noise words, summed over words
    with context; "cbow_accuracy", the words that score above their noise words.

    As in word2vec.c, a noise word that equals the word does not count.
    """

    name = "cbow"
    title = "words from their contexts"

    @override
    def count(self, batch: PretrainingBatch) -> int:
        return int(np.count_nonzero(np.add(*_sides(batch))))

    def sums(self, vectors_ND: Tensor, contexts: Contexts) -> tuple[Tensor, Tensor]:
        """Sum over words, and count the words that score above the noise."""
        means_ND = _context_means(vectors_ND, contexts)
        scores_N = (means_ND * self.output(contexts.words_N)).sum(1)
        noise_NK = torch.einsum("nd,nkd->nk", means_ND, self.output(contexts.noise_NK))
        is_other_NK = contexts.noise_NK != contexts.words_N[:, None]
        total = softplus(-scores_N).sum() + (softplus(noise_NK) * is_other_NK).sum()
        negatives_NK = noise_NK.detach().masked_fill(~is_other_NK, -torch.inf)
        return total, (scores_N.detach()[:, None] > negatives_NK).all(1).float().sum()


def _context_means(vectors_ND: Tensor, contexts: Contexts) -> Tensor:
    """Return the mean context vector of each word, (N, D)."""
    sums_ND = torch.zeros_like(vectors_ND)
    for words, around, counted in contexts.pairs():
        sums_ND[words] += vectors_ND[around] * counted[:, None]
    return sums_ND / (contexts.left_N + contexts.right_N)[:, None]


#: The vector of a row that predicts its words: the mean of the last layer over all tokens of the row, including special
#: tokens, or the last layer at the first token.
RowPooling = Literal["mean", "first"]


class BagOfWords(Objective):
    """Predicts the words of a row, including masked words, from its pooled state, and so trains that state.

    FastSent (Hill et al. 2016, https://arxiv.org/abs/1602.03483) also predicts the words of a text, and TF-IDF has
    similar weights. Variants of both, combined with masked tokens, beat masked tokens alone (Aroca-Ouellette and
    Rudzicz 2020, https://arxiv.org/abs/2010.01694). Where we differ: we predict the words of the row itself, not of its
    neighbor; there is one softmax over the vocabulary; and the weight of a token is its information ``-log p``, where
    p is its share of the tokens of the training text. TF-IDF counts documents instead.

    The target of a row is a distribution over the vocabulary, ``q(v) = n(v) w(v) / sum_u n(u) w(u)``. n(v) is the
    number of times that v occurs in the uncorrupted row, and the weight w is 0 for special tokens. The head is a linear
    layer to the width of the token embedding, then the token embedding as output matrix with a bias. Losses: "bow", the
    cross entropies ``-sum_v q(v) log p(v)`` in nats summed over rows; "bow_accuracy", the number of rows that contain
    their most probable token. A row with only special tokens adds nothing.

    The encoder reads the corrupted row. Combined with masked tokens, this objective therefore costs only B rows of
    logits, and the last layer at all positions instead of the masked positions. Combined with an objective that reads
    other tokens (replaced tokens), it costs one more pass of the encoder.
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
        """Create the head; all words have the same weight until ``observe`` is called."""
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
        """Return the vector of each row, (B, D)."""
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
    """Return the length of each real row, (B,), and the row of each real token, (T,)."""
    lengths_B = packed.cu_seqlens.diff()[: packed.num_real].long()
    rows_B = torch.arange(packed.num_real, device=lengths_B.device)
    return lengths_B, rows_B.repeat_interleave(lengths_B, output_size=packed.num_tokens)


def _row_sums(values: Tensor, rows_T: Tensor, lengths_B: Tensor) -> Tensor:
    """Sum over each row: (T, ...) -> (B, ...)."""
    return values.new_zeros(len(lengths_B), *values.shape[1:]).index_add(0, rows_T, values)


def _precise(tensor: Tensor) -> torch.dtype:
    return torch.promote_types(tensor.dtype, torch.float32)
