"""``text_prefix``: the beginning of a long text is encoded as in the whole text."""

from __future__ import annotations

import random

import numpy as np
import pytest

from lmtransfer.tokenizers.base import Tokenizer
from lmtransfer.tokenizers.trainers import ByteBpeTrainer, SentencePieceTrainer, WordPieceTrainer
from lmtransfer.transfer.embedder import text_prefix

LINE = "a river carried old paper boats past the red mills while children counted them, slowly: \u00fcber na\u00efve"
WORDS = LINE.split()


@pytest.fixture(scope="module", params=["unigram", "bpe", "byte_bpe", "wordpiece"])
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    trainers = {"byte_bpe": ByteBpeTrainer, "wordpiece": WordPieceTrainer}
    if request.param in trainers:
        trainer = trainers[request.param](vocab_size=300, allow_fewer=True)
    else:
        trainer = SentencePieceTrainer(kind=request.param, vocab_size=120, allow_fewer=True)
    lines = [" ".join(random.Random(seed).choices(WORDS, k=12)) for seed in range(200)]
    return trainer.train(iter(lines), tmp_path_factory.mktemp("made"))


@pytest.mark.parametrize("space", [" ", "\n", "  \t", "\u3000"])
def test_the_first_tokens_are_those_of_the_whole_text(tokenizer: Tokenizer, space: str) -> None:
    text = space.join(random.Random(1).choices(WORDS, k=5_000))
    whole = tokenizer.encode_ids([text])[0]
    for num_tokens in (1, 7, 30, 200, len(whole) - 1, len(whole), len(whole) + 5):
        prefix = text_prefix(text, tokenizer, num_tokens=num_tokens)
        assert text.startswith(prefix)
        ids = tokenizer.encode_ids([prefix])[0]
        np.testing.assert_array_equal(ids[:num_tokens], whole[:num_tokens])
        assert len(ids) > num_tokens or prefix == text
    if space != "\u3000":
        assert len(text_prefix(text, tokenizer, num_tokens=7)) < 400


def test_words_of_any_length_are_whole(tokenizer: Tokenizer) -> None:
    text = "mill " + "boats" * 3_000 + " the red mills"
    whole = tokenizer.encode_ids([text])[0]
    ids = tokenizer.encode_ids([text_prefix(text, tokenizer, num_tokens=3)])[0]
    np.testing.assert_array_equal(ids[:3], whole[:3])
