"""Entities in running text: words by the tokenizer's rules, and spans of tags as characters."""

from __future__ import annotations

from pathlib import Path

import pytest

from lmtransfer.tasks.answers import TagsAnswer
from lmtransfer.tasks.tagging.example import entities, word_spans
from lmtransfer.tokenizers.base import Tokenizer
from lmtransfer.tokenizers.trainers import ByteBpeTrainer, SentencePieceTrainer, WordPieceTrainer

TEXT = 'Ada  ("the Countess") lived in London, not in Bath; she knew Mr. Babbage.'
WORDS = ["Ada", "(", '"', "the", "Countess", '"', ")", "lived", "in", "London", ",", "not", "in", "Bath", ";", "she",
         "knew", "Mr", ".", "Babbage", "."]  # fmt: skip
LINES = [TEXT, *(f"{letter} , . ; ( ) \" '" for letter in "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")]


@pytest.fixture(scope="module", params=["bpe", "unigram", "wordpiece", "byte_bpe"])
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder: Path = tmp_path_factory.mktemp("tokenizer")
    trainers = {"wordpiece": WordPieceTrainer, "byte_bpe": ByteBpeTrainer}
    if request.param in trainers:
        return trainers[request.param](vocab_size=400, allow_fewer=True).train(iter(LINES * 5), folder)
    return SentencePieceTrainer(kind=request.param, vocab_size=90, allow_fewer=True).train(iter(LINES * 5), folder)


def test_words_are_those_of_the_text_without_the_marks_around_them(tokenizer: Tokenizer) -> None:
    spans = word_spans(TEXT, tokenizer)
    assert "".join(TEXT[start:end] for start, end in spans) == "".join(TEXT.split())
    assert all(before[1] <= after[0] for before, after in zip(spans, spans[1:], strict=False))
    words = [TEXT[start:end] for start, end in spans]
    assert words[0] == "Ada"
    assert [word for word in words if word.isalpha()] == [word for word in WORDS if word.isalpha()]


def test_a_text_of_marks_only_and_an_empty_text(tokenizer: Tokenizer) -> None:
    assert word_spans("", tokenizer) == []
    assert word_spans("   ", tokenizer) == []
    assert "".join("; ("[start:end] for start, end in word_spans("; (", tokenizer)) == ";("


def test_entities_have_the_characters_of_their_first_and_last_word() -> None:
    text, spans = "Ada Lovelace, of  London.", [(0, 3), (4, 12), (12, 13), (14, 16), (18, 24), (24, 25)]
    labels = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
    tags = (1, 2, 0, 0, 3, 0)
    answer = TagsAnswer(tags, tuple(labels[tag] for tag in tags), (0.9, 0.7, 1.0, 1.0, 0.6, 1.0))
    assert entities(text, spans, answer, labels) == [
        {"text": "Ada Lovelace", "label": "PER", "start": 0, "end": 12, "probability": pytest.approx(0.8)},
        {"text": "London", "label": "LOC", "start": 18, "end": 24, "probability": pytest.approx(0.6)},
    ]


def test_tags_of_words_make_each_word_an_entity() -> None:
    answer = TagsAnswer((1, 0), ("VERB", "NOUN"))
    assert entities("go home", [(0, 2), (3, 7)], answer, ["NOUN", "VERB"]) == [
        {"text": "go", "label": "VERB", "start": 0, "end": 2},
        {"text": "home", "label": "NOUN", "start": 3, "end": 7},
    ]
