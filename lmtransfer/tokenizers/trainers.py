"""Trains vocabularies on a seeded sample of a corpus; each kind of tokenizer has its own trainer."""

from __future__ import annotations

import heapq
import io
import json
import re
import unicodedata
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, Literal

import sentencepiece
import tokenizers
from tokenizers import models, normalizers, pre_tokenizers, trainers
from typing_extensions import override

from lmtransfer.config.types import Count, Whole
from lmtransfer.errors import ConfigError, DataError
from lmtransfer.randomness import generator
from lmtransfer.tokenizers.base import SPECIALS, Tokenizer, replace_surrogates
from lmtransfer.tokenizers.byte_bpe import ByteBpeTokenizer
from lmtransfer.tokenizers.sentencepiece import SentencePieceTokenizer
from lmtransfer.tokenizers.wordpiece import INSIDE, WordPieceTokenizer, ascii_parts, library_of, split_as_bert
from lmtransfer.tokenizers.words import WordTokenizer, split_words

MAX_LINE_CHARACTERS = 4096
_BLOCK = 8192

# During training, sentencepiece marks unknown characters with U+2585 and drops all lines that contain this character.
_UNUSABLE = re.compile("[\u2585\ud800-\udfff]")


@dataclass(slots=True)
class LineCounts:
    """Counts for a corpus and for the sample of its lines."""

    lines_seen: int = 0
    lines_empty: int = 0
    lines_split: int = 0  #: number of lines longer than 4,096 characters, which were cut at white space
    pieces_seen: int = 0  #: number of lines and parts of cut lines, from which the sample is taken
    pieces_used: int = 0  #: number of lines and parts of cut lines in the sample
    characters_seen: int = 0
    characters_used: int = 0


def sample_lines(
    lines: Iterable[str], *, max_sentences: int, max_characters: int, seed: int
) -> tuple[list[str], LineCounts]:
    """Draw a uniform sample of lines, in their original order; the same seed and lines give the same sample.

    Each line gets a random key. The lines with the smallest keys are kept, as many as both limits allow. Only the
    sample and one line are in memory at a time.
    """
    counts = LineCounts()
    heap: list[tuple[float, int, str]] = []  # (-key, index, line), so that the largest key is on top
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


