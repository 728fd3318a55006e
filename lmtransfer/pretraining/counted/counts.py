"""How often tokens occur near each other, and in which documents.

Shape legend: N tokens of text, V vocabulary, C context tokens (the C most frequent), S segments.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from lmtransfer.data.store.store import MixedStore, TokenStore
from lmtransfer.data.store.token_shares import kept_rates


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

    Args:
        ranks_N: the text; each token is its rank by frequency.
        window: number of tokens on each side.
        vocab_size: V.
        contexts: C, at most V.

    Returns:
        float32, (V, C).
    """
    text_N = torch.from_numpy(ranks_N)
    every = contexts == vocab_size
    columns = contexts + (not every)  # one more column collects the tokens that are no context
    row_N, column_N = text_N * columns, text_N.clamp(max=columns - 1)
    counts = torch.zeros(vocab_size * columns)
    one = torch.ones(len(text_N))
    for distance in range(1, min(window, len(text_N) - 1) + 1):
        pairs, weight = one[distance:], float(window - distance + 1)
        counts.index_add_(0, row_N[:-distance] + column_N[distance:], pairs, alpha=weight)
        if not every:
            counts.index_add_(0, row_N[distance:] + column_N[:-distance], pairs, alpha=weight)
    counts_VC = counts.view(vocab_size, columns)
    return counts_VC + counts_VC.t() if every else counts_VC[:, :contexts]


def segment_counts(ranks_N: np.ndarray, segments_N: np.ndarray, *, vocab_size: int) -> tuple[Tensor, Tensor]:
    """How often each token occurs in each segment.

    Returns:
        The token and the segment of each count that is not 0, int64, (2, P); and the counts, float32, (P,).
    """
    num_segments = int(segments_N.max()) + 1
    keys_P, counts_P = torch.from_numpy(ranks_N * num_segments + segments_N).unique(return_counts=True)
    places_2P = torch.stack([keys_P.div(num_segments, rounding_mode="floor"), keys_P % num_segments])
    return places_2P, counts_P.float()
