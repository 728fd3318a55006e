"""ELECTRA and the modern encoder learn 32 rows by heart."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes.objectives import NumberTokenizer, electra, modern, random_documents, store_of
from torch import nn

from lmtransfer.objectives.batch import PretrainingBatch
from lmtransfer.objectives.corruption.token_masking import TokenMasking
from lmtransfer.objectives.learner import PretrainingLearner
from lmtransfer.objectives.masked_lm import MaskedLanguageModel
from lmtransfer.objectives.replaced_token import ReplacedTokenDetection
from lmtransfer.objectives.rows.full_sentences import FullSentences
from lmtransfer.objectives.source import PretrainingSource

TOKENIZER = NumberTokenizer()
ENCODERS: dict[str, Callable[..., Any]] = {
    "electra": lambda: electra(embedding_dim=32, dim=32, hidden_dim=64, norm="pre"),
    "modern": lambda: modern(dim=32, hidden_dim=64),
}


def _batches(folder: Path, *, num_epochs: int) -> list[PretrainingBatch]:
    """32 rows with as many maskings."""
    source = PretrainingSource(
        store=store_of(folder / "s", random_documents(60)),
        rows=FullSentences(max_length=24, tokenizer=TOKENIZER),
        corruption=TokenMasking(mask_share=0.85, random_share=0.0, tokenizer=TOKENIZER),
        seed=0,
        output_positions={"masked"},
    )
    plan = source.plan(0)
    return [source.build(epoch, plan, range(32)) for epoch in range(num_epochs)]


def _learn(learner: PretrainingLearner, batches: list[PretrainingBatch], done: dict[str, Any]) -> dict[str, float]:
    """The mean losses and metrics over all maskings once each is past its bound, or at the end."""
    optimizer = torch.optim.AdamW(learner.parameters(), lr=1e-2, weight_decay=0.0)
    means: dict[str, float] = {}
    for _ in range(300):
        sums: dict[str, float] = {}
        for batch in batches:
            losses, _ = learner.losses(batch)
            optimizer.zero_grad()
            trained = [loss for loss in losses.values() if loss.weight]
            torch.stack([loss.weight * loss.sum / loss.count for loss in trained]).sum().backward()
            nn.utils.clip_grad_norm_(learner.parameters(), 1.0)
            optimizer.step()
            for kind, loss in losses.items():
                sums[kind] = sums.get(kind, 0.0) + loss.sum.item() / max(1.0, float(loss.count)) / len(batches)
        means = sums
        if all(is_learnt(means[kind]) for kind, is_learnt in done.items()):
            break
    return means


@pytest.mark.parametrize("name", ENCODERS)
def test_generator_and_discriminator_learn_by_heart(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    learner = PretrainingLearner(ENCODERS[name](), [ReplacedTokenDetection(generator_size=1.0)])  # type: ignore[list-item]
    # Of 300 rounds at most: 81 to 116 with AVX512 and with AVX2.
    bounds = {
        "generator_mlm": lambda mean: mean < 0.1,
        "generator_accuracy": lambda mean: mean > 0.95,
        "rtd": lambda mean: mean < 0.02,
        "rtd_accuracy": lambda mean: mean > 0.99,
    }
    means = _learn(learner, _batches(tmp_path, num_epochs=1), bounds)
    assert all(is_learnt(means[kind]) for kind, is_learnt in bounds.items()), means


@pytest.mark.parametrize("name", ENCODERS)
def test_a_discriminator_finds_what_an_untrained_generator_puts_into_rows_it_knows(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    objective = ReplacedTokenDetection(generator_weight=0.0)
    learner = PretrainingLearner(ENCODERS[name](), [objective])  # type: ignore[list-item]
    objective.generator.requires_grad_(False)
    objective.generator_head.requires_grad_(False)
    batches = _batches(tmp_path, num_epochs=6)
    # Of 300 rounds at most: ten seeds with AVX512 and with AVX2 need 24 to 42 with electra, seven 39 to 76 with modern.
    bounds = {"rtd_accuracy": lambda mean: mean > 0.95, "rtd_recall": lambda mean: mean > 0.8}
    means = _learn(learner, batches, bounds)
    assert means["rtd_replaced"] > 0.9
    assert means["rtd_accuracy"] > 0.95  # telling nothing would be 0.85
    assert means["rtd_recall"] > 0.7
    assert means["rtd_precision"] > 0.8


def test_the_modern_encoder_learns_masked_tokens_by_heart(tmp_path: Path) -> None:
    torch.manual_seed(0)
    learner = PretrainingLearner(modern(dim=32, hidden_dim=64), [MaskedLanguageModel()])  # type: ignore[list-item]
    means = _learn(learner, _batches(tmp_path, num_epochs=1), {"mlm": lambda mean: mean < 0.1})
    assert means["mlm"] < 0.1
    assert means["mlm_accuracy"] > 0.95
