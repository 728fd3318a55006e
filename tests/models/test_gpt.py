"""Bi-GPT: the tokens that each half sees, and the backward half as a causal GPT on the reversed text."""

from __future__ import annotations

import copy

import numpy as np
import torch
from support.refusals import refuses

from lmtransfer.data.batch import pack
from lmtransfer.errors import ConfigError
from lmtransfer.models.base import OutputPositions
from lmtransfer.models.gpt import BiGptEncoder
from lmtransfer.objectives.language_model import BidirectionalLanguageModel
from lmtransfer.objectives.learner import PretrainingLearner
from lmtransfer.training.weights import aliases

LENGTHS = [9, 33, 1, 12, 12, 40, 2]


def bi_gpt(seed: int = 0) -> BiGptEncoder:
    torch.manual_seed(seed)
    encoder = BiGptEncoder(
        vocab_size=90, dim=32, num_layers=3, num_heads=2, hidden_dim=24, max_length=40, dropout=0.0
    ).eval()
    for parameter in encoder.parameters():
        parameter.data.add_(0.1 * torch.randn_like(parameter))
    return encoder


def rows() -> list[np.ndarray]:
    rng = np.random.default_rng(1)
    return [rng.integers(0, 90, n) for n in LENGTHS]


@torch.no_grad()
def test_each_half_is_a_causal_gpt_the_second_on_the_reversed_text() -> None:
    encoder = bi_gpt()
    output = encoder(pack(rows()))
    forward = encoder.forwards(pack(rows())).layers
    backward = encoder.backwards(pack([row[::-1].copy() for row in rows()])).layers
    assert len(output.layers) == 4
    for layer, ahead, reversed_back in zip(output.layers, forward, backward, strict=True):
        back = torch.cat([part.flip(0) for part in reversed_back.split(LENGTHS)])
        torch.testing.assert_close(layer, torch.cat([ahead, back], dim=1), atol=1e-6, rtol=1e-6)


@torch.no_grad()
def test_a_half_sees_the_token_and_one_side_of_it() -> None:
    encoder = bi_gpt()
    tokens = rows()[1]
    before = encoder(pack([tokens])).layers
    for edited in (0, 7, 32):
        changed = tokens.copy()
        changed[edited] = (changed[edited] + 5) % 90
        for layer, (old, new) in enumerate(zip(before, encoder(pack([changed])).layers, strict=True)):
            differs = (old != new).view(33, 2, 16).any(-1)
            seen_by = np.arange(33) == edited
            if layer:
                assert differs[:, 0].tolist() == (np.arange(33) >= edited).tolist()
                assert differs[:, 1].tolist() == (np.arange(33) <= edited).tolist()
            else:
                assert differs.all(1).tolist() == seen_by.tolist()


def test_no_prediction_of_bilm_sees_its_target() -> None:
    """Compute the gradient of the states at a position, in each direction, with respect to all token embeddings."""
    encoder = bi_gpt()
    embedded: list[torch.Tensor] = []
    for half in (encoder.forwards, encoder.backwards):
        half.embeddings.register_forward_hook(lambda _, __, out: embedded.append(out.detach().requires_grad_()) or out)
    tokens = rows()[3]
    for place in (0, 5, 11):
        embedded.clear()
        hooks = [
            half.embeddings.register_forward_hook(lambda _, __, out: embedded[-1])
            for half in (encoder.forwards, encoder.backwards)
        ]
        last = encoder(pack([tokens])).last
        for hook in hooks:
            hook.remove()
        last[place].sin().sum().backward()
        ahead = embedded[0].grad.abs().sum(1) > 0
        back = embedded[1].grad.abs().sum(1).flip(0) > 0
        assert ahead.tolist() == [t <= place for t in range(12)]  # not the next token, t + 1
        assert back.tolist() == [t >= place for t in range(12)]  # not the previous token


def test_reads_select_and_the_embedding_is_one() -> None:
    encoder = bi_gpt()
    batch = pack(rows())
    output_positions = OutputPositions.of(np.array([0, 8, 20, 60, 106]), batch.cu_seqlens.numpy())
    torch.testing.assert_close(
        encoder(batch, output_positions=output_positions).last, encoder(batch).last[output_positions.positions_N]
    )
    learner = PretrainingLearner(encoder, [BidirectionalLanguageModel()])
    for module in (learner, copy.deepcopy(learner)):
        assert aliases(module) == {
            "encoder.backwards.embeddings.token.weight": "encoder.forwards.embeddings.token.weight"
        }
    assert learner.objectives["bilm"].output.own is None  # the output matrix is the token embedding
    assert encoder.token_embedding.weight.shape == (90, 16)


def test_a_width_that_does_not_halve_is_refused() -> None:
    with refuses(ConfigError, "model.dim=36", "model.num_heads=4", " 8"):
        BiGptEncoder(vocab_size=9, dim=36, num_layers=1, num_heads=4, hidden_dim=8)
