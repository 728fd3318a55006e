"""CBOW and skip-gram: windows, noise words, and losses against loops over words; static vectors in transfer."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fakes.objectives import NUM_PIECES, TOKENIZER, bert, random_documents, row_of, store_of
from support.refusals import refuses
from torch import Tensor
from torch.nn.functional import softplus

from lmtransfer.errors import ConfigError
from lmtransfer.models.word_embeddings import WordEmbeddings
from lmtransfer.objectives.batch import PretrainingBatch
from lmtransfer.objectives.compatibility import check_compatible
from lmtransfer.objectives.corruption.masking import NoCorruption
from lmtransfer.objectives.corruption.windows import ContextWindows, Quantiles
from lmtransfer.objectives.learner import PretrainingLearner, collect_output_positions
from lmtransfer.objectives.masked_lm import MaskedLanguageModel
from lmtransfer.objectives.rows.stream import LanguageStream
from lmtransfer.objectives.source import PretrainingSource
from lmtransfer.objectives.word_vectors import ContinuousBagOfWords, SkipGram
from lmtransfer.tasks.heads import ClassificationSpec
from lmtransfer.transfer.method import TransferMethod

OBJECTIVES: dict[str, Any] = {"cbow": ContinuousBagOfWords, "skipgram": SkipGram}


def source_of(folder: Path, **changes: Any) -> PretrainingSource:
    settings = {"window": 3, "num_negatives": 4, **changes}
    return PretrainingSource(
        store=store_of(folder / "s", random_documents(60)),
        rows=LanguageStream(max_length=24, frame="none", tokenizer=TOKENIZER),
        corruption=ContextWindows(**settings, tokenizer=TOKENIZER),
        seed=0,
        output_positions=collect_output_positions([SkipGram()]),
    )


def learner_of(name: str, dim: int = 16) -> PretrainingLearner:
    learner = PretrainingLearner(WordEmbeddings(vocab_size=96, dim=dim), [OBJECTIVES[name]()])
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in learner.parameters():
            parameter.normal_(std=0.5)
    return learner


def contexts_by_hand(batch: PretrainingBatch) -> list[tuple[int, list[int], list[int]]]:
    """Return each word with its context words and its noise words, row by row."""
    edges, found = batch.original.cu_seqlens.tolist(), []
    names = sorted(name for name in batch.per_token if name.startswith("negative_"))
    for b in range(batch.original.num_real):
        part = range(edges[b], edges[b + 1])
        tokens = batch.original.tokens_T
        left, right = batch.per_token["context_left"], batch.per_token["context_right"]
        kept = [t for t in part if left[t] + right[t] > 0]
        for place, t in enumerate(kept):
            around = kept[place - int(left[t]) : place] + kept[place + 1 : place + 1 + int(right[t])]
            assert len(around) == left[t] + right[t]
            noise = [int(batch.per_token[name][t]) for name in names]
            found.append((int(tokens[t]), [int(tokens[u]) for u in around], noise))
    return found


def loss_by_hand(name: str, batch: PretrainingBatch, input_VD: Tensor, output_VD: Tensor) -> tuple[Tensor, int, int]:
    """Compute sum, count and hits word by word."""
    total, count, hits = torch.zeros(()), 0, 0
    for word, around, noise in contexts_by_hand(batch):
        pairs = [(input_VD[word], other) for other in around]
        if name == "cbow":
            pairs = [(input_VD[around].mean(0), word)]
        for vector, target in pairs:
            score = vector @ output_VD[target]
            rivals = [vector @ output_VD[other] for other in noise if other != target]
            total = total + softplus(-score) + sum(softplus(rival) for rival in rivals)
            count += 1
            hits += all(score > vector @ output_VD[other] for other in noise if name != "cbow" or other != target)
    return total, count, hits


@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize("subsample", [None, 0.005])
def test_losses_and_gradients_equal_a_loop_over_words(name: str, subsample: float | None, tmp_path: Path) -> None:
    source, learner = source_of(tmp_path, subsample=subsample), learner_of(name)
    source.corruption.set_frequencies(np.arange(96) / np.arange(96).sum())  # type: ignore[attr-defined]
    source.few_shapes = True  # filler
    batch = source.build(0, source.plan(0), [4, 1, 7, 2])
    losses, _ = learner.losses(batch)
    weights = (learner.encoder.token_embedding.weight, learner.objectives[name].output.weight)
    ours = torch.autograd.grad(losses[name].sum, weights)
    total, count, hits = loss_by_hand(name, batch, *weights)
    theirs = torch.autograd.grad(total, weights)
    assert losses[name].sum.item() == pytest.approx(total.item(), rel=1e-5)
    assert losses[name].count == count == learner.counts(batch)[name]
    assert losses[f"{name}_accuracy"].sum.item() == hits
    for local, reference in zip(ours, theirs, strict=True):
        torch.testing.assert_close(local, reference, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_nothing_is_known_at_first_and_a_row_of_one_word_is_a_loss_of_nothing(name: str, tmp_path: Path) -> None:
    learner = PretrainingLearner(WordEmbeddings(vocab_size=96, dim=16), [OBJECTIVES[name]()])
    source = source_of(tmp_path)
    source.corruption.set_frequencies(np.eye(96)[5])  # type: ignore[attr-defined]  # noise is never what is predicted, but for 5
    batch = source.build(0, source.plan(0), range(8))
    fives = sum(len(around) if name == "cbow" else 0 for word, around, _ in contexts_by_hand(batch) if word == 5)
    loss = learner.losses(batch)[0][name]
    assert loss.sum.item() / loss.count == pytest.approx(
        5 * math.log(2), rel=0.05 if fives or name == "skipgram" else 0.02
    )
    lone = PretrainingSource(
        store=store_of(tmp_path / "lone", [[[5]], [[6]]]),
        rows=source.rows,
        corruption=source.corruption,
        seed=0,
    )
    losses, _ = learner.losses(lone.build(0, lone.plan(0), [0]))
    assert losses[name].count == 0
    assert losses[name].sum.item() == 0
    losses[name].sum.backward()


def test_windows_are_drawn_alike_and_end_at_borders() -> None:
    corruption = ContextWindows(window=4, num_negatives=1, tokenizer=TOKENIZER)
    tokens = np.full(100_009, 10)
    tokens[50_000] = 2
    numbers = corruption.corrupt(row_of(tokens), np.random.default_rng(0)).per_token
    left, right = numbers["context_left"], numbers["context_right"]
    assert left[50_000] == right[50_000] == 0
    assert left[0] == left[50_001] == right[49_999] == right[-1] == 0
    assert left[[1, 2, 50_002]].tolist() == [1, min(2, right[2]), 1]
    inner = np.r_[4:49_996, 50_005:100_005]
    assert np.array_equal(left[inner], right[inner])
    assert np.bincount(left[inner])[1:] / len(inner) == pytest.approx(np.full(4, 0.25), abs=0.005)


def test_unknown_and_left_out_words_are_taken_out_before_windows_are_made() -> None:
    corruption = ContextWindows(window=1, num_negatives=1, tokenizer=TOKENIZER)
    numbers = corruption.corrupt(row_of([10, 0, 11, 2, 12, 1, 13, 14]), np.random.default_rng(0)).per_token
    assert numbers["context_right"].tolist() == [1, 0, 0, 0, 0, 0, 1, 0]
    assert numbers["context_left"].tolist() == [0, 0, 1, 0, 0, 0, 0, 1]


def test_frequent_words_are_left_out_as_often_as_the_paper_says() -> None:
    corruption = ContextWindows(window=1, num_negatives=1, subsample=0.01, tokenizer=TOKENIZER)
    shares = np.zeros(96)
    shares[[10, 11, 12]] = [0.64, 0.04, 0.002]
    corruption.set_frequencies(shares)
    tokens = np.tile([10, 11, 12], 40_000)
    numbers = corruption.corrupt(row_of(tokens), np.random.default_rng(0)).per_token
    kept = (numbers["context_left"] + numbers["context_right"] > 0).reshape(-1, 3).mean(0)
    assert kept == pytest.approx([math.sqrt(0.01 / 0.64), math.sqrt(0.01 / 0.04), 1.0], abs=0.006)


@pytest.mark.parametrize("size", [1, 3, 500, 100_000])
def test_quantiles_are_those_of_a_binary_search(size: int) -> None:
    rng = np.random.default_rng(size)
    shares = np.where(rng.random(size) < 0.3, 0.0, rng.random(size) ** 8)
    shares[-1] = 0.1  # the last id can be sampled
    cumulative = np.cumsum(shares) / shares.sum()
    uniform = np.concatenate(
        [rng.random((7, 300)), np.tile(cumulative[: min(size, 300) - 1], (7, 1)), np.zeros((7, 1))], 1
    )
    np.testing.assert_array_equal(Quantiles(cumulative)(uniform), cumulative.searchsorted(uniform, side="right"))


def test_noise_follows_frequency_to_the_three_quarters() -> None:
    corruption = ContextWindows(num_negatives=5, tokenizer=TOKENIZER)
    rng = np.random.default_rng(0)
    shares = rng.random(NUM_PIECES) ** 4  # larger ids do not occur
    shares[[7, 50]] = 0
    corruption.set_frequencies(shares / shares.sum())
    numbers = corruption.corrupt(row_of(rng.integers(4, NUM_PIECES, 40_000)), np.random.default_rng(0)).per_token
    drawn = np.concatenate([numbers[f"negative_{k}"] for k in range(5)])
    assert len(drawn) == 200_000
    expected = np.where(np.arange(96) < 4, 0, np.pad(shares, (0, 6)) ** 0.75)
    expected /= expected.sum()
    found = np.bincount(drawn, minlength=96)
    assert not found[[0, 1, 2, 3, 7, 50, *range(NUM_PIECES, 96)]].any()
    likely = expected > 0
    deviations = (found[likely] - 200_000 * expected[likely]) / np.sqrt(200_000 * expected[likely])
    assert np.abs(deviations).max() < 4
    assert np.square(deviations).mean() == pytest.approx(1, abs=0.4)
    assert abs(np.corrcoef(numbers["negative_0"], numbers["negative_1"])[0, 1]) < 0.02


def test_skip_gram_reaches_the_best_loss_there_is(tmp_path: Path) -> None:
    """With more dimensions than words, all scores are independent, so the optimal loss is a sum of binary entropies."""
    source = source_of(tmp_path, num_negatives=2)
    batch = source.build(0, source.plan(0), range(32))
    seen: dict[tuple[int, int], Counter[bool]] = {}
    for word, around, noise in contexts_by_hand(batch):
        for other in around:
            seen.setdefault((word, other), Counter())[True] += 1
            for drawn in noise:
                if drawn != other:
                    seen.setdefault((word, drawn), Counter())[False] += 1
    best = 0.0
    for counts in seen.values():
        n, shares = counts.total(), [c / counts.total() for c in counts.values()]
        best -= n * sum(share * math.log(share) for share in shares)
    learner = learner_of("skipgram", dim=96)
    optimizer = torch.optim.Adam(learner.parameters(), lr=0.03)
    for _ in range(200):
        loss = learner.losses(batch)[0]["skipgram"]
        optimizer.zero_grad()
        (loss.sum / loss.count).backward()
        optimizer.step()
    assert best < loss.sum.item() < 1.03 * best


def test_static_vectors_know_no_context_and_have_one_layer() -> None:
    encoder = WordEmbeddings(vocab_size=96, dim=8)
    assert encoder.token_embedding.weight.abs().max() <= 0.5 / 8
    assert encoder.token_embedding.weight.std().item() == pytest.approx(1 / 8 / math.sqrt(12), rel=0.1)
    assert encoder.num_layers == 0


@pytest.mark.parametrize("pooling", ["cls", "last_token"])
def test_one_token_of_static_vectors_is_refused(pooling: str) -> None:
    with refuses(ConfigError, f"transfer.pooling={pooling}", "static"):
        TransferMethod(freeze="frozen", pooling=pooling).learner(  # type: ignore[arg-type]
            WordEmbeddings(vocab_size=96, dim=8), head=ClassificationSpec(2), seed=0
        )


def test_what_does_not_fit_is_refused() -> None:
    static, rows = (
        WordEmbeddings(vocab_size=96, dim=8),
        LanguageStream(max_length=24, frame="none", tokenizer=TOKENIZER),
    )
    with refuses(ConfigError, "objective=mlm", "bidirectional", "none", "cbow, skipgram"):
        MaskedLanguageModel().bind(static)
    with refuses(ConfigError, "objective=skipgram", "none", "model.attention", "bidirectional"):
        SkipGram().bind(bert())
    with refuses(ConfigError, "losses.cbow", "context_left", "objective/corruption=windows"):
        check_compatible(encoder=static, objectives=[ContinuousBagOfWords()], rows=rows, corruption=NoCorruption())
    windows = ContextWindows(tokenizer=TOKENIZER)
    check_compatible(encoder=static, objectives=[ContinuousBagOfWords(), SkipGram()], rows=rows, corruption=windows)
