"""A seeded, bounded sample of lines: what a tokenizer is trained on, however large the corpus is."""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass

from lmtransfer.randomness import generator

MAX_LINE_CHARACTERS = 4096
_BLOCK = 8192

# U+2585 is sentencepiece's mark for unknown characters in training; it would drop any line that holds one.
_UNUSABLE = re.compile("[\u2585\ud800-\udfff]")


@dataclass(slots=True)
class LineCounts:
    """What became of the lines of a corpus.

    Attributes:
        lines_seen: lines that came in.
        lines_empty: lines without any text.
        lines_split: lines longer than 4,096 characters, which were cut at white space.
        pieces_seen: lines and parts of split lines, of which the sample is drawn.
        pieces_used: of those, in the sample.
        characters_seen: characters of all of them.
        characters_used: characters in the sample.
    """

    lines_seen: int = 0
    lines_empty: int = 0
    lines_split: int = 0
    pieces_seen: int = 0
    pieces_used: int = 0
    characters_seen: int = 0
    characters_used: int = 0

    def as_dict(self) -> dict[str, int]:
        """The counts, ready for JSON."""
        return asdict(self)


def sample_lines(
    lines: Iterable[str], *, max_sentences: int, max_characters: int, seed: int
) -> tuple[list[str], LineCounts]:
    """A uniform sample of lines in their order, the same for the same seed and lines.

    Each line draws a key; the lines with the smallest keys stay, as many as both caps allow. No more than the sample
    is ever held in memory, and one line.

    Args:
        lines: the corpus, one sentence or paragraph each.
        max_sentences: most lines in the sample.
        max_characters: most characters in the sample.
        seed: seed of the sample.
    """
    counts = LineCounts()
    heap: list[tuple[float, int, str]] = []  # (-key, index, line): the largest key on top
    limit, size = 1.0, 0
    rng = generator(seed, "tokenizer sample")
    keys = rng.random(_BLOCK)
    for index, line in enumerate(_pieces(lines, counts)):
        if index and index % _BLOCK == 0:
            keys = rng.random(_BLOCK)
        key = float(keys[index % _BLOCK])
        if key >= limit:
            continue
        heapq.heappush(heap, (-key, index, line))
        size += len(line)
        while len(heap) > max_sentences or size > max_characters:
            worst, _, dropped = heapq.heappop(heap)
            limit, size = -worst, size - len(dropped)
    counts.pieces_used, counts.characters_used = len(heap), size
    return [line for _, line in sorted((index, line) for _, index, line in heap)], counts


def _pieces(lines: Iterable[str], counts: LineCounts) -> Iterator[str]:
    for line in lines:
        counts.lines_seen += 1
        text = line.strip() if line.isascii() else _UNUSABLE.sub(" ", line).strip()
        if not text:
            counts.lines_empty += 1
            continue
        counts.lines_split += len(text) > MAX_LINE_CHARACTERS
        for piece in _cut(text):
            counts.pieces_seen += 1
            counts.characters_seen += len(piece)
            yield piece


def _cut(text: str) -> Iterator[str]:
    start = 0
    while len(text) - start > MAX_LINE_CHARACTERS:
        end = text.rfind(" ", start + 1, start + MAX_LINE_CHARACTERS)
        end = start + MAX_LINE_CHARACTERS if end < 0 else end
        yield text[start:end]
        start = end + (text[end] == " ")
    if text[start:].strip():
        yield text[start:]
