"""WordPiece against a plain loop over characters, and its offsets into the original text."""

from __future__ import annotations

import random
import re
import unicodedata
from pathlib import Path

import numpy as np
import pytest
from fakes.published_tokenizers import train_wordpiece
from support.refusals import refuses

from lmtransfer.errors import CheckpointError, ConfigError, DataError
from lmtransfer.tokenizers.base import Tokenizer
from lmtransfer.tokenizers.extended import ExtendedTokenizer
from lmtransfer.tokenizers.trainers import WordPieceTrainer
from lmtransfer.tokenizers.wordpiece import WordPieceTokenizer

TEXT = [
    "The old man said that the sea was calm, and the boat went out at dawn.",
    "A river runs through the valley; children play on its banks in summer.",
    "She read the letter twice (and then again), but it said nothing new.",
    "In 1984 the price was $3.50; by 2020 it had risen to 12.75 or more.",
]
#: As in published vocabularies, the special tokens may be anywhere.
PUBLISHED = ["[PAD]", "[unused0]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "c", "##a", "##b", "##c",
             "ab", "##bc", "(", ")", "$", "5", "##5", "\u4e2d"]  # fmt: skip


def tokenize(text: str, pieces: list[str], *, lowercase: bool) -> list[str]:
    """Tokenize as BERT does, one character at a time."""
    words: list[str] = [""]
    for character in unicodedata.normalize("NFD", text.lower()) if lowercase else text:
        category = unicodedata.category(character)
        if category == "Mn" and lowercase:
            continue
        if character.isspace():
            words.append("")
        elif category.startswith("C") or character == "\ufffd":
            continue
        elif category.startswith("P") or character in "$+<=>^`|~" or "\u4e00" <= character <= "\u9fff":
            words += [character, ""]
        else:
            words[-1] += character
    found = []
    for word in filter(None, words):
        rest, cut = word, []
        while rest and cut[-1:] != ["[UNK]"]:
            mark = "##" if cut else ""
            longest = next((mark + rest[:n] for n in range(len(rest), 0, -1) if mark + rest[:n] in pieces), "[UNK]")
            cut.append(longest)
            rest = rest[len(longest) - len(mark) :]
        found += cut if cut[-1] != "[UNK]" and len(word) <= 100 else ["[UNK]"]
    return found


