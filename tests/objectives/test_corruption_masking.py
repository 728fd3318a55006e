"""Token masking: rates, replacements, exact counts, special tokens, and weighting against closed forms."""

from __future__ import annotations

from collections import Counter
from itertools import permutations
from math import prod

import numpy as np
import pytest
from fakes.objectives import NUM_PIECES, TOKENIZER, CasedTokenizer, random_documents, random_row, row_of, store_of
from support.refusals import refuses

from lmtransfer.data.token_frequencies import token_information
from lmtransfer.data.token_shards import TokenStore
from lmtransfer.errors import ConfigError
from lmtransfer.objectives.corruption.masking import (
    Choice,
    Selection,
    SingleTokens,
    TokenMasking,
    sample_order,
)
from lmtransfer.objectives.corruption.words import Entities, NGrams, Spans, WholeWords

SPECIAL = [0, 1, 2, 3]


@pytest.mark.parametrize("mask_prob", [0.15, 0.8])
def test_rates_over_sixty_thousand_masks(mask_prob: float) -> None:
    corruption = TokenMasking(mask_prob=mask_prob, tokenizer=TOKENIZER)
    rng = np.random.default_rng(0)
    masks, masked, random, kept, seen = 0, 0, 0, 0, 0
    drawn = np.zeros(TOKENIZER.vocab_size, dtype=int)
    hit = np.zeros(0)
    for draw in range(60_000 // max(1, round(mask_prob * 90))):
        row = random_row(rng, int(rng.integers(60, 121)))
        tokens, positions, targets = corruption.corrupt(row, np.random.default_rng(draw))[:3]
        assert np.array_equal(row.tokens[positions], targets)
        untouched = np.ones(len(tokens), dtype=bool)
        untouched[positions] = False
        assert np.array_equal(tokens[untouched], row.tokens[untouched])
        assert not np.isin(targets, SPECIAL).any()
        new = tokens[positions]
        seen += len(row.tokens)
        masks += len(positions)
        masked += np.count_nonzero(new == TOKENIZER.mask_id)
        kept += np.count_nonzero(new == targets)
        other = new[(new != TOKENIZER.mask_id) & (new != targets)]
        random += len(other)
        np.add.at(drawn, other, 1)
        hit = np.append(hit, positions / len(tokens))
    assert masks / seen == pytest.approx(mask_prob, abs=0.003)
    assert masked / masks == pytest.approx(0.8, abs=0.005)
    # One of 86 random tokens equals the original.
    assert kept / masks == pytest.approx(0.1 + 0.1 / 86, abs=0.005)
    assert random / masks == pytest.approx(0.1 - 0.1 / 86, abs=0.005)
    assert not drawn[SPECIAL].any()
    assert not drawn[NUM_PIECES:].any()
    ordinary = drawn[4:NUM_PIECES]
    assert ordinary.min() > 0.6 * ordinary.mean()
    assert ordinary.max() < 1.4 * ordinary.mean()
    assert hit.mean() == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize(
    ("mask_prob", "length", "cap", "expected"),
    [
        (0.15, 128, None, 19),
        (0.15, 128, 10, 10),
        (0.15, 4, None, 1),
        (0.01, 20, None, 1),
        (0.8, 20, None, 16),
        (1, 20, None, 17),
    ],
)
def test_counts_are_exact(mask_prob: float, length: int, cap: int | None, expected: int) -> None:
    corruption = TokenMasking(mask_prob=mask_prob, max_predictions=cap, tokenizer=TOKENIZER)
    tokens = np.full(length, 10)
    tokens[[0, length // 2, -1]] = [1, 2, 2]
    for draw in range(20):
        corrupted = corruption.corrupt(row_of(tokens), np.random.default_rng(draw))
        assert len(corrupted.positions) == len(corrupted.targets) == expected
        assert (np.diff(corrupted.positions) > 0).all()


def test_a_row_of_special_tokens_has_nothing_to_predict() -> None:
    tokens, positions, targets = TokenMasking(tokenizer=TOKENIZER).corrupt(
        row_of([1, 2, 0, 2]), np.random.default_rng(0)
    )[:3]
    assert tokens.tolist() == [1, 2, 0, 2]
    assert len(positions) == len(targets) == 0


def test_other_splits() -> None:
    row = row_of([1, *[10] * 60, 2])
    for mask_share, random_share in [(1.0, 0.0), (0.0, 1.0), (0.0, 0.0)]:
        corruption = TokenMasking(mask_prob=0.5, mask_share=mask_share, random_share=random_share, tokenizer=TOKENIZER)
        tokens, positions, _ = corruption.corrupt(row, np.random.default_rng(0))[:3]
        new = tokens[positions]
        assert (new == 3).all() == (mask_share == 1)
        assert (new == 10).all() == (mask_share == random_share == 0)


def test_the_quirk_draws_special_tokens_too_and_never_padding() -> None:
    corruption = TokenMasking(
        mask_prob=1.0, mask_share=0.0, random_share=1.0, random_from_specials=True, tokenizer=TOKENIZER
    )
    drawn = corruption.corrupt(row_of([10] * 5000), np.random.default_rng(0)).tokens
    assert set(np.unique(drawn).tolist()) == set(range(NUM_PIECES))


def test_the_row_itself_is_left_alone_and_the_generator_decides() -> None:
    corruption = TokenMasking(mask_prob=0.4, tokenizer=TOKENIZER)
    row = random_row(np.random.default_rng(1), 50)
    before = row.tokens.copy()
    first, same, other = (corruption.corrupt(row, np.random.default_rng(seed)) for seed in (0, 0, 1))
    assert np.array_equal(row.tokens, before)
    assert all(np.array_equal(a, b) for a, b in zip(first, same, strict=True))
    assert not np.array_equal(first.positions, other.positions)


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"mask_share": 0.8, "random_share": 0.3}, ("mask_share=0.8", "random_share=0.3")),
        ({"random_share": -0.1}, ("random_share=-0.1",)),
    ],
)
def test_bad_numbers_are_refused_by_name(changes: dict[str, float], names: tuple[str, ...]) -> None:
    with refuses(ConfigError, *names):
        TokenMasking(**changes, tokenizer=TOKENIZER)  # type: ignore[arg-type]


