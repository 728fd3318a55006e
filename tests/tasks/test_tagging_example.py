"""Words and their windows as tokens, and entities in running text."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from fakes.heads import table
from support.refusals import refuses

from lmtransfer.data.documents import Notes
from lmtransfer.errors import ConfigError
from lmtransfer.tasks.answers import TagsAnswer
from lmtransfer.tasks.encoded import EncodedExamples
from lmtransfer.tasks.tagging.example import (
    NO_TOKEN,
    TaggedExample,
    encode_words,
    entities,
    word_pieces,
    word_spans,
    word_windows,
)
from lmtransfer.tokenizers.base import Encoding, Tokenizer
from lmtransfer.tokenizers.byte_bpe import ByteBpeTokenizer
from lmtransfer.tokenizers.trainers import ByteBpeTrainer, SentencePieceTrainer, WordPieceTrainer, WordTokenizerTrainer
from lmtransfer.tokenizers.words import WordTokenizer, character_ids

TEXT = [
    "The old man said that the sea was calm , and the boat went out at dawn .",
    "A river runs through the valley ; children play on its banks in summer .",
    "She read the letter twice ( and then again ) , but it said nothing new .",
    "In 1984 the price was 3.50 ; by 2020 it had risen to 12.75 or more .",
]
KINDS = ["unigram", "bpe", "cased", "bytes", "byte_bpe", "words"]


@pytest.fixture(scope="module", params=KINDS)
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    if request.param == "byte_bpe":
        return ByteBpeTrainer(vocab_size=290).train(iter(TEXT), folder)
    if request.param == "words":
        return WordTokenizerTrainer(vocab_size=40, min_frequency=1).train(iter(TEXT), folder)
    trainer = SentencePieceTrainer(
        kind="bpe" if request.param == "bpe" else "unigram",
        vocab_size=400 if request.param == "bytes" else 120,
        lowercase=request.param != "cased",
        byte_fallback=request.param == "bytes",
        character_coverage=1.0,
        allow_fewer=True,
    )
    return trainer.train(iter(TEXT), folder)


class Letters:
    """A tokenizer with one token per letter, or per two words if they are in ``joined``; white space has no token."""

    vocab_size, num_pieces = 70000, 70000
    unk_id, cls_id, sep_id, mask_id = 0, 1, 2, 3
    fingerprint = "letters"
    is_special = starts_word = np.zeros(0, bool)

    def __init__(self, joined: str = "") -> None:
        self.joined = joined

    def encode(self, text: str) -> Encoding:
        spans: list[tuple[int, int]] = []
        place = 0
        while place < len(text):
            whole = bool(self.joined) and text.startswith(self.joined, place)
            stop = place + (len(self.joined) if whole else 1)
            if whole or not text[place].isspace():
                spans.append((place, stop))
            place = stop
        ids = np.array([4 if stop - start > 1 else ord(text[start]) for start, stop in spans], dtype=np.int32)
        starts = np.array([start == 0 or text[start - 1].isspace() for start, _ in spans], dtype=bool)
        return Encoding(ids, np.array(spans, dtype=np.int32).reshape(-1, 2), starts)

    def encode_ids(self, texts: list[str]) -> list[np.ndarray]:
        return [self.encode(text).ids for text in texts]

    def decode(self, ids: object) -> str:
        raise NotImplementedError

    def piece(self, token_id: int) -> str:
        raise NotImplementedError

    def save(self, folder: Path) -> None:
        raise NotImplementedError


def encode(
    words: list[list[str]], tokenizer: object, max_length: int, tags: bool = True
) -> tuple[EncodedExamples, Notes]:
    examples = [
        TaggedExample(f"s{number}", tuple(sentence), tuple(range(len(sentence))) if tags else None)
        for number, sentence in enumerate(words)
    ]
    notes = Notes()
    return encode_words(examples, tokenizer, max_length=max_length, notes=notes), notes  # type: ignore[arg-type]


def sequences(encoded: EncodedExamples) -> list[tuple[int, list[int], list[list[int]]]]:
    """Return the example, the tokens and the target rows of each sequence."""
    edges, rows = encoded.offsets, encoded.target_offsets
    return [
        (
            int(encoded.owners[s]),
            encoded.tokens_T[edges[s] : edges[s + 1]].tolist(),
            table(encoded.targets)[rows[s] : rows[s + 1]].tolist(),
        )
        for s in range(len(encoded))
    ]


def test_a_sentence_is_cls_words_sep_with_a_row_a_word() -> None:
    encoded, _ = encode([["ab", "c", "def"], ["g"]], Letters(), 16)
    assert sequences(encoded) == [
        (0, [1, *map(ord, "abcdef"), 2], [[1, 2, 0], [3, 1, 1], [4, 3, 2]]),
        (1, [1, ord("g"), 2], [[1, 1, 0]]),
    ]
    assert encoded.segments_T.tolist() == [0] * 11
    assert encoded.num_truncated == 0
    assert encoded.character_table is None
    assert table(encode([["ab", "c"]], Letters(), 16, tags=False)[0].targets).tolist() == [[1, 2, -1], [3, 1, -1]]


def test_no_sentences_and_no_room() -> None:
    assert len(encode([], Letters(), 16)[0]) == 0
    assert table(encode([], Letters(), 16)[0].targets).shape == (0, 3)
    with refuses(ConfigError, "max_length=2"):
        encode([["a"]], Letters(), 2)


def test_words_of_no_token_are_unknown_and_counted() -> None:
    encoded, notes = encode([["\u00a0", "a", "\u2003", "\u3000", "b"], ["c"], ["\u00a0"]], Letters(), 16)
    assert [tokens for _, tokens, _ in sequences(encoded)] == [
        [1, 0, ord("a"), 0, 0, ord("b"), 2],
        [1, ord("c"), 2],
        [1, 0, 2],
    ]
    assert sequences(encoded)[0][2] == [[1, 1, 0], [2, 1, 1], [3, 1, 2], [4, 1, 3], [5, 1, 4]]
    assert notes.as_dict() == {NO_TOKEN: {"count": 4, "first": "s0"}}


def test_a_token_of_two_words_makes_them_read_apart() -> None:
    pieces = word_pieces(["new", "york", "is"], Letters(joined="new york"))  # type: ignore[arg-type]
    assert pieces.ids_T.tolist() == [ord(letter) for letter in "newyorkis"]
    assert pieces.counts_W.tolist() == [3, 4, 2]
    pieces = word_pieces(["new york", "is"], Letters(joined="new york"))  # type: ignore[arg-type]
    assert pieces.counts_W.tolist() == [1, 2]


ODD = [
    *"abcTHEseA.,;(3",
    *"\u0301\u00e9\u00df\u0130\u00bd\u2026\ufdfa\ufb03\uff26\uff76\u30ac\u4e2d\ud55c\u1112\u1161\u00a8\u00b4",
    *"\u00a0\u200b\u200d\u3000\ufeff\u00ad\u2581\x01\u202e\ud800\U0001f600",
]


def random_words(rng: random.Random) -> list[str]:
    plain = " ".join(TEXT).split()
    return [
        rng.choice(plain) if rng.random() < 0.5 else "".join(rng.choices(ODD, k=rng.randint(1, 6)))
        for _ in range(rng.randint(1, 12))
    ]


def test_every_word_has_its_own_tokens_in_order(tokenizer: Tokenizer) -> None:
    """The tokens are those of the running text, and a word's tokens cover the letters of that word only."""
    rng = random.Random(3)
    for _ in range(100):
        words = random_words(rng)
        pieces = word_pieces(words, tokenizer)
        assert pieces.ids_T.dtype == np.int32
        assert len(pieces.counts_W) == len(words)
        assert pieces.counts_W.min() >= 1
        assert pieces.counts_W.sum() == len(pieces.ids_T)
        edges = np.append(0, np.cumsum(pieces.counts_W))
        given = np.repeat(~pieces.missing_W, pieces.counts_W)
        np.testing.assert_array_equal(pieces.ids_T[given], tokenizer.encode_ids([" ".join(words)])[0])
        for word, start, stop, missing in zip(words, edges[:-1], edges[1:], pieces.missing_W, strict=True):
            alone = tokenizer.encode_ids([word])[0].tolist()
            assert missing == (not alone), words
            assert pieces.ids_T[start:stop].tolist() == (alone or [tokenizer.unk_id]), words


