"""The memo of words against the libraries themselves, on text made to break it, and its bounds."""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from fakes import published_tokenizers as toys

from lmtransfer.tokenizers import word_memo
from lmtransfer.tokenizers.base import Tokenizer
from lmtransfer.tokenizers.trainers import (
    ByteBpeTrainer,
    LineCounts,
    SentencePieceTrainer,
    WordPieceTrainer,
    WordTokenizerTrainer,
)
from lmtransfer.tokenizers.word_memo import WordMemo

#: Each entry is drawn as one unit: white space and control characters, marks, letters that change when folded, and
#: texts that a tokenizer may treat as one.
HOSTILE = [
    *(character for character in map(chr, range(sys.maxunicode + 1)) if character.isspace()),
    *map(chr, [*range(0x20), *range(0x7F, 0xA0)]),
    *"\u00ad\u034f\u061c\u115f\u180e\u200b\u200c\u200d\u200e\u2060\u2062\u2581\u2585\u2800\ufe0f\ufeff\ufff9\ufffd",
    *"\ud800\udbff\udc00\udfff\ue000\uffff\U000e0001\U0010ffff",
    *"\u0300\u0301\u0338\u0345\u0483\u0591\u064b\u093c\u093f\u0e31\u0e49\u1160\u11a8\u20d0\u3099\U0001d165",
    *"\u00c5\u00df\u0130\u0131\u017f\u01c5\u03a3\u03c2\u0390\u1e9e\u1fb3\u212a\u2126\u226e\ufb01\uff21\uff9e\U0001f1e6",
    *"\u0621\u0915\u0e01\u1100\u1161\u304b\u4e2d\u6587\uac00\ud55c\uf900\U00020000\U0001f600\U0001f468\u200d\U0001f469",
    *"'\"`.,;:!?()[]{}<>/\\|@#$%^&*-_+=~\u2019\u201c\u2014\u3002\uff01\u00b4\u00a8",
    *("'s", "'t", "'ll", "'D", "don't", "a.b", "x-y", "10,000.5", "  ", "   ", "\r\n", " \u0301", "\n\n"),
    *("[MASK]", "[CLS]", "[UNK]", "<mask>", "<s>", "<|endoftext|>", "[unused0]", "##ing", "\u0120the", "<0x0A>"),
]
PLAIN = [*"abcdefghiklmnorstuvyABCDEST0123456789", "the", "The", "sea", "said", "boat", *"     "]
LINES = [
    *toys.TEXT,
    "hello don't stop, it's 10,000.5 (a x-y) \u0939\u093f\u0928\u094d\u0926\u0940 \u4e2d\u6587 na\u00efve",
] * 3


def hostile_texts(count: int, seed: int = 0) -> list[str]:
    rng = random.Random(seed)
    texts = []
    for _ in range(count):
        share = rng.choice([0.03, 0.2, 0.8])
        units = (rng.choice(HOSTILE if rng.random() < share else PLAIN) for _ in range(rng.randrange(40)))
        texts.append("".join(units))
    return texts


def trained(trainer: Any) -> Tokenizer:
    return trainer.train_on(LINES, LineCounts())


TOKENIZERS = {
    "wordpiece": lambda: trained(WordPieceTrainer(vocab_size=300)),
    "wordpiece_cased": lambda: trained(WordPieceTrainer(vocab_size=300, lowercase=False)),
    "byte_bpe": lambda: trained(ByteBpeTrainer(vocab_size=400)),
    "byte_bpe_uncased": lambda: trained(ByteBpeTrainer(vocab_size=400, lowercase=True)),
    "bpe": lambda: trained(SentencePieceTrainer(kind="bpe", vocab_size=200)),
    "unigram": lambda: trained(SentencePieceTrainer(kind="unigram", vocab_size=120)),
    "words": lambda: trained(WordTokenizerTrainer(vocab_size=100, min_frequency=1)),
    **{f"published {kind}": lambda kind=kind: toys.published(kind) for kind in toys.KINDS},
}


#: Tokenizers that see across words, have other rules, or are as fast without a memo.
WITHOUT_MEMO = [
    *("bpe", "unigram", "words"),
    *(f"published {kind}" for kind in ("words", "roberta_prefixed", "unigram", "unigram_split")),
]


