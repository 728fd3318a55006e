"""The base class of tokenizer trainers: common settings, and a seeded sample of training lines of bounded size."""

from __future__ import annotations

import heapq
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, ClassVar

from lmtransfer.errors import ConfigError, DataError
from lmtransfer.randomness import generator
from lmtransfer.tokenizers.base import Tokenizer

MAX_LINE_CHARACTERS = 4096
_BLOCK = 8192

# U+2585 is sentencepiece's mark for unknown characters in training; sentencepiece drops all lines that contain it.
_UNUSABLE = re.compile("[\u2585\ud800-\udfff]")


@dataclass(slots=True)
class LineCounts:
    """Counts of the lines in a corpus and in its sample.

    Attributes:
        lines_seen: number of input lines.
        lines_empty: number of lines without text.
        lines_split: number of lines longer than 4,096 characters, which were cut at white space.
        pieces_seen: number of lines and parts of cut lines, from which the sample is taken.
        pieces_used: number of lines and parts of cut lines in the sample.
        characters_seen: number of characters in ``pieces_seen``.
        characters_used: number of characters in the sample.
    """

    lines_seen: int = 0
    lines_empty: int = 0
    lines_split: int = 0
    pieces_seen: int = 0
    pieces_used: int = 0
    characters_seen: int = 0
    characters_used: int = 0

    def as_dict(self) -> dict[str, int]:
        """Return the counts, ready for JSON."""
        return asdict(self)


def sample_lines(
    lines: Iterable[str], *, max_sentences: int, max_characters: int, seed: int
) -> tuple[list[str], LineCounts]:
    """Draw a uniform sample of lines, in their order; the same seed and lines give the same sample.

    Each line gets a random key. The lines with the smallest keys are kept, as many as both caps allow. Only the sample
    and one line are in memory.

    Args:
        lines: the corpus, one sentence or paragraph per line.
        max_sentences: maximum number of lines in the sample.
        max_characters: maximum number of characters in the sample.
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


class TokenizerTrainer(ABC):
    """A trainer of vocabularies; the result depends only on the settings and the lines.

    Attributes:
        provides_characters: whether its tokenizer provides characters, for models that read characters.
        vocab_size: maximum number of pieces, including special tokens.
        max_sentences: maximum number of lines to train on; a seeded sample of a larger corpus.
        max_characters: maximum number of characters to train on; limits memory and time.
        seed: seed of the sample.
    """

    provides_characters: ClassVar[bool] = False

    vocab_size: int
    max_sentences: int
    max_characters: int
    seed: int

    @property
    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """All settings that determine the vocabulary, apart from the text."""

    @property
    def fingerprint(self) -> str:
        """Hex digest of ``settings``; with the corpus's fingerprint, it is the vocabulary's cache key."""
        return sha256(json.dumps(self.settings, sort_keys=True).encode()).hexdigest()

    def train(self, lines: Iterator[str], folder: Path) -> Tokenizer:
        """Train on ``lines`` (sentences or paragraphs), save to ``folder``, and return the tokenizer.

        The counts of used and skipped lines are in the tokenizer's ``training`` and in ``tokenizer.json``.

        Raises:
            DataError: there is no text, or too little text for the settings.
        """
        sample, counts = sample_lines(
            lines, max_sentences=self.max_sentences, max_characters=self.max_characters, seed=self.seed
        )
        if not sample:
            raise DataError(f"there is no text to train a tokenizer on: none of the {counts.lines_seen} lines has text")
        tokenizer = self.train_on(sample, counts)
        description = {"settings": self.settings, **counts.as_dict(), **tokenizer.training, "trainer": self.fingerprint}
        tokenizer.training = description
        tokenizer.save(folder)
        return tokenizer

    @abstractmethod
    def train_on(self, sample: Sequence[str], counts: LineCounts) -> Tokenizer:
        """Train a tokenizer on a sample.

        Args:
            sample: the lines, at least one.
            counts: counts of the lines, for messages.

        Raises:
            DataError: there is too little text for the settings.
        """

    def check(self, problems: Sequence[str] = (), **least: int) -> None:
        """Raise if a setting is out of range.

        Args:
            problems: further problems to report.
            least: smallest values of further settings, by name.

        Raises:
            ConfigError: settings are invalid; the message lists all problems.
        """
        values = vars(self)
        own_problems = [
            f"tokenizer.{name}={values[name]}: must be at least {lowest}"
            for name, lowest in {**least, "max_sentences": 1, "max_characters": 1}.items()
            if values[name] < lowest
        ]
        if problems or own_problems:
            raise ConfigError([*problems, *own_problems])

    def too_few_error(self, num_pieces: int | str, counts: LineCounts) -> DataError:
        """Build the error for a text that does not support ``vocab_size``."""
        more = (
            f"train on more of it (tokenizer.max_characters={self.max_characters}, "
            f"tokenizer.max_sentences={self.max_sentences})"
            if counts.pieces_used < counts.pieces_seen
            else "use more text"
        )
        return DataError(
            f"tokenizer.vocab_size={self.vocab_size}: {describe_text(counts)} supports at most {num_pieces} pieces; "
            f"set tokenizer.vocab_size={num_pieces} or less, {more}, or set tokenizer.allow_fewer=true"
        )


def describe_text(counts: LineCounts) -> str:
    """Describe the training text, for messages."""
    return f"the training text ({counts.pieces_used} lines, {counts.characters_used} characters)"
