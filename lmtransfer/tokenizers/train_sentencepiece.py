"""The trainer of a sentencepiece vocabulary on a corpus."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from typing import Any, Literal

import sentencepiece
from typing_extensions import override

from lmtransfer.config.types import Count, Whole
from lmtransfer.errors import DataError
from lmtransfer.tokenizers.model_files import SPECIALS
from lmtransfer.tokenizers.sentencepiece import SentencePieceTokenizer
from lmtransfer.tokenizers.trainer import LineCounts, TokenizerTrainer, describe_text

_VERSION = 1  # increase it when the same settings and text would give another vocabulary
_SILENT = 2  # sentencepiece's log level: errors only; errors are also raised as exceptions


class SentencePieceTrainer(TokenizerTrainer):
    """A trainer of sentencepiece vocabularies.

    The result depends only on the settings and the lines. Lines are sampled here, because sentencepiece's own sampling
    ignores its seed. Training runs in a single thread, because its sums depend on the number of threads.

    Args:
        kind: ``unigram`` (Kudo, "Subword Regularization", ACL 2018) or ``bpe`` (Sennrich et al., ACL 2016).
        vocab_size: number of pieces, including the four special tokens.
        lowercase: fold case (and then NFKC); otherwise NFKC only.
        character_coverage: share of the text's characters that get a piece; the other characters are [UNK].
        max_sentences: maximum number of lines to train on; a seeded sample of a larger corpus.
        max_characters: maximum number of characters to train on; limits memory (about 20 bytes per character) and time.
        byte_fallback: encode unknown characters with 256 byte pieces instead of [UNK].
        allow_fewer: create fewer pieces if the text does not support ``vocab_size``; if False, that is an error.
        seed: seed of the sample.

    Raises:
        ConfigError: a value is out of range.
    """

    def __init__(
        self,
        *,
        kind: Literal["unigram", "bpe"],
        vocab_size: Count = 32768,
        lowercase: bool = True,
        character_coverage: float = 0.9999,
        max_sentences: int = 1_000_000,
        max_characters: int = 20_000_000,
        byte_fallback: bool = False,
        allow_fewer: bool = True,
        seed: Whole = 0,
    ) -> None:
        self.kind = kind
        self.vocab_size = vocab_size
        self.lowercase = lowercase
        self.character_coverage = character_coverage
        self.max_sentences = max_sentences
        self.max_characters = max_characters
        self.byte_fallback = byte_fallback
        self.allow_fewer = allow_fewer
        self.seed = seed
        problems = [] if kind in ("unigram", "bpe") else [f"tokenizer.kind={kind}: must be unigram or bpe"]
        if not 0.98 <= character_coverage <= 1:
            problems.append(f"tokenizer.character_coverage={character_coverage}: must be from 0.98 to 1")
        self.check(problems, vocab_size=len(SPECIALS) + 1 + 256 * byte_fallback)

    @property
    @override
    def settings(self) -> dict[str, Any]:
        return {**vars(self), "sentencepiece": sentencepiece.__version__, "version": _VERSION}

    @override
    def train_on(self, sample: Sequence[str], counts: LineCounts) -> SentencePieceTokenizer:
        model = io.BytesIO()
        try:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=iter(sample),
                model_writer=model,
                model_type=self.kind,
                vocab_size=self.vocab_size,
                hard_vocab_limit=not self.allow_fewer,
                character_coverage=self.character_coverage,
                byte_fallback=self.byte_fallback,
                normalization_rule_name="nmt_nfkc_cf" if self.lowercase else "nmt_nfkc",
                unk_id=SentencePieceTokenizer.unk_id,
                unk_piece=SPECIALS[0],
                unk_surface=SPECIALS[0],
                control_symbols=list(SPECIALS[1:]),
                bos_id=-1,
                eos_id=-1,
                pad_id=-1,
                input_sentence_size=0,
                shuffle_input_sentence=False,
                max_sentence_length=1 << 20,  # bytes; lines were cut to 4,096 characters before
                num_threads=1,
                minloglevel=_SILENT,
            )
        except RuntimeError as error:
            raise self._explain(str(error), counts) from None
        return SentencePieceTokenizer(model.getvalue())

    def _explain(self, message: str, counts: LineCounts) -> DataError:
        if largest := re.search(r"too high .* value <= (\d+)", message):
            return self.too_few_error(largest[1], counts)
        if needed := re.search(r"smaller than required_chars\. \d+ vs (\d+)", message):
            return DataError(
                f"tokenizer.vocab_size={self.vocab_size}: {describe_text(counts)} needs at least {needed[1]} pieces "
                f"for its characters; set tokenizer.vocab_size={needed[1]} or more, or a lower "
                "tokenizer.character_coverage"
            )
        return DataError(f"sentencepiece could not train a vocabulary on {describe_text(counts)}: {message}")
