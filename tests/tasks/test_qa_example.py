"""Windows of questions and passages compared with loops over characters, and gold answers read back from features."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from fakes.heads import table
from support.refusals import refuses

from lmtransfer.data.files import find_file, open_binary
from lmtransfer.errors import ConfigError
from lmtransfer.tasks.encoded import EncodedExamples
from lmtransfer.tasks.qa.example import GoldSpan, QuestionExample, Turn, encode_questions, window_starts
from lmtransfer.tokenizers.base import Tokenizer
from lmtransfer.tokenizers.trainers import SentencePieceTrainer, WordPieceTrainer
from lmtransfer.tokenizers.words import WordTokenizer, character_ids

WORDS = ["ann", "bob", "ran", "to", "the", "sea", "and", "back", "in", "two", "days", ".", ","]


@pytest.fixture
def words() -> WordTokenizer:
    return WordTokenizer(WORDS, lowercase=True)


def question(passage: str, answer: str | None = None, *, name: str = "q", asked: str = "ann ran", **more: object):
    gold_answers = () if answer is None else (gold(passage, answer),)
    return QuestionExample(name, asked, passage, gold_answers, **more)  # type: ignore[arg-type]


def gold(passage: str, text: str) -> GoldSpan:
    return GoldSpan(text, passage.index(text), passage.index(text) + len(text))


def encode(examples: list[QuestionExample], tokenizer: Tokenizer, max_length: int = 64, **more: int) -> EncodedExamples:
    return encode_questions(
        examples, tokenizer, max_length=max_length, num_segments=more.pop("num_segments", 2), **more
    )


def decoded(encoded: EncodedExamples, tokenizer: Tokenizer) -> list[str]:
    return [tokenizer.decode(part) for part in np.split(encoded.tokens_T, encoded.offsets[1:-1])]


def shown_answers(encoded: EncodedExamples) -> Iterator[tuple[int, str]]:
    """Yield the index of the example and the answer, read by character offsets, for each window with an answer."""
    seen = -1
    place = 0
    for sequence, owner in enumerate(encoded.owners.tolist()):
        place = 0 if owner != seen else place + 1
        seen = owner
        start, end, _, first, stop = table(encoded.targets)[sequence].tolist()
        if start >= 0:
            assert first <= start <= end < stop
            example = encoded.examples[owner]
            begin = example.window_starts[place] - first
            yield owner, example.passage[example.spans[begin + start, 0] : example.spans[begin + end, 1]]


def test_a_short_passage_is_one_window(words: WordTokenizer) -> None:
    encoded = encode([question("Bob ran to the sea.", "the sea")], words)
    assert decoded(encoded, words) == ["[CLS] ann ran [SEP] bob ran to the sea . [SEP]"]
    assert encoded.segments_T.tolist() == [0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1]
    assert table(encoded.targets).tolist() == [[7, 8, -1, 4, 10]]
    assert encoded.unreachable_ids == ()
    assert encoded.num_truncated == 0
    one = encode([question("Bob ran.")], words, num_segments=1)
    assert not one.segments_T.any()
    assert table(one.targets).tolist() == [[-1, -1, -1, 4, 7]]


@pytest.mark.parametrize("seed", range(6))
def test_windows_and_targets_equal_a_loop_over_characters(words: WordTokenizer, seed: int) -> None:
    rng = random.Random(seed)
    examples = []
    for number in range(12):
        passage = " ".join(rng.choices(WORDS + ["Zoe's", "$5"], k=rng.randint(1, 40)))
        gold_answers = []
        for _ in range(rng.randint(0, 3)):
            start = rng.randrange(len(passage))
            end = rng.randint(start + 1, len(passage))
            if passage[start:end].strip():
                gold_answers.append(GoldSpan(passage[start:end], start, end))
        asked = " ".join(rng.choices(WORDS, k=rng.randint(1, 9)))
        examples.append(QuestionExample(f"q{number}", asked, passage, tuple(gold_answers)))
    max_length, stride, longest = rng.randint(8, 40), rng.randint(1, 20), rng.choice([None, 3])
    encoded = encode(examples, words, max_length, stride=stride, max_question_tokens=6, max_answer_tokens=longest)

    sequences = decoded(encoded, words)
    assert max(encoded.lengths) <= max_length
    unreachable = []
    for number, example in enumerate(examples):
        pieces = words.encode(example.passage)
        texts = [words.piece(int(i)) for i in pieces.ids]
        asked_texts = [words.piece(int(i)) for i in words.encode(example.question).ids]
        asked_texts = asked_texts[: min(6, (max_length - 3) // 2)]
        capacity = max_length - 3 - len(asked_texts)
        first = len(asked_texts) + 2
        rows = np.flatnonzero(encoded.owners == number)
        starts = list(encoded.examples[number].window_starts)
        # Windows start at multiples of the stride, or of half a window, up to the first that reaches the end.
        expected = [0]
        while expected[-1] + capacity < len(texts):
            expected.append(expected[-1] + min(stride, max(1, capacity // 2)))
        assert starts == expected
        assert len(rows) == len(starts)
        for row, start in zip(rows, starts, strict=True):
            part = texts[start : start + capacity]
            assert sequences[row].split() == ["[CLS]", *asked_texts, "[SEP]", *part, "[SEP]"]
            assert table(encoded.targets)[row, 3:].tolist() == [first, first + len(part)]

        def tokens_of(answer: GoldSpan, pieces=pieces, passage=example.passage) -> tuple[list[int], bool]:
            """Return the tokens that share a character with an answer, and whether they express it exactly."""
            wanted = {i for i in range(answer.start or 0, answer.end or 0) if not passage[i].isspace()}
            found = [t for t, (a, b) in enumerate(pieces.offsets.tolist()) if wanted & set(range(a, b))]
            covered = {i for t in found for i in range(*pieces.offsets[t].tolist())}
            return found, covered == wanted

        whole = [set(range(start, min(start + capacity, len(texts)))) for start in starts]
        chosen: list[int] = []
        reachable = not example.answers
        for answer in example.answers or ():
            found, exact = tokens_of(answer)
            fits = len(found) <= (longest or max_length) and any(set(found) <= window for window in whole)
            if exact and fits:
                chosen, reachable = found, True
                break
        if not reachable:
            unreachable.append(example.id)
            chosen = next((found for found, _ in map(tokens_of, example.answers or ()) if found), [])
        for row, start, window in zip(rows, starts, whole, strict=True):
            inside = chosen and set(chosen) <= window
            given = [first + chosen[0] - start, first + chosen[-1] - start] if inside else [-1, -1]
            assert table(encoded.targets)[row, :3].tolist() == [*given, -1]
    assert list(encoded.unreachable_ids) == unreachable


def test_an_answer_of_half_a_window_is_whole_in_one() -> None:
    for capacity in (1, 2, 3, 8, 13):
        for stride in (1, 5, 128):
            for num_tokens in (0, 1, 7, 13, 14, 40):
                starts = window_starts(num_tokens, capacity=capacity, stride=stride)
                windows = [set(range(start, min(start + capacity, num_tokens))) for start in starts]
                assert set().union(*windows) == set(range(num_tokens))
                assert all(len(window) == capacity for window in windows[:-1])
                half = capacity // 2
                for first in range(num_tokens - half):
                    assert any(set(range(first, first + half)) <= window for window in windows)


@pytest.mark.parametrize(
    ("passage", "answers", "trained", "unreachable"),
    [
        ("It took 2days, and back", ["days"], ["2days"], True),  # inside a token: the target is that token
        ("It took 2days, and back", ["2days"], ["2days"], False),
        ("two 2days", ["days", "two"], ["two"], False),  # the first answer that tokens express
        ("bob ran to the sea", [" to the "], ["to the"], False),  # without white space at the edges
        ("the sea", [], [], False),
        ("the sea", None, [], False),
        (" ", [], [], False),
    ],
)
def test_answers_trained_on(
    words: WordTokenizer, passage: str, answers: list[str] | None, trained: list[str], unreachable: bool
) -> None:
    spans = None if answers is None else tuple(gold(passage, text) for text in answers)
    encoded = encode([QuestionExample("q", "ann", passage, spans)], words)
    assert encoded.unreachable_ids == ("q",) * unreachable
    assert [text for _, text in shown_answers(encoded)] == trained
    assert trained or (table(encoded.targets)[:, :3] == -1).all()
    assert len(encoded) == 1
    assert encoded.examples[0].has_gold == (answers is not None)


def test_an_answer_longer_than_any_window_is_unreachable(words: WordTokenizer) -> None:
    passage = "bob ran to the sea and back in two days"
    encoded = encode([question(passage, passage, name="long")], words, 12)
    assert encoded.unreachable_ids == ("long",)
    assert len(encoded) > 1
    assert (table(encoded.targets)[:, :3] == -1).all()


def test_history_precedes_the_question_newest_first(words: WordTokenizer) -> None:
    turns = (Turn("ann ran", "days"), Turn("bob ran", "two days"))
    example = question("the sea", asked="in the sea", history=turns)

    def asked(**more: int) -> str:
        return decoded(encode([example], words, **more), words)[0].removeprefix("[CLS] ").split(" [SEP]")[0]

    assert asked() == "in the sea"
    assert asked(history_turns=1) == "bob ran two days in the sea"
    assert asked(history_turns=5) == "ann ran days bob ran two days in the sea"
    assert asked(history_turns=5, max_question_tokens=5) == "two days in the sea"
    assert asked(history_turns=5, max_question_tokens=2) == "in the"
    assert encode([example], words, history_turns=5, max_question_tokens=5).num_truncated == 1
    assert encode([example], words, history_turns=1).num_truncated == 0


def test_another_kind_of_answer_belongs_to_the_windows_with_its_evidence(words: WordTokenizer) -> None:
    passage = " ".join(WORDS[:11] * 3)
    evidence = (GoldSpan("yes", passage.rindex("days"), passage.rindex("days") + 4),)
    shown = encode([QuestionExample("q", "ann", passage, evidence, kind=1)], words, 16)
    values = table(shown.targets)
    assert (values[:, :2] == -1).all()
    assert values[-1, 2] == 1
    assert values[0, 2] == -1
    unknown = encode([QuestionExample("q", "ann", passage, (GoldSpan("yes"),), kind=1)], words, 16)
    assert (table(unknown.targets)[:, 2] == 1).all()
    assert shown.unreachable_ids == unknown.unreachable_ids == ()


def test_each_distinct_passage_is_encoded_once(words: WordTokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    whole = words.encode
    monkeypatch.setattr(words, "encode", lambda text: seen.append(text) or whole(text))
    encoded = encode([question("the sea", name=str(i)) for i in range(5)] + [question("bob", name="b")], words)
    assert seen == ["the sea", "bob"]
    assert encoded.examples[0].spans is encoded.examples[4].spans


def test_words_outside_the_vocabulary_are_spelt(words: WordTokenizer) -> None:
    passage = "Zoe ran to the Pacific, and Zoe ran back in two days"
    example = question(passage, "Pacific", asked="Where Zoe ran", history=(Turn("who ran", "Yann"),))
    encoded = encode([example], words, 18, history_turns=1)
    assert len(encoded) > 1
    character_table = encoded.character_table
    assert character_table is not None
    asked = ["who", "ran", "yann", "where", "zoe", "ran"]
    texts = [passage[start:end].lower() for start, end in words.encode(passage).offsets]
    for sequence, start in enumerate(encoded.examples[0].window_starts):
        rows = character_table.rows_T[encoded.offsets[sequence] : encoded.offsets[sequence + 1]]
        capacity = 18 - 3 - len(asked)
        inner = [*asked, *texts[start : start + capacity]]
        places = [i for i in range(1, len(rows) - 1) if i != len(asked) + 1]
        np.testing.assert_array_equal(character_table.table[rows[places]], character_ids(inner))
        for place in (0, len(asked) + 1, len(rows) - 1):
            np.testing.assert_array_equal(character_table.table[rows[place]], words.characters[rows[place]])


@pytest.mark.parametrize("more", [{"stride": 0}, {"max_question_tokens": 0}, {"history_turns": -1}, {"max_length": 3}])
def test_no_room_is_refused(words: WordTokenizer, more: dict[str, int]) -> None:
    with refuses((ValueError, ConfigError), *(f"{name}={number}" for name, number in more.items())):
        encode([question("the sea")], words, **more)
    empty = encode([], words)
    assert len(empty) == len(empty.tokens_T) == 0
    assert table(empty.targets).shape == (0, 5)


# The development sets of SQuAD, read without the project's reader.


def squad_golds(data_root: Path, file: str, limit: int | None) -> list[QuestionExample]:
    """Return one example for each distinct gold answer to the first questions in the file."""
    path = find_file(data_root / "squad" / file)
    if path is None:
        pytest.skip(f"the data folder has no squad/{file}")
    with open_binary(path) as stream:
        articles = json.load(stream)["data"]
    pairs = [(p["context"], qa) for article in articles for p in article["paragraphs"] for qa in p["qas"]]
    if limit is not None:
        pairs = pairs[:: len(pairs) // limit][:limit]
    return [
        QuestionExample(
            f"{qa['id']} {text} {start}", qa["question"], context, (GoldSpan(text, start, start + len(text)),)
        )
        for context, qa in pairs
        for text, start in dict.fromkeys((answer["text"], answer["answer_start"]) for answer in qa["answers"])
    ]


# Unigram pieces may contain punctuation ("20%", "),"), which WordPiece always splits off. With pieces trained on all
# passages, 2.03 % and 2.36 % of the answers of 1.1 and 2.0 are unreachable, compared with 0.65 % and 0.63 %, most of
# which begin or end inside a word ("Japan" in "Japanese").
@pytest.mark.parametrize(
    ("kind", "most", "file", "limit"),
    [
        *(
            pytest.param(kind, most, file, None, marks=pytest.mark.slow)
            for kind, most in (("unigram", 0.03), ("wordpiece", 0.02))
            for file in ("dev-v1.1.json", "dev-v2.0.json")
        ),
        ("unigram", 0.03, "dev-v2.0.json", 150),
        ("wordpiece", 0.02, "dev-v1.1.json", 150),
    ],
)
def test_squads_gold_answers_are_read_back_exactly(
    data_root: Path,
    tmp_path: Path,
    file: str,
    limit: int | None,
    kind: str,
    most: float,
) -> None:
    examples = squad_golds(data_root, file, limit)
    passages = list(dict.fromkeys(example.passage for example in examples))
    vocab_size = 8192 if limit is None else 1000
    if kind == "wordpiece":
        tokenizer: Tokenizer = WordPieceTrainer(allow_fewer=True, vocab_size=vocab_size).train(iter(passages), tmp_path)
    else:
        unigram = {"kind": kind, "max_characters": 1_000_000}
        trainer = SentencePieceTrainer(vocab_size=vocab_size, allow_fewer=True, **unigram)
        tokenizer = trainer.train(iter(passages), tmp_path)
    encoded = encode(examples, tokenizer, 384)
    unreachable = set(encoded.unreachable_ids)
    again: dict[int, set[str]] = {}
    for owner, text in shown_answers(encoded):
        again.setdefault(owner, set()).add(text.strip())
    for number, example in enumerate(examples):
        text, spans = example.answers[0].text, encoded.examples[number].spans
        start = example.answers[0].start + len(text) - len(text.lstrip())
        # An answer is unreachable if and only if no token begins where the answer begins, or none ends where it ends.
        edges = start in spans[:, 0] and start + len(text.strip()) in spans[:, 1]
        assert edges == (example.id not in unreachable), example.id
        if edges:
            assert again[number] == {text.strip()}, example.id
    assert len(unreachable) / len(examples) < most
