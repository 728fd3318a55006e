"""Sentences with a tag for each word, and their encoding as [CLS] w1 w2 ... [SEP], with windows for long sentences.

Shape legend: S sequences, T tokens, W words of a sentence.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np

from lmtransfer.data.documents import Notes
from lmtransfer.errors import DataError
from lmtransfer.tasks.answers import TagsAnswer
from lmtransfer.tasks.encoded import EncodedExamples, TokenRows, ragged_offsets, text_capacity
from lmtransfer.tasks.heads import NO_LABEL, TagTargets
from lmtransfer.tasks.metrics.chunks import Chunks
from lmtransfer.tokenizers.base import CharacterTokenizer, Tokenizer


@dataclass(frozen=True, slots=True)
class TaggedExample:
    """One sentence."""

    id: str
    words: tuple[str, ...]
    tags: tuple[int, ...] | None = None  # indices into the task's ``labels``, one per word; None if hidden

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
        """Always 0, because there is only one class."""
        return 0

    @property
    def group(self) -> str:
        """The words."""
        return " ".join(self.words)


@dataclass(frozen=True, slots=True)
class WordPieces:
    """The words of a sentence as tokens."""

    ids_T: np.ndarray
    counts_W: np.ndarray  # number of tokens of each word, at least 1, int64
    missing_W: np.ndarray  # whether the tokenizer gives the word no token, so that [UNK] replaces it, bool


@dataclass(frozen=True, slots=True)
class WordWindow:
    """Words ``start`` to ``stop`` (exclusive) of a sentence, which the encoder reads as one sequence."""

    start: int
    stop: int
    first_target: int  # first word whose tag is predicted in this window
    stop_target: int


def encode_words(
    examples: Sequence[TaggedExample], tokenizer: Tokenizer, *, max_length: int, notes: Notes
) -> EncodedExamples:
    """Encode sentences; the targets have one row per word.

    A sentence of more than ``max_length`` tokens is read in windows (``word_windows``), and each word is a target in
    only one of them. A word longer than a window loses its last tokens.
    """
    capacity = text_capacity(2, max_length=max_length)
    token_rows = TokenRows(tokenizer)
    cls, sep = np.array([tokenizer.cls_id], np.int32), np.array([tokenizer.sep_id], np.int32)
    tokens: list[np.ndarray] = []
    rows: list[np.ndarray] = []
    owners: list[int] = []
    num_truncated = 0
    for number, example in enumerate(examples):
        pieces = word_pieces(example.words, tokenizer)
        if pieces.missing_W.any():
            notes.add(NO_TOKEN, example.id, int(pieces.missing_W.sum()))
        rows_T, counts_W = pieces.ids_T, pieces.counts_W
        if isinstance(tokenizer, CharacterTokenizer):
            rows_T = token_rows.rows_of(rows_T, _unknown(pieces, example.words, tokenizer))
        if len(counts_W) and counts_W.max() > capacity:
            fits = np.arange(len(rows_T)) - np.repeat(ragged_offsets(counts_W)[:-1], counts_W) < capacity
            rows_T, counts_W = rows_T[fits], np.minimum(counts_W, capacity)
            num_truncated += 1
        edges = ragged_offsets(counts_W)
        tags_W = np.full(len(counts_W), NO_LABEL) if example.tags is None else np.array(example.tags, dtype=np.int64)
        for window in word_windows(counts_W, capacity):
            inside = slice(edges[window.start], edges[window.stop])
            tokens += [cls, rows_T[inside], sep]
            predicted = slice(window.first_target, window.stop_target)
            first_W = 1 + edges[:-1][predicted] - edges[window.start]
            rows.append(np.stack([first_W, counts_W[predicted], tags_W[predicted]], axis=1))
            owners.append(number)
    tokens_T, character_table = token_rows.join(tokens)
    return EncodedExamples(
        examples=tuple(examples),
        owners=np.array(owners, dtype=np.int64),
        tokens_T=tokens_T,
        segments_T=np.zeros(len(tokens_T), dtype=np.int8),
        offsets=ragged_offsets([len(part) + 2 for part in tokens[1::3]]),
        targets=TagTargets(*np.concatenate([np.zeros((0, 3), np.int64), *rows]).T.copy()),
        target_offsets=ragged_offsets([len(part) for part in rows]),
        num_truncated=num_truncated,
        character_table=character_table,
    )


def word_pieces(words: Sequence[str], tokenizer: Tokenizer) -> WordPieces:
    """Return the tokens of each word, as in running text.

    The sentence is encoded with one space between words, and character offsets assign tokens to words. If a token
    belongs to two words (in a vocabulary whose pieces contain spaces), each word is encoded alone.
    """
    ids_T, word_T = _read_together(words, tokenizer) or _read_apart(words, tokenizer)
    counts_W = np.bincount(word_T, minlength=len(words)).astype(np.int64)
    missing_W = counts_W == 0
    if missing_W.any():
        places = ragged_offsets(counts_W)[:-1][missing_W]
        ids_T = np.insert(ids_T, places, tokenizer.unk_id)
        counts_W[missing_W] = 1
    return WordPieces(ids_T, counts_W, missing_W)


def word_windows(counts_W: np.ndarray, capacity: int) -> list[WordWindow]:
    """Return windows of whole words that overlap by about half, each with the words whose tags it predicts.

    A word is predicted in the window where the smaller of its left and right context is largest; on a tie, where their
    sum is largest; then in the first such window (the rule of "maximum context" in google-research/bert, run_squad.py).

    Args:
        counts_W: number of tokens in each word, 1 to ``capacity``.
    """
    edges = ragged_offsets(counts_W)
    num_words, total = len(counts_W), int(edges[-1])
    if total <= capacity:
        return [WordWindow(0, num_words, 0, num_words)]
    spans: list[tuple[int, int]] = []
    start = 0
    while (stop := _fitting(edges, start, capacity)) < num_words:
        spans.append((start, stop))
        following = int(np.searchsorted(edges, edges[start] + capacity // 2, side="left"))
        start = min(max(following, start + 1), stop)
        while _fitting(edges, start, capacity) == stop:  # a long word follows, so this window would add no word
            start += 1
    spans.append((int(np.searchsorted(edges, total - capacity, side="left")), num_words))
    best_W = np.full(num_words, -1, dtype=np.int64)
    chosen_W = np.zeros(num_words, dtype=np.int64)
    for number, (start, stop) in enumerate(spans):
        left_W = edges[start:stop] - edges[start]
        right_W = edges[stop] - edges[start + 1 : stop + 1]
        context_W = np.minimum(left_W, right_W) * (2 * capacity + 1) + left_W + right_W
        better_W = context_W > best_W[start:stop]
        best_W[start:stop][better_W] = context_W[better_W]
        chosen_W[start:stop][better_W] = number
    bounds = np.searchsorted(chosen_W, np.arange(len(spans) + 1))
    return [
        WordWindow(start, stop, int(first), int(last))
        for (start, stop), first, last in zip(spans, bounds[:-1], bounds[1:], strict=True)
        if first < last
    ]


def _fitting(edges: np.ndarray, start: int, capacity: int) -> int:
    """Return one past the last word of the window that begins at ``start``."""
    return int(np.searchsorted(edges, edges[start] + capacity, side="right")) - 1


def _read_together(words: Sequence[str], tokenizer: Tokenizer) -> tuple[np.ndarray, np.ndarray] | None:
    """Return token ids and the word of each token; None if a token belongs to two words."""
    lengths_W = np.array([len(word) for word in words], dtype=np.int64)
    starts_W = ragged_offsets(lengths_W + 1)[:-1]
    ends_W = starts_W + lengths_W
    encoding = tokenizer.encode(" ".join(words))
    starts_T, ends_T = encoding.offsets[:, 0], encoding.offsets[:, 1]
    word_T = np.searchsorted(starts_W, starts_T, side="right") - 1
    # The token that marks the start of a word may have no characters and precede the space.
    early_T = (starts_T == ends_T) & encoding.word_starts & (starts_T == ends_W[word_T]) & (word_T + 1 < len(words))
    word_T += early_T
    if (ends_T > ends_W[word_T]).any() or (np.diff(word_T) < 0).any():
        return None
    return encoding.ids, word_T


def _read_apart(words: Sequence[str], tokenizer: Tokenizer) -> tuple[np.ndarray, np.ndarray]:
    """Return token ids and the word of each token when each word is encoded as a separate text."""
    ids = tokenizer.encode_ids(words)
    return np.concatenate(ids), np.repeat(np.arange(len(words)), [len(part) for part in ids])


def _unknown(pieces: WordPieces, words: Sequence[str], tokenizer: CharacterTokenizer) -> list[str]:
    """Return the words behind the [UNK] tokens, including words without tokens."""
    return [
        part
        for word, missing in zip(words, pieces.missing_W, strict=True)
        for part in ([word] if missing else tokenizer.unknown_words(word))
    ]


def word_spans(text: str, tokenizer: Tokenizer) -> list[tuple[int, int]]:
    """Return the character span of each word in a text.

    A word is what the tokenizer reads as one word, without the punctuation tokens at its edges. Each of these tokens is
    a separate word, as in files of tagged words.
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
    """Yield the punctuation tokens before a word, the word, and the punctuation tokens after it."""
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
        labels: the task's tags. If the tags do not mark spans, each word is an entity with its tag as label.

    Returns:
        The entities in order; ``text[start:end]`` is the entity, and ``probability`` is the mean over its words.
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


NO_TOKEN = "words without a token, read as [UNK]"
