"""Masked tokens: rates, splits, exact counts, and what is never touched, over 100,000 draws."""

from __future__ import annotations

import numpy as np
import pytest
from fakes.objectives import NUM_PIECES, NumberTokenizer
from support.refusals import refuses

from lmtransfer.errors import ConfigError
from lmtransfer.objectives.corruption.masking import NoCorruption, TokenMasking
from lmtransfer.objectives.rows.base import Row

TOKENIZER = NumberTokenizer()
SPECIAL = [0, 1, 2, 3]


def row_of(tokens: list[int] | np.ndarray) -> Row:
    array = np.asarray(tokens, dtype=np.int32)
    return Row(array, np.zeros(len(array), dtype=np.int8), "tokens 0:0")


def random_row(rng: np.random.Generator, length: int) -> Row:
    """Ordinary tokens in a frame, with an unknown token and a separator inside."""
    tokens = rng.integers(4, NUM_PIECES, length)
    tokens[[0, length // 2, length // 3, -1]] = [1, 2, 0, 2]
    return row_of(tokens)


@pytest.mark.parametrize("mask_prob", [0.15, 0.8])
def test_rates_over_a_hundred_thousand_masks(mask_prob: float) -> None:
    corruption = TokenMasking(mask_prob=mask_prob, tokenizer=TOKENIZER)
    rng = np.random.default_rng(0)
    masks, masked, random, kept, seen = 0, 0, 0, 0, 0
    drawn = np.zeros(TOKENIZER.vocab_size, dtype=int)
    hit = np.zeros(0)
    for draw in range(100_000 // max(1, round(mask_prob * 90))):
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
    # One random draw in 86 gives the token itself.
    assert kept / masks == pytest.approx(0.1 + 0.1 / 86, abs=0.004)
    assert random / masks == pytest.approx(0.1 - 0.1 / 86, abs=0.004)
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


def test_no_corruption_leaves_rows_as_they_are() -> None:
    row = random_row(np.random.default_rng(0), 20)
    tokens, positions, targets = NoCorruption().corrupt(row, np.random.default_rng(0))[:3]
    assert tokens is row.tokens
    assert len(positions) == len(targets) == 0


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"mask_prob": 0.0}, ("objective.mask_prob=0.0",)),
        ({"mask_prob": 1.5}, ("objective.mask_prob=1.5",)),
        ({"max_predictions": 0}, ("max_predictions=0",)),
        ({"mask_share": 0.8, "random_share": 0.3}, ("mask_share=0.8", "random_share=0.3")),
        ({"random_share": -0.1}, ("random_share=-0.1",)),
    ],
    ids=["no mask_prob", "mask_prob above 1", "max_predictions", "shares above 1", "share below 0"],
)
def test_bad_numbers_are_refused_by_name(changes: dict[str, float], names: tuple[str, ...]) -> None:
    with refuses(ConfigError, *names):
        TokenMasking(**changes, tokenizer=TOKENIZER)  # type: ignore[arg-type]
