"""Ordered pairs: swapped if and only if labelled so, of one document, nothing lost; and the published code's quirk."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from fakes.objectives import NumberTokenizer, numbers_of, random_documents, store_of, target_of
from support.refusals import refuses

from lmtransfer.data.token_store import TokenStore
from lmtransfer.errors import ConfigError, DataError
from lmtransfer.objectives.rows.base import Row
from lmtransfer.objectives.rows.pairs import OrderedPairs, Pairs, PairsPlan

TOKENIZER = NumberTokenizer()
CLS, SEP = TOKENIZER.cls_id, TOKENIZER.sep_id


def ranges(row: Row) -> tuple[tuple[int, int], tuple[int, int]]:
    first, second = (tuple(int(n) for n in part.split(":")) for part in row.key.removeprefix("tokens ").split(" + "))
    return first, second  # type: ignore[return-value]


def document_of(store: TokenStore, token: int) -> int:
    ends = store.sentence_starts[store.document_starts[1:]]
    return int(np.searchsorted(ends, token, side="right"))


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
    """create_instances_from_document over lists of tokens, with random_next_sentence off, before truncation."""
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


@pytest.mark.parametrize("short_seq_prob", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("max_length", [8, 24, 64])
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
    for epoch in range(20):
        plan = rows.plan(store, seed=0, epoch=epoch)
        for row in (plan.row(i) for i in range(len(plan.lengths))):
            (a_start, a_stop), (b_start, b_stop) = ranges(row)
            assert document_of(store, a_start) == document_of(store, b_start)
            assert row.labels["sop"] == (b_start < a_start)
            early, delayed = sorted([(a_start, a_stop), (b_start, b_stop)])
            assert early[1] <= delayed[0]
            if len(row.tokens) < max_length:  # nothing was cut off
                assert early[1] == delayed[0]
            a, b = texts(row)
            assert a == store.tokens(a_start, a_stop).tolist()
            assert b == store.tokens(b_start, b_stop).tolist()
            labels.append(row.labels["sop"])
    assert len(labels) > 500
    assert np.mean(labels) == pytest.approx(0.5, abs=0.1 if len(labels) < 2000 else 0.05)


def test_no_sentence_is_lost_but_those_of_documents_of_one(tmp_path: Path) -> None:
    documents = random_documents(80, most_sentences=9)
    store = store_of(tmp_path / "s", documents)
    lone = [i for i, document in enumerate(documents) if len(document) == 1]
    assert lone
    plan = OrderedPairs(max_length=2000, tokenizer=TOKENIZER).plan(store, seed=0, epoch=0)  # nothing is cut off
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


def test_epochs_and_seeds_differ_and_repeat_otherwise(tmp_path: Path) -> None:
    store = store_of(tmp_path / "s", random_documents(60))
    rows = OrderedPairs(max_length=32, tokenizer=TOKENIZER)

    def drawn(seed: int, epoch: int) -> bytes:
        plan: PairsPlan = rows.plan(store, seed=seed, epoch=epoch)
        return b"".join(getattr(plan.pairs, name).tobytes() for name in Pairs.__slots__)

    assert drawn(0, 0) == drawn(0, 0)
    assert len({drawn(seed, epoch) for seed in range(3) for epoch in range(3)}) == 9


def test_a_corpus_without_neighbours_and_bad_numbers_are_refused(tmp_path: Path) -> None:
    rows = OrderedPairs(max_length=32, tokenizer=TOKENIZER)
    for i, number in enumerate((1, 20)):
        lone = store_of(tmp_path / f"lone{i}", random_documents(number, most_sentences=1))
        with refuses(DataError, "2 sentences", " 1", "objective=mlm", "corpus.validation_fraction"):
            rows.plan(lone, seed=0, epoch=0)
    one = store_of(tmp_path / "one", random_documents(1, least_sentences=12))
    assert len(rows.plan(one, seed=0, epoch=0).lengths) > 2  # one document has neighbours enough
    with refuses(DataError, "objective.rows.lone_with_other_document=true", "2 documents", " 1"):
        OrderedPairs(max_length=32, lone_with_other_document=True, tokenizer=TOKENIZER).plan(one, seed=0, epoch=0)
    with refuses(ConfigError, "swap_prob=-1"):
        OrderedPairs(max_length=32, swap_prob=-1, tokenizer=TOKENIZER)
    with refuses(ConfigError, "objective.max_length=5", "6"):
        OrderedPairs(max_length=5, tokenizer=TOKENIZER)
