"""All-tokens masked language modeling: losses and gradients against dense probabilities."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from fakes.objectives import TOKENIZER, electra, perturbed
from torch import Tensor, nn

from lmtransfer.data.batch import pack
from lmtransfer.data.token_shards import TokenStore
from lmtransfer.objectives.corruption.masking import TokenMasking
from lmtransfer.objectives.learner import PretrainingLearner
from lmtransfer.objectives.replaced_token import AllTokensMaskedLanguageModel, copy_or_softmax
from lmtransfer.objectives.rows.stream import FullSentences
from lmtransfer.objectives.source import PretrainingSource


def learner_of(**changes: Any) -> PretrainingLearner:
    """Return a learner in float64 whose gate copies about half of the tokens."""
    learner = perturbed(PretrainingLearner(electra(), [AllTokensMaskedLanguageModel(**changes)]))
    torch.nn.init.normal_(learner.objectives["all_tokens_mlm"].gate.weight)
    return learner.double()


def dense(learner: PretrainingLearner, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the gate, the softmax and the distribution at each position of a row by the formula."""
    head: Any = learner.objectives["all_tokens_mlm"]
    embedding = learner.encoder.token_embedding
    assert embedding is not None
    states = learner.encoder(pack([tokens.numpy()])).last
    gate = 1 / (1 + torch.exp(-(states @ head.gate.weight[0] + head.gate.bias[0])))
    hidden = nn.functional.gelu(states @ head.head.dense.weight.T + head.head.dense.bias)
    norm = head.head.norm
    hidden = nn.functional.layer_norm(hidden, norm.normalized_shape, norm.weight, norm.bias, 1e-12)
    scores = torch.exp(hidden @ embedding.weight.T + head.head.bias)
    softmax = scores / scores.sum(1, keepdim=True)
    copied = nn.functional.one_hot(tokens, len(embedding.weight)).double()
    return gate, softmax, gate[:, None] * copied + (1 - gate[:, None]) * softmax


@pytest.mark.parametrize(("sharing", "capacity"), [("tied", None), ("disentangled", 320)])
def test_losses_and_gradients_are_those_of_dense_probabilities(
    store: TokenStore, sharing: str, capacity: int | None
) -> None:
    learner = learner_of(embedding_sharing=sharing)
    source = PretrainingSource(
        store=store,
        rows=FullSentences(max_length=32, tokenizer=TOKENIZER),
        corruption=TokenMasking(mask_share=0.85, random_share=0.0, tokenizer=TOKENIZER),
        seed=0,
        output_positions={"masked"},
        capacity=capacity,
    )
    batch = source.build(0, source.plan(0), range(6))
    assert (batch.inputs.num_real < batch.inputs.num_sequences) == (capacity is not None)
    seen: list[Tensor] = []
    hook = learner.encoder.register_forward_pre_hook(lambda _, arguments: seen.append(arguments[0].tokens_T))
    losses, _ = learner.losses(batch)
    hook.remove()
    (read,) = seen
    ours = dict(zip(*_gradients(learner, losses["all_tokens_mlm"].sum), strict=True))

    edges, names = batch.inputs.cu_seqlens.tolist(), ("accuracy", "precision", "recall", "base_rate")
    sums, counts = dict.fromkeys(names, 0.0), dict.fromkeys(names, 0.0)
    total = torch.zeros((), dtype=torch.float64)
    for row in range(batch.inputs.num_real):
        part = slice(edges[row], edges[row + 1])
        tokens, original = read[part], batch.original.tokens_T[part]
        gate, softmax, mixed = dense(learner, tokens)
        torch.testing.assert_close(mixed.sum(1), torch.ones(len(tokens), dtype=torch.float64))
        total = total - mixed[torch.arange(len(tokens)), original].log().sum()
        for place in range(len(tokens)):
            told, replaced = gate[place] < 0.5, tokens[place] != original[place]
            predicted = softmax[place].argmax() if told else tokens[place]
            sums["accuracy"] += float(predicted == original[place])
            counts["accuracy"] += 1
            sums["precision"] += float(told and replaced)
            counts["precision"] += float(told)
            sums["recall"] += float(told and replaced)
            counts["recall"] += float(replaced)
            sums["base_rate"] += float(replaced)
            counts["base_rate"] += 1
    assert 0 < sums["precision"] < counts["precision"]
    assert losses["all_tokens_mlm"].sum.item() == pytest.approx(total.item(), rel=1e-10)
    assert losses["all_tokens_mlm"].count == counts["accuracy"] == sum(batch.inputs.lengths[:6])
    for name in names:
        found = losses[f"all_tokens_mlm_{name}"]
        assert (found.sum.item(), float(found.count), found.weight) == (sums[name], counts[name], 0.0)
    theirs = dict(zip(*_gradients(learner, total), strict=True))
    assert ours.keys() == theirs.keys()
    assert any(name.startswith("objectives.all_tokens_mlm.gate") for name in ours)
    assert not [name for name in ours if ".generator" in name]
    for name, gradient in ours.items():
        torch.testing.assert_close(gradient, theirs[name], rtol=1e-8, atol=1e-10)


def _gradients(learner: PretrainingLearner, total: Tensor) -> tuple[list[str], list[Tensor]]:
    names, parameters = zip(*learner.named_parameters(), strict=True)
    found = torch.autograd.grad(total, parameters, allow_unused=True)
    pairs = [(name, g) for name, g in zip(names, found, strict=True) if g is not None]
    return [name for name, _ in pairs], [g for _, g in pairs]


def test_the_gate_alone_in_closed_form() -> None:
    gate = torch.tensor([0.0, 0.0, 3.0, -3.0, 200.0, -200.0, 200.0], dtype=torch.float64, requires_grad=True)
    softmax = torch.tensor([0.25, 0.25, 0.1, 0.1, 1e-30, 1e-30, 0.5], dtype=torch.float64)
    same = torch.tensor([True, False, True, False, True, True, False])
    found = copy_or_softmax(gate, -softmax.log(), same)
    high = 1 / (1 + torch.exp(torch.tensor(-3.0, dtype=torch.float64)))
    wanted = torch.tensor([0.5 + 0.5 * 0.25, 0.5 * 0.25, high + (1 - high) * 0.1, high * 0.1, 1.0, 1e-30, 0.0])
    torch.testing.assert_close(found[:6], -wanted[:6].double().log(), rtol=1e-6, atol=1e-7)
    assert found[6].item() == pytest.approx(200 + torch.tensor(2.0).log().item())  # no underflow to infinity
    found.sum().backward()
    assert gate.grad is not None
    assert gate.grad.isfinite().all()
