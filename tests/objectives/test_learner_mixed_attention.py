"""Masked and causal rows in one batch (mlm_lm), against each row separately; and refused settings."""

from __future__ import annotations

from typing import Any, Literal

import pytest
import torch
from fakes.objectives import TOKENIZER, bert, electra, perturbed
from support.refusals import refuses

from lmtransfer.data.batch import pack
from lmtransfer.data.token_store import TokenStore
from lmtransfer.errors import ConfigError
from lmtransfer.objectives.batch import PretrainingBatch
from lmtransfer.objectives.compatibility import check_compatible
from lmtransfer.objectives.corruption.masking import TokenMasking
from lmtransfer.objectives.language_model import LanguageModel
from lmtransfer.objectives.learner import PretrainingLearner, collect_output_positions
from lmtransfer.objectives.masked_lm import MaskedLanguageModel
from lmtransfer.objectives.pair_label import NextSentencePrediction
from lmtransfer.objectives.rows.stream import LanguageStream
from lmtransfer.objectives.source import PretrainingSource
from lmtransfer.objectives.views import row_views

Predict = Literal["same", "next"]


def learner_of(predict: Predict = "same", *, tie_output: bool = True) -> PretrainingLearner:
    mlm, lm = MaskedLanguageModel(predict=predict, tie_output=tie_output), LanguageModel(tie_output=tie_output)
    learner = PretrainingLearner(bert(), [mlm, lm])
    return perturbed(learner).eval()


def source_of(store: TokenStore, *, share: float = 0.4, capacity: int | None = None) -> PretrainingSource:
    return PretrainingSource(
        store=store,
        rows=LanguageStream(max_length=16, tokenizer=TOKENIZER),
        corruption=TokenMasking(tokenizer=TOKENIZER, mask_prob=0.3, causal_share=share),
        seed=0,
        output_positions=collect_output_positions([MaskedLanguageModel(), LanguageModel()]),
        capacity=capacity,
    )


def by_hand(learner: PretrainingLearner, batch: PretrainingBatch, predict: Predict) -> dict[str, Any]:
    """Compute the losses row by row, with the encoder set to the attention of each row."""
    (mlm, lm), encoder = learner.objective_list(), learner.encoder
    assert isinstance(mlm, MaskedLanguageModel)
    embedding, sums = encoder.token_embedding, {"mlm": 0.0, "lm": 0.0}
    masked_VD, next_VD = (dict(one.named_children()).get("output", embedding).weight for one in (mlm, lm))
    for place, view in enumerate(row_views(batch)):
        causal = place < (batch.original.num_causal or 0)
        assert causal == (not view.is_hidden.any())
        encoder.attend("causal" if causal else "bidirectional")
        hidden_TD = encoder(pack([view.inputs])).last
        after = mlm.norm(mlm.activation(mlm.dense(hidden_TD)))
        through_mlm = (after @ masked_VD.T + mlm.bias).log_softmax(-1)
        alone = (hidden_TD @ next_VD.T).log_softmax(-1)
        for i, token in enumerate(view.original.tolist()):
            if causal and i:
                sums["lm"] -= (through_mlm if predict == "next" else alone)[i - 1, token]
            elif view.is_hidden[i]:
                sums["mlm"] -= through_mlm[i - 1 if predict == "next" else i, token]
    encoder.attend("bidirectional")
    return sums


@pytest.mark.parametrize("predict", ["same", "next"])
@pytest.mark.parametrize(("capacity", "tie_output"), [(None, True), (256, True), (None, False)])
def test_the_losses_of_a_mixed_batch_are_those_of_its_rows_alone(
    predict: Predict, capacity: int | None, tie_output: bool, store: TokenStore
) -> None:
    learner, source = learner_of(predict, tie_output=tie_output), source_of(store, capacity=capacity)
    batch = source.build(0, source.plan(0), range(12))
    assert 0 < (batch.original.num_causal or 0) < 12
    losses, _ = learner.losses(batch)
    expected = by_hand(learner, batch, predict)
    gradients = []
    for sums in ([losses["mlm"].sum, losses["lm"].sum], [expected["mlm"], expected["lm"]]):
        gradients.append(torch.autograd.grad(torch.stack(sums).sum(), list(learner.encoder.stack.parameters())))
    for name in ("mlm", "lm"):
        torch.testing.assert_close(losses[name].sum, expected[name], atol=1e-3, rtol=1e-5)
        assert losses[name].count == learner.counts(batch)[name]
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-3, rtol=1e-4)
    rows = list(row_views(batch))
    num_causal = batch.original.num_causal or 0
    assert losses["lm"].count == sum(len(row.original) - 1 for row in rows[:num_causal])
    assert losses["mlm"].count == sum(int(row.is_hidden.sum()) for row in rows[num_causal:])


