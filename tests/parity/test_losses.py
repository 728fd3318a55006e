"""Pretraining losses and gradients on packed rows, against transformers with random weights on padded rows."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest
import torch
from fakes.published_models import LENGTHS, VOCABULARY, batch_of, padded, perturbed
from support.peer_tensors import learner_tensors
from torch import Tensor
from torch.nn.functional import cross_entropy

from lmtransfer.interop.families.index import family_of_config
from lmtransfer.models.albert import AlbertEncoder
from lmtransfer.models.base import Encoder, OutputPositions
from lmtransfer.models.bert import BertEncoder
from lmtransfer.models.distilbert import DistilBertEncoder
from lmtransfer.models.gpt import GptEncoder
from lmtransfer.models.modern import ModernEncoder
from lmtransfer.models.roberta import RobertaEncoder
from lmtransfer.objectives.base import Objective
from lmtransfer.objectives.batch import PretrainingBatch
from lmtransfer.objectives.language_model import LanguageModel
from lmtransfer.objectives.learner import PretrainingLearner
from lmtransfer.objectives.masked_lm import MaskedLanguageModel
from lmtransfer.objectives.pair_label import NextSentencePrediction, SentenceOrderPrediction
from lmtransfer.training.weights import load_weights

transformers = pytest.importorskip("transformers")

OURS: dict[str, Any] = {"vocab_size": VOCABULARY, "dim": 24, "num_layers": 3, "num_heads": 3, "hidden_dim": 40}
OURS |= {"max_length": 30, "dropout": 0.0}
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "intermediate_size": 40,
    "max_position_embeddings": 30,
    "initializer_range": 0.1,
}
ROBERTA = SIZES | {"max_position_embeddings": 32, "type_vocab_size": 1, "pad_token_id": 1, "layer_norm_eps": 1e-5}
MODERN = SIZES | {"local_attention": 6, "attn_implementation": "eager", "pad_token_id": 0, "bos_token_id": 1}
MODERN |= {"eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2, "decoder_bias": True, "classifier_bias": True}
MODERN |= {"norm_bias": True, "attention_bias": True, "mlp_bias": True}
DISTILBERT = {"vocab_size": VOCABULARY, "dim": 24, "n_layers": 3, "n_heads": 3, "hidden_dim": 40}
PUBLISHED = {"positions_from_two": True, "type_row": True}
#: The class and settings in transformers, our encoder, and our objectives.
CASES: dict[str, tuple[str, dict[str, Any], type[Encoder], dict[str, Any], list[Objective]]] = {
    "bert": ("BertForPreTraining", SIZES, BertEncoder, {}, [MaskedLanguageModel(), NextSentencePrediction()]),
    "megatron": (
        "MegatronBertForPreTraining",
        SIZES,
        BertEncoder,
        {"norm": "pre"},
        [MaskedLanguageModel(), NextSentencePrediction()],
    ),
    "albert": (
        "AlbertForPreTraining",
        SIZES | {"embedding_size": 16, "classifier_dropout_prob": 0.0},
        AlbertEncoder,
        {"embedding_dim": 16},
        [MaskedLanguageModel(activation="gelu_tanh"), SentenceOrderPrediction()],
    ),
    "roberta": ("RobertaForMaskedLM", ROBERTA, RobertaEncoder, PUBLISHED, [MaskedLanguageModel(norm_eps=1e-5)]),
    "roberta pre": (
        "RobertaPreLayerNormForMaskedLM",
        ROBERTA,
        RobertaEncoder,
        {"norm": "pre", **PUBLISHED},
        [MaskedLanguageModel(norm_eps=1e-5)],
    ),
    "distilbert": (
        "DistilBertForMaskedLM",
        DISTILBERT | {"max_position_embeddings": 30, "initializer_range": 0.1},
        DistilBertEncoder,
        {},
        [MaskedLanguageModel()],
    ),
    "modern": (
        "ModernBertForMaskedLM",
        MODERN,
        ModernEncoder,
        {"window": 6, "bias": True},
        [MaskedLanguageModel(norm_eps=1e-5)],
    ),
}


def peer_of(architecture: str, settings: dict[str, Any]) -> Any:
    cls = getattr(transformers, architecture)
    return perturbed(cls(cls.config_class(**settings)))


def batch_with_targets(segments: bool) -> tuple[PretrainingBatch, Tensor]:
    """Return random targets at 40 positions, row labels, and targets for all positions, -100 where there is none."""
    rng, packed = np.random.default_rng(2), batch_of(segments=segments)
    starts = packed.starts_B.numpy()
    positions = np.sort(rng.permutation(sum(LENGTHS))[:40])
    union = np.union1d(positions, starts)
    targets = torch.from_numpy(rng.integers(0, VOCABULARY, 40))
    labels = torch.from_numpy(rng.integers(0, 2, len(LENGTHS)))
    batch = PretrainingBatch(
        original=packed,
        inputs=packed,
        positions_M=torch.from_numpy(positions),
        targets_M=targets,
        weights_M=torch.ones(40),
        uniform_M=torch.zeros(40),
        num_targets=40,
        labels={"nsp": labels, "sop": labels},
        output_positions=OutputPositions.of(union, packed.cu_seqlens.numpy()),
        read_index={
            "masked": torch.from_numpy(union.searchsorted(positions)),
            "starts": torch.from_numpy(union.searchsorted(starts)),
        },
        keys=tuple(map(str, range(len(LENGTHS)))),
    )
    flat = torch.full((sum(LENGTHS),), -100)
    flat[positions] = targets
    return batch, flat


@pytest.mark.parametrize("case", CASES)
def test_losses_and_gradients_equal_the_peers_tied_embedding_included(case: str) -> None:
    architecture, settings, kind, changes, objectives = CASES[case]
    peer = peer_of(architecture, settings)
    family = family_of_config({"model_type": peer.config.model_type}, source="")
    learner = PretrainingLearner(kind(**OURS | changes), objectives).eval()
    load_weights(learner, learner_tensors(peer.state_dict(), family))
    batch, targets = batch_with_targets(segments=len(objectives) > 1)
    inputs = padded(batch.original, pad=settings.get("pad_token_id", 0), segments=len(objectives) > 1)
    theirs = peer(**inputs)
    logits = theirs["prediction_logits" if len(objectives) > 1 else "logits"][inputs["attention_mask"].bool()]
    expected = {"mlm": cross_entropy(logits, targets)}
    for name, output in (("nsp", "seq_relationship_logits"), ("sop", "sop_logits")):
        if output in theirs:
            expected[name] = cross_entropy(theirs[output], batch.labels[name])
    losses, _ = learner.losses(batch)
    ours = {name: losses[name].sum / losses[name].count for name in expected}
    for name, loss in ours.items():
        torch.testing.assert_close(loss, expected[name], atol=1e-5, rtol=1e-5)
    cast(Tensor, sum(ours.values())).backward()
    cast(Tensor, sum(expected.values())).backward()
    gradients = learner_tensors({n: p.grad for n, p in peer.named_parameters() if p.grad is not None}, family)
    found = {name: parameter.grad for name, parameter in learner.named_parameters() if parameter.grad is not None}
    assert found.keys() == gradients.keys() == dict(learner.named_parameters()).keys()
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, gradients[name], atol=5e-5, rtol=1e-4, msg=lambda t, n=name: f"{n}: {t}")


@pytest.mark.parametrize(("architecture", "changes"), [("GPT2", {"norm": "pre"}), ("OpenAIGPT", {"norm": "post"})])
def test_gradients_of_a_language_model_equal_the_peers(architecture: str, changes: dict[str, Any]) -> None:
    sizes = {"vocab_size": VOCABULARY, "n_embd": 24, "n_layer": 3, "n_head": 3, "n_positions": 30}
    peer = peer_of(f"{architecture}LMHeadModel", sizes | {"initializer_range": 0.1})
    family = family_of_config({"model_type": peer.config.model_type}, source="")
    encoder = GptEncoder(**OURS | changes | {"hidden_dim": 96, "activation": "gelu_tanh"})
    learner = PretrainingLearner(encoder, [LanguageModel()]).eval()
    load_weights(learner, learner_tensors(peer.state_dict(), family))
    batch = batch_of(segments=False)
    inputs = padded(batch, segments=False)
    targets = torch.from_numpy(np.random.default_rng(3).integers(0, VOCABULARY, sum(LENGTHS)))
    logits = cast(Any, learner.objectives["lm"]).token_logits(encoder(batch).last)
    cross_entropy(logits, targets).backward()
    cross_entropy(peer(**inputs).logits[inputs["attention_mask"].bool()], targets).backward()
    gradients = learner_tensors({name: p.grad for name, p in peer.named_parameters()}, family)
    for name, parameter in learner.named_parameters():
        torch.testing.assert_close(parameter.grad, gradients[name], atol=5e-5, rtol=1e-4)


@pytest.mark.parametrize(
    "encoder",
    [
        BertEncoder(**OURS),
        BertEncoder(**OURS | {"norm": "pre"}),
        ModernEncoder(**OURS | {"window": 6, "num_layers": 4}),  # the last layer sees everything, or a window
        ModernEncoder(**OURS | {"window": 6, "query_key_norm": True, "normalise_first_input": True}),
    ],
    ids=["bert", "bert pre", "modern global", "modern local"],
)
def test_reads_compute_the_same_states_and_gradients_as_everything(encoder: Encoder) -> None:
    encoder, packed = perturbed(encoder).double(), batch_of(segments=False)
    positions = np.sort(np.random.default_rng(2).permutation(sum(LENGTHS))[:20])
    output_positions = OutputPositions.of(positions, packed.cu_seqlens.numpy())
    assert 0 in output_positions.counts  # a sequence in which nothing is predicted
    weights = torch.randn(20, 24, dtype=torch.float64)
    gradients = []
    for last in (
        encoder(packed).last[output_positions.positions_N],
        encoder(packed, output_positions=output_positions).last,
    ):
        encoder.zero_grad()
        (last * weights).sum().backward()
        gradients.append([p.grad.clone() for p in encoder.parameters() if p.grad is not None] + [last.detach()])
    assert len(gradients[0]) > 20
    for whole, selected in zip(*gradients, strict=True):
        torch.testing.assert_close(whole, selected, atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("changes", [{"global_every": 1}, {"window": 12}, {"local_theta": 1e3}])
def test_windows_and_angles_are_no_idle_switches(changes: dict[str, Any]) -> None:
    published = perturbed(ModernEncoder(**OURS | {"window": 6}))
    other = ModernEncoder(**OURS | {"window": 6} | changes).eval()
    other.load_state_dict(published.state_dict())
    batch = batch_of(segments=False)
    with torch.no_grad():
        assert (published(batch).last - other(batch).last).abs().max() > 1e-3


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_no_token_of_a_gpt_sees_what_comes_after(norm: Any) -> None:
    encoder, batch = perturbed(GptEncoder(**OURS | {"norm": norm})), batch_of(segments=False, lengths=[20])
    edited = batch.tokens_T.clone()
    edited[11:] = (edited[11:] + 5) % VOCABULARY
    with torch.no_grad():
        before, after = encoder(batch).last, encoder(batch.with_tokens(edited)).last
    assert torch.equal(before[:11], after[:11])
    assert not torch.equal(before[11], after[11])
