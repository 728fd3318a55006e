"""Token frequencies in a store or a mixture, and how each part uses a mixture's vocabulary."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from lmtransfer.data.token_shards import MixedStore, TokenStore
from lmtransfer.tokenizers.base import Tokenizer

_BLOCK = 1_000_000


def token_shares(store: TokenStore | MixedStore, *, most_tokens: int = 20_000_000) -> np.ndarray:
    """Return each token's share of the tokens that training samples, float64, shape (vocabulary,).

    The parts of a mixture are weighted by their sampling proportions. Only the first ``most_tokens`` of a large corpus
    are counted.
    """
    if isinstance(store, TokenStore):
        counts = _counts(store, most_tokens)
        return counts / counts.sum()
    parts = [token_shares(part, most_tokens=most_tokens) for part in store.parts.values()]
    size = max(map(len, parts))
    proportions = store.proportions().values()
    return sum((q * np.pad(p, (0, size - len(p))) for q, p in zip(proportions, parts, strict=True)), np.zeros(size))


def token_information(store: TokenStore | MixedStore, *, size: int) -> np.ndarray:
    """Return ``-log p`` of each token in nats, float64, (size,); a token that is absent counts as the rarest."""
    shares = _pad(token_shares(store), size)[:size]
    return -np.log(np.where(shares > 0, shares, shares[shares > 0].min()))


def keep_probabilities(shares_V: np.ndarray, *, threshold: float) -> np.ndarray:
    """Return each token's probability of surviving subsampling: sqrt(threshold / share), at most 1.

    After Mikolov et al. 2013 (``Distributed ...``, section 2.3), float64, shape (vocabulary,).
    """
    probabilities_V = np.ones(len(shares_V))
    often = shares_V > threshold
    probabilities_V[often] = np.sqrt(threshold / shares_V[often])
    return probabilities_V


def unigram_entropy(store: TokenStore | MixedStore) -> float:
    """Return the entropy of the token frequencies in nats: the loss of a masked language model that ignores context."""
    shares = token_shares(store)
    shares = shares[shares > 0]
    return float(-(shares * np.log(shares)).sum())


@dataclass(frozen=True, slots=True)
class PartShares:
    """The shares of one part in the text and the vocabulary of a mixture.

    Attributes:
        sampled: share of the tokens sampled during training that come from this part.
        passes: number of passes over the part in an epoch of the mixture: 0.5 is half of it, 3 is three passes.
        vocabulary: share of the vocabulary's pieces needed to cover 99.9 % of the part's tokens, 0 to 1.
        own: share of the vocabulary's pieces that are more frequent in this part than in any other, 0 to 1.
    """

    tokens: int
    share: float
    sampled: float
    passes: float
    unknown_rate: float
    vocabulary: float
    own: float


def part_shares(
    store: TokenStore | MixedStore, tokenizer: Tokenizer, *, most_tokens: int = 20_000_000
) -> Mapping[str, PartShares]:
    """Return each part's shares of a mixture's text and vocabulary, keyed by name; empty for a single corpus."""
    if isinstance(store, TokenStore):
        return {}
    is_special, unknown_id = tokenizer.is_special, tokenizer.unk_id
    sampled, amounts, size = store.proportions(), store.amounts(), len(is_special)
    frequencies = np.stack([_pad(token_shares(part, most_tokens=most_tokens), size) for part in store.parts.values()])
    ordinary = np.where(is_special, 0.0, frequencies)
    pieces = int((~is_special).sum())
    owner = np.where(ordinary.max(axis=0) > 0, ordinary.argmax(axis=0), -1)
    return {
        name: PartShares(
            tokens=part.num_tokens,
            share=part.num_tokens / store.num_tokens,
            sampled=sampled[name],
            passes=amounts[name] / part.num_tokens if part.num_tokens else 0.0,
            unknown_rate=float(frequencies[place, unknown_id]),
            vocabulary=_num_covering(ordinary[place], 0.999) / pieces,
            own=float((owner == place).sum()) / pieces,
        )
        for place, (name, part) in enumerate(store.parts.items())
    }


def _counts(store: TokenStore, most_tokens: int) -> np.ndarray:
    end = min(store.num_tokens, most_tokens)
    counts = np.zeros(1, dtype=np.int64)
    for start in range(0, end, _BLOCK):
        seen = np.bincount(store.tokens(start, min(start + _BLOCK, end)), minlength=len(counts))
        counts = _pad(counts, len(seen)) + seen
    return counts


def _pad(numbers: np.ndarray, size: int) -> np.ndarray:
    return np.pad(numbers, (0, max(0, size - len(numbers))))


def _num_covering(frequencies: np.ndarray, share: float) -> int:
    """Return the number of most frequent pieces whose frequencies add up to ``share`` of the total."""
    ordered = np.sort(frequencies)[::-1].cumsum()
    return int(ordered.searchsorted(share * ordered[-1])) + 1 if ordered[-1] else 0
