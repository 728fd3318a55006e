"""The trainer of a WordPiece vocabulary on a corpus."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Sequence
from typing import Any

import tokenizers
from tokenizers import models, normalizers, trainers
from typing_extensions import override

from lmtransfer.config.types import Count, Whole
from lmtransfer.errors import DataError
from lmtransfer.tokenizers.model_files import SPECIALS
from lmtransfer.tokenizers.spans import replace_surrogates
from lmtransfer.tokenizers.trainer import LineCounts, TokenizerTrainer, describe_text
from lmtransfer.tokenizers.wordpiece import INSIDE, WordPieceTokenizer, library_of

_LINES_WITH_ACCENTS = 2000
_VERSION = 2  # increase it when the same settings and text would give another vocabulary


class WordPieceTrainer(TokenizerTrainer):
    """A trainer of WordPiece vocabularies, for models such as BERT and ELECTRA (Schuster and Nakajima 2012).

    The result depends only on the settings and the lines. Pieces are created by merging the most frequent neighbors,
    as in the ``tokenizers`` library. This differs from Google's own trainer, which weights pairs by likelihood and was
    never published.

    Args:
        vocab_size: number of pieces, including the four special tokens.
        lowercase: fold case and drop the accents of letters with case, as in BERT's uncased models.
        max_alphabet: maximum number of different characters that get pieces; words with a rarer character are [UNK].
        min_frequency: merge only pairs that occur at least this often.
        max_sentences: maximum number of lines to train on; a seeded sample of a larger corpus.
        max_characters: maximum number of characters to train on; limits memory and time.
        allow_fewer: create fewer pieces if the text does not support ``vocab_size``; if False, that is an error.
        seed: seed of the sample.

    Raises:
        ConfigError: a value is out of range.
    """

    def __init__(
        self,
        *,
        vocab_size: Count = 32768,
        lowercase: bool = True,
        max_alphabet: int = 1000,
        min_frequency: int = 2,
        max_sentences: int = 1_000_000,
        max_characters: int = 20_000_000,
        allow_fewer: bool = True,
        seed: Whole = 0,
    ) -> None:
        self.vocab_size = vocab_size
        self.lowercase = lowercase
        self.max_alphabet = max_alphabet
        self.min_frequency = min_frequency
        self.max_sentences = max_sentences
        self.max_characters = max_characters
        self.allow_fewer = allow_fewer
        self.seed = seed
        self.check(vocab_size=len(SPECIALS) + 1, max_alphabet=1, min_frequency=1)

    @property
    @override
    def settings(self) -> dict[str, Any]:
        return {"kind": "wordpiece", **vars(self), "tokenizers": tokenizers.__version__, "version": _VERSION}

    @override
    def train_on(self, sample: Sequence[str], counts: LineCounts) -> WordPieceTokenizer:
        library = library_of(models.WordPiece(unk_token=SPECIALS[0]), lowercase=self.lowercase)
        clean = [library.normalizer.normalize_str(replace_surrogates(line)) for line in sample]
        words = Counter(word for line in clean for word, _ in library.pre_tokenizer.pre_tokenize_str(line))
        frequencies = _character_frequencies(words)
        ranked = sorted(frequencies, key=lambda character: (-frequencies[character], character))
        alphabet = set(ranked[: self.max_alphabet])  # among equally frequent characters, the first in Unicode order
        # Without this, the library numbers these pieces in an order that changes from run to run, which decides ties.
        inside = sorted({INSIDE + character for word in words for character in word[1:] if character in alphabet})
        smallest = len(SPECIALS) + len(inside) + len(alphabet)
        if smallest > self.vocab_size:
            raise DataError(
                f"tokenizer.vocab_size={self.vocab_size}: {describe_text(counts)} needs {smallest} pieces for "
                f"its characters alone; set tokenizer.vocab_size={smallest} or more, or a lower "
                f"tokenizer.max_alphabet={self.max_alphabet}"
            )
        library.train_from_iterator(
            clean,
            trainers.WordPieceTrainer(
                vocab_size=self.vocab_size,
                min_frequency=self.min_frequency,
                special_tokens=[*SPECIALS, *inside],
                initial_alphabet=sorted(alphabet),
                limit_alphabet=len(alphabet),
                show_progress=False,
            ),
        )
        vocabulary = library.get_vocab()
        if len(vocabulary) < self.vocab_size and not self.allow_fewer:
            raise self.too_few_error(len(vocabulary), counts)
        pieces = sorted(vocabulary, key=vocabulary.__getitem__)
        lost = _lost_accents(sample, library.normalizer) if self.lowercase else {}
        training = {"num_characters": len(frequencies), **lost}
        return WordPieceTokenizer(pieces, lowercase=self.lowercase, training=training)


def _lost_accents(sample: Sequence[str], normalizer: normalizers.Normalizer) -> dict[str, Any]:
    """Return the share of words that lose accents, and the most frequent such word, in part of the sample."""
    words = Counter(word for line in sample[:_LINES_WITH_ACCENTS] for word in line.split())

    def without_accents(word: str) -> str | None:
        folded = normalizer.normalize_str(replace_surrogates(word)).replace(" ", "")
        lower = unicodedata.normalize("NFC", word.lower())
        return folded if len(folded) < len(unicodedata.normalize("NFD", lower)) and folded != lower else None

    folded = {word: without_accents(word) for word in words if not word.isascii()}
    lost = [(words[word], word, forms) for word, forms in folded.items() if forms]
    if not lost:
        return {}
    _, word, forms = max(lost)
    return {"lost_accents": {"share": sum(count for count, _, _ in lost) / words.total(), "example": [word, forms]}}


def _character_frequencies(words: Counter[str]) -> Counter[str]:
    frequencies: Counter[str] = Counter()
    for word, count in words.items():
        for character in word:
            frequencies[character] += count
    return frequencies