def test_words_and_their_spelling_survive_windows(tokenizer: Tokenizer) -> None:
    rng = random.Random(4)
    sentences = [random_words(rng) for _ in range(30)]
    for max_length in (8, 64):
        encoded, notes = encode(sentences, tokenizer, max_length)
        whole = [word_pieces(words, tokenizer) for words in sentences]
        assert notes.counts.get(NO_TOKEN, 0) == sum(pieces.missing_W.sum() for pieces in whole)
        assert encoded.lengths.max() <= max_length
        seen = [0] * len(sentences)
        for owner, tokens, rows in sequences(encoded):
            assert (tokens[0], tokens[-1]) == (tokenizer.cls_id, tokenizer.sep_id)
            for first, count, tag in rows:
                assert tag == seen[owner]  # each word's tag is its index: all occur once, in order
                seen[owner] += 1
                start = int(whole[owner].counts_W[:tag].sum())
                expected = whole[owner].ids_T[start : start + whole[owner].counts_W[tag]][: max_length - 2]
                assert tokens[first : first + count] == expected.tolist()
        assert seen == [len(words) for words in sentences]
        long_words = [(pieces.counts_W > max_length - 2).any() for pieces in whole]
        assert encoded.num_truncated == sum(long_words)
        if isinstance(tokenizer, WordTokenizer):
            check_spelling(encoded, tokenizer, sentences)
        else:
            assert encoded.character_table is None


