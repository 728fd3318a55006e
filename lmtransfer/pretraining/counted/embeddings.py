"""Token embeddings from the co-occurrence counts of a text."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from lmtransfer.config.types import LargeCount
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

#: Most entries of a matrix of counts: 1 GiB in float32.
_MOST_NUMBERS = 1 << 28


class CountedEmbeddings:
    """Initialises token embeddings from co-occurrence counts and one factorisation, without training.

    Each view of the text gives a share of the columns. Near neighbours show which tokens can replace a token. Far
    neighbours and documents show its topic. A view is a matrix of positive pointwise mutual information; its columns
    are the leading singular vectors (Levy & Goldberg 2014; for documents Deerwester et al. 1990). Skip-gram with
    negative sampling factorises nearly the same matrix, but step by step; this takes seconds.

    Args:
        windows: the views by neighbours: for each the number of tokens on each side.
        documents: whether to add a view by documents.
        segment_tokens: longer documents are cut into parts of this many tokens.
        subsample: tokens whose share is higher than this are dropped at random for the windows
            (``counts.subsampled``); null drops none.
        smoothing: exponent on the frequencies of contexts (Levy et al. 2015).
        contexts: how many of the most frequent tokens are contexts. A large vocabulary gets fewer: a matrix of counts
            has 1 GiB at most. There is one at a time, or two if every token is a context, plus about 50 bytes for each
            counted token.
        max_tokens: most tokens that are counted of a text.
        deviation: standard deviation of all numbers of the table, whose columns are centred; random embeddings have
            0.02.
        output_bias: start the output biases over the vocabulary from the log frequencies of the tokens.

    Raises:
        ConfigError: a value out of its range, or no view.
    """

    def __init__(
        self,
        *,
        windows: Sequence[int] = (2, 16),
        documents: bool = True,
        segment_tokens: LargeCount = 1024,
        subsample: float | None = 1e-3,
        smoothing: float = 0.75,
        contexts: int = 8192,
        max_tokens: LargeCount = 20_000_000,
        deviation: float = 0.05,
        output_bias: bool = True,
    ) -> None:
        problems = []
        if any(window < 1 for window in windows):
            problems.append(f"embeddings.windows={list(windows)}: each must be at least 1")
        if not windows and not documents:
            problems.append("embeddings.windows=[] and embeddings.documents=false leave nothing to count: set one")
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
    def fill(
        self, table: nn.Embedding, store: TokenStore | MixedStore, *, seed: int, most_tokens: int | None = None
    ) -> int:
        """Write the vectors into a table, in place; tokens that do not occur in the text keep their vectors.

        Args:
            table: the token embeddings, (V, E).
            store: the text, as tokens.
            seed: seed of the run.
            most_tokens: a lower limit than ``max_tokens``.

        Returns:
            Number of counted tokens of the text.
        """
        most_tokens = min(self.max_tokens, most_tokens or self.max_tokens)
        ids_N = token_ids(store, most_tokens=most_tokens)
        counts_V = np.bincount(ids_N, minlength=table.num_embeddings)
        by_rank_V = np.argsort(-counts_V, kind="stable")
        rank_V = np.empty_like(by_rank_V)
        rank_V[by_rank_V] = np.arange(len(by_rank_V))
        known = int((counts_V > 0).sum())
        vectors_VE = self._vectors(rank_V[ids_N], store, known, table.embedding_dim, seed=seed, most_tokens=most_tokens)
        rows = torch.from_numpy(by_rank_V[:known]).to(table.weight.device)
        table.weight[rows] = vectors_VE.to(table.weight)
        return len(ids_N)

    def _vectors(
        self,
        ranks_N: np.ndarray,
        store: TokenStore | MixedStore,
        vocab_size: int,
        dim: int,
        *,
        seed: int,
        most_tokens: int,
    ) -> Tensor:
        """Vectors of the tokens that occur, most frequent first: the views side by side, each scaled to deviation 1."""
        shares = np.array_split(np.arange(dim), len(self.windows) + self.documents)
        views = []
        seed = derived_seed(seed, "counted embeddings")
        text_N = ranks_N if self.subsample is None else subsampled(ranks_N, threshold=self.subsample, seed=seed)
        text_N = text_N if len(text_N) > 1 else ranks_N  # in a tiny text all tokens are frequent
        contexts = min(self.contexts, vocab_size, max(dim, _MOST_NUMBERS // vocab_size))
        for place, window in enumerate(self.windows):  # no name keeps a matrix while the next one is counted
            views.append(
                leading_vectors(
                    positive_pmi(
                        window_counts(text_N, window=window, vocab_size=vocab_size, contexts=contexts),
                        smoothing=self.smoothing,
                    ),
                    columns=len(shares[place]),
                    seed=seed,
                )
            )
        if self.documents:
            segments_N = segment_ids(store, most_tokens=most_tokens, longest=self.segment_tokens)
            places, numbers = segment_counts(ranks_N, segments_N, vocab_size=vocab_size)
            matrix = sparse_positive_pmi(places, numbers, size=(vocab_size, int(segments_N.max()) + 1))
            views.append(leading_vectors(matrix, columns=len(shares[-1]), seed=seed))
        joined = nn.Embedding(vocab_size, dim)
        joined.weight.copy_(torch.cat([view / view.std(correction=0).clamp_min(1e-12) for view in views], dim=1))
        standardise(joined, centre=True, deviation=self.deviation)
        return joined.weight
