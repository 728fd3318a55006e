"""All documents of a store end to end, with one separator after each document."""

from __future__ import annotations

import numpy as np

from lmtransfer.data.store.store import TokenStore


class JoinedDocuments:
    """A ring of text: document, separator, document, separator, ...; the first document follows the last separator.

    A place is the index of a token or separator in the ring. The text itself stays on disk.

    Args:
        store: the documents.
        separator_id: token id of the separator.

    Attributes:
        size: number of places in the ring: tokens plus documents.
        ends: place after the separator of each document, int64, shape (num_documents,).
    """

    def __init__(self, store: TokenStore, *, separator_id: int) -> None:
        self._store, self._separator_id = store, separator_id
        token_ends = store.sentence_starts[store.document_starts[1:]]
        self.ends = token_ends + np.arange(1, store.num_documents + 1, dtype=np.int64)
        self.size = store.num_tokens + store.num_documents

    def read(self, start: int, stop: int) -> np.ndarray:
        """Token ids of the places [start, stop), int32; ``stop`` may lie up to one round beyond the end."""
        if stop > self.size:
            return np.concatenate([self.read(start, self.size), self.read(0, stop - self.size)])
        first, last = self.ends.searchsorted((start, stop), side="right").tolist()
        text = self._store.tokens(start - first, stop - last)
        if first == last:
            return text
        separators = self.ends[first:last] - 1 - start
        is_text = np.ones(stop - start, dtype=bool)
        is_text[separators] = False
        row = np.full(stop - start, self._separator_id, dtype=np.int32)
        row[is_text] = text
        return row

    def at(self, place: int) -> int:
        """Token id of one place; the place is taken modulo the size of the ring."""
        place %= self.size
        return int(self.read(place, place + 1)[0])

    def token_range(self, start: int, stop: int) -> str:
        """The places [start, stop) as a range of tokens of the store, for messages."""
        stop = stop if stop <= self.size else stop - self.size
        first, last = self.ends.searchsorted((start, stop), side="right").tolist()
        return f"tokens {start - first}:{stop - last}"
