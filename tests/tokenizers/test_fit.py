"""How well a vocabulary fits a text."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

from lmtransfer.tokenizers.base import Tokenizer
from lmtransfer.tokenizers.fit import ignores_case, pieces_per_word
from lmtransfer.tokenizers.trainers import ByteBpeTrainer, SentencePieceTrainer, WordPieceTrainer

ENGLISH = ["the parcel never arrived, and nobody answered", "how do I change my address (quickly)?"]
GERMAN = [
    "die Lieferzeit\u00fcberschreitung wurde unverz\u00fcglich gemeldet",
    "Stra\u00dfenbeleuchtung, Haust\u00fcrschl\u00fcssel",
]


def trained(kind: str, folder: Path, *, lowercase: bool = True) -> Tokenizer:
    rng = random.Random(0)
    lines = [" ".join(rng.choices(" ".join(ENGLISH).split(), k=12)) for _ in range(200)]
    trainers = {
        "bpe": SentencePieceTrainer(kind="bpe", vocab_size=128, allow_fewer=True, lowercase=lowercase),
        "byte_bpe": ByteBpeTrainer(vocab_size=320, lowercase=lowercase),
        "wordpiece": WordPieceTrainer(vocab_size=96, lowercase=lowercase),
    }
    return trainers[kind].train(iter(lines), folder)


def counted(tokenizer: Tokenizer, texts: list[str]) -> float:
    """Count the pieces of each word one by one: those of which at least one character is in the word."""
    pieces = words = 0
    for text in texts:
        spans = tokenizer.encode(text).offsets.tolist()
        for match in re.finditer("[A-Za-z\u00c0-\u024f]+", text):
            words += 1
            pieces += sum(any(match.start() <= place < match.end() for place in range(*span)) for span in spans)
    return pieces / words


@pytest.mark.parametrize("kind", ["bpe", "byte_bpe", "wordpiece"])
def test_the_pieces_of_words_are_counted_without_marks_and_digits(kind: str, tmp_path: Path) -> None:
    tokenizer = trained(kind, tmp_path)
    values = []
    for texts in (ENGLISH, GERMAN, [text + " 2024-11-28 (...) 12.50" for text in GERMAN]):
        value = pieces_per_word(tokenizer, texts * 30)
        assert value == pytest.approx(counted(tokenizer, texts))
        values.append(value)
    assert values[0] < 1.5 < values[1] == pytest.approx(values[2])


def test_words_of_scripts_without_spaces_do_not_count(tmp_path: Path) -> None:
    tokenizer = trained("bpe", tmp_path)
    chinese = ["\u6211\u4eec\u5728\u5317\u4eac\u5927\u5b66\u5b66\u4e60\u8bed\u8a00"] * 500
    assert pieces_per_word(tokenizer, chinese) is None
    assert pieces_per_word(tokenizer, ENGLISH) is None  # too few words
    alone = pieces_per_word(tokenizer, ENGLISH * 30)
    assert pieces_per_word(tokenizer, [*chinese[:30], *ENGLISH * 30]) == alone


@pytest.mark.parametrize("kind", ["bpe", "byte_bpe", "wordpiece"])
def test_a_vocabulary_ignores_case_if_it_lowercases(kind: str, tmp_path: Path) -> None:
    assert ignores_case(trained(kind, tmp_path / "lower"))
    assert not ignores_case(trained(kind, tmp_path / "cased", lowercase=False))
