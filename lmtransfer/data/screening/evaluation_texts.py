"""The search for evaluation texts in the documents of a corpus by word n-grams."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from lmtransfer.data.screening.shingles import shingles, word_hashes


class EvaluationTexts:
    """An index of evaluation texts by their n-grams.

    A document contains a text if it has at least the share ``min_overlap`` of the text's n-grams. (PaLM calls an
    example contaminated if at least 70 % of its 8-grams are in the training data: Chowdhery et al. 2022,
    arXiv:2204.02311, section 8. There the n-grams may come from different documents; here they must be in one.) A text
    with fewer than ``ngram_words`` words is not searched for, because such texts occur by chance.

    Args:
        texts: the texts by the name of their set, such as ``sst2 dev``; memory grows with the texts, not with the
            corpus.
        ngram_words: words per n-gram.
        min_overlap: required share of a text's n-grams, above 0 to 1.

    Attributes:
        num_texts: number of distinct texts in each set.
        num_searched: number of those texts that are long enough.
    """

    def __init__(self, texts: Mapping[str, Sequence[str]], *, ngram_words: int, min_overlap: float) -> None:
        self.ngram_words = ngram_words
        self.num_texts: dict[str, int] = {}
        self.num_searched: dict[str, int] = {}
        self._texts: list[tuple[str, str]] = []
        grams: list[np.ndarray] = []
        for name, set_texts in texts.items():
            distinct = list(dict.fromkeys(set_texts))
            hashes = [word_hashes(text) for text in distinct]
            long = [place for place, words in enumerate(hashes) if len(words) >= ngram_words]
            self.num_texts[name], self.num_searched[name] = len(distinct), len(long)
            self._texts += [(name, distinct[place]) for place in long]
            grams += [shingles(hashes[place], ngram_words) for place in long]
        sizes = np.array([len(text_grams) for text_grams in grams], dtype=np.int64)
        self._needed = np.maximum(np.ceil(sizes * min_overlap - 1e-9), 1)
        flat = np.concatenate([np.zeros(0, dtype=np.uint64), *grams])
        order = np.argsort(flat, kind="stable")
        self._grams, self._starts = np.unique(flat[order], return_index=True)
        self._ends = np.append(self._starts[1:], len(flat))
        self._owners = np.repeat(np.arange(len(grams)), sizes)[order]

    def find_in(self, grams: np.ndarray) -> list[tuple[str, str]]:
        """Return the texts that a document contains, as pairs of set and text.

        Args:
            grams: the document's n-grams, sorted uint64, without duplicates.
        """
        if not len(self._grams) or not len(grams):
            return []
        places = np.minimum(np.searchsorted(self._grams, grams), len(self._grams) - 1)
        places = places[self._grams[places] == grams]
        if not len(places):
            return []
        owners = np.concatenate([self._owners[self._starts[place] : self._ends[place]] for place in places])
        indices, counts = np.unique(owners, return_counts=True)
        return [self._texts[owner] for owner in indices[counts >= self._needed[indices]].tolist()]
