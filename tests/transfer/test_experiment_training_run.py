"""Finetuning only the word vectors in use, compared with finetuning all of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from fakes.tasks import bert, labels_head, random_examples
from torch import nn

from lmtransfer.tasks.source import TaskSource
from lmtransfer.training.optim.optimizers import AdamW, Lamb, Muon, Optimizer
from lmtransfer.training.weights import load_weights, num_parameters, weights
from lmtransfer.transfer.experiment.training_run import UsedRows, train_used_rows
from lmtransfer.transfer.learner import TaskLearner
from lmtransfer.transfer.method import TransferMethod

SOURCE = TaskSource(random_examples(24))
OPTIMIZERS = {
    "adamw": lambda learner: AdamW(learner=learner, learning_rate=0.01),
    "published adam": lambda learner: AdamW(learner=learner, learning_rate=0.01, bias_correction=False),
    "muon": lambda learner: Muon(learner=learner),
    "lamb": lambda learner: Lamb(learner=learner, no_decay=("norm", "bias", "embedding")),
}


def _learner(*, used_only: bool) -> TaskLearner:
    learner = TransferMethod(freeze="full", dropout=0.0).learner(bert(dropout=0.0), head=labels_head(2), seed=0)
    if used_only:
        assert train_used_rows(learner.encoder, SOURCE.encoded.tokens_T)
    learner.arrange(SOURCE.build(0, SOURCE.plan(0), [0]))
    return learner.train()


def _step(learner: TaskLearner, optimizer: Optimizer, step: int) -> float:
    losses, _ = learner.losses(SOURCE.build(0, SOURCE.plan(0), [(7 * step + i) % 24 for i in range(6)]))
    loss = losses["classification"].sum / losses["classification"].count
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(optimizer.parameters, 0.5)
    optimizer.step()
    return loss.item()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training_the_rows_in_use_equals_training_all(name: str) -> None:
    every, some = _learner(used_only=False), _learner(used_only=True)
    optimizers = [OPTIMIZERS[name](learner) for learner in (every, some)]
    for step in range(6):
        losses = [_step(learner, optimizer, step) for learner, optimizer in zip((every, some), optimizers, strict=True)]
        assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    before = weights(bert(dropout=0.0))["embeddings.token.weight"]
    theirs, ours = weights(every), weights(some)
    assert set(theirs) == set(ours)
    for key in theirs:
        torch.testing.assert_close(ours[key], theirs[key], atol=2e-5, rtol=2e-4)
    moved = (ours["encoder.embeddings.token.weight"] != before).any(1).numpy()
    assert set(np.flatnonzero(moved)) == set(SOURCE.encoded.tokens_T.tolist())
    assert num_parameters(some) == num_parameters(every) == sum(p.numel() for p in every.parameters())


def test_other_words_are_read_from_the_table_once_nothing_is_learnt() -> None:
    learner = _learner(used_only=True)
    optimizer = AdamW(learner=learner, learning_rate=0.01)
    _step(learner, optimizer, 0)
    table = learner.encoder.token_embedding
    assert isinstance(table, UsedRows)
    ids = torch.arange(128)
    with torch.no_grad():
        everything = table(ids)
        torch.testing.assert_close(everything[table.used_U], table.rows, rtol=0, atol=0)
    assert torch.equal(everything, weights(learner)["encoder.embeddings.token.weight"])
    with pytest.raises(IndexError):
        table(torch.tensor([127]))  # not in use: training on it would lose its gradient


def test_weights_that_are_loaded_reach_the_rows() -> None:
    learner, other = _learner(used_only=True), _learner(used_only=False)
    optimizer = AdamW(learner=learner, learning_rate=0.01)
    _step(learner, optimizer, 0)
    load_weights(learner, weights(other))
    batch = SOURCE.build(0, SOURCE.plan(0), range(6))
    torch.testing.assert_close(learner.logits(batch), other.logits(batch), rtol=0, atol=0)
    for name, tensor in weights(learner).items():
        assert torch.equal(tensor, weights(other)[name]), name
    _step(learner, optimizer, 1)
    assert not torch.equal(
        weights(learner)["encoder.embeddings.token.weight"], weights(other)["encoder.embeddings.token.weight"]
    )


def test_a_table_of_which_most_is_in_use_is_left_alone() -> None:
    encoder = bert()
    assert not train_used_rows(encoder, np.arange(120))
    assert type(encoder.token_embedding) is nn.Embedding
    encoder.token_embedding.requires_grad_(False)
    assert not train_used_rows(encoder, np.arange(5))


def test_decay_is_told_of_trained_parameters_only() -> None:
    learner = _learner(used_only=False)
    table = learner.encoder.token_embedding
    assert AdamW(learner=learner).decay_of(table.weight) == 0.0
    assert AdamW(learner=learner, no_decay=("norm",)).decay_of(table.weight) == 0.01
    table.requires_grad_(False)
    assert AdamW(learner=learner).decay_of(table.weight) is None
