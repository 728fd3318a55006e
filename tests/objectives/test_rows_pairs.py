"""Rows of two texts, against the published procedures and by their properties."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes.objectives import TOKENIZER, numbers_of, random_documents, store_of, target_of
from support.refusals import refuses

from lmtransfer.data.token_shards import TokenStore
from lmtransfer.errors import ConfigError, DataError
from lmtransfer.objectives.rows import pairs as module
from lmtransfer.objectives.rows.base import Row
from lmtransfer.objectives.rows.pairs import OrderedPairs, Pairs, PairsPlan, SentencePairs, truncate

CLS, SEP = TOKENIZER.cls_id, TOKENIZER.sep_id


def ranges(row: Row) -> tuple[tuple[int, int], tuple[int, int]]:
    first, second = (tuple(int(n) for n in part.split(":")) for part in row.key.removeprefix("tokens ").split(" + "))
    return first, second  # type: ignore[return-value]


def document_of(store: TokenStore, token: int) -> int:
    ends = store.sentence_starts[store.document_starts[1:]]
    return int(np.searchsorted(ends, token, side="right"))


def pairs_by_hand(
    documents: list[list[list[int]]], capacity: int, short_seq_prob: float, random_prob: float, seed: int, epoch: int
) -> list[tuple[list[int], list[int], int]]:
    """Follow the published create_instances_from_document over lists of tokens, before truncation."""
    pairs, before = [], 0
    for index, document in enumerate(documents):
        target = target_of(index, capacity, short_seq_prob, seed, epoch)
        chunk: list[list[int]] = []
        i = 0
        while i < len(document):
            chunk.append(document[i])
            uniform = numbers_of(before + i + 1 - len(chunk), "pairs", seed, epoch)
            if i == len(document) - 1 or sum(map(len, chunk)) >= target:
                a_end = 1
                if len(chunk) >= 2:
                    a_end = 1 + int(uniform[0] * (len(chunk) - 1))
                tokens_a = sum(chunk[:a_end], [])
                tokens_b: list[int] = []
                is_random = len(chunk) == 1 or uniform[1] < random_prob
                if is_random:
                    others = [d for d in range(len(documents)) if d != index]
                    other = documents[others[int(uniform[2] * len(others))]]
                    for sentence in other[int(uniform[3] * len(other)) :]:
                        tokens_b += sentence
                        if len(tokens_b) >= target - len(tokens_a):
                            break
                    i -= len(chunk) - a_end
                else:
                    tokens_b = sum(chunk[a_end:], [])
                pairs.append((tokens_a, tokens_b, int(is_random)))
                chunk = []
            i += 1
        before += len(document)
    return pairs


def truncated_by_hand(a: int, b: int, capacity: int) -> tuple[int, int]:
    while a + b > capacity:
        if a > b:
            a -= 1
        else:
            b -= 1
    return a, b


@pytest.mark.parametrize(
    ("short_seq_prob", "random_prob", "max_length"),
    [(0.1, 0.5, 24), (0.1, 0.5, 64), (1.0, 0.5, 8), (0.0, 1.0, 24), (0.3, 0.0, 64)],
)
def test_pairs_are_those_of_the_published_procedure(
    tmp_path: Path, short_seq_prob: float, random_prob: float, max_length: int
) -> None:
    documents = random_documents(60)
    rows = SentencePairs(
        max_length=max_length, short_seq_prob=short_seq_prob, random_prob=random_prob, tokenizer=TOKENIZER
    )
    plan = rows.plan(store_of(tmp_path / "s", documents), seed=5, epoch=2)
    expected = pairs_by_hand(documents, max_length - 3, short_seq_prob, random_prob, seed=5, epoch=2)
    assert len(plan.lengths) == len(expected)
    num_cut = 0
    for i, (a, b, is_random) in enumerate(expected):
        row = plan.row(i)
        a_kept, b_kept = truncated_by_hand(len(a), len(b), max_length - 3)
        tokens = row.tokens.tolist()
        assert len(tokens) == plan.lengths[i] == a_kept + b_kept + 3
        assert row.segments.tolist() == [0] * (a_kept + 2) + [1] * (b_kept + 1)
        assert tokens[0] == CLS
        assert tokens[a_kept + 1] == tokens[-1] == SEP
        for kept, whole in ((tokens[1 : a_kept + 1], a), (tokens[a_kept + 2 : -1], b)):
            assert any(whole[at : at + len(kept)] == kept for at in range(len(whole) - len(kept) + 1))
        assert row.labels == {"nsp": is_random}
        num_cut += a_kept + b_kept < len(a) + len(b)
    assert num_cut > 3


def test_negatives_are_from_other_documents_and_positives_follow(tmp_path: Path) -> None:
    store = store_of(tmp_path / "s", random_documents(2, seed=1, most_sentences=300, least_sentences=200))
    rows = SentencePairs(max_length=512, tokenizer=TOKENIZER)
    labels = []
    for epoch in range(15):
        plan = rows.plan(store, seed=0, epoch=epoch)
        for row in (plan.row(i) for i in range(len(plan.lengths))):
            (a_start, a_stop), (b_start, _) = ranges(row)
            same = document_of(store, a_start) == document_of(store, b_start)
            assert same == (row.labels["nsp"] == 0)
            if same and len(row.tokens) < 512:  # no truncation, so B begins where A ends
                assert b_start == a_stop
            labels.append(row.labels["nsp"])
    assert 0.45 < np.mean(labels) < 0.6


def test_the_share_of_negatives_is_a_half_where_there_is_a_choice(tmp_path: Path) -> None:
    # With sentences of one token there is no truncation, and only the last sentence of a document can be alone.
    store = store_of(tmp_path / "s", random_documents(1200, most_sentences=12, longest=1, least_sentences=6))
    plan = SentencePairs(max_length=8, short_seq_prob=0, tokenizer=TOKENIZER).plan(store, seed=0, epoch=0)
    drawn = plan.pairs
    choice = ~np.isin(drawn.a_start + drawn.a_size, store.sentence_starts[store.document_starts])
    assert choice.sum() > 1200
    assert drawn.is_positive[choice].mean() == pytest.approx(0.5, abs=0.03)
    assert drawn.is_positive[~choice].all()


def pairs_of(sizes: list[tuple[int, int]]) -> Pairs:
    """Return texts of these sizes, with A at token 0 and B at token 500."""
    a, b = (np.array(side, dtype=np.int32) for side in zip(*sizes, strict=True))
    start = np.zeros(len(a), dtype=np.int64)
    return Pairs(start, a, start + 500, b, start.astype(bool))


def test_truncation_takes_from_both_ends_alike() -> None:
    pairs = pairs_of([(100, 10)] * 4000)
    truncate(pairs, 60, np.random.default_rng(0))
    assert (pairs.b_start == 500).all()
    assert (pairs.b_size == 10).all()
    assert (pairs.a_size == 50).all()
    assert pairs.a_start.mean() == pytest.approx(25, abs=0.3)
    assert pairs.a_start.std() == pytest.approx(np.sqrt(50 / 4), abs=0.3)


def test_every_truncation_equals_the_plain_loop() -> None:
    sizes = [(a, b) for a in range(1, 14) for b in range(1, 14)]
    for capacity in range(2, 12):
        pairs = pairs_of(sizes)
        truncate(pairs, capacity, np.random.default_rng(0))
        kept = list(zip(pairs.a_size.tolist(), pairs.b_size.tolist(), strict=True))
        assert kept == [truncated_by_hand(a, b, capacity) for a, b in sizes]


def test_long_documents_are_read_in_parts_and_all_documents_in_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    documents = random_documents(7, most_sentences=50, least_sentences=20)
    store = store_of(tmp_path / "s", documents)
    rows = SentencePairs(max_length=24, random_prob=0.0, tokenizer=TOKENIZER)
    plain = rows.plan(store, seed=1, epoch=0)
    monkeypatch.setattr(module, "_PARTS_AT_ONCE", 3)
    blocks = rows.plan(store, seed=1, epoch=0)
    for name in Pairs.__slots__:
        assert np.array_equal(getattr(plain.pairs, name), getattr(blocks.pairs, name))
    monkeypatch.setattr(module, "_MOST_SENTENCES", 8)
    parts = rows.plan(store, seed=1, epoch=0).pairs
    edges = {
        store.sentence_starts[store.document_starts[i] + len(document) * part // -(-len(document) // 8)]
        for i, document in enumerate(documents)
        for part in range(-(-len(document) // 8) + 1)
    }
    follows = parts.b_start[~parts.is_positive] + parts.b_size[~parts.is_positive]
    spans = list(zip(parts.a_start[~parts.is_positive].tolist(), follows.tolist(), strict=True))
    assert not any(start < edge < stop for start, stop in spans for edge in edges)
    assert len(parts.a_start) > len(plain.pairs.a_start)


@pytest.mark.parametrize("kind", [SentencePairs, OrderedPairs])
def test_epochs_and_seeds_differ_and_repeat_otherwise(kind: Any, store: TokenStore) -> None:
    rows = kind(max_length=32, tokenizer=TOKENIZER)

    def drawn(seed: int, epoch: int) -> bytes:
        plan: PairsPlan = rows.plan(store, seed=seed, epoch=epoch)
        return b"".join(getattr(plan.pairs, name).tobytes() for name in Pairs.__slots__)

    assert drawn(0, 0) == drawn(0, 0)
    assert len({drawn(seed, epoch) for seed in range(3) for epoch in range(3)}) == 9


def test_one_document_and_bad_numbers_are_refused(tmp_path: Path) -> None:
    rows = SentencePairs(max_length=32, tokenizer=TOKENIZER)
    with refuses(DataError, "2 documents", " 1", "blank line", "objective=mlm"):
        rows.plan(store_of(tmp_path / "s", random_documents(1)), seed=0, epoch=0)
    with refuses(ConfigError, "objective.max_length=5", "6"):
        SentencePairs(max_length=5, tokenizer=TOKENIZER)


def texts(row: Row) -> tuple[list[int], list[int]]:
    tokens = row.tokens.tolist()
    middle = tokens.index(SEP)
    assert tokens[0] == CLS
    assert tokens[-1] == SEP
    assert row.segments.tolist() == [0] * (middle + 1) + [1] * (len(tokens) - middle - 1)
    return tokens[1:middle], tokens[middle + 1 : -1]


def published_pairs(
    documents: list[list[list[int]]], capacity: int, short_seq_prob: float, seed: int, epoch: int
) -> list[tuple[list[int], list[int], int]]:
    """Follow ALBERT's create_instances_from_document over lists of tokens, before truncation."""
    pairs, before = [], 0
    for index, document in enumerate(documents):
        target = target_of(index, capacity, short_seq_prob, seed, epoch)
        chunk: list[list[int]] = []
        for i, sentence in enumerate(document):
            chunk.append(sentence)
            uniform = numbers_of(before + i + 1 - len(chunk), "ordered pairs", seed, epoch)
            if i == len(document) - 1 or sum(map(len, chunk)) >= target:
                if len(chunk) == 1:
                    others = [d for d in range(len(documents)) if d != index]
                    other = documents[others[int(uniform[2] * len(others))]]
                    tokens_b: list[int] = []
                    for text in other[int(uniform[3] * len(other)) :]:
                        tokens_b += text
                        if len(tokens_b) >= target - len(chunk[0]):
                            break
                    pairs.append((chunk[0], tokens_b, 1))
                else:
                    a_end = 1 + int(uniform[0] * (len(chunk) - 1))
                    a, b = sum(chunk[:a_end], []), sum(chunk[a_end:], [])
                    pairs.append((b, a, 1) if uniform[1] < 0.5 else (a, b, 0))
                chunk = []
        before += len(document)
    return pairs


