"""The trainer of a byte-level vocabulary on a corpus."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import tokenizers
from tokenizers import models, normalizers, pre_tokenizers, trainers
from typing_extensions import override

from lmtransfer.config.types import Count, Whole
from lmtransfer.tokenizers.byte_bpe import ByteBpeTokenizer, space_words
from lmtransfer.tokenizers.model_files import SPECIALS
from lmtransfer.tokenizers.trainer import LineCounts, TokenizerTrainer

_VERSION = 1  # increase it when the same settings and text would give another vocabulary
_SMALLEST = len(SPECIALS) + 256


class ByteBpeTrainer(TokenizerTrainer):
    """A trainer of byte-level vocabularies (Radford et al. 2019, section 2.2).

    The result depends only on the settings and the lines.

    Args:
        vocab_size: number of pieces, including the four special tokens and the 256 bytes.
        lowercase: fold case; the published vocabularies do not.
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
        lowercase: bool = False,
        min_frequency: int = 2,
        max_sentences: int = 1_000_000,
        max_characters: int = 20_000_000,
        allow_fewer: bool = True,
        seed: Whole = 0,
    ) -> None:
        self.vocab_size = vocab_size
        self.lowercase = lowercase
        self.min_frequency = min_frequency
        self.max_sentences = max_sentences
        self.max_characters = max_characters
        self.allow_fewer = allow_fewer
        self.seed = seed
        problems = []
        if vocab_size < _SMALLEST:
            problems.append(f"tokenizer.vocab_size={vocab_size}: must be at least {_SMALLEST}, for the 256 bytes")
        self.check(problems, min_frequency=1)

    @property
    @override
    def settings(self) -> dict[str, Any]:
        return {"kind": "byte_bpe", **vars(self), "tokenizers": tokenizers.__version__, "version": _VERSION}

    @override
    def train_on(self, sample: Sequence[str], counts: LineCounts) -> ByteBpeTokenizer:
        library = tokenizers.Tokenizer(models.BPE())
        if self.lowercase:
            library.normalizer = normalizers.Lowercase()
        library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        library.train_from_iterator(
            map(space_words, sample),
            trainers.BpeTrainer(
                vocab_size=self.vocab_size,
                min_frequency=self.min_frequency,
                special_tokens=list(SPECIALS),
                initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
                show_progress=False,
            ),
        )
        described = json.loads(library.to_str())
        described["added_tokens"] = []  # otherwise text could encode to the special tokens
        num_pieces = len(described["model"]["vocab"])
        if num_pieces < self.vocab_size and not self.allow_fewer:
            raise self.too_few_error(num_pieces, counts)
        return ByteBpeTokenizer(json.dumps(described, ensure_ascii=False).encode())
