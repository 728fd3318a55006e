"""The losses of a learner against plain loops over rows, also of rows read both ways in one batch (mlm_lm)."""

from __future__ import annotations

import copy
from typing import Any, Literal

import pytest
import torch
from fakes.objectives import TOKENIZER, bert, electra, gpt, perturbed, store_of
from support.refusals import refuses
from torch import nn

from lmtransfer.data.batch import pack
from lmtransfer.data.token_shards import TokenStore
from lmtransfer.errors import ConfigError
from lmtransfer.models.xlnet import XlnetEncoder
from lmtransfer.objectives.base import Objective
from lmtransfer.objectives.batch import PretrainingBatch
from lmtransfer.objectives.compatibility import check_compatible
from lmtransfer.objectives.corruption.masking import NoCorruption, TokenMasking
from lmtransfer.objectives.language_model import LanguageModel
from lmtransfer.objectives.learner import PretrainingLearner, collect_output_positions
from lmtransfer.objectives.masked_lm import MaskedLanguageModel
from lmtransfer.objectives.pair_label import NextSentencePrediction, SentenceOrderPrediction
from lmtransfer.objectives.row_display import row_views
from lmtransfer.objectives.rows.pairs import OrderedPairs, SentencePairs
from lmtransfer.objectives.rows.stream import LanguageStream
from lmtransfer.objectives.source import PretrainingSource

NAMES = ["mlm", "nsp", "mlm_nsp", "lm", "sop"]


def objectives_of(name: str) -> list[Objective]:
    made: dict[str, type[Any]] = {"mlm": MaskedLanguageModel, "nsp": NextSentencePrediction, "lm": LanguageModel}
    made["sop"] = SentenceOrderPrediction
    return [made[part]() for part in name.split("_")]


def source_of(name: str, store: TokenStore, **changes: Any) -> PretrainingSource:
    rows: Any = {"nsp": SentencePairs, "sop": OrderedPairs}.get(name[-3:], LanguageStream)
    return PretrainingSource(
        store=store,
        rows=rows(max_length=32, tokenizer=TOKENIZER),
        corruption=TokenMasking(tokenizer=TOKENIZER) if "mlm" in name else NoCorruption(),
        seed=0,
        output_positions=collect_output_positions(objectives_of(name)),
        **changes,
    )


def learner_of(name: str) -> PretrainingLearner:
    learner = PretrainingLearner(gpt() if name == "lm" else bert(), objectives_of(name))
    return perturbed(learner)


def losses_by_hand(learner: PretrainingLearner, name: str, batch: PretrainingBatch) -> dict[str, float]:
    """Compute the losses row by row and position by position, with all layers everywhere."""
    encoder: Any = learner.encoder
    heads: Any = learner.objectives
    edges = batch.inputs.cu_seqlens.tolist()
    sums: dict[str, float] = {}

    def add(kind: str, value: Any) -> None:
        sums[kind] = sums.get(kind, 0.0) + float(value)

    for b in range(batch.inputs.num_real):
        part = slice(edges[b], edges[b + 1])
        segments = batch.inputs.segments_T[part]
        if "mlm" in name:
            states = encoder(pack([batch.inputs.tokens_T[part].numpy()], [segments.numpy()])).last
            for m in range(batch.num_targets):
                position = int(batch.positions_M[m])
                if edges[b] <= position < edges[b + 1]:
                    head = heads["mlm"]
                    state = nn.functional.gelu(head.dense(states[position - edges[b]]))
                    state = nn.functional.layer_norm(state, (16,), head.norm.weight, head.norm.bias, 1e-12)
                    logits = encoder.token_embedding.weight @ state + head.bias
                    target = batch.original.tokens_T[position]
                    add("mlm", -logits.log_softmax(0)[target])
                    add("mlm_accuracy", logits.argmax() == target)
        for pair in {"nsp", "sop"} & set(name.split("_")):
            states = encoder(pack([batch.inputs.tokens_T[part].numpy()], [segments.numpy()])).last
            logits = heads[pair].classifier(encoder.pooler(states[:1]))[0]
            label = batch.labels[pair][b]
            add(pair, -logits.log_softmax(0)[label])
            add(f"{pair}_accuracy", logits.argmax() == label)
        if name == "lm":
            tokens = batch.original.tokens_T[part]
            states = encoder(pack([tokens.numpy()], [segments.numpy()])).last
            for t in range(len(tokens) - 1):
                logits = encoder.token_embedding.weight @ states[t]
                add("lm", -logits.log_softmax(0)[tokens[t + 1]])
                add("lm_accuracy", logits.argmax() == tokens[t + 1])
    return sums


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("capacity", [None, 640])
def test_losses_equal_a_loop_over_rows_and_positions(store: TokenStore, name: str, capacity: int | None) -> None:
    learner, source = learner_of(name), source_of(name, store, capacity=capacity)
    batch = source.build(0, source.plan(0), [3, 1, 11, 20, 7])
    counts = learner.counts(batch)
    losses, recurrent_state = learner.losses(batch)
    assert recurrent_state is None
    assert {kind: loss.count for kind, loss in losses.items()} == counts
    with torch.no_grad():
        expected = losses_by_hand(learner, name, batch)
    assert {kind: loss.sum.item() for kind, loss in losses.items()} == pytest.approx(expected, rel=2e-5)
    assert {kind: loss.weight for kind, loss in losses.items()} == {
        kind: 0.0 if "accuracy" in kind else 1.0 for kind in losses
    }


