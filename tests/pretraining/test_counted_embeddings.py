"""Counted embeddings, against loops over pairs and a full decomposition."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fakes.objectives import bert, store_of
from support.refusals import refuses
from torch import nn

from lmtransfer.config.component import component_problems
from lmtransfer.data.corpora.mixture import Sampling
from lmtransfer.data.token_shards import MixedStore
from lmtransfer.errors import ConfigError
from lmtransfer.models.elmo import ElmoEncoder
from lmtransfer.objectives.language_model import BidirectionalLanguageModel
from lmtransfer.objectives.masked_lm import MaskedLanguageModel
from lmtransfer.pretraining import counted_embeddings
from lmtransfer.pretraining.counted_embeddings import (
    CountedEmbeddings,
    Start,
    count_first,
    fit_characters,
    leading_vectors,
    positive_pmi,
    segment_counts,
    segment_ids,
    sparse_positive_pmi,
    subsample,
    token_ids,
    window_counts,
)
from lmtransfer.tokenizers.words import character_ids

VOCABULARY = 12
PARTS = (("large", 5, 90), ("small", 6, 10))


@pytest.mark.parametrize("at_once", [None, 20])
@pytest.mark.parametrize("contexts", [VOCABULARY, 5])
def test_windows_count_what_a_loop_over_pairs_counts(
    contexts: int, at_once: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if at_once is not None:  # blocks of one to three tokens, and two positions at a time
        monkeypatch.setattr(counted_embeddings, "_COUNTS_IN_CACHE", at_once)
        monkeypatch.setattr(counted_embeddings, "_PAIRS_AT_ONCE", at_once)
    text = np.random.default_rng(0).integers(0, VOCABULARY, 60)
    expected = np.zeros((VOCABULARY, contexts))
    for here, token in enumerate(text):
        for there, other in enumerate(text):
            if 0 < abs(here - there) <= 4 and other < contexts:
                expected[token, other] += 5 - abs(here - there)
    found = window_counts(text, window=4, vocab_size=VOCABULARY, contexts=contexts)
    assert np.array_equal(found.numpy(), expected)


def test_a_window_longer_than_the_text_takes_all_of_it() -> None:
    found = window_counts(np.array([0, 1]), window=9, vocab_size=2, contexts=2)
    assert found.tolist() == [[0, 9], [9, 0]]


def test_segments_are_documents_and_parts_of_long_ones(tmp_path: Path) -> None:
    store = store_of(tmp_path, [[[5] * 3, [6] * 4], [[7] * 2], [[8] * 5]])
    assert token_ids(store, most_tokens=100).tolist() == [5] * 3 + [6] * 4 + [7] * 2 + [8] * 5
    assert segment_ids(store, most_tokens=100, longest=100).tolist() == [0] * 7 + [1] * 2 + [2] * 5
    assert segment_ids(store, most_tokens=100, longest=4).tolist() == [0] * 4 + [1] * 3 + [2] * 2 + [3] * 4 + [4]
    assert segment_ids(store, most_tokens=8, longest=100).tolist() == [0] * 7 + [1]


def test_each_segment_has_its_counts() -> None:
    places, numbers = segment_counts(np.array([0, 1, 0, 2, 2]), np.array([0, 0, 0, 1, 1]), vocab_size=3)
    dense = torch.sparse_coo_tensor(places, numbers, (3, 2), check_invariants=True).to_dense()
    assert dense.tolist() == [[2, 0], [1, 0], [0, 2]]


def test_frequent_tokens_are_thinned_out_by_the_root_rule() -> None:
    text = np.repeat([0, 1], [99_000, 1_000])
    kept = np.bincount(subsample(text, threshold=0.01, seed=3))
    assert kept[1] == 1_000
    expected = 99_000 * (0.01 / 0.99) ** 0.5
    assert abs(kept[0] - expected) < 5 * expected**0.5


def test_positive_pmi_is_its_definition() -> None:
    counted_embeddings = torch.tensor([[4.0, 0.0, 1.0], [1.0, 2.0, 0.0]])
    contexts = np.array([5.0, 2.0, 1.0]) ** 0.75
    contexts /= contexts.sum()
    expected = np.zeros((2, 3))
    for token, total in enumerate((5, 3)):
        for context in range(3):
            if counted_embeddings[token, context]:
                share = float(counted_embeddings[token, context]) / total
                expected[token, context] = max(0.0, np.log(share / contexts[context]))
    assert np.allclose(positive_pmi(counted_embeddings.clone(), smoothing=0.75).numpy(), expected, atol=1e-6)


def test_the_sparse_one_is_the_dense_one_of_damped_counts() -> None:
    counted_embeddings = torch.tensor([[4.0, 0.0, 1.0], [1.0, 2.0, 0.0]])
    places = counted_embeddings.nonzero().T
    sparse = sparse_positive_pmi(places, counted_embeddings[tuple(places)], size=(2, 3)).to_dense()
    assert torch.allclose(sparse, positive_pmi(counted_embeddings.log1p(), smoothing=1.0), atol=1e-6)


def test_leading_vectors_are_those_of_a_full_decomposition() -> None:
    generator = torch.Generator().manual_seed(0)
    left, right = (torch.linalg.qr(torch.randn(n, 30, generator=generator))[0] for n in (40, 50))
    values = 0.7 ** torch.arange(30.0)
    matrix = (left * values) @ right.T
    found = leading_vectors(matrix, columns=4, seed=1)
    full, singular, _ = torch.linalg.svd(matrix, full_matrices=False)
    expected = full[:, :4] * singular[:4].sqrt()
    assert torch.allclose((found * expected).sum(0).abs(), expected.square().sum(0), rtol=1e-4)
    assert torch.allclose(found.square().sum(0), expected.square().sum(0), rtol=1e-4)


def test_columns_that_a_small_matrix_lacks_are_zero() -> None:
    found = leading_vectors(torch.eye(3), columns=5, seed=0)
    assert found.shape == (3, 5)
    assert not found[:, 3:].any()
    assert found[:, :3].any(0).all()


def _table(rows: int = VOCABULARY, dim: int = 8) -> nn.Embedding:
    torch.manual_seed(0)
    return nn.Embedding(rows, dim)


def test_words_of_like_use_come_to_lie_together_and_absent_tokens_stay(tmp_path: Path) -> None:
    """Tokens 5 and 6 occur in the same contexts, 7 and 8 in others; 9 to 11 do not occur."""
    rng = np.random.default_rng(0)
    groups = (((5, 6), 1), ((7, 8), 2))
    documents = [[[t for _ in range(6) for t in (int(rng.choice(p)), mark)]] for p, mark in groups for _ in range(40)]
    store = store_of(tmp_path, documents)
    table = _table()
    before = table.weight.detach().clone()
    assert CountedEmbeddings(deviation=0.3, subsample=None).fill(table, store, seed=0) == store.num_tokens
    after = table.weight.detach()
    assert torch.equal(after[[0, 3, 4, 9, 10, 11]], before[[0, 3, 4, 9, 10, 11]])
    there = after[[1, 2, 5, 6, 7, 8]]
    assert torch.allclose(there.mean(0), torch.zeros(8), atol=1e-5)
    assert there.std(correction=0).item() == pytest.approx(0.3, rel=1e-4)
    like = nn.functional.cosine_similarity
    assert like(after[5], after[6], dim=0) > 0.5 > like(after[5], after[7], dim=0)


def test_the_same_seed_gives_the_same_numbers(tmp_path: Path) -> None:
    store = store_of(tmp_path, [[[1, 2, 3, 1, 2, 4, 5]] for _ in range(20)])
    tables = [_table() for _ in range(2)]
    for table in tables:
        CountedEmbeddings().fill(table, store, seed=7)
    assert torch.equal(tables[0].weight, tables[1].weight)


def test_values_out_of_range_are_refused_by_name() -> None:
    settings = {"windows": [0], "contexts": 0, "subsample": 0.0, "deviation": -1.0}
    node = {"_target_": "lmtransfer.pretraining.counted_embeddings.CountedEmbeddings", **settings}
    problems = component_problems(node, key="embeddings", nodes={"embeddings": set()}, complete=True)
    assert [key.partition("[")[0] for key in problems] == [f"embeddings.{name}" for name in settings]
    with refuses(ConfigError, "embeddings.windows"):
        CountedEmbeddings(windows=[], documents=False)


def test_output_biases_are_log_frequencies_of_mean_zero() -> None:
    objective = MaskedLanguageModel()
    objective.bind(bert())
    shares = np.zeros(90)
    shares[5:8] = 0.5, 0.3, 0.2
    Start(0, 0.0, shares).fill_head(objective)
    bias = objective.bias.detach().numpy()
    assert bias.mean() == pytest.approx(0, abs=1e-5)
    assert np.allclose(bias[5:8] - bias[5], np.log([1, 0.6, 0.4]), atol=1e-5)
    assert np.allclose(np.delete(bias, [5, 6, 7]) - bias[7], np.log(0.5), atol=1e-5)


def test_a_tiny_text_all_of_whose_tokens_are_frequent_is_counted_all_the_same(tmp_path: Path) -> None:
    store = store_of(tmp_path, [[[1, 2, 3]]])
    table = _table()
    assert CountedEmbeddings(subsample=1e-9).fill(table, store, seed=0) == 3
    assert torch.isfinite(table.weight).all()


def test_a_mixture_is_counted_as_far_as_it_is_sampled(tmp_path: Path) -> None:
    parts = {name: store_of(tmp_path / name, [[[token] * 10] for _ in range(num)]) for name, token, num in PARTS}
    mixed = MixedStore(parts, Sampling(alpha=0.5))
    taken = np.bincount(token_ids(mixed, most_tokens=200))
    sampled = mixed.proportions()
    assert taken[5] == int(200 * sampled["large"])
    assert taken[6] == int(200 * sampled["small"])
    assert len(segment_ids(mixed, most_tokens=200, longest=100)) == taken.sum()


def _char_elmo(vocab_size: int) -> ElmoEncoder:
    torch.manual_seed(0)
    return ElmoEncoder(
        vocab_size=vocab_size, dim=16, num_layers=1, cell_dim=24, char_dim=4, filters=[[1, 8], [3, 24]], num_highway=1
    )


def test_characters_give_the_counted_vectors() -> None:
    """Words with the same ending get the same vector, even unseen ones; the rest of the model stays unchanged."""
    stems, endings = [a + b for a in "bcdfgh" for b in "aeiou"], ("ly", "ness")
    words = [stem + ending for stem in stems for ending in endings]
    encoder, characters = _char_elmo(len(words)), character_ids([*words, "kaly", "kaness"])
    vectors = torch.randn(2, 8, generator=torch.Generator().manual_seed(0)).repeat(len(stems), 1) * 0.05
    others = {name: one.clone() for name, one in encoder.named_parameters() if "projection" not in name}
    shares = np.full(len(words), 1 / len(words))
    assert fit_characters(encoder.characters, characters[: len(words)], vectors, shares) > 0.9
    unseen = encoder.characters(torch.from_numpy(characters[-2:])).detach()
    nearest = torch.cdist(unseen, vectors[:2]).argmin(1)
    assert nearest.tolist() == [0, 1]
    assert len(others) > 5
    assert all(torch.equal(others[name], one) for name, one in encoder.named_parameters() if name in others)
    assert all(one.grad is None for one in encoder.parameters())


def test_the_fit_is_a_weighted_ridge_regression() -> None:
    """Compare with numpy's least squares in float64, with additional rows for the penalty."""
    rng = np.random.default_rng(0)
    words = ["".join(rng.choice(list("abcdef"), size=rng.integers(2, 9))) for _ in range(1500)]  # two parts
    shares, vectors = rng.dirichlet(np.ones(1500)), rng.normal(size=(1500, 8)) * 0.05
    network, characters = _char_elmo(1500).characters, character_ids(words)
    with torch.no_grad():
        features = np.pad(network.features(characters).double().numpy(), ((0, 0), (0, 1)), constant_values=1.0)
    explained = fit_characters(network, characters, torch.from_numpy(vectors).float(), shares)
    roots = shares**0.25  # the square root of the word's weight, which is itself the square root of its share
    weighted = features * roots[:, None]
    penalty = np.sqrt(1e-2 * np.square(weighted).sum(0).mean()) * np.eye(features.shape[1])
    targets = np.concatenate([vectors * roots[:, None], np.zeros((features.shape[1], 8))])
    solution, *_ = np.linalg.lstsq(np.concatenate([weighted, penalty]), targets, rcond=None)
    assert np.allclose(network.projection.weight.detach().numpy(), solution[:-1].T, atol=1e-5)
    assert np.allclose(network.projection.bias.detach().numpy(), solution[-1], atol=1e-5)
    left = np.square((features @ solution - vectors) * roots[:, None]).sum()
    assert explained == pytest.approx(1 - left / np.square(vectors * roots[:, None]).sum(), abs=1e-5)
    assert 0.01 < explained < 0.5


