"""The embeddings of discriminator and generator: tied, disentangled (DeBERTaV3) or separate."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from fakes.objectives import TOKENIZER, electra, modern, perturbed
from support.refusals import refuses
from torch import nn

from lmtransfer.data.batch import pack
from lmtransfer.data.micro_batches import evaluation_batches
from lmtransfer.data.token_shards import TokenStore
from lmtransfer.errors import ConfigError
from lmtransfer.models.layers import cross_entropy
from lmtransfer.models.layers.disentangled import merge
from lmtransfer.objectives.batch import PretrainingBatch
from lmtransfer.objectives.corruption.masking import TokenMasking
from lmtransfer.objectives.learner import PretrainingLearner
from lmtransfer.objectives.masked_lm import MaskedLanguageModel
from lmtransfer.objectives.replaced_token import AllTokensMaskedLanguageModel, ReplacedTokenDetection
from lmtransfer.objectives.rows.stream import FullSentences, LanguageStream
from lmtransfer.objectives.source import PretrainingSource
from lmtransfer.pretraining.continued import inherit_heads
from lmtransfer.training.data_parallel import Passes
from lmtransfer.training.evaluation import evaluate_losses
from lmtransfer.training.learner import Step
from lmtransfer.training.optim.optimizers import classify
from lmtransfer.training.precision import Precision
from lmtransfer.training.update import accumulate
from lmtransfer.training.weights import aliases, load_weights, num_parameters, weights

ENCODERS: dict[str, Callable[..., Any]] = {"electra": electra, "modern": modern}
OBJECTIVES: dict[str, Callable[..., Any]] = {
    "rtd": ReplacedTokenDetection,
    "all_tokens_mlm": AllTokensMaskedLanguageModel,
}


def source_of(store: TokenStore, rows: Any) -> PretrainingSource:
    return PretrainingSource(
        store=store,
        rows=rows(max_length=32, tokenizer=TOKENIZER),
        corruption=TokenMasking(mask_share=0.85, random_share=0.0, tokenizer=TOKENIZER),
        seed=0,
        output_positions={"masked"},
    )


@pytest.fixture(scope="module")
def source(store: TokenStore) -> PretrainingSource:
    return source_of(store, LanguageStream)


def batch_of(source: PretrainingSource, rows: range = range(6)) -> PretrainingBatch:
    return source.build(0, source.plan(0), rows)


def learner_of(
    sharing: str, *, name: str = "electra", objective: str = "rtd", seed: int = 0, size: float = 0.25
) -> PretrainingLearner:
    """Return a learner in float64 with perturbed weights."""
    torch.manual_seed(seed)
    made = OBJECTIVES[objective](embedding_sharing=sharing, generator_size=size, weight=3.0)
    return perturbed(PretrainingLearner(ENCODERS[name](seed), [made]).double(), seed=seed + 1)


def tables(learner: PretrainingLearner) -> tuple[nn.Embedding, nn.Embedding]:
    """Return the token embeddings of the encoder and the generator."""
    (objective,) = learner.objective_list()
    embedding = learner.encoder.token_embedding
    generator = objective.generator.token_embedding
    assert embedding is not None
    return embedding, generator  # type: ignore[return-value]


def gradients(learner: PretrainingLearner, batch: PretrainingBatch, *kinds: str) -> dict[str, torch.Tensor]:
    """Return the nonzero gradients by name."""
    learner.zero_grad()
    losses, _ = learner.losses(batch)
    torch.stack([losses[kind].sum * losses[kind].weight / losses[kind].count for kind in kinds]).sum().backward()
    return {n: p.grad.clone() for n, p in learner.named_parameters() if p.grad is not None and p.grad.any()}


DIFFERENCE = "encoder.embeddings.token.parametrizations.weight.original"


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("name", ENCODERS)
def test_each_table_learns_from_its_own_loss_only(source: PretrainingSource, name: str, objective: str) -> None:
    learner, batch = learner_of("disentangled", name=name, objective=objective), batch_of(source)
    generators = f"objectives.{objective}.generator"
    of_encoder, of_generator = (gradients(learner, batch, kind) for kind in (objective, "generator_mlm"))
    assert {key for key in of_generator if not key.startswith(generators)} == set()
    assert f"{generators}.embeddings.token.weight" in of_generator
    assert {key for key in of_encoder if key.startswith(generators)} == set()
    assert DIFFERENCE in of_encoder
    every = {key for key, _ in learner.named_parameters()}
    assert every == {*of_encoder, *of_generator}


def test_the_gradient_of_the_difference_is_that_of_finite_differences_and_the_base_has_none_of_it(
    source: PretrainingSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner, batch = learner_of("disentangled"), batch_of(source)
    samples = torch.randint(4, 90, batch.targets_M.shape)
    monkeypatch.setattr(cross_entropy, "sample_logits", lambda *_, **__: samples)
    found = gradients(learner, batch, "rtd")
    _, base = tables(learner)
    difference = learner.get_parameter(DIFFERENCE)

    def loss() -> float:
        with torch.no_grad():
            each = learner.losses(batch)[0]["rtd"]
        return (each.sum * each.weight / each.count).item()

    rows = found[DIFFERENCE].abs().sum(1).nonzero()[:3, 0].tolist()
    assert len(rows) == 3
    for row in rows:
        slopes = []
        for table in (difference.data, base.weight.data):
            table[row, 1] += 1e-5
            higher = loss()
            table[row, 1] -= 2e-5
            slopes.append((higher - loss()) / 2e-5)
            table[row, 1] += 1e-5
        assert slopes[0] == pytest.approx(found[DIFFERENCE][row, 1].item(), rel=1e-4, abs=1e-9)
        assert slopes[1] == pytest.approx(slopes[0], rel=1e-4, abs=1e-9)  # despite the stopped gradient
    assert base.weight.grad is None


@pytest.mark.parametrize("name", ENCODERS)
def test_three_steps_are_those_of_the_formula_by_hand(source: PretrainingSource, name: str) -> None:
    """E_G learns from the generator's loss, the difference from the encoder's, and E_D is the sum (He et al. 2021)."""
    learner, by_hand = learner_of("disentangled", name=name), learner_of("none", name=name)
    load_weights(by_hand, {k: t for k, t in weights(learner).items() if k != "objectives.rtd.difference.weight"})
    encoder, generator = (table.weight.data for table in tables(by_hand))
    difference = encoder - generator
    assert difference.abs().max() > 0.1
    optimizer = torch.optim.SGD(learner.parameters(), lr=0.05)
    for step in range(3):
        batch = batch_of(source, range(6 * step, 6 * step + 6))
        gradients(learner, batch, "rtd", "generator_mlm")
        optimizer.step()
        found = gradients(by_hand, batch, "rtd", "generator_mlm")
        for key, parameter in by_hand.named_parameters():
            if key != "encoder.embeddings.token.weight" and key in found:
                parameter.data -= 0.05 * found[key]
        difference -= 0.05 * found["encoder.embeddings.token.weight"]
        encoder.copy_(generator + difference)
    expected = weights(by_hand)
    for key, tensor in weights(learner).items():
        wanted = difference if key == "objectives.rtd.difference.weight" else expected[key]
        torch.testing.assert_close(tensor, wanted, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("sharing", ["disentangled", "none"])
def test_at_first_both_tables_are_the_encoders(sharing: str) -> None:
    encoder = electra()
    before = {key: tensor.clone() for key, tensor in encoder.state_dict().items()}
    learner = PretrainingLearner(encoder, [ReplacedTokenDetection(embedding_sharing=sharing)])  # type: ignore[arg-type]
    after = encoder.state_dict()
    assert after.keys() == before.keys()
    assert all(torch.equal(after[key], tensor) for key, tensor in before.items())
    ours, generators = tables(learner)
    assert torch.equal(ours.weight, generators.weight)
    assert ours is not generators
    if sharing == "disentangled":
        assert not learner.get_parameter(DIFFERENCE).any()


@pytest.mark.parametrize("name", ENCODERS)
def test_a_checkpoint_holds_an_ordinary_encoder_and_gives_the_same_learner_back(
    source: PretrainingSource, name: str
) -> None:
    trained, batch = learner_of("disentangled", name=name), batch_of(source)
    saved = {key: tensor.clone() for key, tensor in weights(trained).items()}
    assert not aliases(trained)
    encoders = {k.removeprefix("encoder."): t for k, t in saved.items() if k.startswith("encoder.")}
    plain = ENCODERS[name](5).double()
    load_weights(plain, encoders)  # no key is missing or unexpected
    packed = pack([torch.arange(4, 20).numpy()])
    assert torch.equal(plain(packed).last, trained.encoder(packed).last)
    base, difference = (saved[f"objectives.rtd.{key}.weight"] for key in ("generator.embeddings.token", "difference"))
    assert torch.equal(encoders["embeddings.token.weight"], base + difference)
    assert num_parameters(trained) == sum(p.numel() for p in trained.parameters())

    loaded = learner_of("disentangled", name=name, seed=7)
    load_weights(loaded, saved)
    copied = copy.deepcopy(trained)
    expected = {kind: loss.sum.item() for kind, loss in trained.losses(batch)[0].items()}
    for learner in (loaded, copied):
        assert {kind: loss.sum.item() for kind, loss in learner.losses(batch)[0].items()} == expected
    tables(copied)[1].weight.data.mul_(1.5)  # a copy follows its own generator, but not the original encoder
    assert not torch.equal(tables(copied)[0].weight, tables(trained)[0].weight)
    assert {kind: loss.sum.item() for kind, loss in trained.losses(batch)[0].items()} == expected


#: Ways of sharing, with each objective.
BOTH = [("tied", "rtd"), ("disentangled", "rtd"), ("tied", "all_tokens_mlm")]


@pytest.mark.slow
@pytest.mark.parametrize(("sharing", "objective"), BOTH)
def test_the_evaluation_loss_does_not_depend_on_the_batch_size(store: TokenStore, sharing: str, objective: str) -> None:
    learner = learner_of(sharing, objective=objective)
    if objective == "rtd":
        learner.objectives["rtd"].output.weight.data *= 20  # so that it detects some replacements
    source = source_of(store, FullSentences)
    measured = [
        evaluate_losses(learner, evaluation_batches(source, micro_batch_tokens=size)) for size in (32, 256, 4096)
    ]
    assert measured[0][f"{objective}_replaced"] > 0.5
    assert 0.05 < measured[0][f"{objective}_base_rate"] < 0.2
    assert 0 < measured[0][f"{objective}_recall"] < 1
    for other in measured[1:]:
        assert other == pytest.approx(measured[0], rel=1e-9)


@pytest.mark.parametrize(("sharing", "objective"), BOTH)
def test_sixteen_micro_batches_of_one_row_have_the_gradients_of_one_of_sixteen(
    source: PretrainingSource, sharing: str, objective: str
) -> None:
    found = []
    for size in (1, 16):
        learner = learner_of(sharing, objective=objective).train()
        batches = [batch_of(source, range(start, start + size)) for start in range(0, 16, size)]
        step = Step(number=3, epoch=1.0, micro_batches=batches, first_micro_batch=50)
        accumulate(Passes(learner, Precision()), step, recurrent_states={}, seed=0, device="cpu")
        found.append({name: p.grad for name, p in learner.named_parameters() if p.grad is not None})
    assert (DIFFERENCE in found[0]) == (sharing == "disentangled")
    for name, gradient in found[0].items():
        torch.testing.assert_close(found[1][name], gradient, rtol=1e-6, atol=1e-9)


def test_optimisers_take_both_tables_for_embeddings_once() -> None:
    kinds = [(item.name, item.kind) for item in classify(learner_of("disentangled"))]
    tables_of = [name for name, kind in kinds if kind == "embedding" and ".token." in name]
    assert tables_of == [DIFFERENCE, "objectives.rtd.generator.embeddings.token.weight"]
    assert len(dict(kinds)) == len(kinds)


def test_an_objective_beside_it_reads_and_trains_the_same_table(source: PretrainingSource) -> None:
    objectives = [ReplacedTokenDetection(embedding_sharing="disentangled"), MaskedLanguageModel()]
    learner = PretrainingLearner(electra(), objectives)  # type: ignore[arg-type]
    learner.losses(batch_of(source))[0]["mlm"].sum.backward()
    gradient = learner.get_parameter(DIFFERENCE).grad
    assert gradient is not None
    assert gradient.abs().sum(1).gt(0).all()  # as output matrix, in every row
    assert learner.objectives["rtd"].generator.token_embedding.weight.grad is None


def test_merged_it_is_an_ordinary_table_of_the_same_values() -> None:
    learner = learner_of("disentangled")
    table, base = tables(learner)
    values = table.weight.detach().clone()
    merge(learner)
    assert isinstance(table.weight, nn.Parameter)
    assert torch.equal(table.weight, values)
    base.weight.data.zero_()
    assert torch.equal(table.weight, values)
    assert torch.equal(weights(learner)["encoder.embeddings.token.weight"], values)


@pytest.mark.parametrize("then", ["mlm", "disentangled", "tied"])
def test_another_learner_goes_on_with_the_same_encoder(source: PretrainingSource, then: str) -> None:
    first, batch = learner_of("disentangled"), batch_of(source)
    values = tables(first)[0].weight.detach().clone()
    heads = {k.removeprefix("objectives."): t for k, t in weights(first).items() if k.startswith("objectives.")}
    objective = MaskedLanguageModel() if then == "mlm" else ReplacedTokenDetection(embedding_sharing=then)  # type: ignore[arg-type]
    second = PretrainingLearner(first.encoder, [objective]).double()
    inherit_heads(second, heads)
    table = second.encoder.token_embedding
    assert table is not None
    assert torch.equal(table.weight, values)
    saved = {key: tensor.clone() for key, tensor in weights(second).items()}
    encoders = {key for key in saved if key.startswith("encoder.")}
    assert encoders == {f"encoder.{key}" for key in electra().state_dict()}
    losses, _ = second.losses(batch)
    loaded = PretrainingLearner(electra(11), [copy.deepcopy(objective)]) if then == "mlm" else learner_of(then, seed=11)
    load_weights(loaded.double(), saved)
    found, _ = loaded.losses(batch)
    assert {kind: loss.sum.item() for kind, loss in found.items()} == {k: loss.sum.item() for k, loss in losses.items()}


@pytest.mark.parametrize("before", ["tied", "none", "disentangled"])
def test_heads_of_another_run_leave_the_encoder_as_it_is(before: str) -> None:
    first = learner_of(before, seed=3)
    saved = weights(first)
    encoder = electra(9).double()
    load_weights(encoder, {k.removeprefix("encoder."): t for k, t in saved.items() if k.startswith("encoder.")})
    objective = ReplacedTokenDetection(embedding_sharing="disentangled").double()
    learner = PretrainingLearner(encoder, [objective]).double()
    inherited = inherit_heads(
        learner, {k.removeprefix("objectives."): t for k, t in saved.items() if k.startswith("objectives.")}
    )
    assert ("rtd" in inherited.loaded) == (before == "disentangled")
    assert torch.equal(tables(learner)[0].weight, tables(first)[0].weight)
    assert torch.equal(learner.objectives["rtd"].dense.weight, saved["objectives.rtd.dense.weight"])


def test_two_generators_are_refused() -> None:
    both = [ReplacedTokenDetection(), AllTokensMaskedLanguageModel()]
    with refuses(ConfigError, "objective.losses=['rtd', 'all_tokens_mlm']", "generator"):
        PretrainingLearner(electra(), both)  # type: ignore[arg-type]


@pytest.mark.parametrize(("sharing", "size"), [("tied", 0.25), ("disentangled", 1 / 3), ("none", 0.5), ("tied", 1.0)])
def test_generators_of_every_size_learn(source: PretrainingSource, size: float, sharing: str) -> None:
    learner, batch = learner_of(sharing, size=size), batch_of(source)
    (objective,) = learner.objective_list()
    assert objective.generator.dim == max(2, 2 * round(16 * size / 2))
    assert set(gradients(learner, batch, "rtd", "generator_mlm")) == {name for name, _ in learner.named_parameters()}
