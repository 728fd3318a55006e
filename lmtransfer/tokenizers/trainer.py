"""What all trainers of vocabularies share: their settings, and the seeded, bounded sample of lines they train on."""

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


class TokenizerTrainer(ABC):
    """Settings of a vocabulary to be trained; the result depends on them and the lines only.

    Attributes:
        gives_characters: whether its tokenizer spells words, for models that read characters.
        vocab_size: most pieces, specials included.
        max_sentences: most lines to train on; a seeded sample of a larger corpus.
        max_characters: most characters to train on; bounds memory and time.
        seed: seed of the sample.
    """

    gives_characters: ClassVar[bool] = False

    vocab_size: int
    max_sentences: int
    max_characters: int
    seed: int

    @property
    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """Everything but the text that decides the vocabulary."""

    @property
    def fingerprint(self) -> str:
        """Hex digest of ``settings``; with the corpus's own it names the vocabulary before it is trained."""
        return sha256(json.dumps(self.settings, sort_keys=True).encode()).hexdigest()

    def train(self, lines: Iterator[str], folder: Path) -> Tokenizer:
        """Train on ``lines`` (sentences or paragraphs), save into ``folder``, and return the tokenizer.

        What was used and skipped is in the tokenizer's ``training`` and in ``tokenizer.json``.

        Raises:
            DataError: there is no text, or too little of it for the settings.
        """
        sample, counts = sample_lines(
            lines, max_sentences=self.max_sentences, max_characters=self.max_characters, seed=self.seed
        )
        if not sample:
            raise DataError(f"no text to train a tokenizer on: {counts.lines_seen} lines, none with any text")
        tokenizer = self.train_on(sample, counts)
        told = {"settings": self.settings, **counts.as_dict(), **tokenizer.training, "trainer": self.fingerprint}
        tokenizer.training = told
        tokenizer.save(folder)
        return tokenizer

    @abstractmethod
    def train_on(self, sample: Sequence[str], counts: LineCounts) -> Tokenizer:
        """The tokenizer of a sample.

        Args:
            sample: one line at least.
            counts: what became of the lines, for messages.

        Raises:
            DataError: there is too little text for the settings.
        """

    def check(self, problems: Sequence[str] = (), **least: int) -> None:
        """Refuse settings out of their range.

        Args:
            problems: what is wrong besides.
            least: the least value of further settings.

        Raises:
            ConfigError: every problem.
        """
        values = vars(self)
        found = [
            f"tokenizer.{name}={values[name]}: must be at least {lowest}"
            for name, lowest in {**least, "max_sentences": 1, "max_characters": 1}.items()
            if values[name] < lowest
        ]
        if problems or found:
            raise ConfigError([*problems, *found])

    def too_few(self, num_pieces: int | str, counts: LineCounts) -> DataError:
        """What to say where the text does not support ``vocab_size``."""
        more = (
            f"train on more of it (tokenizer.max_characters={self.max_characters}, "
            f"tokenizer.max_sentences={self.max_sentences})"
            if counts.pieces_used < counts.pieces_seen
            else "give more text"
        )
        return DataError(
            f"tokenizer.vocab_size={self.vocab_size}: {trained_on(counts)} supports at most {num_pieces} pieces; set "
            f"tokenizer.vocab_size={num_pieces} or less, {more}, or set tokenizer.allow_fewer=true"
        )


def trained_on(counts: LineCounts) -> str:
    """The training text, for messages."""
    return f"the training text ({counts.pieces_used} lines, {counts.characters_used} characters)"
