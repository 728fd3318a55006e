"""The token embedding of an encoder as a separate encoder, and its standardization."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from lmtransfer.data.batch import pack
from lmtransfer.models.albert import AlbertEncoder
from lmtransfer.models.word_embeddings import TokenVectors, standardize


def _albert() -> AlbertEncoder:
    torch.manual_seed(0)
    return AlbertEncoder(
        vocab_size=50, dim=16, embedding_dim=8, num_layers=1, num_heads=2, hidden_dim=16, max_length=12, num_segments=2
    )


def test_it_reads_the_table_of_the_encoder_and_nothing_else() -> None:
    whole = _albert()
    vectors = TokenVectors(whole)
    assert (vectors.dim, vectors.vocab_size, vectors.max_length, vectors.attention) == (8, 50, 12, "none")
    batch = pack([np.array([3, 7, 7]), np.array([11])])
    output = vectors(batch)
    assert torch.equal(output.last, whole.token_embedding.weight[batch.tokens_T])
    output.last.sum().backward()
    learned = [name for name, parameter in whole.named_parameters() if parameter.grad is not None]
    assert len(learned) == 1
    # The whole encoder is saved, each tensor once.
    assert {name.removeprefix("whole.") for name in vectors.state_dict()} == set(whole.state_dict())


@pytest.mark.parametrize(("centre", "deviation"), [(True, 0.02), (False, 0.5), (True, None), (False, None)])
def test_a_table_is_centred_and_scaled(centre: bool, deviation: float | None) -> None:
    torch.manual_seed(0)
    table = nn.Embedding(300, 7)
    nn.init.normal_(table.weight, mean=0.3, std=2.0)
    before = table.weight.detach().double().numpy().copy()
    standardize(table, center=centre, deviation=deviation)
    expected = before - before.mean(axis=0) if centre else before
    if deviation is not None:
        expected = expected * deviation / np.sqrt(((expected - expected.mean()) ** 2).mean())
    after = table.weight.detach().double().numpy()
    np.testing.assert_allclose(after, expected, rtol=1e-6, atol=1e-7)
    assert table.weight.requires_grad


def test_a_table_of_equal_vectors_stays_finite() -> None:
    table = nn.Embedding(5, 3)
    nn.init.ones_(table.weight)
    standardize(table, center=True, deviation=0.02)
    assert torch.equal(table.weight, torch.zeros(5, 3))