@pytest.mark.parametrize("name", NAMES)
def test_counts_add_up_and_are_what_they_say(store: TokenStore, name: str) -> None:
    learner, source = learner_of(name), source_of(name, store)
    plan = source.plan(0)
    whole = learner.counts(source.build(0, plan, range(12)))
    parts = [learner.counts(source.build(0, plan, [i])) for i in range(12)]
    assert whole == {kind: sum(part[kind] for part in parts) for kind in whole}
    if "nsp" in name:
        assert whole["nsp"] == 12
    if "mlm" in name:
        assert whole["mlm"] == sum(max(1, round(0.15 * n)) for n in plan.lengths[:12].tolist())
    if name == "lm":
        assert whole["lm"] == (plan.lengths[:12] - 1).sum()


def test_objectives_share_one_forward_pass(store: TokenStore) -> None:
    learner, source = learner_of("mlm_nsp"), source_of("mlm_nsp", store)
    calls: list[int] = []
    learner.encoder.register_forward_hook(lambda *_: calls.append(1))
    learner.losses(source.build(0, source.plan(0), range(4)))
    assert len(calls) == 1


@pytest.mark.parametrize("name", ["mlm", "mlm_nsp", "lm"])
def test_output_and_embedding_stay_one_tensor(store: TokenStore, name: str) -> None:
    source = source_of(name, store)
    batch = source.build(0, source.plan(0), range(4))
    trained, loaded = learner_of(name), PretrainingLearner(gpt(7) if name == "lm" else bert(7), objectives_of(name))
    pointer = loaded.encoder.token_embedding.weight.data_ptr()
    state = trained.state_dict()
    assert len({tensor.data_ptr() for tensor in state.values()}) == len(state)
    loaded.load_state_dict(state)
    for learner in (loaded, copy.deepcopy(trained)):
        expected = {kind: loss.sum.item() for kind, loss in trained.losses(batch)[0].items()}
        assert {kind: loss.sum.item() for kind, loss in learner.losses(batch)[0].items()} == expected
        before = expected[name[:3].rstrip("_")]
        with torch.no_grad():
            learner.encoder.token_embedding.weight.mul_(1.5)
        assert learner.losses(batch)[0][name[:3].rstrip("_")].sum.item() != pytest.approx(before, rel=1e-4)
        (loss,) = [loss for kind, loss in learner.losses(batch)[0].items() if kind in ("mlm", "lm")]
        loss.sum.backward()
        assert learner.encoder.token_embedding.weight.grad.abs().sum(1).gt(0).all()  # the softmax reaches all rows
    assert loaded.encoder.token_embedding.weight.data_ptr() == pointer


def test_heads_start_as_published() -> None:
    encoder = bert()
    before = copy.deepcopy(encoder.state_dict())
    learner = PretrainingLearner(encoder, objectives_of("mlm_nsp"))
    heads: Any = learner.objectives
    assert all(torch.equal(before[key], tensor) for key, tensor in encoder.state_dict().items())
    assert heads["mlm"].dense.weight.std().item() == pytest.approx(0.0176, rel=0.2)  # 0.02, truncated at two deviations
    assert heads["mlm"].dense.weight.abs().max() <= 0.04
    assert not heads["mlm"].bias.any()
    assert not heads["mlm"].dense.bias.any()
    assert (heads["mlm"].norm.weight == 1).all()
    assert not heads["nsp"].classifier.bias.any()
    assert heads["nsp"].classifier.weight.abs().max() <= 0.04


def test_nothing_to_predict_is_a_loss_of_nothing(tmp_path_factory: pytest.TempPathFactory) -> None:
    unknown = store_of(tmp_path_factory.mktemp("unknown") / "s", [[[0] * 20]] * 3)
    source, learner = source_of("mlm", unknown), learner_of("mlm")
    losses, _ = learner.losses(source.build(0, source.plan(0), [0]))
    assert losses["mlm"].count == 0
    assert losses["mlm"].sum.item() == 0
    losses["mlm"].sum.backward()


def test_predictions_in_bfloat16_have_a_float32_loss(store: TokenStore) -> None:
    for name in NAMES:
        learner, source = learner_of(name), source_of(name, store)
        batch = source.build(0, source.plan(0), range(8))
        exact, _ = learner.losses(batch)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            rounded, _ = learner.losses(batch)
        for kind, loss in rounded.items():
            assert loss.sum.dtype == torch.float32
            if "accuracy" not in kind:
                assert loss.sum.item() == pytest.approx(exact[kind].sum.item(), rel=0.03)