SELECTIONS = {"tokens": SingleTokens, "words": WholeWords, "ngrams": NGrams, "spans": Spans, "entities": Entities}


def inclusion(weights: list[float], budget: int) -> np.ndarray:
    """Compute the probability that each item is among the first ones sampled by weight, over all orders."""
    total, found = sum(weights), np.zeros(len(weights))
    for drawn in permutations(range(len(weights)), budget):
        left = [total - sum(weights[i] for i in drawn[:k]) for k in range(budget)]
        found[list(drawn)] += prod(weights[i] / rest for i, rest in zip(drawn, left, strict=True))
    return found


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> TokenStore:
    """Three of four tokens are 4, and every eighth is 6 or 7; the others are equally frequent."""
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
    assert information[4] < 1  # the minimum
    weights = [max(1.0, information[token]) for token in (4, 6, 4, 50, 7, 80)]
    assert max(weights) / min(weights) > 3
    num, hit = 5_000, np.zeros(8)
    for draw in range(num):
        positions = corruption.corrupt(row, np.random.default_rng(draw)).positions
        assert len(positions) == budget
        assert (np.diff(positions) > 0).all()
        hit[positions] += 1
    expected = inclusion(weights, budget)
    assert hit[[0, 7]].tolist() == [0, 0]
    assert hit[1:7] / num == pytest.approx(expected, abs=0.03)


def test_words_weigh_the_mean_of_their_pieces(store: TokenStore) -> None:
    corruption = TokenMasking(mask_prob=0.25, weighting="rare", selection=WholeWords(), tokenizer=TOKENIZER)
    corruption.observe(store)
    row = row_of([1, 4, 51, 6, 7, 80, 81, 2])  # three words of two pieces; the budget is enough for one
    weights = np.maximum(1.0, token_information(store, size=96))
    pairs = [weights[[4, 51]].mean(), weights[[6, 7]].mean(), weights[[80, 81]].mean()]
    hit, num = Counter[int](), 3_000
    for draw in range(num):
        positions = corruption.corrupt(row, np.random.default_rng(draw)).positions.tolist()
        assert positions in ([1, 2], [3, 4], [5, 6])
        hit[positions[0]] += 1
    assert [hit[start] / num for start in (1, 3, 5)] == pytest.approx([w / sum(pairs) for w in pairs], abs=0.03)


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
    for draw in range(150):
        row = random_row(rng, int(rng.integers(40, 60)))
        row.tokens[5:30:2] = 4  # a frequent token that begins a word
        for way, corruption in by_way.items():
            corrupted = corruption.corrupt(row, np.random.default_rng(draw))
            assert not tokenizer.is_special[corrupted.targets].any()
            if name == "tokens":
                assert len(corrupted.positions) == round(mask_prob * len(row.tokens))
            assert 0 < len(corrupted.positions) <= round(mask_prob * len(row.tokens)) + 2
            frequent[way] += int((information[corrupted.targets] < 1).sum())
    assert 0 < frequent["rare"] < 0.9 * frequent["uniform"]


def test_what_is_refused() -> None:
    class Alike(Selection):
        def choose(self, tokens: np.ndarray, maskable: np.ndarray, budget: int, rng: np.random.Generator) -> Choice:
            raise AssertionError

    with refuses(ConfigError, "objective.corruption.weighting=rare", "Alike"):
        TokenMasking(weighting="rare", selection=Alike(), tokenizer=TOKENIZER)
