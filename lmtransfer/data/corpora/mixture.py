"""A mixture of corpora, sampled by smoothed proportions (Conneau and Lample 2019) or by weights."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from hashlib import blake2b

from lmtransfer.config.types import Name
from lmtransfer.data.corpora.sampling import Sampling
from lmtransfer.data.documents import Corpus, Document, Notes
from lmtransfer.errors import ConfigError
from lmtransfer.randomness import generator

_BLOCK = 8192
_MIXTURE_VERSION = 1


class MixtureCorpus(Corpus):
    """Several corpora with one vocabulary, such as one Wikipedia per language.

    Large parts are sampled less often than their size suggests, and small parts more often: q_i ~ p_i^alpha (Conneau
    and Lample 2019, section 3.1). p_i is a part's share of the characters (for the sample that the tokenizer is trained
    on) or of the rows (in training). The paper uses 0.5 for the vocabulary and 0.7 for training; here one alpha is used
    for both. In the paper each batch has one language; here a batch mixes the rows of all parts. Weights replace the
    smoothed proportions. Caps limit a part's contribution to an epoch (see ``Sampling``); they do not apply to the
    sample for the tokenizer.

    Args:
        name: short name, used in cache folders and messages.
        parts: the corpora, by the name under which their losses are reported (a language, for example).
        alpha: 1 samples by size, 0 samples all parts equally.
        weights: weight of each part, above 0, with any sum: the part's share of the tokens in place of the smoothed
            share.
        max_tokens: maximum number of tokens that a part contributes to an epoch of the mixture, by name.
        max_epochs: maximum number of passes over a part in an epoch of the mixture, by name.

    Raises:
        ConfigError: fewer than two parts, a name that cannot be part of a metric's name, alpha outside [0, 1], a weight
            or a cap that is not above 0 or whose part does not exist, or a part without weight.
    """

    def __init__(
        self,
        *,
        name: Name,
        parts: Mapping[str, Corpus],
        alpha: float = 0.7,
        weights: Mapping[str, float] | None = None,
        max_tokens: Mapping[str, float] | None = None,
        max_epochs: Mapping[str, float] | None = None,
    ) -> None:
        problems = []
        if len(parts) < 2:
            problems.append(f"corpus.parts={list(parts)}: a mixture needs at least two parts, such as [enwiki,fra]")
        problems += [
            f"corpus.parts.{part}: a part's name may contain only letters, digits, '_' and '-'"
            for part in parts
            if not re.fullmatch(r"[\w-]+", part)
        ]
        self.sampling = Sampling(alpha, weights, max_tokens or {}, max_epochs or {})
        problems += self.sampling.problems(parts)
        if problems:
            raise ConfigError(problems)
        self.name, self.parts = name, dict(parts)
        self.notes = Notes()

    def documents(self) -> Iterator[Document]:
        """Yield the documents of all parts, one part after the other, each with its part of the split."""
        self.notes.clear()
        for part, corpus in self.parts.items():
            for document in corpus.documents():
                held_out = corpus.is_validation(document)
                yield replace(document, key=f"{part}: {document.key}", held_out=held_out)
            for kind, note in corpus.notes.as_dict().items():
                self.notes.add(kind, f"{part}: {note['first']}", int(note["count"]))

    def is_validation(self, document: Document) -> bool:
        """Whether ``document``, which ``documents`` yielded, belongs to the validation part of its corpus."""
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
        the line's number, rounds it up or down.
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
