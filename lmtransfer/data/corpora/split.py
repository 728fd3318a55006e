"""Training and validation parts, decided by content and never by position or chance.

The hash of a document's text decides, so that duplicates always fall on the same side, whatever their number and
order, and a corpus that grows keeps its split. Where there are only a few (long) documents, such as five novels, a
hash would hold out a fifth of the text or nothing at all; there the last paragraphs of each document are held out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import blake2b

from lmtransfer.data.corpora.sentences import sentence_spans
from lmtransfer.data.documents import Document

HASH_RANGE = 1 << 64


def text_hash(text: str) -> int:
    """64-bit hash of a text, the same on every machine."""
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")


def hash_threshold(texts: Iterable[str], fraction: float) -> int:
    """The hash below which a document is held out.

    It is ``fraction`` of the hash's range, moved just so far that both parts have a document where the corpus has two
    different ones. Reads only until both parts have one: about ``1 / fraction`` documents.

    Args:
        texts: the corpus's texts.
        fraction: the part to hold out, 0 to 1; 0 holds out nothing.
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
    """Cut a document in two: its beginning for training and its ending, held out.

    The cut is at the end of the paragraph in which the ending of ``fraction`` of the characters would start; where
    that leaves no ending, at the last paragraph's start; in a document of one paragraph, at a sentence's start. A
    document of a single sentence is for training.
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
