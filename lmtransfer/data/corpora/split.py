"""The split into training and validation parts, determined by content, never by position or chance.

The hash of a document's text decides. Duplicates are therefore always in the same part, and a growing corpus keeps its
split. With only a few (long) documents, such as five novels, a hash would hold out a fifth of the text or nothing. In
that case the last paragraphs of each document are held out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import blake2b

from lmtransfer.data.corpora.sentences import sentence_spans
from lmtransfer.data.documents import Document

HASH_RANGE = 1 << 64


def text_hash(text: str) -> int:
    """Return the 64-bit hash of a text, the same on every machine."""
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")


def hash_threshold(texts: Iterable[str], fraction: float) -> int:
    """Return the hash below which a document is held out.

    It is ``fraction`` of the hash's range, moved only as far as needed for both parts to have a document. (This needs
    two different documents.) Reading stops when both parts have a document, after about ``1 / fraction`` documents.
    """
    if fraction == 0:
        return 0
    threshold = round(fraction * HASH_RANGE)
    smallest, largest = HASH_RANGE, -1
    for text in texts:
        value = text_hash(text)
        smallest, largest = min(smallest, value), max(largest, value)
        if smallest < threshold <= largest:
            return threshold
    if smallest >= largest:
        return 0
    return smallest + 1 if smallest >= threshold else largest


def split_ending(document: Document, fraction: float) -> Iterator[Document]:
    """Cut a document in two: the beginning for training, the ending for validation.

    An ending with ``fraction`` of the characters would usually start inside a paragraph. The cut is at the end of that
    paragraph or, if no text is left after it, at the start of the last paragraph. A document with one paragraph is cut
    at the start of a sentence. A document with a single sentence is for training.
    """
    text = document.text
    target = round(len(text) * (1 - fraction))
    cut = text.find("\n", max(0, target - 1)) + 1
    if cut == 0:
        cut = text.rfind("\n") + 1
    if cut == 0:
        starts = [start for start, _ in sentence_spans(text)][1:]
        cut = next((start for start in starts if start >= target), starts[-1] if starts else 0)
    beginning, ending = text[:cut].strip(), text[cut:].strip()
    if fraction == 0 or not beginning or not ending:
        yield Document(text, document.key, held_out=False)
        return
    yield Document(beginning, document.key, held_out=False)
    yield Document(ending, f"{document.key} (ending)", held_out=True)
