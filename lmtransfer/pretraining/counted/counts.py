"""How often tokens occur near each other, and in which documents.

Shape legend: N tokens of text, V vocabulary, C context tokens (the C most frequent), S segments.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from lmtransfer.data.store.store import MixedStore, TokenStore
from lmtransfer.data.store.token_shares import kept_rates

#: Numbers of counts (2 MiB), and of pairs that are added at once.
_COUNTS_IN_CACHE, _PAIRS_AT_ONCE = 1 << 19, 1 << 19


def token_ids(store: TokenStore | MixedStore, *, most_tokens: int) -> np.ndarray:
    """The first tokens of a corpus, or of each part of a mixture by its sampling proportion, int64, shape (N,)."""
    return np.concatenate([one.tokens(0, size) for one, size in _taken(store, most_tokens)]).astype(np.int64)


def _taken(store: TokenStore | MixedStore, most_tokens: int) -> list[tuple[TokenStore, int]]:
    """Each store, and how many of its first tokens are counted."""
    if isinstance(store, TokenStore):
        return [(store, min(store.num_tokens, most_tokens))]
    sampled = store.proportions()
    return [(one, min(one.num_tokens, int(sampled[name] * most_tokens))) for name, one in store.parts.items()]


def segment_ids(store: TokenStore | MixedStore, *, most_tokens: int, longest: int) -> np.ndarray:
    """The number of the segment of each token of ``token_ids``: a document or a part of it, int64, shape (N,).

    Args:
        store: the corpus.
        most_tokens: as in ``token_ids``.
        longest: most tokens of a segment; longer documents are cut.
    """
    found, number = [], 0
    for one, size in _taken(store, most_tokens):
        starts = np.asarray(one.sentence_starts)[np.asarray(one.document_starts)]
        places = np.arange(size)
        documents = np.searchsorted(starts, places, side="right") - 1
        begins_T = (places - starts[documents]) % longest == 0
        segments = np.cumsum(begins_T) - 1 + number
        found.append(segments)
        number = int(segments[-1]) + 1 if size else number
    return np.concatenate(found)


def subsampled(ids_N: np.ndarray, *, threshold: float, seed: int) -> np.ndarray:
    """Drop frequent tokens at random and keep the order of the others.

    Each token is kept with the probability of ``token_shares.kept_rates``. Dropped tokens make the windows wider, as in
    word2vec.
    """
    kept_V = kept_rates(np.bincount(ids_N) / max(1, len(ids_N)), threshold=threshold)
    return ids_N[np.random.default_rng(seed).random(len(ids_N)) < kept_V[ids_N]]


def window_counts(ranks_N: np.ndarray, *, window: int, vocab_size: int, contexts: int) -> Tensor:
    """How often each context token occurs near each token.

    A pair at distance d counts ``window - d + 1``, so nearer pairs count more, as with the random window sizes of
    word2vec. Windows cross the ends of documents.

    The counts of a few tokens at a time are in cache, and all places of these tokens are read; in the order of the text
    every pair would be a miss.

    Args:
        ranks_N: the text; each token is its rank by frequency.
        window: number of tokens on each side.
        vocab_size: V.
        contexts: C, at most V.

    Returns:
        float32, (V, C).
    """
    size, reach = len(ranks_N), max(0, min(window, len(ranks_N) - 1))
    text_N = torch.from_numpy(ranks_N)
    columns = contexts + 1  # one more column collects tokens that are no context, and places outside the text
    padded = torch.full((size + 2 * reach,), contexts, dtype=torch.int32)
    padded[reach : reach + size] = text_N.clamp(max=contexts)
    near_NW = padded.unfold(0, 2 * reach + 1, 1)
    weights_W = (window + 1 - torch.arange(-reach, reach + 1).abs()).float()
    weights_W[reach] = 0.0  # the token itself
    at_once = max(1, _PAIRS_AT_ONCE // len(weights_W))
    weights_PW = weights_W.repeat(at_once)

    sorted_N, order_N = text_N.sort(stable=True)  # places of the first token, then of the second, and so on
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
    """How often each token occurs in each segment.

    Returns:
        The token and the segment of each count that is not 0, int64, (2, P); and the counts, float32, (P,).
    """
    num_segments = int(segments_N.max()) + 1
    keys_P, counts_P = torch.from_numpy(ranks_N * num_segments + segments_N).unique(return_counts=True)
    places_2P = torch.stack([keys_P.div(num_segments, rounding_mode="floor"), keys_P % num_segments])
    return places_2P, counts_P.float()
