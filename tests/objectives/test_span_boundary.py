"""The span-boundary objective: losses against a loop over spans, gradients, and requirements."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from fakes.objectives import TOKENIZER, bert, gpt, perturbed
from support.refusals import refuses
from torch import nn

from lmtransfer.data.batch import pack
from lmtransfer.data.token_shards import TokenStore
from lmtransfer.errors import ConfigError
from lmtransfer.objectives.compatibility import check_compatible
from lmtransfer.objectives.corruption.masking import TokenMasking
from lmtransfer.objectives.corruption.words import Spans
from lmtransfer.objectives.learner import PretrainingLearner, collect_output_positions
from lmtransfer.objectives.masked_lm import MaskedLanguageModel
from lmtransfer.objectives.rows.stream import LanguageStream
from lmtransfer.objectives.source import PretrainingSource
from lmtransfer.objectives.span_boundary import SpanBoundaryObjective


def source_of(store: TokenStore, *, mask_prob: float = 0.3, **changes: Any) -> PretrainingSource:
    return PretrainingSource(
        store=store,
        rows=LanguageStream(max_length=48, tokenizer=TOKENIZER),
        corruption=TokenMasking(mask_prob=mask_prob, selection=Spans(), shared_replacement=True, tokenizer=TOKENIZER),
        seed=0,
        output_positions=collect_output_positions([MaskedLanguageModel(), SpanBoundaryObjective()]),
        **changes,
    )


def learner_of(*, num_positions: int = 20) -> PretrainingLearner:
    sbo = SpanBoundaryObjective(position_dim=6, num_positions=num_positions)
    learner = PretrainingLearner(bert(), [MaskedLanguageModel(), sbo])
    return perturbed(learner)


@pytest.mark.parametrize(("mask_prob", "capacity", "num_positions"), [(0.15, None, 20), (0.6, None, 3), (0.3, 640, 3)])
def test_the_loss_is_the_papers_formula_written_out(
    store: TokenStore, mask_prob: float, capacity: int | None, num_positions: int
) -> None:
    source, learner = (
        source_of(store, mask_prob=mask_prob, capacity=capacity),
        learner_of(num_positions=num_positions),
    )
    batch = source.build(0, source.plan(0), [2, 0, 9, 5])
    losses, _ = learner.losses(batch)
    encoder: Any = learner.encoder
    head: Any = learner.objectives["sbo"]
    hidden = set(batch.positions_M[: batch.num_targets].tolist())
    edges, total, hits = batch.inputs.cu_seqlens.tolist(), 0.0, 0
    with torch.no_grad():
        for row in range(4):
            states = encoder(pack([batch.inputs.tokens_T[edges[row] : edges[row + 1]].numpy()])).last
            for i in sorted(hidden & set(range(edges[row], edges[row + 1]))):
                start, end = i, i
                while start in hidden:
                    start -= 1
                while end in hidden:
                    end += 1
                assert edges[row] <= start < i < end < edges[row + 1]
                position = head.position.weight[min(i - start, num_positions) - 1]
                joined = torch.cat([states[start - edges[row]], states[end - edges[row]], position])
                inner = nn.functional.gelu(head.dense.weight @ joined + head.dense.bias)
                inner = nn.functional.layer_norm(inner, (16,), head.norm.weight, head.norm.bias, 1e-12)
                inner = nn.functional.gelu(head.output.weight @ inner + head.output.bias)
                inner = nn.functional.layer_norm(inner, (16,), head.output_norm.weight, head.output_norm.bias, 1e-12)
                logits = encoder.token_embedding.weight @ inner + head.bias
                target = batch.original.tokens_T[i]
                total -= logits.log_softmax(0)[target].item()
                hits += int(logits.argmax() == target)
    assert losses["sbo"].sum.item() == pytest.approx(total, rel=2e-5)
    assert losses["sbo_accuracy"].sum.item() == hits
    assert losses["sbo"].count == losses["mlm"].count == len(hidden) == batch.num_targets
    assert losses["sbo"].weight == 1


def test_every_parameter_gets_a_gradient_and_output_and_embedding_are_one(store: TokenStore) -> None:
    source, learner = source_of(store), learner_of()
    losses, _ = learner.losses(source.build(0, source.plan(0), range(8)))
    losses["sbo"].sum.backward()
    for name, parameter in learner.named_parameters():
        if not name.startswith("objectives.mlm") and parameter.requires_grad:
            assert parameter.grad is not None, name
            assert parameter.grad.abs().max() > 0, name
    assert learner.encoder.token_embedding.weight.grad.abs().sum(1).gt(0).all()  # the softmax reaches all rows


def test_a_hidden_tokens_own_state_is_not_read(store: TokenStore) -> None:
    """Otherwise, the objective would not be about boundaries."""
    source, learner = source_of(store), learner_of()
    batch = source.build(0, source.plan(0), range(4))
    seen: list[torch.Tensor] = []

    def keep(_: nn.Module, __: Any, output: torch.Tensor) -> None:
        output.retain_grad()
        seen.append(output)

    learner.encoder.stack.final_norm.register_forward_hook(keep)
    learner.losses(batch)[0]["sbo"].sum.backward()
    touched = seen[0].grad.abs().sum(1).gt(0).nonzero()[:, 0].tolist()
    assert touched
    assert not set(touched) & set(batch.positions_M[: batch.num_targets].tolist())


def test_what_does_not_fit_is_refused() -> None:
    rows, tokens = LanguageStream(max_length=48, tokenizer=TOKENIZER), TokenMasking(tokenizer=TOKENIZER)
    objectives = [MaskedLanguageModel(), SpanBoundaryObjective()]
    with refuses(ConfigError, "losses.sbo", "left", "right", "objective/corruption=spans"):
        check_compatible(encoder=bert(), objectives=objectives, rows=rows, corruption=tokens)
    spans = TokenMasking(selection=Spans(), tokenizer=TOKENIZER)
    check_compatible(encoder=bert(), objectives=objectives, rows=rows, corruption=spans)
    check_compatible(encoder=bert(), objectives=objectives[1:], rows=rows, corruption=spans)
    with refuses(ConfigError, "objective=sbo", "bidirectional"):
        SpanBoundaryObjective().bind(gpt())
