"""Offsets in the original text, for all kinds of normalization."""

from __future__ import annotations

import random
import unicodedata
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from fakes import published_tokenizers as toys

from lmtransfer.tokenizers.base import Tokenizer
from lmtransfer.tokenizers.byte_bpe import ByteBpeTokenizer
from lmtransfer.tokenizers.trainers import ByteBpeTrainer, LineCounts, SentencePieceTrainer, WordPieceTrainer

TEXT = [
    "The old man said that the sea was calm, and the boat went out at dawn.",
    "A river runs through the valley; children play on its banks in summer.",
    "She read the letter twice (and then again), but it said nothing new.",
    "In 1984 the price was 3.50; by 2020 it had risen to 12.75 or more.",
]


OWN = ["unigram", "bpe", "cased", "bytes", "byte_bpe", "byte_bpe_lowercase"]
OTHERS: dict[str, Callable[[], Tokenizer]] = {
    "wordpiece": lambda: WordPieceTrainer(vocab_size=120).train_on(TEXT, LineCounts()),
    "wordpiece_cased": lambda: WordPieceTrainer(vocab_size=120, lowercase=False).train_on(TEXT, LineCounts()),
    **{f"published {kind}": lambda kind=kind: toys.published(kind) for kind in toys.KINDS},  # type: ignore[misc]
}


@pytest.fixture(scope="module", params=OWN)
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    if request.param.startswith("byte_bpe"):
        byte_trainer = ByteBpeTrainer(vocab_size=290, lowercase="lowercase" in request.param)
        return byte_trainer.train(iter(TEXT), tmp_path_factory.mktemp("tokenizer"))
    trainer = SentencePieceTrainer(
        kind="bpe" if request.param == "bpe" else "unigram",
        vocab_size=400 if request.param == "bytes" else 120,
        lowercase=request.param != "cased",
        byte_fallback=request.param == "bytes",
        character_coverage=1.0,
        allow_fewer=True,
    )
    return trainer.train(iter(TEXT), tmp_path_factory.mktemp("tokenizer"))


NFD = unicodedata.normalize("NFD", "Le caf\u00e9 na\u00efve co\u00fbte d\u00e9j\u00e0 cher")
FAMILY = "\U0001f468\u200d\U0001f469\u200d\U0001f467"


TEXTS = [
    ("The old  man\tsaid\n no", ["The", "old", "man", "said", "no"]),
    (NFD, NFD.split(" ")),
    (f"the {FAMILY} sea \U0001f1e9\U0001f1ea a\U0001f600b", ["the", FAMILY, "sea", "\U0001f1e9\U0001f1ea",
                                                             "a\U0001f600b"]),
    ("the\u00a0old\u2003man\u3000said", ["the", "old", "man", "said"]),
    ("the\u200bold \u200b man\ufeff", ["the", "old", "man"]),
    ("\ud55c\uad6d\uc5b4 \ud14d\uc2a4\ud2b8 the", ["\ud55c\uad6d\uc5b4", "\ud14d\uc2a4\ud2b8", "the"]),
    (unicodedata.normalize("NFD", "\ud55c\uad6d \uc5b4"),
     [unicodedata.normalize("NFD", "\ud55c\uad6d"), unicodedata.normalize("NFD", "\uc5b4")]),
    ("\ufb01ne o\ufb03ce \ufb02ow", ["\ufb01ne", "o\ufb03ce", "\ufb02ow"]),
    ("\uff26\uff55\uff4c\uff4c \uff57\uff49\uff44\uff54\uff48", ["\uff26\uff55\uff4c\uff4c",
                                                                 "\uff57\uff49\uff44\uff54\uff48"]),
    ("\ufeffthe sea", ["the", "sea"]),
    ("\u2581the\u2581sea", ["the", "sea"]),
    ("the \ud800 sea\udfff", ["the", "sea"]),
]  # fmt: skip


def test_words_are_exact(tokenizer: Tokenizer) -> None:
    for text, words in TEXTS:
        # byte-level BPE normalizes nothing
        expected = text.split() if isinstance(tokenizer, ByteBpeTokenizer) else words
        assert toys.words_by_offsets(tokenizer, text) == expected, text


def test_characters_that_count_as_white_space(tokenizer: Tokenizer) -> None:
    blank_alone = {c for c in toys.ALPHABET if not tokenizer.encode(c).ids.size}
    assert {" ", "\t", "\u00a0", "\u3000"} <= blank_alone
    if isinstance(tokenizer, ByteBpeTokenizer):
        assert all(character.isspace() for character in blank_alone)
    else:
        assert {"\u200b", "\ufeff", "\u2581", "\x01", "\ud800"} <= blank_alone
    assert not {"a", "\u0301", "\u00ad", "\U0001f600"} & blank_alone
    assert_offsets(tokenizer, blank_alone)


@pytest.mark.parametrize("kind", OTHERS)
def test_offsets_of_other_kinds(kind: str) -> None:
    tokenizer = OTHERS[kind]()
    blank_alone = {c for c in toys.ALPHABET if not tokenizer.encode(c).ids.size}
    if kind.startswith("published"):
        blank_alone |= {c for c in toys.ALPHABET if c in " \t\n\r\u2581" or unicodedata.category(c)[0] in "CZ"}
    if (
        kind == "wordpiece"
    ):  # lower-casing composes text again, and the library loses a Korean vowel without its syllable
        blank_alone.add("\u1161")
    assert_offsets(tokenizer, blank_alone)


def assert_offsets(tokenizer: Tokenizer, blank: set[str]) -> None:
    """Spans are monotone and cover everything except white space, and the fast path gives the same ids."""
    rng = random.Random(0)
    texts = ["".join(rng.choices(toys.ALPHABET, k=rng.randint(0, 30))) for _ in range(800)] + TEXT
    for text, ids in zip(texts, tokenizer.encode_ids(texts), strict=True):
        encoding = tokenizer.encode(text)
        np.testing.assert_array_equal(ids, encoding.ids)
        assert (ids.dtype, encoding.offsets.dtype) == (np.int32, np.int32)
        assert len(encoding.ids) == len(encoding.offsets) == len(encoding.word_starts)
        assert (encoding.offsets[:, 0] <= encoding.offsets[:, 1]).all()
        assert (np.diff(encoding.offsets, axis=0) >= 0).all()
        covered = {i for start, end in encoding.offsets.tolist() for i in range(start, end)}
        assert all(0 <= i < len(text) for i in covered)
        missing = {text[i] for i in range(len(text)) if i not in covered}
        assert missing <= blank, (text, missing - blank)


def test_word_starts_are_the_white_space_words(tokenizer: Tokenizer, tmp_path: Path) -> None:
    text = " ".join(TEXT) + " q\u00fcq \U0001f600 zebra! (x)"
    encoding = tokenizer.encode(text)
    assert encoding.word_starts.sum() == len(text.split())
    assert toys.words_by_offsets(tokenizer, text) == text.split()
    # The same follows from the ids, which are all that a tokenized corpus holds.
    np.testing.assert_array_equal(tokenizer.starts_word[encoding.ids], encoding.word_starts)