def test_a_meaningless_direction_is_refused_with_what_fits() -> None:
    for name in ("mlm", "nsp"):
        with refuses(
            ConfigError, f"objective={name}", "bidirectional", "model.attention", "causal", "bow, lm"
        ) as raised:
            PretrainingLearner(gpt(), objectives_of(name))
        assert "bow, lm, " not in str(raised.value)
    xlnet = XlnetEncoder(vocab_size=TOKENIZER.vocab_size, dim=8, num_layers=1, num_heads=2, hidden_dim=8)
    with refuses(ConfigError, "objective=lm", "causal", "model.attention", "bidirectional", "mlm, nsp, plm"):
        PretrainingLearner(xlnet, objectives_of("lm"))


def test_no_objective_and_the_same_one_twice_are_refused() -> None:
    for objectives in ([], objectives_of("mlm_mlm")):
        with refuses(ConfigError, f"objective.losses={[objective.name for objective in objectives]}"):
            PretrainingLearner(bert(), objectives)


@pytest.mark.parametrize("name", ["mlm", "lm"])
def test_with_the_token_embedding_as_its_own_matrix_the_loss_is_the_tied_one(store: TokenStore, name: str) -> None:
    (objective,) = objectives_of(name)
    tied, untied = (
        PretrainingLearner(gpt() if name == "lm" else bert(), [type(objective)(tie_output=tie)])  # type: ignore[call-arg]
        for tie in (True, False)
    )
    untied.load_state_dict(tied.state_dict(), strict=False)
    source = source_of(name, store)
    batch = source.build(0, source.plan(0), [3, 1, 11])
    losses = untied.losses(batch)[0][name]
    losses.sum.backward()
    embedding, output = untied.encoder.token_embedding.weight.grad, untied.objectives[name].output.weight.grad
    assert {row for row in range(96) if embedding[row].any()} <= set(batch.inputs.tokens_T.tolist())  # the input tokens
    assert output.any(1).all()  # every row is part of the softmax
    with torch.no_grad():
        untied.objectives[name].output.weight.copy_(untied.encoder.token_embedding.weight)
    expected = tied.losses(batch)[0][name].sum.item()
    assert abs(losses.sum.item() - expected) > 1e-3
    assert untied.losses(batch)[0][name].sum.item() == pytest.approx(expected, rel=1e-6)


Predict = Literal["same", "next"]


def mixed_learner_of(predict: Predict = "same", *, tie_output: bool = True) -> PretrainingLearner:
    mlm, lm = MaskedLanguageModel(predict=predict, tie_output=tie_output), LanguageModel(tie_output=tie_output)
    learner = PretrainingLearner(bert(), [mlm, lm])
    return perturbed(learner).eval()


def mixed_source_of(store: TokenStore, *, share: float = 0.4, capacity: int | None = None) -> PretrainingSource:
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
    learner, source = mixed_learner_of(predict, tie_output=tie_output), mixed_source_of(store, capacity=capacity)
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
    shared, apart = mixed_learner_of("next"), mixed_learner_of("same")
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
    learner, source = mixed_learner_of(predict, tie_output=False), mixed_source_of(store)
    losses, _ = learner.losses(source.build(0, source.plan(0), range(12)))
    (losses["mlm"].sum + losses["lm"].sum).backward()
    assert {one.name for one in learner.objective_list() if "output" in dict(one.named_children())} == matrices
    assert not [n for n, p in learner.objectives.named_parameters() if p.grad is None or not p.grad.any()]


@pytest.mark.parametrize("predict", ["same", "next"])
def test_the_losses_add_up_over_micro_batches_however_rows_are_dealt(predict: Predict, store: TokenStore) -> None:
    learner, source = mixed_learner_of(predict), mixed_source_of(store)
    plan = source.plan(0)
    whole, _ = learner.losses(source.build(0, plan, range(9)))
    parts = [learner.losses(source.build(0, plan, rows))[0] for rows in ([8, 1], [3], [0, 2, 4, 5, 6, 7])]
    for name, loss in whole.items():
        assert loss.count == sum(part[name].count for part in parts)
        total = torch.stack([part[name].sum.float() for part in parts]).sum()
        torch.testing.assert_close(loss.sum.float(), total, atol=1e-3, rtol=1e-5)


def test_whether_a_row_is_causal_is_decided_by_the_row_alone(store: TokenStore) -> None:
    source = mixed_source_of(store)
    plan = source.plan(0)
    count = len(plan.lengths)

    def causal_keys(rows: list[int]) -> set[str]:
        batch = source.build(0, plan, rows)
        return set(batch.keys[: batch.original.num_causal])

    together = causal_keys(list(range(count)))
    assert together == set().union(*(causal_keys([row]) for row in range(count)))
    assert len(together) / count == pytest.approx(0.4, abs=4 * (0.24 / count) ** 0.5)
    assert mixed_source_of(store, share=0.0).build(0, plan, [0, 1]).original.num_causal is None


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
