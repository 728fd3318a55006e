"""Several corpora in one run, sampled with exponentially smoothed proportions (Conneau and Lample 2019)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from hashlib import blake2b

import numpy as np

from lmtransfer.data.documents import Corpus, Document, Notes
from lmtransfer.errors import ConfigError
from lmtransfer.randomness import generator

_BLOCK = 8192
_MIXTURE_VERSION = 1


def smoothed(sizes: np.ndarray, alpha: float) -> np.ndarray:
    """The smoothed proportions q_i = p_i^alpha / sum_j p_j^alpha of parts, where p_i is the share of part i.

    Conneau and Lample, "Cross-lingual Language Model Pretraining" (NeurIPS 2019), section 3.1.

    Args:
        sizes: size of each part, at least one above 0, shape (parts,).
        alpha: 1 keeps the shares by size, 0 gives all parts the same proportion.

    Returns:
        float64, shape (parts,), with the sum 1; a part of size 0 has the proportion 0.
    """
    sizes = np.asarray(sizes, dtype=np.float64)
    weights = np.where(sizes > 0, (sizes / sizes.sum()) ** alpha, 0.0)
    return weights / weights.sum()


class MixtureCorpus(Corpus):
    """Several corpora with one vocabulary, such as one Wikipedia for each language.

    Large parts are sampled less often than by their size, and small parts more often: q_i ~ p_i^alpha (Conneau and
    Lample 2019, section 3.1). p_i is a part's share of the characters (for the sample that the tokenizer is trained on)
    or of the rows (in training). The paper uses 0.5 for the vocabulary and 0.7 for training; here one alpha is used for
    both. In the paper each batch has one language; here a batch mixes the rows of all parts.

    Args:
        name: short name, part of cache folders and of messages.
        parts: the corpora, by the name under which their losses are reported (a language, for example).
        alpha: 1 samples by size, 0 samples all parts equally.

    Raises:
        ConfigError: fewer than two parts, a name that cannot be part of a metric's name, or alpha outside [0, 1].
    """

    def __init__(self, *, name: str, parts: Mapping[str, Corpus], alpha: float = 0.7) -> None:
        problems = []
        if len(parts) < 2:
            problems.append(f"corpus.parts={list(parts)}: a mixture needs at least two parts, such as [enwiki,fra]")
        problems += [
            f"corpus.parts.{part}: the name of a part may only have letters, digits, '_' and '-'"
            for part in parts
            if not re.fullmatch(r"[\w-]+", part)
        ]
        if not 0 <= alpha <= 1:
            problems.append(f"corpus.alpha={alpha}: must be from 0 (all parts equally) to 1 (by their size)")
        if problems:
            raise ConfigError(problems)
        self.name, self.parts, self.alpha = name, dict(parts), alpha
        self.notes = Notes()

    def documents(self) -> Iterator[Document]:
        """The documents of all parts, one part after the other, each with its part of the split."""
        self.notes.clear()
        for part, corpus in self.parts.items():
            for document in corpus.documents():
                held_out = corpus.is_validation(document)
                yield replace(document, key=f"{part}: {document.key}", held_out=held_out)
            for kind, note in corpus.notes.as_dict().items():
                self.notes.add(kind, f"{part}: {note['first']}", int(note["count"]))

    def is_validation(self, document: Document) -> bool:
        """Whether ``document``, which ``documents`` gave, belongs to the validation part of its corpus."""
        return bool(document.held_out)

    def fingerprint(self) -> str:
        """Hex digest of the parts' content and of the sampling settings."""
        prints = {part: corpus.fingerprint() for part, corpus in self.parts.items()}
        settings = {"version": _MIXTURE_VERSION, "alpha": self.alpha, "parts": list(prints.items())}
        return blake2b(json.dumps(settings).encode(), digest_size=16).hexdigest()

    def training_lines(self) -> Iterator[str]:
        """The lines of the training documents, in the smoothed proportions of their characters.

        The total is about the number of characters of all parts together. Each line is repeated by the ratio of
        smoothed to original proportion. The fractional part is decided by a random draw that depends only on the part's
        name and the line's number.
        """
        characters = np.array([sum(map(len, corpus.training_lines())) for corpus in self.parts.values()])
        if not characters.any():
            return
        wanted = smoothed(characters, self.alpha) * characters.sum()
        for (part, corpus), rate in zip(self.parts.items(), wanted / np.maximum(characters, 1), strict=True):
            whole, fraction = divmod(float(rate), 1.0)
            draws = generator(0, "mixture lines", part)
            sampled = draws.random(_BLOCK)
            for number, line in enumerate(corpus.training_lines()):
                if number and number % _BLOCK == 0:
                    sampled = draws.random(_BLOCK)
                for _ in range(int(whole) + int(sampled[number % _BLOCK] < fraction)):
                    yield line
