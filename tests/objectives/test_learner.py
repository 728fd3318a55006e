"""The losses of a learner against plain loops over rows; tied weights, gradients, counts and refusals."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from fakes.objectives import TOKENIZER, bert, gpt, perturbed, store_of
from support.refusals import refuses
from torch import nn

from lmtransfer.data.batch import pack
from lmtransfer.data.token_store import TokenStore
from lmtransfer.errors import ConfigError
from lmtransfer.models.xlnet import XlnetEncoder
from lmtransfer.objectives.base import Objective
from lmtransfer.objectives.batch import PretrainingBatch
from lmtransfer.objectives.corruption.masking import NoCorruption, TokenMasking
from lmtransfer.objectives.language_model import LanguageModel
from lmtransfer.objectives.learner import PretrainingLearner, collect_output_positions
from lmtransfer.objectives.masked_lm import MaskedLanguageModel
from lmtransfer.objectives.pair_label import NextSentencePrediction, SentenceOrderPrediction
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
