"""Initial token embeddings from co-occurrence counts, and initial biases of the heads from token frequencies.

Shape legend: V vocabulary, C context tokens (or characters of a word), N tokens of the text, K columns, F features of a
word and a constant, P width of a word vector or number of pairs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from time import perf_counter

import numpy as np
import torch
from torch import Tensor, nn

from lmtransfer.config.types import Count, LargeCount, Positive
from lmtransfer.data.token_frequencies import keep_probabilities, token_shares
from lmtransfer.data.token_shards import MixedStore, TokenStore
from lmtransfer.errors import ConfigError
from lmtransfer.models.base import Encoder
from lmtransfer.models.layers.char_cnn import CharacterCnn
from lmtransfer.models.word_embeddings import standardize
from lmtransfer.objectives.base import Objective
from lmtransfer.randomness import derive_seed
from lmtransfer.training import process_group

_OVERSAMPLING = 16
_TINY = 1e-12

#: Number of counts that fit in cache (2 MiB), and number of pairs that are counted at a time.
_COUNTS_IN_CACHE, _PAIRS_AT_ONCE = 1 << 19, 1 << 19
#: Maximum number of entries in a matrix of counts: 1 GiB in float32.
_MOST_NUMBERS = 1 << 28
_WORDS_AT_ONCE = 1024
#: Ridge penalty, as a share of the mean of the diagonal. It was chosen on held-out words of film reviews: a smaller
#: penalty reproduces slightly more of the fitted vectors, but less of the others.
_RIDGE = 1e-2
#: Budget in seconds below which the time for counting is limited.
_SHORT = 300.0
#: With a short budget, the number of tokens that are counted first, and the factor by which this number grows.
_FIRST_TOKENS, _GROWTH = 1 << 17, 4


def positive_pmi(counts_VC: Tensor, *, smoothing: float) -> Tensor:
    """Convert counts to positive pointwise mutual information in nats (Levy & Goldberg 2014), in place."""
    of_token_V = counts_VC.sum(1).clamp_min(_TINY)
    of_context_C = counts_VC.sum(0) ** smoothing
    of_context_C = (of_context_C / of_context_C.sum().clamp_min(_TINY)).clamp_min(_TINY)
    return counts_VC.div_(of_token_V[:, None]).div_(of_context_C).clamp_min_(1.0).log_()


def sparse_positive_pmi(places_2P: Tensor, numbers_P: Tensor, *, size: tuple[int, int]) -> Tensor:
    """Compute positive pointwise mutual information as a sparse matrix, with log(1 + n) for each count n."""
    smoothed_P = numbers_P.log1p()
    rows, columns = (torch.zeros(n).index_add_(0, place, smoothed_P) for n, place in zip(size, places_2P, strict=True))
    expected_P = rows[places_2P[0]] * columns[places_2P[1]] / smoothed_P.sum()
    pmi_P = (smoothed_P / expected_P).clamp_min(1.0).log()
    return torch.sparse_coo_tensor(places_2P, pmi_P, size, check_invariants=False).coalesce()


def leading_vectors(matrix: Tensor, *, columns: int, seed: int, rounds: int = 2) -> Tensor:
    """Compute the leading left singular vectors, times the square roots of the singular values (Levy et al. 2015, 3.3).

    The method is random projection with subspace iteration (Halko, Martinsson & Tropp 2011, algorithm 4.4).

    Args:
        columns: number of vectors K; vectors beyond the rank of the matrix are 0.

    Returns:
        (V, K), float32.
    """
    height, width = matrix.shape
    size = min(columns + _OVERSAMPLING, height, width)
    transposed = matrix.t()
    basis = torch.randn(width, size, generator=torch.Generator().manual_seed(seed))
    basis = torch.linalg.qr(matrix @ basis)[0]
    for _ in range(rounds):
        basis = torch.linalg.qr(transposed @ basis)[0]
        basis = torch.linalg.qr(matrix @ basis)[0]
    left, values, _ = torch.linalg.svd((transposed @ basis).t(), full_matrices=False)
    vectors = (basis @ left) * values.sqrt()
    num_columns = min(columns, size)
    return torch.nn.functional.pad(vectors[:, :num_columns], (0, columns - num_columns))


def token_ids(store: TokenStore | MixedStore, *, most_tokens: int) -> np.ndarray:
    """Return the first tokens of a corpus, or of each part of a mixture in proportion to its share, int64, (N,)."""
    parts = _stores_and_sizes(store, most_tokens)
    return np.concatenate([part.tokens(0, size) for part, size in parts]).astype(np.int64)


def _stores_and_sizes(store: TokenStore | MixedStore, most_tokens: int) -> list[tuple[TokenStore, int]]:
    """Return each token store with the number of its first tokens to count."""
    if isinstance(store, TokenStore):
        return [(store, min(store.num_tokens, most_tokens))]
    sampled = store.proportions()
    return [(part, min(part.num_tokens, int(sampled[name] * most_tokens))) for name, part in store.parts.items()]


def segment_ids(store: TokenStore | MixedStore, *, most_tokens: int, longest: int) -> np.ndarray:
    """Return the index of the segment (at most ``longest`` tokens of a document) of each token, int64, (N,)."""
    segment_lists, before = [], 0
    for part, size in _stores_and_sizes(store, most_tokens):
        starts = np.asarray(part.sentence_starts)[np.asarray(part.document_starts)]
        places = np.arange(size)
        documents = np.searchsorted(starts, places, side="right") - 1
        begins_T = (places - starts[documents]) % longest == 0
        segments = np.cumsum(begins_T) - 1 + before
        segment_lists.append(segments)
        before = int(segments[-1]) + 1 if size else before
    return np.concatenate(segment_lists)


def subsample(ids_N: np.ndarray, *, threshold: float, seed: int) -> np.ndarray:
    """Drop frequent tokens at random (see ``keep_probabilities``), so that windows reach further."""
    kept_V = keep_probabilities(np.bincount(ids_N) / max(1, len(ids_N)), threshold=threshold)
    kept_N: np.ndarray = ids_N[np.random.default_rng(seed).random(len(ids_N)) < kept_V[ids_N]]
    return kept_N


def window_counts(ranks_N: np.ndarray, *, window: int, vocab_size: int, contexts: int) -> Tensor:
    """Count how often each context token occurs near each token.

    A pair at distance d counts ``window - d + 1`` times, as on average with the random window sizes of word2vec.
    Windows cross document boundaries.

    Only a few tokens are counted at a time, so that their counts stay in cache; in the order of the text, every pair
    would be a cache miss.

    Returns:
        float32, (V, C).
    """
    size, reach = len(ranks_N), max(0, min(window, len(ranks_N) - 1))
    text_N = torch.from_numpy(ranks_N)
    columns = contexts + 1  # the last column is for tokens that are not contexts, and for places outside the text
    padded = torch.full((size + 2 * reach,), contexts, dtype=torch.int32)
    padded[reach : reach + size] = text_N.clamp(max=contexts)
    near_NW = padded.unfold(0, 2 * reach + 1, 1)
    weights_W = (window + 1 - torch.arange(-reach, reach + 1).abs()).float()
    weights_W[reach] = 0.0  # the token itself
    at_once = max(1, _PAIRS_AT_ONCE // len(weights_W))
    weights_PW = weights_W.repeat(at_once)

    sorted_N, order_N = text_N.sort(stable=True)  # all places of the first token, then of the second, and so on
    rows = max(1, _COUNTS_IN_CACHE // columns)
    edges = torch.searchsorted(sorted_N, torch.arange(0, vocab_size + rows, rows)).tolist()
    counts_VC = torch.empty(vocab_size, contexts)
    part = torch.empty(rows * columns)
    for block, (begin, end) in enumerate(pairwise(edges)):
        first = block * rows
        part.zero_()
        for start in range(begin, end, at_once):
            places_P = order_N[start : min(start + at_once, end)]
            row_P = ((text_N[places_P] - first) * columns).int()
            indices = near_NW.index_select(0, places_P).add_(row_P[:, None]).flatten()
            part.index_add_(0, indices, weights_PW[: len(indices)])
        last = min(first + rows, vocab_size)
        counts_VC[first:last] = part.view(rows, columns)[: last - first, :contexts]
    return counts_VC


def segment_counts(ranks_N: np.ndarray, segments_N: np.ndarray, *, vocab_size: int) -> tuple[Tensor, Tensor]:
    """Count how often each token occurs in each segment.

    Returns:
        The token and the segment of each nonzero count, int64, (2, P); and the counts, float32, (P,).
    """
    num_segments = int(segments_N.max()) + 1
    keys_P, counts_P = torch.unique(torch.from_numpy(ranks_N * num_segments + segments_N), return_counts=True)
    places_2P = torch.stack([keys_P.div(num_segments, rounding_mode="floor"), keys_P % num_segments])
    return places_2P, counts_P.float()


class CountedEmbeddings:
    """Initializes token embeddings from co-occurrence counts and one factorization, without training.

    Each view of the text contributes a share of the columns. Nearby tokens show which tokens can replace a token;
    distant tokens and documents show the token's topic. A view is a matrix of positive pointwise mutual information,
    and its columns are the leading singular vectors (Levy & Goldberg 2014; for documents Deerwester et al. 1990).
    Skip-gram with negative sampling factorizes nearly the same matrix, but by training, whereas counting takes seconds.

    Args:
        windows: the views by neighbors, each given as the number of tokens on each side.
        documents: whether to add a view by documents.
        segment_tokens: maximum number of tokens in a segment of a document.
        subsample: tokens whose share is higher than this are dropped at random for the windows; null drops none.
        smoothing: exponent of the context frequencies (Levy et al. 2015).
        contexts: number of the most frequent tokens that serve as contexts; fewer with a large vocabulary, because a
            matrix of counts has at most 1 GiB. One matrix is in memory at a time, or two if every token is a context,
            plus about 50 bytes for each counted token.
        max_tokens: maximum number of tokens to count.
        deviation: standard deviation of all entries of the table, whose columns are centered (0.02 for random
            embeddings).
        output_bias: whether the output biases over the vocabulary start from the log frequencies of the tokens.
    """

    def __init__(
        self,
        *,
        windows: Sequence[Count] = (2, 16),
        documents: bool = True,
        segment_tokens: LargeCount = 1024,
        subsample: Positive | None = 1e-3,
        smoothing: Positive = 0.75,
        contexts: Count = 8192,
        max_tokens: LargeCount = 20_000_000,
        deviation: Positive = 0.05,
        output_bias: bool = True,
    ) -> None:
        if not windows and not documents:
            raise ConfigError(
                "embeddings.windows=[] and embeddings.documents=false leave nothing to count: give at least one "
                "window, or set embeddings.documents=true"
            )
        self.windows, self.documents, self.segment_tokens = tuple(windows), documents, segment_tokens
        self.subsample, self.smoothing, self.contexts = subsample, smoothing, contexts
        self.max_tokens, self.deviation, self.output_bias = max_tokens, deviation, output_bias

    @torch.no_grad()
    def fill(
        self, table: nn.Embedding, store: TokenStore | MixedStore, *, seed: int, most_tokens: int | None = None
    ) -> int:
        """Write the vectors of all tokens that occur into ``table``; return the number of counted tokens."""
        most_tokens = min(self.max_tokens, most_tokens or self.max_tokens)
        ids_N = token_ids(store, most_tokens=most_tokens)
        counts_V = np.bincount(ids_N, minlength=table.num_embeddings)
        by_rank_V = np.argsort(-counts_V, kind="stable")
        rank_V = np.empty_like(by_rank_V)
        rank_V[by_rank_V] = np.arange(len(by_rank_V))
        num_seen = int((counts_V > 0).sum())
        vectors_VE = self._vectors(
            rank_V[ids_N], store, num_seen, table.embedding_dim, seed=seed, most_tokens=most_tokens
        )
        rows = torch.from_numpy(by_rank_V[:num_seen]).to(table.weight.device)
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
        """Compute the vectors of the tokens that occur, by frequency: the views side by side, at the same scale."""
        shares = np.array_split(np.arange(dim), len(self.windows) + self.documents)
        views = []
        seed = derive_seed(seed, "counted embeddings")
        text_N = ranks_N if self.subsample is None else subsample(ranks_N, threshold=self.subsample, seed=seed)
        text_N = text_N if len(text_N) > 1 else ranks_N  # in a tiny text, all tokens are frequent and may be dropped
        contexts = min(self.contexts, vocab_size, max(dim, _MOST_NUMBERS // vocab_size))
        for place, window in enumerate(self.windows):  # no matrix stays in memory while the next is counted
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
        standardize(joined, center=True, deviation=self.deviation)
        return joined.weight


@torch.no_grad()
def fit_characters(network: CharacterCnn, characters_VC: np.ndarray, vectors_VP: Tensor, shares_V: np.ndarray) -> float:
    """Fit the projection of a character network so that its word vectors approximate the counted vectors.

    The convolutions keep their random weights, and the projection is the solution of a ridge regression on their
    outputs. Words are weighted by the square root of their share of the text: rare words count less, because their
    vectors are less certain.

    Returns:
        The share of the (weighted) variance of the vectors that the network reproduces.
    """
    weights_V = torch.from_numpy(np.sqrt(np.pad(shares_V, (0, len(characters_VC) - len(shares_V)))))
    rows = torch.split(weights_V.nonzero().squeeze(1), _WORDS_AT_ONCE)
    features = network.projection.in_features + 1
    products_FF = torch.zeros(features, features, dtype=torch.float64)
    products_FP = torch.zeros(features, vectors_VP.shape[1], dtype=torch.float64)
    variance = 0.0
    for row in rows:
        states = network.features(characters_VC[row.numpy()])
        read = nn.functional.pad(states.float().cpu(), (0, 1), value=1.0)
        weight = weights_V[row].float()[:, None]
        products_FF += (weight * read).T @ read
        products_FP += (weight * read).T @ vectors_VP[row]
        variance += float((weight * vectors_VP[row].square()).sum())
    penalty_FF = _RIDGE * products_FF.diagonal().mean() * torch.eye(features)
    solution_FP = torch.linalg.solve(products_FF + penalty_FF, products_FP)
    network.projection.weight.copy_(solution_FP[:-1].T)
    network.projection.bias.copy_(solution_FP[-1])
    error = variance + float((solution_FP * (products_FF @ solution_FP - 2 * products_FP)).sum())
    return 1 - error / variance


@dataclass(frozen=True, slots=True)
class Start:
    """The result of counting.

    Attributes:
        seconds: time spent on counting.
        shares_V: share of each token in the text, for the biases of heads; shorter than V if the last tokens never
            occur. None if biases start at 0.
        vectors_VP: the counted vectors, for the separate output matrix of an encoder that reads characters; None if the
            encoder has a token table, or if the run has a checkpoint.
        explained: share of the variance of the vectors that an encoder over characters reproduces.
        cut: whether part of the text was not counted, to leave time for training.
    """

    num_tokens: int
    seconds: float
    shares_V: np.ndarray | None
    vectors_VP: Tensor | None = None
    explained: float = 0.0
    cut: bool = False

    def fill_head(self, objective: Objective) -> None:
        """Set an objective's biases over the vocabulary to centered log frequencies.

        If the encoder reads characters, also set an output matrix of the same shape to the counted vectors.
        """
        if self.vectors_VP is not None:
            for name in objective.vocabulary_tensors:
                parameter = objective.get_parameter(name)
                if parameter.shape == self.vectors_VP.shape:
                    with torch.no_grad():
                        parameter.copy_(self.vectors_VP)
        if self.shares_V is None:
            return
        shares_V = np.pad(self.shares_V, (0, max(0, objective.encoder.vocab_size - len(self.shares_V))))
        log_V = np.log(np.maximum(shares_V, shares_V[shares_V > 0].min() / 2))
        for name in objective.vocabulary_tensors:
            parameter = objective.get_parameter(name)
            if parameter.shape == log_V.shape:
                with torch.no_grad():
                    parameter.copy_(torch.from_numpy(log_V - log_V.mean()))


def count_first(
    embeddings: CountedEmbeddings,
    encoder: Encoder,
    store: TokenStore | MixedStore,
    *,
    characters_VC: np.ndarray | None,
    seed: int,
    fresh: bool,
    budget: float | None = None,
) -> Start:
    """Count a text and initialize the token embeddings on the main rank, from which other ranks receive the weights.

    Call this function before the embedding table is copied or tied.

    Args:
        fresh: whether the run has no checkpoint; otherwise nothing is counted.
        budget: budget of the run in seconds. Counting uses at most about half of a short budget: it starts with little
            text, and counts more while there is time.
    """
    start_time = perf_counter()
    shares_V, vectors_VP = token_shares(store), None
    num_tokens, explained, cut = 0, 0.0, False
    if fresh and process_group.is_main():
        table = encoder.token_embedding
        if table is not None:
            num_tokens, cut = _fill(embeddings, table, store, seed=seed, budget=budget)
        else:
            network = encoder.word_network
            assert network is not None  # checked before any text is read
            assert characters_VC is not None
            words = nn.Embedding(len(characters_VC), network.projection.out_features)
            absent = torch.Generator().manual_seed(derive_seed(seed, "absent words"))
            nn.init.normal_(words.weight, std=embeddings.deviation, generator=absent)
            num_tokens, cut = _fill(embeddings, words, store, seed=seed, budget=budget)
            vectors_VP = words.weight.detach()
            explained = fit_characters(network, characters_VC, vectors_VP, shares_V)
    num_tokens, explained, cut, seconds = process_group.broadcast(
        (num_tokens, explained, cut, perf_counter() - start_time if fresh else 0.0)
    )
    if budget is not None and budget < _SHORT and seconds > budget / 2:
        raise ConfigError(
            f"train.seconds={budget:g}: counting {num_tokens:,} tokens for the token embeddings took {seconds:.0f} s: "
            f"raise train.seconds to {math.ceil(3 * seconds)} or more, or start from random embeddings with "
            "embeddings=null"
        )
    return Start(num_tokens, seconds, shares_V if embeddings.output_bias else None, vectors_VP, explained, cut)


def _fill(
    embeddings: CountedEmbeddings,
    table: nn.Embedding,
    store: TokenStore | MixedStore,
    *,
    seed: int,
    budget: float | None,
) -> tuple[int, bool]:
    """Count within half of a short budget; return the number of counted tokens, and whether time ran out."""
    if budget is None or budget >= _SHORT:
        return embeddings.fill(table, store, seed=seed), False
    start_time, most_tokens = perf_counter(), _FIRST_TOKENS
    while True:
        before = perf_counter()
        num_tokens = embeddings.fill(table, store, seed=seed, most_tokens=most_tokens)
        now = perf_counter()
        if num_tokens < most_tokens or most_tokens >= embeddings.max_tokens:
            return num_tokens, False
        if now - start_time + _GROWTH * (now - before) > budget / 2:
            return num_tokens, True
        most_tokens *= _GROWTH
