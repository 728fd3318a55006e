"""A sentence with a tag for each word."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from lmtransfer.errors import DataError
from lmtransfer.tasks.answers import TagsAnswer
from lmtransfer.tasks.metrics.chunks import Chunks
from lmtransfer.tokenizers.base import Tokenizer


@dataclass(frozen=True, slots=True)
class TaggedExample:
    """One sentence.

    Attributes:
        tags: indices into the task's ``labels``, one per word; None if hidden.
    """

    id: str
    words: tuple[str, ...]
    tags: tuple[int, ...] | None = None

    @property
    def has_gold(self) -> bool:
        """Whether the tags are known."""
        return self.tags is not None

    @property
    def content(self) -> tuple[str, ...]:
        """The words."""
        return self.words

    @property
    def class_index(self) -> int:
        """0, because there is a single class."""
        return 0

    @property
    def group(self) -> str:
        """The words."""
        return " ".join(self.words)


def word_spans(text: str, tokenizer: Tokenizer) -> list[tuple[int, int]]:
    """Return the first character and one past the last of each word in a text.

    A word is what the tokenizer reads as one, without the punctuation tokens at its edges; each of these is a separate
    word, as in files of tagged words.
    """
    encoding = tokenizer.encode(text)
    words: list[list[tuple[int, int]]] = []
    for (start, end), is_start in zip(encoding.offsets.tolist(), encoding.word_starts.tolist(), strict=True):
        while start < end and text[start].isspace():
            start += 1
        while end > start and text[end - 1].isspace():
            end -= 1
        if start == end:
            continue
        if is_start or not words or text[words[-1][-1][1] : start].isspace():
            words.append([])
        words[-1].append((start, end))
    return [span for tokens in words for span in _without_edges(text, tokens)]


def _without_edges(text: str, tokens: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield the punctuation tokens before a word, the word, and those after it."""
    marks = [all(unicodedata.category(mark)[0] in "PS" for mark in text[start:end]) for start, end in tokens]
    if all(marks):
        yield from tokens
        return
    first, last = marks.index(False), len(marks) - marks[::-1].index(False)
    yield from tokens[:first]
    yield tokens[first][0], tokens[last - 1][1]
    yield from tokens[last:]


def entities(
    text: str, spans: Sequence[tuple[int, int]], answer: TagsAnswer, labels: Sequence[str]
) -> list[dict[str, Any]]:
    """Return the entities of a text as JSON: ``text``, ``label``, ``start``, ``end`` and ``probability``.

    Args:
        labels: the task's tags. If they do not mark spans, each word is an entity with its tag as label.

    Returns:
        The entities in order; ``text[start:end]`` is the entity, and ``probability`` the mean over its words' tags.
    """
    try:
        chunks = [(chunk.kind, chunk.start, chunk.stop) for chunk in Chunks(labels=labels).of(answer.tags)]
    except DataError:  # tags of single words, such as parts of speech
        chunks = [(name, word, word + 1) for word, name in enumerate(answer.names)]
    parts = []
    for label, first, stop in chunks:
        start, end = spans[first][0], spans[stop - 1][1]
        entity: dict[str, Any] = {"text": text[start:end], "label": label, "start": start, "end": end}
        if answer.probabilities is not None:
            entity["probability"] = fmean(answer.probabilities[first:stop])
        parts.append(entity)
    return parts
