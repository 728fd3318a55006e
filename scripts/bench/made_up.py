"""Made-up text: random words with frequencies as in English (Zipf's law), the same in every run."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import gettempdir

import numpy as np

_LETTERS = np.array(list("abcdefghijklmnopqrstuvwxyz"))
_VOCABULARY = 20_000
_SENTENCES_PER_DOCUMENT = 12


def sentences(count: int, *, seed: int = 0) -> list[str]:
    """Return sentences of 5 to 40 words.

    Args:
        count: number of sentences.
        seed: seed of the sentences; the vocabulary is always the same.
    """
    vocabulary_rng, rng = np.random.default_rng(0), np.random.default_rng(seed)
    letters = _LETTERS[vocabulary_rng.integers(len(_LETTERS), size=(_VOCABULARY, 9))]
    sizes = vocabulary_rng.integers(2, 10, size=_VOCABULARY)
    words = np.array(["".join(row[:size]) for row, size in zip(letters.tolist(), sizes.tolist(), strict=True)])
    weights = 1 / np.arange(1, _VOCABULARY + 1)
    lengths = rng.integers(5, 41, size=count)
    sample = words[rng.choice(_VOCABULARY, size=lengths.sum(), p=weights / weights.sum())].tolist()
    ends = lengths.cumsum().tolist()
    return [" ".join(sample[start:end]) + "." for start, end in zip([0, *ends], ends, strict=False)]


def text_file(num_documents: int) -> Path:
    """Return a file of documents of 12 sentences, one per line; it is kept in the folder for temporary files."""
    path = Path(gettempdir()) / f"lmtransfer-made-up-{num_documents}.txt"
    if not path.is_file():
        lines = sentences(_SENTENCES_PER_DOCUMENT * num_documents)
        starts = range(0, len(lines), _SENTENCES_PER_DOCUMENT)
        documents = ("\n".join(lines[start : start + _SENTENCES_PER_DOCUMENT]) for start in starts)
        staged = path.with_suffix(f".{os.getpid()}")
        staged.write_text("\n\n".join(documents) + "\n", encoding="utf-8")
        staged.replace(path)
    return path
