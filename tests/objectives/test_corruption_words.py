"""Masking of whole words, n-grams, spans and entities: units, lengths, rates and replacements."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from fakes.objectives import CasedTokenizer, NumberTokenizer, random_row, row_of
from support.refusals import refuses

from lmtransfer.errors import ConfigError
from lmtransfer.objectives.corruption.masking import Selection, TokenMasking
from lmtransfer.objectives.corruption.words import Entities, NGrams, Spans, WholeWords
from lmtransfer.objectives.corruption.words import words_of as parsed_words
from lmtransfer.objectives.rows.base import Row
from lmtransfer.tokenizers.base import Tokenizer
from lmtransfer.tokenizers.trainers import ByteBpeTrainer, SentencePieceTrainer

SPECIAL = [0, 1, 2, 3]


TOKENIZER = CasedTokenizer()
SELECTIONS: dict[str, Callable[[], Selection]] = {
    "whole_words": WholeWords,
    "ngrams": NGrams,
    "spans": Spans,
    "entities": Entities,
}


def single_words(count: int) -> Row:
    """Return a row of one-token words between special tokens."""
    return row_of([1, *(46 + 2 * (np.arange(count) % 20)), 2])


def words_of(row: Row, tokenizer: Tokenizer = TOKENIZER) -> list[list[int]]:
    """Return the positions of each word, in a plain loop."""
    words: list[list[int]] = []
    for position, token in enumerate(row.tokens.tolist()):
        if tokenizer.is_special[token]:
            continue
        if not tokenizer.starts_word[token] and words and words[-1][-1] == position - 1:
            words[-1].append(position)
        else:
            words.append([position])
    return words


def is_union_of_words(hidden: set[int], row: Row, tokenizer: Tokenizer = TOKENIZER) -> bool:
    return hidden == {p for word in words_of(row, tokenizer) if hidden & set(word) for p in word}


@pytest.mark.parametrize("name", SELECTIONS)
@pytest.mark.parametrize("mask_prob", [0.15, 0.8])
def test_rates_replacements_and_whole_words(name: str, mask_prob: float) -> None:
    corruption = TokenMasking(mask_prob=mask_prob, selection=SELECTIONS[name](), tokenizer=TOKENIZER)
    rng = np.random.default_rng(0)
    hidden = seen = masked = kept = draw = 0
    while hidden < 50_000 * mask_prob:
        row = random_row(rng, int(rng.integers(80, 121)))
        tokens, positions, targets = corruption.corrupt(row, np.random.default_rng(draw))[:3]
        assert (np.diff(positions) > 0).all()
        assert 0 < len(positions) <= round(mask_prob * len(tokens))
        assert is_union_of_words(set(positions.tolist()), row)
        assert np.array_equal(row.tokens[positions], targets)
        assert not np.isin(targets, SPECIAL).any()
        assert np.array_equal(np.delete(tokens, positions), np.delete(row.tokens, positions))
        hidden, seen, draw = hidden + len(positions), seen + len(tokens), draw + 1
        masked += np.count_nonzero(tokens[positions] == 3)
        kept += np.count_nonzero(tokens[positions] == targets)
    assert hidden / seen == pytest.approx(mask_prob, abs=0.004)
    assert masked / hidden == pytest.approx(0.8, abs=0.01)
    assert kept / hidden == pytest.approx(0.1 + 0.1 / 86, abs=0.01)


@pytest.mark.parametrize("name", ["whole_words", "ngrams", "spans"])
def test_the_budget_is_spent_to_the_last_token_where_words_are_single(name: str) -> None:
    corruption = TokenMasking(mask_prob=0.15, selection=SELECTIONS[name](), tokenizer=TOKENIZER)
    for draw in range(200):
        corrupted = corruption.corrupt(single_words(98), np.random.default_rng(draw))
        assert len(corrupted.positions) == 15


def test_every_word_is_as_likely_in_a_row() -> None:
    row = single_words(20)
    for name in ("whole_words", "ngrams", "spans"):
        corruption = TokenMasking(mask_prob=0.05, max_predictions=1, selection=SELECTIONS[name](), tokenizer=TOKENIZER)
        hits = np.zeros(22)
        for draw in range(1500):
            hits[corruption.corrupt(row, np.random.default_rng(draw)).positions] += 1
        assert hits[[0, 21]].sum() == 0
        assert hits[1:21] / 1500 == pytest.approx(np.full(20, 0.05), abs=0.02)


def unit_lengths(selection: Selection, tokens: np.ndarray, maskable: np.ndarray, budget: int, draws: int) -> np.ndarray:
    """Count the chosen units of 0, 1, 2, ... tokens."""
    selection.bind(TOKENIZER)
    counts = np.zeros(64, dtype=int)
    for draw in range(draws):
        positions, units, _ = selection.choose(tokens, maskable, budget, np.random.default_rng(draw))
        for unit in np.split(positions, np.flatnonzero(np.diff(units)) + 1):
            assert (np.diff(unit) == 1).all()
            counts[len(unit)] += 1
    return counts


LENGTHS = {
    "ngrams": (NGrams(), np.array([6, 3, 2]) / 11),
    "spans": (Spans(), 0.8 ** np.arange(10) * 0.2 / (1 - 0.8**10)),
    "short spans": (Spans(stop_prob=0.5, max_words=3), np.array([4, 2, 1]) / 7),
}


@pytest.mark.parametrize("name", LENGTHS)
def test_lengths_of_units_are_those_of_the_paper(name: str) -> None:
    selection, expected = LENGTHS[name]
    tokens = single_words(200_000).tokens
    counts = unit_lengths(selection, tokens, np.arange(1, 200_001), budget=1500, draws=10 if "sp" in name else 5)
    assert counts.sum() > 3000
    assert counts[1 : len(expected) + 1] / counts.sum() == pytest.approx(expected, abs=0.015)
    assert not counts[len(expected) + 1 :].any()


@pytest.mark.parametrize("name", LENGTHS)
def test_lengths_where_special_tokens_cut_units(name: str) -> None:
    """In runs of four words, a unit that starts at word s has at most 4 - s words."""
    selection, shares = LENGTHS[name]
    expected = np.zeros(5)
    for start in range(4):
        for length, share in enumerate(shares, start=1):
            expected[min(length, 4 - start)] += share / 4
    stretches = 30_000
    tokens = np.tile([46, 48, 50, 52, 2], stretches).astype(np.int32)
    tokens = np.concatenate([[1], tokens]).astype(np.int32)
    maskable = np.flatnonzero(tokens > 3)
    counts = unit_lengths(selection, tokens, maskable, budget=1500, draws=10)
    assert counts[:5] / counts.sum() == pytest.approx(expected, abs=0.015)
    assert not counts[5:].any()


def test_lengths_where_the_budget_cuts_units() -> None:
    """The budget cuts the last unit; units rarely touch, so the expected number of units by length is known."""
    shares, budget = 0.8 ** np.arange(10) * 0.2 / (1 - 0.8**10), 12
    expected = [np.zeros(11)]
    for left in range(1, budget + 1):
        counts = np.zeros(11)
        for length, share in enumerate(shares, start=1):
            size = min(length, left)
            counts[size] += share
            counts += share * expected[left - size]
        expected.append(counts)
    draws = 1500
    found = unit_lengths(Spans(), single_words(3000).tokens, np.arange(1, 3001), budget=budget, draws=draws)
    assert found[:11] / draws == pytest.approx(expected[budget], abs=0.07)
    assert found @ np.arange(64) == budget * draws


@pytest.mark.parametrize("shared", [True, False])
def test_eighty_ten_ten_by_span_or_by_token(shared: bool) -> None:
    corruption = TokenMasking(
        mask_prob=0.01, selection=Spans(stop_prob=1e-9, max_words=4), shared_replacement=shared, tokenizer=TOKENIZER
    )
    row, kinds = single_words(40_000), Counter()
    alike = spans = 0
    for draw in range(60):
        tokens, positions, targets = corruption.corrupt(row, np.random.default_rng(draw))[:3]
        new = tokens[positions]
        kind = np.where(new == 3, 0, np.where(new == targets, 2, 1))
        for span in np.split(kind, np.flatnonzero(np.diff(positions) > 1) + 1):
            if len(span) == 4:  # adjacent units are rare
                spans += 1
                alike += len(set(span.tolist())) == 1
                kinds[int(np.bincount(span, minlength=3).argmax())] += 1
    assert spans > 2000
    if shared:  # one of 86 random tokens equals the original
        assert alike / spans == pytest.approx(1 - 0.1 * 4 / 86, abs=0.006)
        assert [kinds[kind] / spans for kind in range(3)] == pytest.approx([0.8, 0.1, 0.1], abs=0.02)
    else:
        assert alike / spans == pytest.approx(0.8**4 + 2 * 0.1**4, abs=0.025)


def test_a_special_token_ends_a_word() -> None:
    corruption = TokenMasking(mask_prob=0.15, selection=WholeWords(), tokenizer=TOKENIZER)
    row = row_of([1, 11, 2, 13, 0, 15, 2])
    hidden = {tuple(corruption.corrupt(row, np.random.default_rng(draw)).positions.tolist()) for draw in range(30)}
    assert hidden == {(1,), (3,), (5,)}


@pytest.mark.parametrize("name", SELECTIONS)
def test_a_row_of_one_long_word_hides_it_all(name: str) -> None:
    corruption = TokenMasking(mask_prob=0.15, selection=SELECTIONS[name](), tokenizer=TOKENIZER)
    hidden = corruption.corrupt(row_of([1, 10, 11, 13, 15, 2]), np.random.default_rng(0)).positions
    assert hidden.tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize("name", SELECTIONS)
def test_a_row_of_special_tokens_has_nothing_to_predict(name: str) -> None:
    corruption = TokenMasking(selection=SELECTIONS[name](), tokenizer=TOKENIZER)
    corrupted = corruption.corrupt(row_of([1, 2, 0, 2]), np.random.default_rng(0))
    assert corrupted.tokens.tolist() == [1, 2, 0, 2]
    assert len(corrupted.positions) == len(corrupted.targets) == 0
    assert {len(numbers) for numbers in corrupted.per_target.values()} <= {0}


@pytest.mark.parametrize("mask_prob", [0.15, 0.8])
def test_distances_to_the_tokens_around_a_span(mask_prob: float) -> None:
    corruption = TokenMasking(mask_prob=mask_prob, selection=Spans(), tokenizer=TOKENIZER)
    rng = np.random.default_rng(0)
    for draw in range(200):
        row = random_row(rng, 60)
        positions, _, per_target = corruption.corrupt(row, np.random.default_rng(draw))[1:4]
        hidden = set(positions.tolist())
        for position, left, right in zip(positions, per_target["left"], per_target["right"], strict=True):
            before = next(p for p in range(position, -1, -1) if p not in hidden)
            after = next(p for p in range(position, 60) if p not in hidden)
            assert (left, right) == (position - before, after - position)


def test_spans_leave_the_ends_of_a_row_without_a_frame() -> None:
    corruption = TokenMasking(mask_prob=1.0, selection=Spans(), tokenizer=TOKENIZER)
    corrupted = corruption.corrupt(row_of([46, 47, 48, 50, 52]), np.random.default_rng(0))
    assert corrupted.positions.tolist() == [1, 2, 3]
    alone = corruption.corrupt(row_of([46, 47]), np.random.default_rng(0))
    assert len(alone.positions) == 0
    assert alone.tokens.tolist() == [46, 47]


TEXTS = [
    ("He met John Smith in Paris.", ["John Smith", "Paris."]),
    ("The film was fine. The end.", []),
    ("The Godfather is long", ["The Godfather"]),
    ("Then I and then I'm with (Al Pacino) there", ["(Al Pacino)"]),
    ("in Berlin, Paris and New York City today", ["Berlin,", "Paris", "New York City"]),
    ("then A VERY LONG HEADLINE WHICH NOBODY EVER READS came", []),
    ("Good! Bad Taste rules. So Peter Jackson says", ["Bad Taste", "So Peter Jackson"]),
]


def cased_tokenizer(folder: Path) -> Tokenizer:
    lines = [text for text, _ in TEXTS] * 20 + ["abcdefghijklmnopqrstuvwxyz ABCDEFGHIJKLMNOPQRSTUVWXYZ ()'!.,"]
    trainer = SentencePieceTrainer(
        kind="unigram", vocab_size=90, lowercase=False, character_coverage=1.0, allow_fewer=True
    )
    return trainer.train(iter(lines), folder)


def test_entities_are_runs_of_capitalised_words(tmp_path: Path) -> None:
    tokenizer = cased_tokenizer(tmp_path)
    selection = Entities()
    selection.bind(tokenizer)
    corruption = TokenMasking(mask_prob=0.6, selection=selection, tokenizer=tokenizer)
    for text, expected in TEXTS:
        tokens = tokenizer.encode(text).ids
        row = row_of([tokenizer.cls_id, *tokens, tokenizer.sep_id])
        words = words_of(row, tokenizer)
        assert len(words) == len(text.split())
        maskable = np.flatnonzero(~tokenizer.is_special[row.tokens])
        spans = selection.entities(row.tokens, parsed_words(row.tokens, maskable, tokenizer.starts_word))
        assert [" ".join(text.split()[start:end]) for start, end in spans] == expected
        wholes = [{p for word in words[start:end] for p in word} for start, end in spans]
        for draw in range(20):
            hidden = set(corruption.corrupt(row, np.random.default_rng(draw)).positions.tolist())
            assert is_union_of_words(hidden, row, tokenizer)
            assert all(not whole & hidden or whole <= hidden for whole in wholes)


def test_entities_take_their_share_of_the_budget() -> None:
    sentence = [46, 48, 50, 4, 6, 52, 54, 56, 58, 60]  # one entity of two words in ten words
    row = row_of([1, *sentence * 20, 2])
    is_entity = np.isin(row.tokens, [4, 6])
    for share, expected in [(0.0, 0.0), (0.5, 0.5), (1.0, 1.0)]:
        corruption = TokenMasking(selection=Entities(entity_share=share), tokenizer=TOKENIZER)
        found = []
        for draw in range(50):
            positions = corruption.corrupt(row, np.random.default_rng(draw)).positions
            assert len(positions) == 30
            found.append(is_entity[positions].mean())
        assert np.mean(found) == pytest.approx(expected, abs=0.05)


def test_entities_need_capital_letters() -> None:
    with refuses(ConfigError, "tokenizer.lowercase=false"):
        TokenMasking(selection=Entities(), tokenizer=NumberTokenizer())


@pytest.mark.parametrize("kind", ["unigram", "bpe", "byte_bpe"])
def test_masks_are_unions_of_whole_words_of_the_text(kind: str, tmp_path: Path) -> None:
    lines = ["the Quick brown fox overlooked New Yorkers, and 42 foxes jumped over-quickly", "naive caf\u00e9 owners"]
    trainer: SentencePieceTrainer | ByteBpeTrainer = ByteBpeTrainer(vocab_size=300, allow_fewer=True)
    if kind != "byte_bpe":
        trainer = SentencePieceTrainer(
            kind=kind, vocab_size=64, lowercase=False, character_coverage=1.0, allow_fewer=True
        )
    tokenizer = trainer.train(iter(lines * 10), tmp_path)
    assert not tokenizer.starts_word[tokenizer.encode(lines[0]).ids].all()
    check_whole_words_of_text(tokenizer, lines)


def check_whole_words_of_text(tokenizer: Tokenizer, lines: list[str]) -> None:
    """With each selection, all characters of a whitespace-delimited word are masked together."""
    for name, made in SELECTIONS.items():
        corruption = TokenMasking(mask_prob=0.3, selection=made(), tokenizer=tokenizer)
        for line in lines:
            encoding = tokenizer.encode(line)
            row = row_of([tokenizer.cls_id, *encoding.ids, tokenizer.sep_id])
            starts = [p for p in range(len(line)) if line[p] != " " and (p == 0 or line[p - 1] == " ")]
            word_of = [sum(start <= offset for start in starts) - 1 for offset in encoding.offsets[:, 1] - 1]
            word_of = [max(w, 0) for w in word_of]
            for token, (first, last) in enumerate(encoding.offsets):  # a bare word-start marker has no characters
                if first == last:
                    word_of[token] = word_of[token + 1] if token + 1 < len(word_of) else word_of[token]
            for draw in range(100):
                hidden = {p - 1 for p in corruption.corrupt(row, np.random.default_rng(draw)).positions.tolist()}
                words = {word_of[token] for token in hidden}
                assert hidden == {token for token, word in enumerate(word_of) if word in words}, name
