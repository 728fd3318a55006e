"""Rare tokens hidden more often: drawn frequencies against closed forms, exact counts, and nothing new by default."""

from __future__ import annotations

import pickle
from collections import Counter
from itertools import permutations
from math import prod

import numpy as np
import pytest
from fakes.objectives import NUM_PIECES, CasedTokenizer, NumberTokenizer, random_documents, store_of
from support.refusals import refuses

from lmtransfer.data.token_shares import token_information
from lmtransfer.data.token_store import TokenStore
from lmtransfer.errors import ConfigError
from lmtransfer.objectives.corruption.masking import Choice, Selection, SingleTokens, TokenMasking, sample_order
from lmtransfer.objectives.corruption.words import Entities, NGrams, Spans, WholeWords
from lmtransfer.objectives.rows.base import Row

TOKENIZER = NumberTokenizer()
SELECTIONS = {"tokens": SingleTokens, "words": WholeWords, "ngrams": NGrams, "spans": Spans, "entities": Entities}


def row_of(tokens: list[int] | np.ndarray) -> Row:
    array = np.asarray(tokens, dtype=np.int32)
    return Row(array, np.zeros(len(array), dtype=np.int8), "tokens 0:0")


def random_row(rng: np.random.Generator, length: int) -> Row:
    tokens = rng.integers(4, NUM_PIECES, length)
    tokens[[0, length // 2, -1]] = [1, 2, 2]
    return row_of(tokens)


def inclusion(weights: list[float], budget: int) -> np.ndarray:
    """How probable each item is among the first so many drawn by weight: the sum over all orders of drawing."""
    total, found = sum(weights), np.zeros(len(weights))
    for drawn in permutations(range(len(weights)), budget):
        left = [total - sum(weights[i] for i in drawn[:k]) for k in range(budget)]
        found[list(drawn)] += prod(weights[i] / rest for i, rest in zip(drawn, left, strict=True))
    return found


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> TokenStore:
    """Three of four tokens are 4, every eighth is 6 or 7; the others are as frequent as each other."""
    documents = random_documents(20)
    others = sum(len(words) for document in documents for words in document)
    documents += [[[4] * (6 * others), [6] * (others // 2), [7] * (others // 2)]]
    return store_of(tmp_path_factory.mktemp("stores") / "s", documents)


def test_orders_are_drawn_by_weight_without_replacement() -> None:
    items, weights = np.array([10, 20, 30, 40]), np.array([1.0, 2.0, 3.0, 6.0])
    rng, num = np.random.default_rng(0), 30_000
    found = Counter(tuple(sample_order(items, weights, rng).tolist()) for _ in range(num))
    of = dict(zip(items.tolist(), weights.tolist(), strict=True))
    for order in permutations(items.tolist()):
        expected = prod(of[item] / sum(of[other] for other in order[k:]) for k, item in enumerate(order))
        assert found[order] / num == pytest.approx(expected, abs=4 * (expected * (1 - expected) / num) ** 0.5)


@pytest.mark.parametrize("budget", [1, 4])
def test_tokens_are_hidden_as_often_as_their_information_says(store: TokenStore, budget: int) -> None:
    corruption = TokenMasking(mask_prob=budget / 8, weighting="rare", tokenizer=TOKENIZER)
    row = row_of([1, 4, 6, 4, 50, 7, 80, 2])
    corruption.observe(store)
    information = token_information(store, size=96)
    assert information[4] < 1  # the floor
    weights = [max(1.0, information[token]) for token in (4, 6, 4, 50, 7, 80)]
    assert max(weights) / min(weights) > 3
    num, hit = 20_000, np.zeros(8)
    for draw in range(num):
        positions = corruption.corrupt(row, np.random.default_rng(draw)).positions
        assert len(positions) == budget
        assert (np.diff(positions) > 0).all()
        hit[positions] += 1
    expected = inclusion(weights, budget)
    assert hit[[0, 7]].tolist() == [0, 0]
    assert hit[1:7] / num == pytest.approx(expected, abs=0.015)


def test_words_weigh_the_mean_of_their_pieces(store: TokenStore) -> None:
    corruption = TokenMasking(mask_prob=0.25, weighting="rare", selection=WholeWords(), tokenizer=TOKENIZER)
    corruption.observe(store)
    row = row_of([1, 4, 51, 6, 7, 80, 81, 2])  # three words of two pieces, of which one fits
    weights = np.maximum(1.0, token_information(store, size=96))
    pairs = [weights[[4, 51]].mean(), weights[[6, 7]].mean(), weights[[80, 81]].mean()]
    hit, num = Counter[int](), 10_000
    for draw in range(num):
        positions = corruption.corrupt(row, np.random.default_rng(draw)).positions.tolist()
        assert positions in ([1, 2], [3, 4], [5, 6])
        hit[positions[0]] += 1
    assert [hit[start] / num for start in (1, 3, 5)] == pytest.approx([w / sum(pairs) for w in pairs], abs=0.015)


@pytest.mark.parametrize("name", SELECTIONS)
@pytest.mark.parametrize("mask_prob", [0.15, 0.6])
def test_as_many_are_hidden_and_never_a_special_token(store: TokenStore, name: str, mask_prob: float) -> None:
    tokenizer = CasedTokenizer()
    by_way = {
        way: TokenMasking(mask_prob=mask_prob, weighting=way, selection=SELECTIONS[name](), tokenizer=tokenizer)
        for way in ("uniform", "rare")
    }
    rng, information, frequent = np.random.default_rng(0), token_information(store, size=96), Counter[str]()
    for corruption in by_way.values():
        corruption.observe(store)
    for draw in range(300):
        row = random_row(rng, int(rng.integers(40, 60)))
        row.tokens[5:30:2] = 4  # a frequent one that begins a word
        for way, corruption in by_way.items():
            corrupted = corruption.corrupt(row, np.random.default_rng(draw))
            assert not tokenizer.is_special[corrupted.targets].any()
            if name == "tokens":
                assert len(corrupted.positions) == round(mask_prob * len(row.tokens))
            assert 0 < len(corrupted.positions) <= round(mask_prob * len(row.tokens)) + 2
            frequent[way] += int((information[corrupted.targets] < 1).sum())
    assert 0 < frequent["rare"] < 0.9 * frequent["uniform"]


def test_by_default_masks_are_as_they_were(store: TokenStore) -> None:
    corruption = TokenMasking(mask_prob=0.3, tokenizer=TOKENIZER)
    corruption.observe(store)
    for draw in range(50):
        row = random_row(np.random.default_rng(1000 + draw), 40)
        positions = corruption.corrupt(row, np.random.default_rng(draw)).positions
        ordinary = np.flatnonzero(~TOKENIZER.is_special[row.tokens])
        assert positions.tolist() == sorted(np.random.default_rng(draw).permutation(ordinary)[:12].tolist())


def test_a_worker_draws_the_same(store: TokenStore) -> None:
    corruption = TokenMasking(mask_prob=0.3, weighting="rare", tokenizer=TOKENIZER)
    corruption.observe(store)
    copy = pickle.loads(pickle.dumps(corruption))
    for draw in range(20):
        row = random_row(np.random.default_rng(draw), 40)
        one, other = (each.corrupt(row, np.random.default_rng(draw)) for each in (corruption, copy))
        assert np.array_equal(one.tokens, other.tokens)


def test_what_is_refused() -> None:
    class Alike(Selection):
        def choose(self, tokens: np.ndarray, maskable: np.ndarray, budget: int, rng: np.random.Generator) -> Choice:
            raise AssertionError

    with refuses(ConfigError, "objective.corruption.weighting=loss", "uniform, rare"):
        TokenMasking(weighting="loss", tokenizer=TOKENIZER)  # type: ignore[arg-type]
    with refuses(ConfigError, "objective.corruption.weighting=rare", "Alike"):
        TokenMasking(weighting="rare", selection=Alike(), tokenizer=TOKENIZER)
