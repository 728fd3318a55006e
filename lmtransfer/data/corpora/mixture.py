"""A mixture of corpora, sampled by smoothed proportions (Conneau and Lample 2019) or by weights."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from hashlib import blake2b

import numpy as np
from typing_extensions import override

from lmtransfer.config.types import Name
from lmtransfer.data.documents import Corpus, Document, Notes
from lmtransfer.errors import ConfigError
from lmtransfer.randomness import generator

_BLOCK = 8192
_MIXTURE_VERSION = 1


def smooth(sizes: np.ndarray, alpha: float) -> np.ndarray:
    """Return the smoothed proportions q_i = p_i^alpha / sum_j p_j^alpha, where p_i is the share of part i by size.

    Conneau and Lample, "Cross-lingual Language Model Pretraining" (NeurIPS 2019), section 3.1. A part of size 0 has
    proportion 0.
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
            yield f"corpus.alpha={self.alpha} must be between 0 (all parts equally) and 1 (by their size)"
        settings = {"weights": self.weights or {}, "max_tokens": self.max_tokens, "max_epochs": self.max_epochs}
        for key, values in settings.items():
            for name, value in values.items():
                if name not in names:
                    yield f"corpus.{key}.{name}: there is no such part; {part_list}"
                if not (math.isfinite(value) and value > 0):
                    yield f"corpus.{key}.{name}={value:g} must be greater than 0"
        missing = [name for name in names if self.weights is not None and name not in self.weights]
        if missing:
            yield f"corpus.weights has no weight for {', '.join(missing)}; give every part a weight ({part_list})"

    @property
    def has_caps(self) -> bool:
        """Whether any part has a cap."""
        return bool(self.max_tokens or self.max_epochs)

    def shares(self, sizes: Mapping[str, float]) -> dict[str, float]:
        """Return each part's share, summing to 1, by its size in tokens or characters; a part of size 0 has share 0."""
        return dict(zip(sizes, self._shares(sizes, np.ones(len(sizes))).tolist(), strict=True))

    def amounts(
        self, sizes: Mapping[str, float], *, tokens_per_unit: Mapping[str, float] | None = None
    ) -> dict[str, float]:
        """Return each part's contribution to an epoch, in units of ``sizes``: fractional, but whole if capped.

        ``tokens_per_unit`` is the mean number of tokens per unit of each part (the length of a row); None for 1.
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
    """Divide ``total`` by ``shares``, up to ``most`` per part; the other parts get what exceeds a part's maximum."""
    amounts = shares * total
    full = np.zeros(len(shares), dtype=bool)
    while (amounts[~full] > most[~full]).any():
        full |= amounts > most
        free = np.where(full, 0.0, shares)
        left = max(total - most[full].sum(), 0.0)
        amounts = np.where(full, most, free * (left / free.sum() if free.any() else 0.0))
    return amounts


@dataclass(kw_only=True, eq=False, repr=False)
class MixtureCorpus(Corpus):
    """Several corpora with one vocabulary, such as one Wikipedia per language.

    Large parts are sampled less often than their size suggests, and small parts more often: q_i ~ p_i^alpha (Conneau
    and Lample 2019, section 3.1). p_i is a part's share of the characters (for the sample that the tokenizer is trained
    on) or of the rows (in training). The paper uses 0.5 for the vocabulary and 0.7 for training; here one alpha is used
    for both. In the paper each batch has one language; here a batch mixes the rows of all parts. Caps do not apply to
    the sample for the tokenizer. See ``Sampling``.

    Args:
        parts: corpora, files or folders, as a list or as {name: corpus, ...}; losses are reported under these names.
        alpha: sampling exponent, q_i ~ p_i^alpha: 1 samples by size, 0 samples all corpora equally.
        weights: {name: weight, ...} for all parts, instead of alpha: a part's share of the tokens is its weight divided
            by the sum of weights.
        max_tokens: {name: tokens, ...}: maximum number of tokens from a part in an epoch; the other parts fill the
            rest.
        max_epochs: {name: passes, ...}: maximum number of passes over a part in an epoch; the other parts fill the
            rest.
    """

    name: Name
    parts: Mapping[str, Corpus]
    alpha: float = 0.7
    weights: Mapping[str, float] | None = None
    max_tokens: Mapping[str, float] | None = None
    max_epochs: Mapping[str, float] | None = None

    def __post_init__(self) -> None:
        problems = []
        if len(self.parts) < 2:
            problems.append(
                f"corpus.parts={list(self.parts)}: a mixture needs at least two parts, such as [enwiki,fra]"
            )
        problems += [
            f"corpus.parts.{part}: a part's name may contain only letters, digits, '_' and '-'"
            for part in self.parts
            if not re.fullmatch(r"[\w-]+", part)
        ]
        self.sampling = Sampling(self.alpha, self.weights, self.max_tokens or {}, self.max_epochs or {})
        problems += self.sampling.problems(self.parts)
        if problems:
            raise ConfigError(problems)
        self.notes = Notes()

    def documents(self) -> Iterator[Document]:
        """Yield the documents of all parts, one part after the other, each in the split that its own corpus chose."""
        self.notes.clear()
        for part, corpus in self.parts.items():
            for document in corpus.documents():
                held_out = corpus.is_validation(document)
                yield replace(document, key=f"{part}: {document.key}", held_out=held_out)
            for kind, note in corpus.notes.as_dict().items():
                self.notes.add(kind, f"{part}: {note['first']}", int(note["count"]))

    @property
    @override
    def left_out(self) -> Notes:
        notes = Notes()
        for part, corpus in self.parts.items():
            for kind, note in corpus.left_out.as_dict().items():
                notes.add(kind, f"{part}: {note['first']}", int(note["count"]))
        return notes

    def is_validation(self, document: Document) -> bool:
        """Whether ``document``, which ``documents`` yielded, belongs to the validation split."""
        return bool(document.held_out)

    def fingerprint(self) -> str:
        """Return a hex digest of the parts' content and of their proportions in ``training_lines``."""
        prints = {part: corpus.fingerprint() for part, corpus in self.parts.items()}
        settings = {"version": _MIXTURE_VERSION, "alpha": self.sampling.alpha, "parts": list(prints.items())}
        if self.sampling.weights is not None:
            settings["weights"] = [self.sampling.weights[part] for part in self.parts]
        return blake2b(json.dumps(settings).encode(), digest_size=16).hexdigest()

    def training_lines(self) -> Iterator[str]:
        """Yield the training documents' lines, with each part's share of the characters (see ``Sampling.shares``).

        The total is about the number of characters of all parts together. The mean number of copies of a line is the
        ratio of its part's target share to the original share. A random draw, which depends only on the part's name and
        the line's index, rounds this number up or down.
        """
        characters = {part: sum(map(len, corpus.training_lines())) for part, corpus in self.parts.items()}
        total = sum(characters.values())
        if total == 0:
            return
        shares = self.sampling.shares(characters)
        for part, corpus in self.parts.items():
            whole, fraction = divmod(shares[part] * total / max(characters[part], 1), 1.0)
            draws = generator(0, "mixture lines", part)
            uniforms = draws.random(_BLOCK)
            for number, line in enumerate(corpus.training_lines()):
                if number and number % _BLOCK == 0:
                    uniforms = draws.random(_BLOCK)
                for _ in range(int(whole) + int(uniforms[number % _BLOCK] < fraction)):
                    yield line