@pytest.fixture(scope="module", params=TOKENIZERS)
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return TOKENIZERS[request.param]()


def test_ids_are_those_of_whole_texts(tokenizer: Tokenizer) -> None:
    """``encode`` passes a whole text to the library."""
    texts = [*hostile_texts(600), *HOSTILE, *(f"a{unit}b c" for unit in HOSTILE), *(f"a {unit}b" for unit in HOSTILE)]
    expected = [tokenizer.encode(text).ids for text in texts]
    for _ in range(2):  # with new words, then with known words
        for text, ids, wanted in zip(texts, tokenizer.encode_ids(texts), expected, strict=True):
            assert ids.tolist() == wanted.tolist(), repr(text)
    ids, lengths = tokenizer.encode_flat(texts)
    assert (ids.dtype, lengths.dtype) == (np.int32, np.int64)
    np.testing.assert_array_equal(ids, np.concatenate(expected))
    np.testing.assert_array_equal(lengths, [len(wanted) for wanted in expected])


def test_which_tokenizers_have_a_memo() -> None:
    without = [name for name, build in TOKENIZERS.items() if getattr(build(), "_memo", None) is None]
    assert without == WITHOUT_MEMO


def test_no_texts(tokenizer: Tokenizer) -> None:
    ids, lengths = tokenizer.encode_flat([])
    assert (ids.shape, lengths.shape, ids.dtype, lengths.dtype) == ((0,), (0,), np.int32, np.int64)
    assert tokenizer.encode_ids([]) == []


class Spelling:
    """Encodes a word as its characters, and counts its calls."""

    def __init__(self) -> None:
        self.words: list[str] = []
        self.fails = False

    def __call__(self, words: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        if self.fails:
            raise KeyboardInterrupt
        self.words += words
        return np.array([ord(character) for word in words for character in word]), np.array([*map(len, words)])


def spelled(texts: Sequence[str]) -> list[list[int]]:
    return [[ord(character) for character in text if not character.isspace()] for text in texts]


def check(memo: WordMemo, texts: Sequence[str]) -> None:
    ids, lengths = memo.encode(texts)
    ends = np.cumsum(lengths)
    assert [ids[end - n : end].tolist() for end, n in zip(ends, lengths, strict=True)] == spelled(texts)


def test_each_word_is_encoded_once() -> None:
    encode_words = Spelling()
    memo = WordMemo(split=str.split, encode_words=encode_words)
    check(memo, ["the sea the", "", "sea  and the"])
    check(memo, ["and the", " "])
    assert encode_words.words == ["the", "sea", "and"]


@pytest.mark.parametrize("bound", ["_MOST_WORDS", "_MOST_CHARACTERS"])
def test_the_memo_is_bounded(bound: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(word_memo, bound, 50)
    monkeypatch.setattr(word_memo, "_TEXTS_AT_ONCE", 7)
    memo = WordMemo(split=str.split, encode_words=Spelling())
    rng = random.Random(0)
    for _ in range(30):
        check(memo, ["".join(rng.choices("abc  ", k=rng.randrange(12))) for _ in range(rng.randrange(20))])
        assert len(memo._places) <= 50 + 7 * 6
        assert len(memo._ids) <= 50 + 7 * 12 or bound == "_MOST_WORDS"


def test_an_interrupted_call_leaves_no_wrong_ids() -> None:
    encode_words = Spelling()
    memo = WordMemo(split=str.split, encode_words=encode_words)
    check(memo, ["the sea"])
    encode_words.fails = True
    with pytest.raises(KeyboardInterrupt):
        memo.encode(["a boat on the river"])
    encode_words.fails = False
    check(memo, ["the river", "a boat"])


def test_threads_share_a_memo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(word_memo, "_MOST_WORDS", 40)
    memo = WordMemo(split=str.split, encode_words=Spelling())
    rng = random.Random(0)
    batches = [["".join(rng.choices("abc ", k=9)) for _ in range(9)] for _ in range(300)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda texts: check(memo, texts), batches))