@dataclass(kw_only=True, eq=False)
class TokenizerTrainer(ABC):
    """Trains a vocabulary; the result depends only on the settings and the lines.

    Args:
        vocab_size: maximum number of pieces, including the special tokens; embeddings are padded to a multiple of 64.
        max_sentences: maximum number of lines in the random training sample.
        max_characters: maximum number of characters in the sample, which limits memory and time.
        seed: seed of the sample, independent of the run's seed, so that runs share one vocabulary and cache.
        lowercase: true: uncased, which suits small vocabularies.
        min_frequency: minimum number of occurrences of a piece in the sample.
        allow_fewer: true: train fewer pieces if the text is too small for vocab_size; false: reject such a text.
    """

    provides_characters: ClassVar[bool] = False

    vocab_size: Count = 32768
    max_sentences: int = 1_000_000
    max_characters: int = 20_000_000
    seed: Whole = 0

    @property
    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """All settings that, together with the text, determine the vocabulary."""

    @property
    def fingerprint(self) -> str:
        """Hex digest of ``settings``; together with the corpus's fingerprint, the cache key of the vocabulary."""
        return sha256(json.dumps(self.settings, sort_keys=True).encode()).hexdigest()

    def train(self, lines: Iterator[str], folder: Path) -> Tokenizer:
        """Train on ``lines`` (sentences or paragraphs), save to ``folder``, and return the tokenizer.

        The tokenizer's ``training``, which is also in ``tokenizer.json``, holds the numbers of used and skipped lines.
        """
        sample, counts = sample_lines(
            lines, max_sentences=self.max_sentences, max_characters=self.max_characters, seed=self.seed
        )
        if not sample:
            raise DataError(f"there is no text to train a tokenizer on: none of the {counts.lines_seen} lines has text")
        tokenizer = self.train_on(sample, counts)
        description = {"settings": self.settings, **asdict(counts), **tokenizer.training, "trainer": self.fingerprint}
        tokenizer.training = description
        tokenizer.save(folder)
        return tokenizer

    @abstractmethod
    def train_on(self, sample: Sequence[str], counts: LineCounts) -> Tokenizer:
        """Train a tokenizer on a sample."""

    def check(self, problems: Sequence[str] = (), **least: int) -> None:
        """Raise if a setting is out of range."""
        values = vars(self)
        own_problems = [
            f"tokenizer.{name}={values[name]} must be at least {lowest}"
            for name, lowest in {**least, "max_sentences": 1, "max_characters": 1}.items()
            if values[name] < lowest
        ]
        if problems or own_problems:
            raise ConfigError([*problems, *own_problems])

    def too_few_error(self, num_pieces: int | str, counts: LineCounts) -> DataError:
        """Build the error for a text that is too short for ``vocab_size`` pieces."""
        more = (
            f"train on more of it (tokenizer.max_characters is {self.max_characters}, tokenizer.max_sentences is "
            f"{self.max_sentences})"
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


_BYTE_BPE_VERSION = 1  # increase it when the same settings and text would give another vocabulary
_SMALLEST = len(SPECIALS) + 256


@dataclass(kw_only=True, eq=False)
class ByteBpeTrainer(TokenizerTrainer):
    """Trains a byte-level vocabulary (Radford et al. 2019, section 2.2).

    Args:
        vocab_size: number of pieces, including the special tokens and the 256 bytes; 50,265 in RoBERTa.
    """

    lowercase: bool = False
    min_frequency: int = 2
    allow_fewer: bool = True

    def __post_init__(self) -> None:
        problems = []
        if self.vocab_size < _SMALLEST:
            problems.append(f"tokenizer.vocab_size={self.vocab_size} must be at least {_SMALLEST}, for the 256 bytes")
        self.check(problems, min_frequency=1)

    @property
    @override
    def settings(self) -> dict[str, Any]:
        return {"kind": "byte_bpe", **vars(self), "tokenizers": tokenizers.__version__, "version": _BYTE_BPE_VERSION}

    @override
    def train_on(self, sample: Sequence[str], counts: LineCounts) -> ByteBpeTokenizer:
        library = tokenizers.Tokenizer(models.BPE())
        if self.lowercase:
            library.normalizer = normalizers.Lowercase()
        library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        words = _count_parts(chain.from_iterable(map(str.split, sample)), lambda word: _cut_by(library, " " + word))
        _train_on_words(
            library,
            words,
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


_LINES_WITH_ACCENTS = 2000
_REPEATS = 1000  # of a word in one text
_WORDPIECE_VERSION = 2  # increase it when the same settings and text would give another vocabulary


@dataclass(kw_only=True, eq=False)
class WordPieceTrainer(TokenizerTrainer):
    """Trains a WordPiece vocabulary, for models such as BERT and ELECTRA (Schuster and Nakajima 2012).

    As in the ``tokenizers`` library, pieces are created by merging the most frequent pairs. Google's own trainer, which
    was never published, weights pairs by likelihood instead.

    Args:
        vocab_size: number of pieces, including the special tokens; 30,522 in BERT.
        lowercase: true: lowercase and remove the accents of letters with case, as BERT's uncased models do; vowel signs
            of Hindi and other marks are kept.
        max_alphabet: number of characters in the vocabulary, chosen by frequency; a word with any other character
            becomes [UNK].
    """

    lowercase: bool = True
    max_alphabet: int = 1000
    min_frequency: int = 2
    allow_fewer: bool = True

    def __post_init__(self) -> None:
        self.check(vocab_size=len(SPECIALS) + 1, max_alphabet=1, min_frequency=1)

    @property
    @override
    def settings(self) -> dict[str, Any]:
        return {"kind": "wordpiece", **vars(self), "tokenizers": tokenizers.__version__, "version": _WORDPIECE_VERSION}

    @override
    def train_on(self, sample: Sequence[str], counts: LineCounts) -> WordPieceTokenizer:
        library = library_of(models.WordPiece(unk_token=SPECIALS[0]), lowercase=self.lowercase)

        def cut(word: str) -> list[str]:
            is_plain = word.isascii() and word.isprintable()
            return ascii_parts(word, lowercase=self.lowercase) if is_plain else _cut_by(library, word)

        words = _count_parts(chain.from_iterable(map(split_as_bert, sample)), cut)
        frequencies = _character_frequencies(words)
        ranked = sorted(frequencies, key=lambda character: (-frequencies[character], character))
        alphabet = set(ranked[: self.max_alphabet])  # among equally frequent characters, the first in Unicode order
        # Without this, the library's order of these pieces, which decides ties, would change from run to run.
        inside = sorted({INSIDE + character for word in words for character in word[1:] if character in alphabet})
        smallest = len(SPECIALS) + len(inside) + len(alphabet)
        if smallest > self.vocab_size:
            raise DataError(
                f"tokenizer.vocab_size={self.vocab_size}: {describe_text(counts)} needs {smallest} pieces for "
                f"its characters alone; set tokenizer.vocab_size={smallest} or more, or lower tokenizer.max_alphabet "
                f"(now {self.max_alphabet})"
            )
        _train_on_words(
            library,
            words,
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


def _count_parts(words: Iterable[str], cut: Callable[[str], list[str]]) -> Counter[str]:
    """Count the parts into which ``cut`` divides words; each distinct word is cut only once."""
    parts: Counter[str] = Counter()
    for word, count in Counter(words).items():
        for part in cut(word):
            parts[part] += count
    return parts


def _cut_by(library: tokenizers.Tokenizer, word: str) -> list[str]:
    """Return the parts of a word, as a library tokenizer passes them to its model."""
    clean = replace_surrogates(word)
    if library.normalizer is not None:
        clean = library.normalizer.normalize_str(clean)
    return [part for part, _ in library.pre_tokenizer.pre_tokenize_str(clean)]


def _train_on_words(library: tokenizers.Tokenizer, words: Counter[str], trainer: trainers.Trainer) -> None:
    """Train the model of a library tokenizer on counted words, which are neither normalized nor cut again."""
    counting = tokenizers.Tokenizer(library.model)
    counting.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    texts = (
        f"{word} " * min(count - start, _REPEATS)
        for word, count in words.items()
        for start in range(0, count, _REPEATS)
    )
    counting.train_from_iterator(texts, trainer)
    library.model = counting.model


def _lost_accents(sample: Sequence[str], normalizer: normalizers.Normalizer) -> dict[str, Any]:
    """Return the share of words that lose accents, and the most frequent example, from part of the sample."""
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


_WORDS_VERSION = 1  # increase it when the same settings and text would give another vocabulary


@dataclass(kw_only=True, eq=False)
class WordTokenizerTrainer(TokenizerTrainer):
    """Trains a whole-word vocabulary: the most frequent words of the text, at most ``vocab_size``.

    Args:
        vocab_size: maximum number of words, including the special tokens; other words become [UNK], but a character
            model still reads their characters.
    """

    provides_characters = True

    lowercase: bool = True
    min_frequency: int = 2

    def __post_init__(self) -> None:
        self.check(vocab_size=len(SPECIALS) + 1, min_frequency=1)

    @property
    @override
    def settings(self) -> dict[str, Any]:
        return {**vars(self), "version": _WORDS_VERSION}

    @property
    @override
    def fingerprint(self) -> str:
        return sha256(json.dumps({"kind": "words", **self.settings}, sort_keys=True).encode()).hexdigest()

    @override
    def train_on(self, sample: Sequence[str], counts: LineCounts) -> WordTokenizer:
        """Build a tokenizer of the most frequent words; ``training`` holds the share of the text that they cover."""
        split = partial(split_words, lowercase=self.lowercase)
        frequencies = _count_parts(chain.from_iterable(map(str.split, sample)), split)
        frequent = ((word, count) for word, count in frequencies.items() if count >= self.min_frequency)
        ranked = sorted(frequent, key=lambda item: (-item[1], item[0]))[: self.vocab_size - len(SPECIALS)]
        if not ranked:
            raise DataError(
                f"no word occurs {self.min_frequency} times in the text ({counts.lines_seen} lines, "
                f"{counts.characters_used} characters used): use more text, or set a lower tokenizer.min_frequency"
            )
        share = sum(count for _, count in ranked) / frequencies.total()
        return WordTokenizer([word for word, _ in ranked], lowercase=self.lowercase, training={"known_share": share})


_SENTENCEPIECE_VERSION = 1  # increase it when the same settings and text would give another vocabulary
_SILENT = 2  # sentencepiece's log level: errors only; errors are also raised as exceptions


@dataclass(kw_only=True, eq=False)
class SentencePieceTrainer(TokenizerTrainer):
    """Trains a sentencepiece vocabulary.

    Lines are sampled here, because sentencepiece's own sampling ignores its seed. Training runs in a single thread,
    because the result depends on the number of threads.

    Args:
        kind: unigram or bpe.
        character_coverage: share of the text's characters that the vocabulary covers; other characters become [UNK], or
            bytes with byte_fallback.
        byte_fallback: true: encode other characters as bytes.
    """

    kind: Literal["unigram", "bpe"]
    lowercase: bool = True
    character_coverage: float = 0.9999
    byte_fallback: bool = False
    allow_fewer: bool = True

    def __post_init__(self) -> None:
        problems = [] if self.kind in ("unigram", "bpe") else [f"tokenizer.kind={self.kind} must be unigram or bpe"]
        if not 0.98 <= self.character_coverage <= 1:
            problems.append(f"tokenizer.character_coverage={self.character_coverage} must be between 0.98 and 1")
        self.check(problems, vocab_size=len(SPECIALS) + 1 + 256 * self.byte_fallback)

    @property
    @override
    def settings(self) -> dict[str, Any]:
        return {**vars(self), "sentencepiece": sentencepiece.__version__, "version": _SENTENCEPIECE_VERSION}

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
                max_sentence_length=1 << 20,  # in bytes; lines have at most 4,096 characters
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
