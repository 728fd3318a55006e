"""``pooling=family``: the classification heads of the papers and their published code."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from fakes.tasks import bert, gpt, labels_head, random_examples
from support.refusals import refuses
from torch import nn
from torch.nn import functional

from lmtransfer.errors import ConfigError
from lmtransfer.models.base import Encoder, EncoderOutput, FamilyHead
from lmtransfer.tasks.source import TaskSource
from lmtransfer.transfer.learner import TaskLearner
from lmtransfer.transfer.method import TransferMethod

SOURCE = TaskSource(random_examples(23))
BATCH = SOURCE.build(0, SOURCE.plan(0), range(7))


class _Encoder(Encoder):
    """An encoder of any family and direction, with or without a pooler, whose states differ by position."""

    def __init__(self, head: FamilyHead, *, attention: str = "bidirectional", pooler: bool = False) -> None:
        super().__init__(dim=6, num_layers=2, max_length=32, vocab_size=128)
        torch.manual_seed(0)
        self.family_head, self.attention = head, attention
        self.token_embedding = nn.Embedding(128, 6)
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(2))
        self.pooler = nn.Linear(6, 6) if pooler else None

    def forward(self, batch, recurrent_state=None, output_positions=None):
        outputs = [self.token_embedding(batch.tokens_T) + batch.positions_T[:, None] / 7]
        for layer in self.layers:
            outputs.append(torch.tanh(layer(outputs[-1])))
        if output_positions is not None:
            outputs[-1] = outputs[-1][output_positions.positions_N]
        return EncoderOutput(tuple(outputs))


def _learner(encoder: nn.Module, **changes: Any) -> TaskLearner:
    method = TransferMethod(**{"freeze": "full", "pooling": "family", **changes})
    return method.learner(encoder, head=labels_head(3), seed=0)  # type: ignore[arg-type]


def _states(encoder: nn.Module, token: str) -> torch.Tensor:
    """Return the first or last state, or the mean, of the last layer, one sequence at a time."""
    hidden, edges = encoder(BATCH.packed).last, BATCH.packed.cu_seqlens.tolist()
    rows = [hidden[edges[i] : edges[i + 1]] for i in range(BATCH.packed.num_real)]
    pick = {"first": lambda row: row[0], "last": lambda row: row[-1], "mean": lambda row: row.mean(0)}[token]
    return torch.stack([pick(row) for row in rows])


@pytest.mark.parametrize("token", ["first", "last", "mean"])
@pytest.mark.parametrize("hidden", [None, "tanh", "gelu"])
@pytest.mark.parametrize("pooled", [False, True])
def test_the_head_is_the_formula_of_the_family(token: Any, hidden: Any, pooled: bool) -> None:
    encoder = _Encoder(FamilyHead(token=token, uses_pooler=pooled, hidden_activation=hidden), pooler=True)
    learner = _learner(encoder).eval()
    states = _states(encoder, token)
    if pooled:
        states = states @ encoder.pooler.weight.T + encoder.pooler.bias
    if hidden is not None:
        states = states @ learner.head.hidden.weight.T + learner.head.hidden.bias
        normal = torch.distributions.Normal(0.0, 1.0)
        states = torch.tanh(states) if hidden == "tanh" else states * normal.cdf(states)
    expected = states @ learner.head.output.weight.T + learner.head.output.bias
    torch.testing.assert_close(learner.predict(BATCH), expected, atol=1e-5, rtol=1e-5)
    trained = {name for name, p in learner.named_parameters() if p.requires_grad and "pooler" in name}
    assert bool(trained) is pooled


def test_the_dense_layer_has_the_encoders_width_and_dropout_before_and_after() -> None:
    learner = _learner(_Encoder(FamilyHead(token="first", hidden_activation="tanh")), dropout=0.5)
    assert learner.head.hidden.weight.shape == (6, 6)
    seen = {}
    learner.head.hidden.register_forward_hook(lambda _, given, out: seen.update(hidden=given[0]))
    learner.head.output.register_forward_hook(lambda _, given, out: seen.update(output=given[0]))
    torch.manual_seed(0)
    learner.logits(BATCH)
    for name in ("hidden", "output"):
        assert 0.2 < (seen[name] == 0).float().mean() < 0.8, name
    none = _learner(_Encoder(FamilyHead(token="first", hidden_activation="tanh")), dropout=0.0)
    torch.testing.assert_close(none.logits(BATCH), none.eval().predict(BATCH))


def test_a_family_without_a_dense_layer_has_no_dropout_below_the_pooler() -> None:
    learner = _learner(bert(dropout=0.0), dropout=0.5)
    seen = {}
    learner.encoder.pooler.register_forward_hook(lambda _, given, out: seen.update(pooler=given[0]))
    learner.logits(BATCH)
    assert not (seen["pooler"] == 0).any()


def test_another_pooling_has_no_family_layer() -> None:
    learner = _learner(
        _Encoder(FamilyHead(token="first", uses_pooler=True, hidden_activation="gelu"), pooler=True), pooling="mean"
    )
    assert learner.head.hidden is None
    assert not learner.use_pooler


def test_a_family_head_reads_any_layer_unless_a_pooler_is_part_of_it() -> None:
    head = FamilyHead(token="last", hidden_activation="tanh")
    assert _learner(_Encoder(head), layers="mix").reading.indices == (0, 1, 2)
    pooled = _Encoder(FamilyHead(token="first", uses_pooler=True), pooler=True)
    for layers in ("mix", 0, 1):
        with refuses(ConfigError, "transfer.pooling=family", f"transfer.layers={layers}"):
            _learner(pooled, layers=layers)
    assert _learner(pooled, layers=2).use_pooler


@pytest.mark.parametrize(
    ("attention", "pooling", "tokens"),
    [
        ("bidirectional", "cls", "first"),
        ("bidirectional", "last_token", "last"),
        ("causal", "cls", None),
        ("causal", "last_token", "last"),
        ("backward", "cls", "first"),
        ("backward", "last_token", None),
        ("concatenated", "cls", "first"),
        ("concatenated", "last_token", "last"),
    ],
)
def test_a_token_that_has_seen_only_itself_is_refused(attention: str, pooling: str, tokens: str | None) -> None:
    encoder = _Encoder(FamilyHead(token="mean"), attention=attention)
    if tokens is None:
        with refuses(ConfigError, f"transfer.pooling={pooling}", attention):
            _learner(encoder, pooling=pooling)
    else:
        assert _learner(encoder, pooling=pooling).composition.tokens == tokens


def test_a_backward_encoder_of_a_family_of_last_tokens_ends_at_the_first() -> None:
    encoder = _Encoder(FamilyHead(token="last"), attention="backward")
    assert _learner(encoder).composition.tokens == "first"
    assert _learner(gpt()).composition.tokens == "last"


def test_words_without_layers_above_them_are_read_as_last_as_first_and_as_mixture() -> None:
    encoder = _Encoder(FamilyHead(token="mean"))
    encoder.num_layers, encoder.layers = 0, nn.ModuleList()
    expected = None
    for layers in ("last", 0, "mix"):
        learner = _learner(encoder, layers=layers).eval()
        assert learner.reading.indices == (0,)
        found = learner.predict(BATCH)
        expected = found if expected is None else expected
        torch.testing.assert_close(found, expected)
        learner.arrange(BATCH)
        assert set(learner.depths.values()) == {1}
    states = _states(encoder, "mean")
    torch.testing.assert_close(expected, functional.linear(states, learner.head.output.weight))
