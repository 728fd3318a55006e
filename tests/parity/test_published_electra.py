"""Folders of ELECTRA in and out, against transformers with random weights: discriminator, generator, and both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from fakes.published_models import (
    CLOSE,
    VOCABULARY,
    assert_same_layers,
    assert_same_tensors,
    assert_task_survives,
    batch_of,
    encoder_of,
    learner_of,
    mlm_logits,
    padded,
    perturbed,
    run_of,
    run_with_head,
    task_learner,
    there_and_back,
    write,
)
from safetensors.torch import load_file

from lmtransfer.config.component import build
from lmtransfer.interop.reading import read_published
from lmtransfer.interop.writing import to_published_files
from lmtransfer.objectives.learner import PretrainingLearner
from lmtransfer.training.weights import weights

transformers = pytest.importorskip("transformers")

MODEL: dict[str, Any] = {
    "_target_": "lmtransfer.models.electra.ElectraEncoder",
    "embedding_dim": 16,
    "dim": 24,
    "num_layers": 2,
    "num_heads": 3,
    "hidden_dim": 48,
    "max_length": 30,
}


def peer_of(architecture: str, *, width: int = 24, heads: int = 3, embedding: int = 16, seed: int = 0) -> Any:
    config = transformers.ElectraConfig(
        vocab_size=VOCABULARY,
        embedding_size=embedding,
        hidden_size=width,
        num_hidden_layers=2,
        num_attention_heads=heads,
        intermediate_size=2 * width,
        max_position_embeddings=30,
    )
    return perturbed(getattr(transformers, f"Electra{architecture}")(config), seed=seed)


def rtd_logits(learner: Any, batch: Any) -> torch.Tensor:
    return learner.objectives["rtd"].token_logits(learner.encoder(batch).last)


@pytest.mark.parametrize("architecture", ["Model", "ForPreTraining", "ForMaskedLM"])
@pytest.mark.parametrize("embedding", [16, 24])
def test_every_architecture_computes_the_same_and_goes_back_to_the_byte(
    tmp_path: Path, architecture: str, embedding: int
) -> None:
    peer = peer_of(architecture, embedding=embedding)
    published, loaded = there_and_back(peer, tmp_path)
    batch = batch_of(segments=True)
    inputs = padded(batch)
    body = peer if architecture == "Model" else peer.electra
    last = assert_same_layers(encoder_of(published), body, batch, inputs)
    with torch.no_grad():
        theirs, again = peer(**inputs)[0], loaded(**inputs)[0]
    assert torch.equal(theirs, again)
    if architecture == "ForMaskedLM":
        assert published.losses == ("mlm",)
        real = inputs["attention_mask"].bool()
        torch.testing.assert_close(mlm_logits(learner_of(published), last), theirs[real], **CLOSE)
    elif architecture == "ForPreTraining":  # alone, it is no objective
        assert published.losses == ()
        assert any("rtd" in note and "generator" in note for note in published.notes)


def test_discriminator_and_generator_together_are_the_objective(tmp_path: Path) -> None:
    discriminator = peer_of("ForPreTraining")
    generator = peer_of("ForMaskedLM", width=8, heads=1, seed=1)
    generator.electra.embeddings.load_state_dict(discriminator.electra.embeddings.state_dict())
    discriminator.save_pretrained(tmp_path)
    generator.save_pretrained(tmp_path / "generator")
    published = read_published(tmp_path)
    assert published.losses == ("rtd",)
    learner = learner_of(published)
    batch = batch_of(segments=True)
    inputs = padded(batch)
    real = inputs["attention_mask"].bool()
    with torch.no_grad():
        torch.testing.assert_close(rtd_logits(learner, batch), discriminator(**inputs).logits[real], **CLOSE)
        rtd = learner.objectives["rtd"]
        hidden = rtd.generator_head.transform(rtd.generator(batch).last)
        ours = hidden @ learner.encoder.token_embedding.weight.T + rtd.generator_head.bias
        torch.testing.assert_close(ours, generator(**inputs).logits[real], **CLOSE)
    files = to_published_files(run_of(published))
    assert_same_tensors(files.tensors, load_file(tmp_path / "model.safetensors"))
    (small,) = files.more.values()
    assert small.architecture == "ElectraForMaskedLM"
    assert_same_tensors(small.tensors, load_file(tmp_path / "generator" / "model.safetensors"))
    perturbed(generator).save_pretrained(tmp_path / "generator")
    read = read_published(tmp_path)
    assert read.losses == ()
    assert any("generator" in note and "embeddings" in note for note in read.notes)


def test_our_pretrained_run_answers_the_same_there(tmp_path: Path) -> None:
    node = {"_target_": "lmtransfer.objectives.replaced_token.ReplacedTokenDetection", "generator_size": 0.5}
    learner = perturbed(PretrainingLearner(build(MODEL, vocab_size=VOCABULARY), [build(node)]))
    run = run_with_head(
        task_learner(build(MODEL, vocab_size=VOCABULARY), "tagging"),
        MODEL,
        "pretraining",
        pad=VOCABULARY,
        encoder=weights(learner.encoder),
        head=weights(learner.objectives),
        loss_arguments={"rtd": node},
    )
    write(to_published_files(run), tmp_path)
    batch = batch_of(segments=True)
    inputs = padded(batch, pad=VOCABULARY)
    real = inputs["attention_mask"].bool()
    peers = []
    for auto, folder in ((transformers.AutoModelForPreTraining, ""), (transformers.AutoModelForMaskedLM, "generator")):
        peer, told = auto.from_pretrained(tmp_path / folder, output_loading_info=True)
        assert not told["missing_keys"]
        assert not told["unexpected_keys"]
        peers.append(peer.eval())
    with torch.no_grad():
        torch.testing.assert_close(rtd_logits(learner, batch), peers[0](**inputs).logits[real], **CLOSE)
        rtd = learner.objectives["rtd"]
        hidden = rtd.generator_head.transform(rtd.generator(batch).last)
        ours = hidden @ learner.encoder.token_embedding.weight.T + rtd.generator_head.bias
        torch.testing.assert_close(ours, peers[1](**inputs).logits[real][:, :VOCABULARY], **CLOSE)
    assert read_published(tmp_path).losses == ("rtd",)


@pytest.mark.parametrize("kind", ["classification", "regression", "tagging", "span"])
def test_our_task_heads_answer_the_same_there(tmp_path: Path, kind: str) -> None:
    names = {"tagging": "TokenClassification", "span": "QuestionAnswering"}
    auto = getattr(transformers, f"AutoModelFor{names.get(kind, 'SequenceClassification')}")
    assert_task_survives(MODEL, kind, auto, tmp_path, segments=True)


def test_a_subfolder_that_leads_back_is_no_generator(tmp_path: Path) -> None:
    peer_of("ForPreTraining").save_pretrained(tmp_path)
    (tmp_path / "generator").symlink_to(tmp_path, target_is_directory=True)
    read = read_published(tmp_path)
    assert read.losses == ()
    assert any("generator" in note and "mlm" in note for note in read.notes)
