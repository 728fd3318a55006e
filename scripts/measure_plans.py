"""How long the plan of an epoch takes, and how much memory, for each way to cut rows.

    python scripts/measure_plans.py [MILLIONS OF TOKENS ...]

Texts are made up: documents of 1 to 60 sentences of 1 to 45 tokens, and a few long ones. Run it in the repository
before and after a change, alone on the machine.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

#: Ways to cut rows: module, class and settings.
_WAYS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "sentence_pairs": ("lmtransfer.objectives.rows.sentence_pairs", "SentencePairs", {}),
    "ordered_pairs": ("lmtransfer.objectives.rows.ordered_pairs", "OrderedPairs", {}),
    "full_sentences": ("lmtransfer.objectives.rows.full_sentences", "FullSentences", {}),
    "doc_sentences": ("lmtransfer.objectives.rows.full_sentences", "FullSentences", {"cross_documents": False}),
    "stream": ("lmtransfer.objectives.rows.stream", "LanguageStream", {}),
}


@dataclass
class Boundaries:
    """The boundaries of a store without its text."""

    sentence_starts: np.ndarray
    document_starts: np.ndarray

    @property
    def num_tokens(self) -> int:
        """Number of tokens."""
        return int(self.sentence_starts[-1])

    @property
    def num_sentences(self) -> int:
        """Number of sentences."""
        return len(self.sentence_starts) - 1

    @property
    def num_documents(self) -> int:
        """Number of documents."""
        return len(self.document_starts) - 1


class _Ids:
    """The special tokens."""

    cls_id, sep_id = 2, 3


def boundaries(num_tokens: int) -> Boundaries:
    """Documents with about so many tokens together."""
    rng = np.random.default_rng(0)
    sentences = rng.integers(1, 46, num_tokens // 23)
    documents = rng.integers(1, 61, len(sentences) // 30)
    documents[rng.random(len(documents)) < 2e-4] = 20_000
    ends = np.cumsum(documents)
    ends = np.append(ends[ends < len(sentences)], len(sentences))
    return Boundaries(np.append(0, np.cumsum(sentences)), np.append(0, ends))


def measure(way: str, millions: int) -> None:
    """Print seconds, and megabytes beyond those of the boundaries."""
    module, name, settings = _WAYS[way]
    rows = getattr(__import__(module, fromlist=[name]), name)(max_length=128, tokenizer=_Ids(), **settings)
    store = boundaries(millions * 1_000_000)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.perf_counter()
    plan = rows.plan(store, seed=0, epoch=0)
    seconds = time.perf_counter() - start
    peak = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    print(f"{way:15} {millions:5} M tokens: {len(plan.lengths):10,} rows, {seconds:7.2f} s, {peak:6.0f} MB more")


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] in _WAYS:
        measure(sys.argv[1], int(sys.argv[2]))
    else:
        for size in sys.argv[1:] or ["34", "500"]:
            for way in _WAYS:  # each in its own process, so that its peak is its own
                subprocess.run([sys.executable, __file__, way, size], check=True)
