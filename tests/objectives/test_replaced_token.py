"""Replaced-token detection: replacements, gradients, losses against a loop, saving, and refused settings."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes.objectives import TOKENIZER, bert, electra, modern, perturbed, store_of
from support.refusals import refuses
from torch import nn

from lmtransfer.data.batch import PackedBatch, pack
from lmtransfer.data.token_shards import TokenStore
from lmtransfer.errors import ConfigError
from lmtransfer.models.electra import generator_shape
from lmtransfer.models.layers import cross_entropy
from lmtransfer.objectives.base import masked_loss
from lmtransfer.objectives.batch import PretrainingBatch
from lmtransfer.objectives.corruption.masking import TokenMasking
from lmtransfer.objectives.language_model import LanguageModel
from lmtransfer.objectives.learner import PretrainingLearner
from lmtransfer.objectives.masked_lm import MaskedLanguageModel
from lmtransfer.objectives.pair_label import NextSentencePrediction
from lmtransfer.objectives.replaced_token import ReplacedTokenDetection
from lmtransfer.objectives.rows.stream import FullSentences, LanguageStream
from lmtransfer.objectives.source import PretrainingSource
from lmtransfer.training.optim.optimizers import classify
from lmtransfer.training.weights import aliases, load_weights, weights

ENCODERS: dict[str, Callable[..., Any]] = {"electra": electra, "modern": modern}


def batch_of(store: TokenStore, *, capacity: int | None = None, epoch: int = 0, num_rows: int = 6) -> PretrainingBatch:
    source = PretrainingSource(
        store=store,
        rows=LanguageStream(max_length=32, tokenizer=TOKENIZER),
        corruption=TokenMasking(mask_share=0.85, random_share=0.0, tokenizer=TOKENIZER),
        seed=0,
        output_positions={"masked"},
        capacity=capacity,
    )
    return source.build(epoch, source.plan(epoch), range(num_rows))


def learner_of(encoder: nn.Module, **changes: Any) -> PretrainingLearner:
    learner = PretrainingLearner(encoder, [ReplacedTokenDetection(**changes)])  # type: ignore[arg-type]
    return perturbed(learner)


def seen_by(learner: PretrainingLearner) -> list[PackedBatch]:
    """Record the tokens that the discriminator reads."""
    seen: list[PackedBatch] = []
    learner.encoder.register_forward_pre_hook(lambda _, arguments: seen.append(arguments[0]))
    return seen


def always(monkeypatch: pytest.MonkeyPatch, samples_M: torch.Tensor) -> None:
    """Let the generator sample these tokens."""
    monkeypatch.setattr(cross_entropy, "sample_logits", lambda *_, **__: samples_M)


@pytest.mark.parametrize("name", ENCODERS)
@pytest.mark.parametrize("capacity", [None, 320])
def test_losses_equal_a_loop_over_rows_and_positions(store: TokenStore, name: str, capacity: int | None) -> None:
    learner, batch = learner_of(ENCODERS[name]()), batch_of(store, capacity=capacity)
    assert (batch.inputs.num_real < batch.inputs.num_sequences) == (capacity is not None)
    seen, head = seen_by(learner), learner.objectives["rtd"]
    losses, _ = learner.losses(batch)
    (tokens_T,) = [packed.tokens_T for packed in seen]
    sums = dict.fromkeys(losses, 0.0)
    embedding, edges = learner.encoder.token_embedding.weight, batch.inputs.cu_seqlens.tolist()
    hidden, told = set(batch.positions_M[: batch.num_targets].tolist()), 0.0
    gelu, norm = nn.functional.gelu, head.generator_head.norm
    with torch.no_grad():
        for row in range(batch.inputs.num_real):
            part = slice(edges[row], edges[row + 1])
            masked = head.generator(pack([batch.inputs.tokens_T[part].numpy()])).last
            states = learner.encoder(pack([tokens_T[part].numpy()])).last
            for t in range(edges[row], edges[row + 1]):
                original, sample = batch.original.tokens_T[t], tokens_T[t]
                state = states[t - edges[row]]
                logit = head.output.weight[0] @ gelu(head.dense.weight @ state + head.dense.bias) + head.output.bias[0]
                probability = logit.sigmoid()
                sums["rtd"] -= (probability if sample != original else 1 - probability).log().item()
                sums["rtd_accuracy"] += float((probability > 0.5) == (sample != original))
                told += float(probability > 0.5)
                if t not in hidden:
                    assert sample == original
                    continue
                for name in ("rtd_replaced", "rtd_base_rate"):
                    sums[name] += float(sample != original)
                for name in ("rtd_precision", "rtd_recall", "rtd_found"):
                    sums[name] += float(sample != original and probability > 0.5)
                state = gelu(head.generator_head.dense(masked[t - edges[row]]))
                state = nn.functional.layer_norm(state, norm.normalized_shape, norm.weight, norm.bias, 1e-12)
                logits = embedding @ state + head.generator_head.bias
                sums["generator_mlm"] -= logits.log_softmax(0)[original].item()
                sums["generator_accuracy"] += float(logits.argmax() == original)
    assert {kind: loss.sum.item() for kind, loss in losses.items()} == pytest.approx(sums, rel=2e-5)
    found = {"rtd_precision": told, "rtd_recall": sums["rtd_replaced"]}
    assert {kind: loss.count for kind, loss in losses.items()} == {**learner.counts(batch), **found}
    assert learner.counts(batch)["rtd"] == sum(batch.inputs.lengths[:6])
    trained = {kind: loss.weight for kind, loss in losses.items() if loss.weight}
    assert trained == {"rtd": 50.0, "generator_mlm": 1.0}


def test_the_discriminator_reads_no_mask_and_samples_only_at_hidden_tokens(store: TokenStore) -> None:
    learner, batch = learner_of(electra()), batch_of(store)
    assert (batch.inputs.tokens_T == TOKENIZER.mask_id).sum() > 10
    learner.objectives["rtd"].generator_head.bias.data[: TOKENIZER.mask_id + 1] = -1e4  # a sample is rarely [MASK]
    seen = seen_by(learner)
    learner.losses(batch)
    assert (seen[0].tokens_T != TOKENIZER.mask_id).all()
    changed = (seen[0].tokens_T != batch.original.tokens_T).nonzero()[:, 0]
    assert len(changed) > 10
    assert set(changed.tolist()) <= set(batch.positions_M.tolist())


@pytest.mark.parametrize("capacity", [None, 320])
def test_a_correct_sample_is_labelled_real(
    store: TokenStore, monkeypatch: pytest.MonkeyPatch, capacity: int | None
) -> None:
    learner, batch = learner_of(electra()), batch_of(store, capacity=capacity)
    samples = batch.targets_M.clone()
    always(monkeypatch, samples)
    losses, _ = learner.losses(batch)
    assert losses["rtd_replaced"].sum == 0
    with torch.no_grad():
        logits = learner.objectives["rtd"].token_logits(learner.encoder(batch.original).last)[: batch.num_tokens]
    torch.testing.assert_close(losses["rtd"].sum, nn.functional.softplus(logits).sum())  # all count as real
    samples[2] = (samples[2] + 1) % 90
    losses, _ = learner.losses(batch)
    assert losses["rtd_replaced"].sum == 1


@pytest.mark.parametrize("name", ENCODERS)
def test_gradients_go_where_they_should(store: TokenStore, name: str) -> None:
    learner, batch = learner_of(ENCODERS[name]()), batch_of(store)
    embedding = learner.encoder.token_embedding
    assert learner.objectives["rtd"].generator.dim != embedding.embedding_dim  # widths differ

    def reached(kind: str) -> set[str]:
        learner.zero_grad()
        learner.losses(batch)[0][kind].sum.backward()
        return {n for n, p in learner.named_parameters() if p.grad is not None and p.grad.abs().max() > 0}

    every = {name for name, _ in learner.named_parameters()}
    shared = {name for name in every if name.startswith("encoder.embeddings.")}
    own = {name for name in every if name.startswith("objectives.rtd.generator")}
    assert shared
    assert own
    seen = seen_by(learner)
    assert reached("rtd") == every - own
    rows = embedding.weight.grad.abs().sum(1).nonzero()[:, 0]
    assert torch.equal(rows, seen[0].tokens_T.unique())  # only the discriminator's input tokens
    assert reached("generator_mlm") == shared | own
    assert embedding.weight.grad.abs().sum(1).gt(0).all()  # as output matrix, in every row


@pytest.mark.parametrize("name", ENCODERS)
def test_the_generator_is_a_smaller_encoder_over_the_same_embeddings(name: str) -> None:
    encoder = ENCODERS[name](dim=256, num_heads=8, hidden_dim=320)
    before = copy.deepcopy(encoder.state_dict())
    generator = encoder.generator(size=0.5)
    assert generator.token_embedding is encoder.token_embedding
    assert (generator.dim, generator.num_layers, len(generator.stack.layers)) == (128, 2, 2)
    assert generator.stack.layers[0].attention.num_heads == 2
    assert generator.stack.layers[0].feed_forward.contract.in_features == 160
    assert all(torch.equal(before[key], tensor) for key, tensor in encoder.state_dict().items())
    shared = {id(p) for p in encoder.parameters()}
    assert not [key for key, p in generator.named_parameters() if id(p) in shared]  # they belong to the encoder


@pytest.mark.parametrize(
    ("dim", "size", "shape"),
    [
        (256, 0.25, (64, 1, 256)),
        (768, 1 / 3, (256, 4, 1024)),
        (1024, 0.25, (256, 4, 1024)),
        (256, 1 / 3, (86, 1, 344)),
        (16, 0.01, (2, 1, 8)),
        (64, 1.0, (64, 1, 256)),
    ],
)
def test_shapes_of_generators(dim: int, size: float, shape: tuple[int, int, int]) -> None:
    assert generator_shape(dim=dim, hidden_dim=4 * dim, size=size) == shape


def test_optimisers_treat_the_generators_matrices_as_those_of_an_encoder() -> None:
    learner = learner_of(electra())
    kinds = {item.name: item.kind for item in classify(learner)}
    for key, kind in kinds.items():
        in_block = ".stack.layers." in key and "norm" not in key and key.endswith("weight")
        assert (kind == "hidden") == in_block, key
        assert (kind == "embedding") == (key.startswith("encoder.embeddings.") and "norm" not in key), key
    splits = {item.name: item.splits for item in classify(learner)}
    assert splits["objectives.rtd.generator.stack.layers.1.attention.query_key_value.weight"] == 3


@pytest.mark.parametrize("name", ENCODERS)
def test_what_is_shared_stays_shared_when_saved_loaded_and_copied(store: TokenStore, name: str) -> None:
    trained, batch = learner_of(ENCODERS[name]()), batch_of(store)
    saved = {key: tensor.clone() for key, tensor in weights(trained).items()}
    assert not aliases(trained)
    assert sum(len(tensor) == 96 and tensor.ndim == 2 for tensor in saved.values()) == 1
    loaded = PretrainingLearner(ENCODERS[name](7), [ReplacedTokenDetection()])
    load_weights(loaded, saved)
    for learner in (trained, loaded, copy.deepcopy(trained)):
        learner.eval()
        expected = {kind: loss.sum.item() for kind, loss in trained.eval().losses(batch)[0].items()}
        assert {kind: loss.sum.item() for kind, loss in learner.losses(batch)[0].items()} == expected
        head = learner.objectives["rtd"]
        assert head.generator.token_embedding is learner.encoder.token_embedding
        assert head._encoder[0] is learner.encoder
    with torch.no_grad():
        loaded.encoder.token_embedding.weight.mul_(1.5)
    assert loaded.losses(batch)[0]["generator_mlm"].sum.item() != pytest.approx(expected["generator_mlm"], rel=1e-4)


def test_samples_belong_to_the_epoch_and_draw_from_no_generator_of_torch(store: TokenStore) -> None:
    learner = learner_of(electra())
    seen, state = seen_by(learner), torch.get_rng_state()
    for epoch in (0, 0, 1):
        learner.losses(batch_of(store, epoch=epoch))
    assert torch.equal(torch.get_rng_state(), state)
    tokens = [packed.tokens_T for packed in seen]
    assert torch.equal(tokens[0], tokens[1])
    uniform = [batch_of(store, epoch=epoch).uniform_M for epoch in (0, 1)]
    assert not torch.isin(uniform[0], uniform[1]).any()


def test_losses_in_bfloat16_are_float32(store: TokenStore) -> None:
    for make in ENCODERS.values():
        learner, batch = learner_of(make()).eval(), batch_of(store)
        exact, _ = learner.losses(batch)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            rounded, _ = learner.losses(batch)
        for kind, loss in rounded.items():
            assert loss.sum.dtype == torch.float32
            if loss.weight:
                assert loss.sum.item() == pytest.approx(exact[kind].sum.item(), rel=0.1)


def test_nothing_hidden_is_a_loss_of_real_tokens_only(tmp_path: Path) -> None:
    batch = batch_of(store_of(tmp_path / "unknown", [[[0] * 20]] * 3), num_rows=1)
    assert batch.num_targets == 0
    losses, _ = learner_of(electra()).losses(batch)
    assert losses["generator_mlm"].sum == 0
    assert losses["rtd"].sum > 0
    (losses["generator_mlm"].sum + losses["rtd"].sum).backward()


def test_refusals() -> None:
    with refuses(ConfigError, "objective=rtd", "BertEncoder", "model=electra_laptop"):
        PretrainingLearner(bert(), [ReplacedTokenDetection()])  # type: ignore[list-item]
    with refuses(ConfigError, "model.num_heads=3", "model.dim=16"):
        electra(num_heads=3)
    with refuses(ConfigError, "model.num_heads=16", "model.dim=16", " 8"):  # a divisor of 8, because widths are even
        modern(num_heads=16)
    with refuses(ConfigError, "model.window=7"):
        modern(window=7)


@pytest.mark.parametrize(
    ("objectives", "loss"),
    [
        ([MaskedLanguageModel], "mlm"),
        ([ReplacedTokenDetection], "generator_mlm"),
        ([NextSentencePrediction, MaskedLanguageModel], "mlm"),
        ([LanguageModel], None),
    ],
)
def test_the_plateau_of_token_frequencies_is_watched_in_the_generator(objectives: list[Any], loss: str | None) -> None:
    assert masked_loss([objective() for objective in objectives]) == loss


def _batches(store: TokenStore, *, num_epochs: int) -> list[PretrainingBatch]:
    """Return 32 rows as masked in each epoch."""
    source = PretrainingSource(
        store=store,
        rows=FullSentences(max_length=24, tokenizer=TOKENIZER),
        corruption=TokenMasking(mask_share=0.85, random_share=0.0, tokenizer=TOKENIZER),
        seed=0,
        output_positions={"masked"},
    )
    plan = source.plan(0)
    return [source.build(epoch, plan, range(32)) for epoch in range(num_epochs)]


def _learn(learner: PretrainingLearner, batches: list[PretrainingBatch], done: dict[str, Any]) -> dict[str, float]:
    """Train until each loss and metric reaches its bound, and return the means over all masks."""
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


@pytest.mark.slow
def test_generator_and_discriminator_learn_by_heart(store: TokenStore) -> None:
    """Overfit with a modern encoder; the overfitting tests of all objectives use ELECTRA."""
    torch.manual_seed(0)
    learner = PretrainingLearner(modern(dim=32, hidden_dim=64), [ReplacedTokenDetection(generator_size=1.0)])
    # At most 300 rounds; 81 to 116 were needed with AVX512 and AVX2.
    bounds = {
        "generator_mlm": lambda mean: mean < 0.1,
        "generator_accuracy": lambda mean: mean > 0.95,
        "rtd": lambda mean: mean < 0.02,
        "rtd_accuracy": lambda mean: mean > 0.99,
    }
    means = _learn(learner, _batches(store, num_epochs=1), bounds)
    assert all(is_learnt(means[kind]) for kind, is_learnt in bounds.items()), means


@pytest.mark.slow
def test_a_discriminator_finds_what_an_untrained_generator_puts_into_rows_it_knows(store: TokenStore) -> None:
    torch.manual_seed(0)
    objective = ReplacedTokenDetection(generator_weight=0.0)
    learner = PretrainingLearner(electra(embedding_dim=32, dim=32, hidden_dim=64, norm="pre"), [objective])
    objective.generator.requires_grad_(False)
    objective.generator_head.requires_grad_(False)
    batches = _batches(store, num_epochs=6)
    # At most 300 rounds; ten seeds needed 24 to 42 with AVX512 and AVX2.
    bounds = {"rtd_accuracy": lambda mean: mean > 0.95, "rtd_recall": lambda mean: mean > 0.8}
    means = _learn(learner, batches, bounds)
    assert means["rtd_replaced"] > 0.9
    assert means["rtd_accuracy"] > 0.95  # a useless discriminator has 0.85
    assert means["rtd_recall"] > 0.7
    assert means["rtd_precision"] > 0.8