@pytest.fixture(params=[True, False], ids=["uncased", "cased"])
def lowercase(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


ALPHABET = [*"abcABC($5) \t\n", *"\u00e4\u0301\u0130\u4e2d\u00a0\u200b\x00\ufffd\ud800\U0001f600"]


def test_ids_are_those_of_a_plain_loop(lowercase: bool) -> None:
    tokenizer = WordPieceTokenizer(PUBLISHED, lowercase=lowercase)
    rng = random.Random(0)
    texts = ["".join(rng.choices(ALPHABET, k=rng.randint(0, 20))) for _ in range(500)]
    texts += ["a" * 100, "a" * 101, "[MASK] a [unused0]", ""]
    for text, ids in zip(texts, tokenizer.encode_ids(texts), strict=True):
        expected = tokenize(text, PUBLISHED, lowercase=lowercase)
        assert [tokenizer.piece(int(i)) for i in ids] == expected, text
        np.testing.assert_array_equal(tokenizer.encode(text).ids, ids)
        assert ids.dtype == np.int32


@pytest.mark.parametrize(
    ("text", "spans"),
    [
        ("The  Sea\tsaid", ["The", "Sea", "said"]),
        ("caf\u00e9 ($5)", ["caf\u00e9", "(", "$", "5", ")"]),
        ("cafe\u0301 bar", ["cafe\u0301", "bar"]),
        ("na\u0308\u0301b\u0301", ["na\u0308\u0301b\u0301"]),
        ("\ufeffab\u200bc\u00a0d", ["ab\u200bc", "d"]),
        ("\ud55c\uad6d ab", ["\ud55c\uad6d", "ab"]),
        ("\u4e2d\u6587ab", ["\u4e2d", "\u6587", "ab"]),
    ],
)
def test_words_are_exact(text: str, spans: list[str]) -> None:
    tokenizer = train_wordpiece([*TEXT, text], vocab_size=200)
    encoding = tokenizer.encode(text)
    starts = np.flatnonzero(encoding.word_starts)
    ends = [*(starts[1:] - 1), len(encoding.ids) - 1]
    words = [text[encoding.offsets[a, 0] : encoding.offsets[b, 1]] for a, b in zip(starts, ends, strict=True)]
    assert words == spans


@pytest.mark.parametrize(
    "text",
    [
        "\u0e17\u0e35\u0e48 \u0e17\u0e35 \u0e17\u0e49\u0e32 \u0e17\u0e32",  # Thai: vowels and tones above a letter
        "\u0b95\u0bbf \u0b95\u0bc0 \u0b95\u0bcd \u0b95",  # Tamil
        "\u0643\u064e\u062a\u064e\u0628\u064e \u0643\u064f\u062a\u0650\u0628\u064e \u0643\u062a\u0628",  # Arabic
        "\u304b\u304c \u30cf\u30d0\u30d1",  # Japanese: a voiced syllable is a letter and a mark
        "\ud55c\uad6d\uc5b4 \uac00\uac01",  # Korean: a syllable is two or three letters
    ],
)
def test_lowercasing_keeps_the_marks_of_scripts_without_case(text: str) -> None:
    tokenizer = train_wordpiece([f"{text} Caf\u00e9"] * 3, vocab_size=200)
    for form in ("NFC", "NFD"):
        encoding = tokenizer.encode(f"{unicodedata.normalize(form, text)} CAFE\u0301")
        assert tokenizer.decode(encoding.ids.tolist()) == f"{unicodedata.normalize('NFC', text)} cafe"
    added = ExtendedTokenizer(train_wordpiece(TEXT, vocab_size=120), text.split())
    assert [added.piece(i) for i in added.encode(text).ids.tolist()] == text.split()


def test_accents_that_lowercasing_removes_are_counted() -> None:
    """A word in a script without case loses nothing."""
    lines = ["\u00dcber den Fl\u00fcssen", "\u0939\u093f\u0928\u094d\u0926\u0940 \uac00 Stra\u00dfe"]
    assert train_wordpiece(lines).training["lost_accents"]["share"] == 2 / 6
    assert "lost_accents" not in train_wordpiece(lines[1:]).training
    assert "lost_accents" not in train_wordpiece(lines, lowercase=False).training


def test_specials_stand_where_the_vocabulary_has_them() -> None:
    tokenizer = WordPieceTokenizer(PUBLISHED, lowercase=True)
    assert isinstance(tokenizer, Tokenizer)
    assert (tokenizer.unk_id, tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id) == (2, 3, 4, 5)
    assert np.flatnonzero(~tokenizer.is_special).tolist() == list(range(6, len(PUBLISHED)))
    assert tokenizer.vocab_size == 64
    assert tokenizer.decode([3, 12, 13, 8, 4]) == "[CLS] abbc c [SEP]"
    with refuses(ValueError, "64"):
        tokenizer.piece(64)


def test_training_is_deterministic(lowercase: bool) -> None:
    tokenizer = train_wordpiece(TEXT, vocab_size=120, lowercase=lowercase)
    assert tokenizer.pieces[:4] == ("[UNK]", "[CLS]", "[SEP]", "[MASK]")
    assert tokenizer.num_pieces <= 120
    assert tokenizer.pieces == train_wordpiece(TEXT, vocab_size=120, lowercase=lowercase).pieces
    assert train_wordpiece(TEXT, vocab_size=120, lowercase=not lowercase).fingerprint != tokenizer.fingerprint


@pytest.mark.parametrize(
    ("pieces", "name"),
    [(PUBLISHED[:5], "[MASK]"), ([*PUBLISHED, "a"], "WordPiece"), ([*PUBLISHED, "a b"], "WordPiece")],
)
def test_other_vocabularies_are_refused(pieces: list[str], name: str) -> None:
    with refuses(CheckpointError, name):
        WordPieceTokenizer(pieces, lowercase=True)


LINES = ["The man sees the old sea, and the Sea sees him.", "An older man sails; older seas wait."] * 40


def test_a_trained_vocabulary_reads_as_bert_does(tmp_path: Path, lowercase: bool) -> None:
    """The published tokenizer with the same ``vocab.txt`` gives the same pieces."""
    transformers = pytest.importorskip("transformers")
    tokenizer = WordPieceTrainer(vocab_size=50, lowercase=lowercase).train(iter(LINES), tmp_path)
    assert tokenizer.num_pieces == 50
    theirs = transformers.BertTokenizer(str(tmp_path / "vocab.txt"), do_lower_case=lowercase, pad_token="[UNK]")
    for text in [*LINES[:2], "seaman", "The manold sees: na\u00efve sailors?", "x" * 101 + " sea"]:
        assert [tokenizer.piece(i) for i in tokenizer.encode(text).ids] == theirs.tokenize(text)


def test_the_first_merges_are_of_the_most_frequent_neighbours(tmp_path: Path) -> None:
    lines = ["ab ab ab ab abc abc xyz xyz xyz"] * 2
    tokenizer = WordPieceTrainer(vocab_size=16, allow_fewer=True).train(iter(lines), tmp_path)
    assert tokenizer.pieces[:8] == ("[UNK]", "[CLS]", "[SEP]", "[MASK]", "##b", "##c", "##y", "##z")
    assert tokenizer.pieces[8:14] == ("a", "b", "c", "x", "y", "z")
    assert tokenizer.pieces[14] == "ab"  # 12 times; x with ##y and ##y with ##z 6 times each


def test_rare_characters_make_a_word_unknown(tmp_path: Path) -> None:
    lines = ["sea sea sea sea s\u0113a", "sea \u4e2d"]
    tokenizer = WordPieceTrainer(max_alphabet=3, lowercase=False, allow_fewer=True).train(iter(lines), tmp_path)
    assert "tokenizer.max_alphabet=3: the training text has 5 different" in tokenizer.unknown_advice
    whole = WordPieceTrainer(max_alphabet=5, lowercase=False, allow_fewer=True).train(iter(lines), tmp_path / "whole")
    assert "100 characters" in whole.unknown_advice
    assert "max_alphabet" not in whole.unknown_advice
    assert tokenizer.decode(tokenizer.encode("sea s\u0113a \u4e2d").ids) == "sea [UNK] [UNK]"


@pytest.mark.parametrize(
    ("settings", "way"),
    [({}, "tokenizer.allow_fewer=true"), ({"vocab_size": 9}, "tokenizer.max_alphabet (now ")],
)
def test_too_little_text_says_what_would_do(settings: dict[str, int], way: str, tmp_path: Path) -> None:
    with refuses(DataError, way) as caught:
        WordPieceTrainer(allow_fewer=False, **settings).train(iter(LINES), tmp_path)
    _, size = re.findall(r"tokenizer\.vocab_size=(\d+)", str(caught.value))
    assert re.search(rf" {size} pieces", str(caught.value))
    with refuses(ConfigError, "tokenizer.max_alphabet=0"):
        WordPieceTrainer(max_alphabet=0)
