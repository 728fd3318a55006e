"""Train a byte-level vocabulary from a corpus."""

from __future__ import annotations

import json
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import models, normalizers, pre_tokenizers, trainers

from lmtransfer.errors import ConfigError, DataError
from lmtransfer.tokenizers.byte_bpe import ByteBpeTokenizer, spaced
from lmtransfer.tokenizers.sample import LineCounts, sample_lines
from lmtransfer.tokenizers.saved import SPECIALS

_VERSION = 1  # raise it when the same settings and text would give another vocabulary
_SMALLEST = len(SPECIALS) + 256


class ByteBpeTrainer:
    """Settings of a byte-level vocabulary to be trained (Radford et al. 2019, section 2.2).

    The result depends on the settings and the lines only.

    Args:
        vocab_size: number of pieces, the four specials and the 256 bytes included.
        lowercase: fold case; the published vocabularies do not.
        min_frequency: merge only pairs that occur as often as this.
        max_sentences: most lines to train on; a seeded sample of a larger corpus.
        max_characters: most characters to train on; bounds memory and time.
        allow_fewer: settle for fewer pieces where the text does not support ``vocab_size``; otherwise an error.
        seed: seed of the sample.

    Raises:
        ConfigError: a value out of its range.
    """

    def __init__(
        self,
        *,
        vocab_size: int = 8192,
        lowercase: bool = False,
        min_frequency: int = 2,
        max_sentences: int = 1_000_000,
        max_characters: int = 5_000_000,
        allow_fewer: bool = False,
        seed: int = 0,
    ) -> None:
        problems = []
        if vocab_size < _SMALLEST:
            problems.append(f"tokenizer.vocab_size={vocab_size}: must be at least {_SMALLEST}, for the 256 bytes")
        for name, value in (
            ("min_frequency", min_frequency),
            ("max_sentences", max_sentences),
            ("max_characters", max_characters),
        ):
            if value < 1:
                problems.append(f"tokenizer.{name}={value}: must be at least 1")
        if problems:
            raise ConfigError(problems)
        self.vocab_size = vocab_size
        self.lowercase = lowercase
        self.min_frequency = min_frequency
        self.max_sentences = max_sentences
        self.max_characters = max_characters
        self.allow_fewer = allow_fewer
        self.seed = seed

    @property
    def settings(self) -> dict[str, Any]:
        """Everything but the text that decides the vocabulary."""
        return {"kind": "byte_bpe", **vars(self), "tokenizers": tokenizers.__version__, "version": _VERSION}

    @property
    def fingerprint(self) -> str:
        """Hex digest of ``settings``; with the corpus's own it names the vocabulary before it is trained."""
        return sha256(json.dumps(self.settings, sort_keys=True).encode()).hexdigest()

    def train(self, lines: Iterator[str], folder: Path) -> ByteBpeTokenizer:
        """Train on ``lines`` (sentences or paragraphs), save into ``folder``, and return the tokenizer.

        What was used and skipped is in the tokenizer's ``training`` and in ``tokenizer.json``.

        Raises:
            DataError: there is no text, or too little of it for ``vocab_size``.
        """
        sample, counts = sample_lines(
            lines, max_sentences=self.max_sentences, max_characters=self.max_characters, seed=self.seed
        )
        if not sample:
            raise DataError(f"no text to train a tokenizer on: {counts.lines_seen} lines, none with any text")
        library = tokenizers.Tokenizer(models.BPE())
        if self.lowercase:
            library.normalizer = normalizers.Lowercase()
        library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        library.train_from_iterator(
            map(spaced, sample),
            trainers.BpeTrainer(
                vocab_size=self.vocab_size,
                min_frequency=self.min_frequency,
                special_tokens=list(SPECIALS),
                initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
                show_progress=False,
            ),
        )
        described = json.loads(library.to_str())
        described["added_tokens"] = []  # else a text could spell the specials
        num_pieces = len(described["model"]["vocab"])
        if num_pieces < self.vocab_size and not self.allow_fewer:
            raise DataError(self._explain(num_pieces, counts))
        tokenizer = ByteBpeTokenizer(
            json.dumps(described, ensure_ascii=False).encode(),
            {"settings": self.settings, **counts.as_dict(), "trainer": self.fingerprint},
        )
        tokenizer.save(folder)
        return tokenizer

    def _explain(self, num_pieces: int, counts: LineCounts) -> str:
        capped = counts.pieces_used < counts.pieces_seen
        more = (
            f"train on more of it (tokenizer.max_characters={self.max_characters}, "
            f"tokenizer.max_sentences={self.max_sentences})"
            if capped
            else "give more text"
        )
        return (
            f"tokenizer.vocab_size={self.vocab_size}: the training text ({counts.pieces_used} lines, "
            f"{counts.characters_used} characters) supports at most {num_pieces} pieces; set "
            f"tokenizer.vocab_size={num_pieces} or less, {more}, or set tokenizer.allow_fewer=true"
        )