def test_one_head_serves_both_where_the_next_token_is_predicted() -> None:
    shared, apart = learner_of("next"), learner_of("same")
    assert {name for name, _ in shared.named_parameters()} == {name for name, _ in apart.named_parameters()}
    mlm, lm = shared.objective_list()
    states = torch.randn(5, 16)
    assert torch.equal(lm.token_logits(states), mlm.token_logits(states))  # type: ignore[arg-type]
    mlm, lm = apart.objective_list()
    assert not torch.allclose(lm.token_logits(states), mlm.token_logits(states))  # type: ignore[arg-type]


@pytest.mark.parametrize(("predict", "matrices"), [("same", {"mlm", "lm"}), ("next", {"mlm"})])
def test_untied_each_head_has_a_matrix_of_its_own_and_all_of_it_learns(
    predict: Predict, matrices: set[str], store: TokenStore
) -> None:
    learner, source = learner_of(predict, tie_output=False), source_of(store)
    losses, _ = learner.losses(source.build(0, source.plan(0), range(12)))
    (losses["mlm"].sum + losses["lm"].sum).backward()
    assert {one.name for one in learner.objective_list() if "output" in dict(one.named_children())} == matrices
    assert not [n for n, p in learner.objectives.named_parameters() if p.grad is None or not p.grad.any()]


@pytest.mark.parametrize("predict", ["same", "next"])
def test_the_losses_add_up_over_micro_batches_however_rows_are_dealt(predict: Predict, store: TokenStore) -> None:
    learner, source = learner_of(predict), source_of(store)
    plan = source.plan(0)
    whole, _ = learner.losses(source.build(0, plan, range(9)))
    parts = [learner.losses(source.build(0, plan, rows))[0] for rows in ([8, 1], [3], [0, 2, 4, 5, 6, 7])]
    for name, loss in whole.items():
        assert loss.count == sum(part[name].count for part in parts)
        total = torch.stack([part[name].sum.float() for part in parts]).sum()
        torch.testing.assert_close(loss.sum.float(), total, atol=1e-3, rtol=1e-5)


def test_whether_a_row_is_causal_is_decided_by_the_row_alone(store: TokenStore) -> None:
    source = source_of(store)
    plan = source.plan(0)
    count = len(plan.lengths)

    def causal_keys(rows: list[int]) -> set[str]:
        batch = source.build(0, plan, rows)
        return set(batch.keys[: batch.original.num_causal])

    together = causal_keys(list(range(count)))
    assert together == set().union(*(causal_keys([row]) for row in range(count)))
    assert len(together) / count == pytest.approx(0.4, abs=4 * (0.24 / count) ** 0.5)
    assert source_of(store, share=0.0).build(0, plan, [0, 1]).original.num_causal is None


def test_a_learner_sets_the_attention_that_its_objectives_need() -> None:
    encoder = bert()
    for objectives, attention in (
        ([LanguageModel()], "causal"),
        ([MaskedLanguageModel(), LanguageModel()], "bidirectional"),
        ([LanguageModel()], "causal"),
        ([MaskedLanguageModel()], "bidirectional"),
    ):
        PretrainingLearner(encoder, objectives)  # type: ignore[arg-type]
        assert encoder.attention == attention


def test_a_causal_batch_of_an_encoder_with_narrow_embeddings_has_a_projection() -> None:
    encoder = electra(embedding_dim=8)
    learner = PretrainingLearner(encoder, [LanguageModel()])
    assert encoder.attention == "causal"
    shapes = {name: tuple(p.shape) for name, p in learner.named_parameters() if name.startswith("objectives")}
    assert shapes == {"objectives.lm.project.weight": (8, encoder.dim), "objectives.lm.project.bias": (8,)}


def test_what_does_not_fit_is_refused(store: TokenStore) -> None:
    def check(losses: list[Any], *, share: float, frame: str = "both") -> None:
        check_compatible(
            encoder=bert(),
            objectives=losses,
            rows=LanguageStream(max_length=16, frame=frame, tokenizer=TOKENIZER),  # type: ignore[arg-type]
            corruption=TokenMasking(tokenizer=TOKENIZER, causal_share=share),
        )

    both = [MaskedLanguageModel(), LanguageModel()]
    check(both, share=0.25)
    with refuses(ConfigError, "objective.losses", "mlm bidirectional, lm causal", "objective=mlm_lm"):
        check(both, share=0.0)
    with refuses(ConfigError, "objective.causal_share=0.25", "objective=mlm_lm"):
        check([MaskedLanguageModel()], share=0.25)
    with refuses(ConfigError, "objective.losses", "nsp bidirectional"):  # in a causal row, [CLS] sees no other token
        check([*both, NextSentencePrediction()], share=0.25)
    with refuses(ConfigError, "objective.losses.mlm.predict=next", "objective.rows.frame=start"):
        check([MaskedLanguageModel(predict="next"), LanguageModel()], share=0.25, frame="none")
    with refuses(ConfigError, "objective.causal_share=1.0"):
        TokenMasking(tokenizer=TOKENIZER, causal_share=1.0)
