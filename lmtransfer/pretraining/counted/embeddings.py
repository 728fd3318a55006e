"""Token embeddings as the counts of a text say them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from lmtransfer.data.store.store import MixedStore, TokenStore
from lmtransfer.errors import ConfigError
from lmtransfer.models.token_vectors import standardise
from lmtransfer.pretraining.counted.counts import (
    segment_counts,
    segment_ids,
    subsampled,
    token_ids,
    window_counts,
)
from lmtransfer.pretraining.counted.factorising import leading_vectors, positive_pmi, sparse_positive_pmi
from lmtransfer.randomness import derived_seed

#: Of a matrix of counts: 1 GiB in float32.
_MOST_NUMBERS = 1 << 28


class CountedEmbeddings:
    """Starts a token embedding from what occurs together, by counting and one factorisation, without training.

    Each view of the text gives a share of the columns: near neighbours (what can stand in a token's place), far ones
    and documents (what it is about). A view is a matrix of positive pointwise mutual information, whose leading
    singular vectors are taken (Levy & Goldberg 2014; of documents Deerwester et al. 1990). Skip-gram with negative
    sampling factorises nearly the same matrix, step by step; this takes seconds.

    Args:
        windows: of the views by neighbours: tokens to each side.
        documents: a view by documents, too.
        segment_tokens: longer documents are cut into parts of so many tokens.
        subsample: tokens more frequent than this are thinned out for the windows (``counts.subsampled``); null: none.
        smoothing: exponent on the frequencies of contexts (Levy et al. 2015).
        contexts: the most frequent tokens that count as contexts, or fewer with a large vocabulary: a matrix of
            counts, of which there are two at a time, has 1 GiB at most. Some 50 bytes a counted token come on top.
        max_tokens: of a larger text only so many are counted.
        deviation: standard deviation of all numbers of the table, whose columns are centred; random ones have
            0.02.
        output_bias: start the biases of outputs over the vocabulary from the tokens' log frequencies.

    Raises:
        ConfigError: a value out of its range, or no view.
    """

    def __init__(
        self,
        *,
        windows: Sequence[int] = (2, 16),
        documents: bool = True,
        segment_tokens: int = 1024,
        subsample: float | None = 1e-3,
        smoothing: float = 0.75,
        contexts: int = 8192,
        max_tokens: int = 20_000_000,
        deviation: float = 0.05,
        output_bias: bool = True,
    ) -> None:
        problems = []
        if any(window < 1 for window in windows):
            problems.append(f"embeddings.windows={list(windows)}: each must be at least 1")
        if not windows and not documents:
            problems.append("embeddings.windows=[] and embeddings.documents=false leave nothing to count: give one")
        for name, value in (("segment_tokens", segment_tokens), ("contexts", contexts), ("max_tokens", max_tokens)):
            if value < 1:
                problems.append(f"embeddings.{name}={value}: must be at least 1")
        for name, number in (("subsample", subsample), ("smoothing", smoothing), ("deviation", deviation)):
            if number is not None and not number > 0:
                problems.append(f"embeddings.{name}={number}: must be above 0")
        if problems:
            raise ConfigError(problems)
        self.windows, self.documents, self.segment_tokens = tuple(windows), documents, segment_tokens
        self.subsample, self.smoothing, self.contexts = subsample, smoothing, contexts
        self.max_tokens, self.deviation, self.output_bias = max_tokens, deviation, output_bias

    @torch.no_grad()
    def fill(self, table: nn.Embedding, store: TokenStore | MixedStore, *, seed: int) -> int:
        """Put the vectors into a table, in place; tokens that the text lacks keep what they have.

        Args:
            table: (V, E).
            store: the text, as tokens.
            seed: of the run.

        Returns:
            How many tokens of text were counted.
        """
        ids_N = token_ids(store, most_tokens=self.max_tokens)
        counts_V = np.bincount(ids_N, minlength=table.num_embeddings)
        by_rank_V = np.argsort(-counts_V, kind="stable")
        rank_V = np.empty_like(by_rank_V)
        rank_V[by_rank_V] = np.arange(len(by_rank_V))
        known = int((counts_V > 0).sum())
        vectors_VE = self._vectors(rank_V[ids_N], store, known, table.embedding_dim, seed=seed)
        rows = torch.from_numpy(by_rank_V[:known]).to(table.weight.device)
        table.weight[rows] = vectors_VE.to(table.weight)
        return len(ids_N)

    def _vectors(
        self, ranks_N: np.ndarray, store: TokenStore | MixedStore, vocab_size: int, dim: int, *, seed: int
    ) -> Tensor:
        """(tokens that occur, most frequent first; dim): the views side by side, each of deviation 1, then scaled."""
        shares = np.array_split(np.arange(dim), len(self.windows) + self.documents)
        views = []
        seed = derived_seed(seed, "counted embeddings")
        text_N = ranks_N if self.subsample is None else subsampled(ranks_N, threshold=self.subsample, seed=seed)
        text_N = text_N if len(text_N) > 1 else ranks_N  # of a tiny text, all of whose tokens are frequent
        contexts = min(self.contexts, vocab_size, max(dim, _MOST_NUMBERS // vocab_size))
        for place, window in enumerate(self.windows):
            counts_VC = window_counts(text_N, window=window, vocab_size=vocab_size, contexts=contexts)
            matrix = positive_pmi(counts_VC, smoothing=self.smoothing)
            views.append(leading_vectors(matrix, columns=len(shares[place]), seed=seed))
        if self.documents:
            segments_N = segment_ids(store, most_tokens=self.max_tokens, longest=self.segment_tokens)
            places, numbers = segment_counts(ranks_N, segments_N, vocab_size=vocab_size)
            matrix = sparse_positive_pmi(places, numbers, size=(vocab_size, int(segments_N.max()) + 1))
            views.append(leading_vectors(matrix, columns=len(shares[-1]), seed=seed))
        joined = nn.Embedding(vocab_size, dim)
        joined.weight.copy_(torch.cat([view / view.std(correction=0).clamp_min(1e-12) for view in views], dim=1))
        standardise(joined, centre=True, deviation=self.deviation)
        return joined.weight