@pytest.mark.parametrize(("short_seq_prob", "max_length"), [(0.0, 24), (0.1, 64), (1.0, 8), (1.0, 64)])
def test_with_its_quirk_the_pairs_are_those_of_the_published_procedure(
    tmp_path: Path, short_seq_prob: float, max_length: int
) -> None:
    documents = random_documents(60)
    rows = OrderedPairs(
        max_length=max_length, short_seq_prob=short_seq_prob, lone_with_other_document=True, tokenizer=TOKENIZER
    )
    plan = rows.plan(store_of(tmp_path / "s", documents), seed=5, epoch=2)
    expected = published_pairs(documents, max_length - 3, short_seq_prob, seed=5, epoch=2)
    assert len(plan.lengths) == len(expected)
    for i, (a, b, label) in enumerate(expected):
        row = plan.row(i)
        assert row.labels == {"sop": label}
        assert len(row.tokens) == plan.lengths[i] == min(len(a) + len(b) + 3, max_length)
        for kept, whole in zip(texts(row), (a, b), strict=True):
            assert any(whole[at : at + len(kept)] == kept for at in range(len(whole) - len(kept) + 1))
            if len(a) + len(b) + 3 <= max_length:
                assert kept == whole


@pytest.mark.parametrize("max_length", [8, 32, 200])
def test_a_row_is_labelled_swapped_if_and_only_if_its_second_text_stands_first_in_the_document(
    tmp_path: Path, max_length: int
) -> None:
    store = store_of(tmp_path / "s", random_documents(40, most_sentences=30))
    rows = OrderedPairs(max_length=max_length, tokenizer=TOKENIZER)
    labels = []
    for epoch in range(8):
        plan = rows.plan(store, seed=0, epoch=epoch)
        for row in (plan.row(i) for i in range(len(plan.lengths))):
            (a_start, a_stop), (b_start, b_stop) = ranges(row)
            assert document_of(store, a_start) == document_of(store, b_start)
            assert row.labels["sop"] == (b_start < a_start)
            early, delayed = sorted([(a_start, a_stop), (b_start, b_stop)])
            assert early[1] <= delayed[0]
            if len(row.tokens) < max_length:  # no truncation
                assert early[1] == delayed[0]
            a, b = texts(row)
            assert a == store.tokens(a_start, a_stop).tolist()
            assert b == store.tokens(b_start, b_stop).tolist()
            labels.append(row.labels["sop"])
    assert len(labels) > 200
    assert np.mean(labels) == pytest.approx(0.5, abs=0.1 if len(labels) < 2000 else 0.05)