def check_spelling(encoded: EncodedExamples, tokenizer: WordTokenizer, sentences: list[list[str]]) -> None:
    assert encoded.character_table is not None
    spelt_T = encoded.character_table.table[encoded.character_table.rows_T]
    assert len(spelt_T) == len(encoded.tokens_T)
    place = 0
    for owner, tokens, rows in sequences(encoded):
        np.testing.assert_array_equal(spelt_T[place], tokenizer.characters[tokenizer.cls_id])
        np.testing.assert_array_equal(spelt_T[place + len(tokens) - 1], tokenizer.characters[tokenizer.sep_id])
        for first, count, tag in rows:
            word = sentences[owner][tag]
            known = tokenizer.encode(word)
            expected = character_ids([word]) if len(known.ids) == 0 else known.characters
            assert expected is not None
            np.testing.assert_array_equal(spelt_T[place + first : place + first + count], expected[:count])
        place += len(tokens)


def best_windows(counts: list[int], spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the smaller and the total context of each word in the best of all possible windows."""
    best = []
    for word in range(len(counts)):
        sides = [
            (sum(counts[start:word]), sum(counts[word + 1 : stop])) for start, stop in spans if start <= word < stop
        ]
        best.append(max((min(sides_), sum(sides_)) for sides_ in sides))
    return best


def test_windows_hold_every_word_once_where_its_context_is_largest() -> None:
    rng = random.Random(5)
    for _ in range(150):
        capacity = rng.randint(1, 24)
        longest = rng.choice([1, min(3, capacity), capacity])
        counts = [rng.randint(1, longest) for _ in range(rng.randint(1, 60))]
        windows = word_windows(np.array(counts), capacity)
        assert all(sum(counts[w.start : w.stop]) <= capacity for w in windows)
        assert all(w.start <= w.first_target < w.stop_target <= w.stop for w in windows)
        assert windows[0].first_target == 0
        assert windows[-1].stop_target == len(counts)
        assert all(a.stop_target == b.first_target for a, b in zip(windows[:-1], windows[1:], strict=True))
        best = best_windows(counts, [(w.start, w.stop) for w in windows])
        for w in windows:
            for word in range(w.first_target, w.stop_target):
                left, right = sum(counts[w.start : word]), sum(counts[word + 1 : w.stop])
                assert (min(left, right), left + right) == best[word], (counts, capacity, word)


def test_windows_of_one_token_words_overlap_by_half() -> None:
    windows = word_windows(np.ones(20, dtype=np.int64), 8)
    assert [(w.start, w.stop) for w in windows] == [(0, 8), (4, 12), (8, 16), (12, 20)]
    assert [(w.first_target, w.stop_target) for w in windows] == [(0, 6), (6, 10), (10, 14), (14, 20)]
    for capacity, num_words in ((10, 10), (10, 11), (3, 50), (62, 5000)):
        windows = word_windows(np.ones(num_words, dtype=np.int64), capacity)
        least = (capacity - 1) // 4
        for w in windows:  # except at the ends of the sentence, at least a quarter of a window on either side
            assert w.start == 0 or w.first_target - w.start >= least
            assert w.stop == num_words or w.stop - w.stop_target >= least


def test_bytes_need_no_unknown(tokenizer: Tokenizer) -> None:
    if isinstance(tokenizer, ByteBpeTokenizer):
        assert not word_pieces(["\u200b", "\ufeff", "\u2581"], tokenizer).missing_W.any()
    elif not isinstance(tokenizer, WordTokenizer):
        assert word_pieces(["\u200b", "the", "\ufeff", "\u2581"], tokenizer).missing_W.tolist() == [1, 0, 1, 1]


SENTENCE = 'Ada  ("the Countess") lived in London, not in Bath; she knew Mr. Babbage.'
LINES = [SENTENCE, *(f"{letter} , . ; ( ) \" '" for letter in "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")]


@pytest.fixture(scope="module", params=["bpe", "unigram", "wordpiece", "byte_bpe"])
def entity_tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder: Path = tmp_path_factory.mktemp("tokenizer")
    trainers = {"wordpiece": WordPieceTrainer, "byte_bpe": ByteBpeTrainer}
    if request.param in trainers:
        return trainers[request.param](vocab_size=400, allow_fewer=True).train(iter(LINES * 5), folder)
    return SentencePieceTrainer(kind=request.param, vocab_size=90, allow_fewer=True).train(iter(LINES * 5), folder)


def test_words_are_those_of_the_text_without_the_marks_around_them(entity_tokenizer: Tokenizer) -> None:
    spans = word_spans(SENTENCE, entity_tokenizer)
    assert "".join(SENTENCE[start:end] for start, end in spans) == "".join(SENTENCE.split())
    assert all(before[1] <= after[0] for before, after in zip(spans, spans[1:], strict=False))
    words = [SENTENCE[start:end] for start, end in spans]
    assert words[0] == "Ada"
    expected = "Ada the Countess lived in London not in Bath she knew Mr Babbage"
    assert " ".join(word for word in words if word.isalpha()) == expected
    assert word_spans("", entity_tokenizer) == word_spans("   ", entity_tokenizer) == []
    assert "".join("; ("[start:end] for start, end in word_spans("; (", entity_tokenizer)) == ";("


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
