"""Chunks of tagged words: four schemes written and read back, an exhaustive search, and published scores."""

from __future__ import annotations

import random

import pytest
from seqeval import metrics as seqeval
from support.refusals import refuses

from lmtransfer.errors import DataError
from lmtransfer.tasks.metrics.chunks import Chunk, Chunks, chunk_scores

KINDS = ["LOC", "PER"]


def find_chunks(tags: list[str]) -> list[Chunk]:
    """Find the chunks of a sentence whose tags are names."""
    labels = sorted(set(tags))
    return Chunks(labels=labels).of([labels.index(tag) for tag in tags])


def scores_of(answers: list[list[str]], references: list[list[str]]) -> dict[str, float]:
    """Score sentences whose tags are names."""
    labels = sorted({tag for sentence in [*answers, *references] for tag in sentence})
    chunks = Chunks(labels=labels)
    pairs = zip(answers, references, strict=True)
    counts = [chunks.counts(*([labels.index(tag) for tag in side] for side in pair)) for pair in pairs]
    return chunk_scores(*(sum(column) for column in zip(*counts, strict=True)))


def _random_chunks(draw: random.Random, num_words: int) -> list[Chunk]:
    chunks, place = [], 0
    while place < num_words:
        stop = min(num_words, place + draw.randint(1, 4))
        if draw.random() < 0.7:
            chunks.append(Chunk(draw.choice(KINDS), place, stop))
        place = stop
    return chunks


def _write(chunks: list[Chunk], num_words: int, scheme: str) -> list[str]:
    """Tag chunks; ``scheme`` contains the prefixes of first, inner, last and single words, or is "iob1"."""
    tags = ["O"] * num_words
    for place, chunk in enumerate(chunks):
        if scheme == "iob1":
            last = chunks[place - 1] if place else None
            touches = last is not None and last.stop == chunk.start and last.kind == chunk.kind
            prefixes = ("B" if touches else "I") + "I" * (chunk.stop - chunk.start - 1)
        elif chunk.stop - chunk.start == 1:
            prefixes = scheme[3]
        else:
            prefixes = scheme[0] + scheme[1] * (chunk.stop - chunk.start - 2) + scheme[2]
        tags[chunk.start : chunk.stop] = [f"{prefix}-{chunk.kind}" for prefix in prefixes]
    return tags


@pytest.mark.parametrize("scheme", ["BIIB", "BIES", "BILU", "iob1"])
def test_chunks_are_read_back_from_each_scheme(scheme: str) -> None:
    draw = random.Random(4)
    for _ in range(200):
        num_words = draw.randint(0, 12)
        chunks = _random_chunks(draw, num_words)
        assert find_chunks(_write(chunks, num_words, scheme)) == chunks


def _slow_chunks(tags: list[str]) -> list[Chunk]:
    """Try every span: of one kind, with a boundary at both ends but not inside."""

    def seam(place: int) -> bool:
        if place in (0, len(tags)) or "O" in tags[place - 1 : place + 1]:
            return True
        (last, last_kind), (prefix, kind) = tags[place - 1].split("-"), tags[place].split("-")
        return last_kind != kind or last in "ES" or prefix in "BS"

    return [
        Chunk(tags[start].partition("-")[2], start, stop)
        for start in range(len(tags))
        for stop in range(start + 1, len(tags) + 1)
        if "O" not in tags[start:stop]
        and seam(start)
        and seam(stop)
        and not any(seam(place) for place in range(start + 1, stop))
    ]


def test_any_tags_agree_with_trying_all_spans() -> None:
    draw = random.Random(5)
    tags = ["O", "O", *(f"{prefix}-{kind}" for prefix in "BIIES" for kind in KINDS)]
    right = predicted = gold = 0
    answers, references = [], []
    for _ in range(300):
        num_words = draw.randint(0, 8)
        answer, reference = draw.choices(tags, k=num_words), draw.choices(tags, k=num_words)
        ours, theirs = _slow_chunks(answer), _slow_chunks(reference)
        assert find_chunks(answer) == ours
        assert find_chunks(reference) == theirs
        right, predicted, gold = right + sum(c in theirs for c in ours), predicted + len(ours), gold + len(theirs)
        answers.append(answer)
        references.append(reference)
    scores = scores_of(answers, references)
    assert scores["precision"] == pytest.approx(right / predicted)
    assert scores["recall"] == pytest.approx(right / gold)
    expected = 2 * scores["precision"] * scores["recall"] / (scores["precision"] + scores["recall"])
    assert scores["f1"] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        ("O I-PER I-PER O", [("PER", 1, 3)]),  # starts a chunk even without B
        ("B-PER I-LOC I-LOC", [("PER", 0, 1), ("LOC", 1, 3)]),
        ("B-PER B-PER", [("PER", 0, 1), ("PER", 1, 2)]),
        ("I-PER B-PER", [("PER", 0, 1), ("PER", 1, 2)]),
        ("E-PER E-PER I-PER", [("PER", 0, 1), ("PER", 1, 2), ("PER", 2, 3)]),
        ("B-PER O I-PER", [("PER", 0, 1), ("PER", 2, 3)]),
        ("B-creative-work I-creative-work", [("creative-work", 0, 2)]),
        ("B I O I", [("", 0, 2), ("", 3, 4)]),
    ],
)
def test_chunks_of_odd_tags(tags: str, expected: list[tuple[str, int, int]]) -> None:
    assert find_chunks(tags.split()) == expected


def test_scores_that_conlleval_documents() -> None:
    """961 words with 459 phrases, of which 539 are predicted and 371 are right: the example of the shared task."""
    percent = {name: f"{100 * value:.2f}" for name, value in chunk_scores(371, 539, 459).items()}
    assert percent == {"precision": "68.83", "recall": "80.83", "f1": "74.35"}


@pytest.mark.parametrize("tag", ["NOUN", "X-PER", "B-", "-PER", "", "O-PER", "BI-PER"])
def test_other_tags_are_refused(tag: str) -> None:
    with refuses(DataError, f"tag {tag!r}", "B, I, E, S", "B-PER"):
        Chunks(labels=["O", tag])


def test_sentences_that_do_not_fit_are_refused() -> None:
    chunks = Chunks(labels=["O", "B-PER"])
    with refuses(DataError, "gold", " 2 ", " 1 "):
        chunks.counts([0], [0, 1])
    with refuses(DataError, "-1", "0 to 1"):
        chunks.counts([0, 1], [0, -1])


@pytest.mark.parametrize("prefixes", ["BI", "I", "BIES"])
def test_random_tags_are_scored_as_by_seqeval(prefixes: str) -> None:
    draw = random.Random(6)
    tags = ["O", *(f"{prefix}-{kind}" for prefix in prefixes for kind in ("LOC", "PER", "creative-work"))]
    gold = [draw.choices(tags, k=draw.randint(1, 14)) for _ in range(120)]
    said = [[tag if draw.random() < 0.7 else draw.choice(tags) for tag in sentence] for sentence in gold]
    theirs = [score(gold, said) for score in (seqeval.precision_score, seqeval.recall_score, seqeval.f1_score)]
    assert [scores_of(said, gold)[name] for name in ("precision", "recall", "f1")] == pytest.approx(theirs)