def test_words_that_do_not_occur_have_no_part_in_the_fit() -> None:
    words, vectors = ["one", "two"], torch.tensor([[0.1] * 8, [9.0] * 8])
    network = _char_elmo(2).characters
    fit_characters(network, character_ids(words), vectors, np.array([1.0]))
    found = network(torch.from_numpy(character_ids(words))).detach()
    assert torch.allclose(found[0], vectors[0], atol=0.02)
    assert (found[1] < 1).all()


def test_counting_starts_a_model_of_characters_and_its_output(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    groups = (((5, 6), 1), ((7, 8), 2))
    documents = [[[t for _ in range(6) for t in (int(rng.choice(p)), mark)]] for p, mark in groups for _ in range(40)]
    encoder, characters = _char_elmo(VOCABULARY), character_ids([f"w{number}" * 2 for number in range(VOCABULARY)])
    counts = CountedEmbeddings(deviation=0.3)
    store = store_of(tmp_path, documents)
    start = count_first(counts, encoder, store, characters_VC=characters, seed=0, fresh=True)
    assert start.vectors_VP is not None
    assert start.vectors_VP.shape == (VOCABULARY, 8)
    assert start.explained > 0.7
    found = encoder.characters(torch.from_numpy(characters)).detach()
    wanted = start.vectors_VP[5:9]
    assert torch.cosine_similarity(found[5:9], wanted).min() > 0.7
    objective = BidirectionalLanguageModel()
    objective.bind(encoder)
    start.fill_head(objective)
    assert torch.equal(objective.output.weight.detach(), start.vectors_VP)
    again = count_first(counts, encoder, store, characters_VC=characters, seed=0, fresh=False)
    assert (again.num_tokens, again.vectors_VP) == (0, None)
    assert torch.equal(encoder.characters(torch.from_numpy(characters)).detach(), found)


@pytest.mark.parametrize(
    ("tokens_per_second", "budget", "counted"),
    [(1e6, 60.0, 2000), (10, 200.0, 400), (10, 60.0, 100), (10, 1e4, 2000), (10, 8.0, None)],
    ids=["fast", "some passes", "one pass", "long budget", "no time"],
)
def test_counting_leaves_half_of_a_short_budget(
    tokens_per_second: float, budget: float, counted: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]

    def fill(self: CountedEmbeddings, table: Any, store: Any, *, seed: int, most_tokens: int | None = None) -> int:
        number = min(store.num_tokens, most_tokens or self.max_tokens)
        clock[0] += number / tokens_per_second
        return number

    monkeypatch.setattr(CountedEmbeddings, "fill", fill)
    monkeypatch.setattr("lmtransfer.pretraining.counted_embeddings.perf_counter", lambda: clock[0])
    monkeypatch.setattr("lmtransfer.pretraining.counted_embeddings._FIRST_TOKENS", 100)
    store = store_of(tmp_path, [[[5, 6, 7, 8] * 5] for _ in range(100)])
    refusal = refuses(ConfigError, f"train.seconds={budget:g}", "embeddings=null") if counted is None else nullcontext()
    with refusal:
        start = count_first(CountedEmbeddings(), bert(), store, characters_VC=None, seed=0, fresh=True, budget=budget)
        assert (start.num_tokens, start.cut) == (counted, counted != store.num_tokens)