def test_no_sentence_is_lost_but_those_of_documents_of_one(tmp_path: Path) -> None:
    documents = random_documents(80, most_sentences=9)
    store = store_of(tmp_path / "s", documents)
    lone = [i for i, document in enumerate(documents) if len(document) == 1]
    assert lone
    plan = OrderedPairs(max_length=2000, tokenizer=TOKENIZER).plan(store, seed=0, epoch=0)  # no truncation
    seen = np.zeros(store.num_tokens, dtype=int)
    drawn = plan.pairs
    for starts, sizes in ((drawn.a_start, drawn.a_size), (drawn.b_start, drawn.b_size)):
        for start, size in zip(starts.tolist(), sizes.tolist(), strict=True):
            seen[start : start + size] += 1
    expected = np.concatenate([np.full(sum(map(len, d)), len(d) > 1) for d in documents])
    assert np.array_equal(seen, expected)


def test_the_share_of_swapped_rows(tmp_path: Path) -> None:
    store = store_of(tmp_path / "s", random_documents(700, longest=3))
    for swap_prob in (0.0, 0.3, 1.0):
        plan = OrderedPairs(max_length=16, swap_prob=swap_prob, tokenizer=TOKENIZER).plan(store, seed=0, epoch=0)
        assert plan.pairs.is_positive.mean() == pytest.approx(swap_prob, abs=0.03 if 0 < swap_prob < 1 else 0)


def test_a_corpus_without_neighbours_and_bad_numbers_are_refused(tmp_path: Path) -> None:
    rows = OrderedPairs(max_length=32, tokenizer=TOKENIZER)
    for i, number in enumerate((1, 20)):
        lone = store_of(tmp_path / f"lone{i}", random_documents(number, most_sentences=1))
        with refuses(DataError, "2 sentences", " 1", "objective=mlm", "corpus.validation_fraction"):
            rows.plan(lone, seed=0, epoch=0)
    one = store_of(tmp_path / "one", random_documents(1, least_sentences=12))
    assert len(rows.plan(one, seed=0, epoch=0).lengths) > 2  # one document is enough
    with refuses(DataError, "objective.rows.lone_with_other_document=true", "2 documents", " 1"):
        OrderedPairs(max_length=32, lone_with_other_document=True, tokenizer=TOKENIZER).plan(one, seed=0, epoch=0)
    with refuses(ConfigError, "objective.max_length=5", "6"):
        OrderedPairs(max_length=5, tokenizer=TOKENIZER)
