"""Each part's contribution to an epoch of a mixture: smoothed proportions or weights, and limits."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np


def smooth(sizes: np.ndarray, alpha: float) -> np.ndarray:
    """Return the smoothed proportions q_i = p_i^alpha / sum_j p_j^alpha of parts, where p_i is the share of part i.

    Conneau and Lample, "Cross-lingual Language Model Pretraining" (NeurIPS 2019), section 3.1.

    Args:
        sizes: size of each part, at least one above 0, shape (parts,).
        alpha: 1 keeps the shares by size, 0 gives all parts the same proportion.

    Returns:
        float64, shape (parts,), summing to 1; a part of size 0 has proportion 0.
    """
    sizes = np.asarray(sizes, dtype=np.float64)
    weights = np.where(sizes > 0, (sizes / sizes.sum()) ** alpha, 0.0)
    return weights / weights.sum()


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the parts of a mixture are sampled.

    An epoch of a mixture has as much text as all parts together. Each part contributes its share. A part smaller than
    its share is repeated. A cap limits a part's contribution to an epoch, and the other parts fill the gap in
    proportion to their shares. If all parts are capped, the epoch is shorter. (Chung et al. 2023, "UniMax",
    arXiv:2304.09151, cap the number of passes over a language in the same way, over the whole run.)

    Attributes:
        alpha: exponent of the smoothed proportions (see ``smooth``); not used if there are weights.
        weights: weight of each part, above 0: the part's share of the tokens is its weight divided by the sum. None to
            use ``alpha``.
        max_tokens: maximum number of tokens that a part contributes to an epoch, by name; other parts have no limit.
        max_epochs: maximum number of passes over a part in an epoch, by name; other parts have no limit.
    """

    alpha: float = 0.7
    weights: Mapping[str, float] | None = None
    max_tokens: Mapping[str, float] = field(default_factory=dict)
    max_epochs: Mapping[str, float] = field(default_factory=dict)

    def problems(self, parts: Iterable[str]) -> Iterator[str]:
        """Yield one message for each problem with the settings for a mixture of these parts."""
        names = list(parts)
        part_list = f"the parts are {', '.join(names)}"
        if not 0 <= self.alpha <= 1:
            yield f"corpus.alpha={self.alpha}: must be from 0 (all parts equally) to 1 (by their size)"
        settings = {"weights": self.weights or {}, "max_tokens": self.max_tokens, "max_epochs": self.max_epochs}
        for key, values in settings.items():
            for name, value in values.items():
                if name not in names:
                    yield f"corpus.{key}.{name}: there is no such part; {part_list}"
                if not (math.isfinite(value) and value > 0):
                    yield f"corpus.{key}.{name}={value:g}: must be greater than 0"
        missing = [name for name in names if self.weights is not None and name not in self.weights]
        if missing:
            yield f"corpus.weights: has no weight for {', '.join(missing)}; give every part a weight ({part_list})"

    @property
    def has_caps(self) -> bool:
        """Whether any part has a cap."""
        return bool(self.max_tokens or self.max_epochs)

    def shares(self, sizes: Mapping[str, float]) -> dict[str, float]:
        """Return each part's share, summing to 1; a part of size 0 has share 0.

        Args:
            sizes: size of each part in tokens or characters.
        """
        return dict(zip(sizes, self._shares(sizes, np.ones(len(sizes))).tolist(), strict=True))

    def amounts(
        self, sizes: Mapping[str, float], *, tokens_per_unit: Mapping[str, float] | None = None
    ) -> dict[str, float]:
        """Return each part's contribution to an epoch, in units of ``sizes``: fractional, but whole if capped.

        Args:
            sizes: size of each part, in tokens or in rows.
            tokens_per_unit: mean number of tokens per unit of each part (the length of a row); None for 1.
        """
        names = list(sizes)
        size = np.array([sizes[name] for name in names], dtype=np.float64)
        length = np.array([1.0 if tokens_per_unit is None else tokens_per_unit[name] for name in names])
        most_tokens = np.array([self.max_tokens.get(name, np.inf) for name in names])
        most_epochs = np.array([self.max_epochs.get(name, np.inf) for name in names])
        most = np.floor(np.minimum(most_tokens / length, np.where(size > 0, most_epochs, 0.0) * size) + 1e-9)
        amounts = _fill(self._shares(sizes, length), size.sum(), most)
        return dict(zip(names, amounts.tolist(), strict=True))

    def _shares(self, sizes: Mapping[str, float], tokens_per_unit: np.ndarray) -> np.ndarray:
        size = np.array(list(sizes.values()), dtype=np.float64)
        if self.weights is None:
            return smooth(size, self.alpha)
        weights = np.where(size > 0, [self.weights[name] for name in sizes], 0.0) / tokens_per_unit
        return weights / weights.sum()

    def __str__(self) -> str:
        caps = ", with caps" if self.has_caps else ""
        return ("by weights" if self.weights is not None else f"with alpha {self.alpha:g}") + caps


def _fill(shares: np.ndarray, total: float, most: np.ndarray) -> np.ndarray:
    """Divide ``total`` by ``shares``, up to ``most`` per part; the other parts get what exceeds a part's maximum.

    Args:
        shares: float64, shape (parts,), summing to 1.
        most: maximum of each part, may be infinite, shape (parts,).
    """
    amounts = shares * total
    full = np.zeros(len(shares), dtype=bool)
    while (amounts[~full] > most[~full]).any():
        full |= amounts > most
        free = np.where(full, 0.0, shares)
        left = max(total - most[full].sum(), 0.0)
        amounts = np.where(full, most, free * (left / free.sum() if free.any() else 0.0))
    return amounts
