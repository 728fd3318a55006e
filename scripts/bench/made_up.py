"""Made-up text: random words with frequencies as in English (Zipf), the same in every run."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import gettempdir

import numpy as np

_LETTERS = np.array(list("abcdefghijklmnopqrstuvwxyz"))
_VOCABULARY = 20_000
_SENTENCES_PER_DOCUMENT = 12


def sentences(count: int, *, seed: int = 0) -> list[str]:
    """Sentences of 5 to 40 words.

    Args:
        count: number of sentences.
        seed: seed of the sentences; the vocabulary is always the same.
    """
    of_vocabulary, draw = np.random.default_rng(0), np.random.default_rng(seed)
    letters = _LETTERS[of_vocabulary.integers(len(_LETTERS), size=(_VOCABULARY, 9))]
    sizes = of_vocabulary.integers(2, 10, size=_VOCABULARY)
    words = np.array(["".join(row[:size]) for row, size in zip(letters.tolist(), sizes.tolist(), strict=True)])
    weights = 1 / np.arange(1, _VOCABULARY + 1)
    lengths = draw.integers(5, 41, size=count)
    drawn = words[draw.choice(_VOCABULARY, size=lengths.sum(), p=weights / weights.sum())].tolist()
    ends = lengths.cumsum().tolist()
    return [" ".join(drawn[start:end]) + "." for start, end in zip([0, *ends], ends, strict=False)]


def text_file(num_documents: int) -> Path:
    """A file of documents of 12 sentences, each on its own line; it is kept in the folder for temporary files."""
    path = Path(gettempdir()) / f"lmtransfer-made-up-{num_documents}.txt"
    if not path.is_file():
        made = sentences(_SENTENCES_PER_DOCUMENT * num_documents)
        starts = range(0, len(made), _SENTENCES_PER_DOCUMENT)
        documents = ("\n".join(made[start : start + _SENTENCES_PER_DOCUMENT]) for start in starts)
        staged = path.with_suffix(f".{os.getpid()}")
        staged.write_text("\n\n".join(documents) + "\n", encoding="utf-8")
        staged.replace(path)
    return path
