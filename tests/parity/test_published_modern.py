"""Folders of ModernBERT in and out, against transformers with random weights."""

from __future__ import annotations

import json
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
    task_logits,
    there_and_back,
    write,
)
from support.refusals import refuses

from lmtransfer.config.component import build
from lmtransfer.errors import CheckpointError
from lmtransfer.interop.families.family import NotInTransformers
from lmtransfer.interop.reading import read_published, read_task_head
from lmtransfer.interop.writing import to_published_files
from lmtransfer.objectives.learner import PretrainingLearner
from lmtransfer.training.weights import weights

transformers = pytest.importorskip("transformers")

MODEL: dict[str, Any] = {
    "_target_": "lmtransfer.models.modern.ModernEncoder",
    "dim": 24,
    "num_layers": 4,
    "num_heads": 3,
    "hidden_dim": 40,
    "max_length": 30,
    "window": 6,
}
BIASES = {"attention_bias": True, "mlp_bias": True, "norm_bias": True, "classifier_bias": True}


def peer_of(architecture: str, **changes: Any) -> Any:
    settings = {
        "vocab_size": VOCABULARY,
        "hidden_size": 24,
        "num_hidden_layers": 4,
        "num_attention_heads": 3,
        "intermediate_size": 40,
        "max_position_embeddings": 30,
        "local_attention": 6,
        "attn_implementation": "eager",
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "cls_token_id": 1,
        "sep_token_id": 2,
    }
    return perturbed(
        getattr(transformers, f"ModernBert{architecture}")(transformers.ModernBertConfig(**settings | changes))
    )


@pytest.mark.parametrize("architecture", ["Model", "ForMaskedLM"])
@pytest.mark.parametrize("changes", [{}, BIASES, {"global_attn_every_n_layers": 2, "decoder_bias": False}])
def test_every_architecture_computes_the_same_and_goes_back_to_the_byte(
    tmp_path: Path, architecture: str, changes: dict[str, Any]
) -> None:
    peer = peer_of(architecture, **changes)
    published, loaded = there_and_back(peer, tmp_path)
    assert published.model["global_every"] == changes.get("global_attn_every_n_layers", 3)
    batch = batch_of(segments=False)
    inputs = padded(batch, segments=False)
    last = assert_same_layers(encoder_of(published), peer.base_model, batch, inputs)
    real = inputs["attention_mask"].bool()
    with torch.no_grad():
        theirs, again = peer(**inputs)[0], loaded(**inputs)[0]
    torch.testing.assert_close(theirs[real], again[real], **CLOSE)
    if architecture == "ForMaskedLM":
        torch.testing.assert_close(mlm_logits(learner_of(published), last), theirs[real], **CLOSE)


@pytest.mark.parametrize("bias", [False, True])
def test_our_pretrained_run_answers_the_same_there(tmp_path: Path, bias: bool) -> None:
    model = MODEL | {"bias": bias, "global_theta": 1e4, "local_theta": 1e3, "global_every": 2}
    node = {"_target_": "lmtransfer.objectives.masked_lm.MaskedLanguageModel", "norm_eps": 1e-5}
    learner = perturbed(PretrainingLearner(build(model, vocab_size=VOCABULARY), [build(node)]))
    run = run_with_head(
        task_learner(build(model, vocab_size=VOCABULARY), "tagging"),
        model,
        "pretraining",
        encoder=weights(learner.encoder),
        head=weights(learner.objectives),
        loss_arguments={"mlm": node},
    )
    files = to_published_files(run)
    peer, told = transformers.AutoModelForMaskedLM.from_pretrained(write(files, tmp_path), output_loading_info=True)
    assert not told["missing_keys"]
    assert not told["unexpected_keys"]
    batch = batch_of(segments=False)
    inputs = padded(batch, segments=False)
    with torch.no_grad():
        logits = peer.eval()(**inputs).logits[inputs["attention_mask"].bool()]
        torch.testing.assert_close(mlm_logits(learner, learner.encoder(batch).last), logits, **CLOSE)
    again = read_published(tmp_path)  # what we wrote, we read, though its norms have biases of zero
    assert again.model["bias"] == bias
    assert_same_tensors(to_published_files(run_of(again)).tensors, files.tensors)


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"mlp_bias": True}, ("mlp_bias=true", "attention_bias=false")),
        (
            {"layer_types": ["full_attention", "sliding_attention", "full_attention", "full_attention"]},
            ("layer_types=",),
        ),
        ({"rope_parameters": {"full_attention": {"rope_type": "yarn"}}}, ("rope_parameters=",)),
        ({"local_attention": 7}, ("model.window=7",)),
    ],
)
def test_what_we_do_not_compute_is_refused(tmp_path: Path, changes: dict[str, Any], names: tuple[str, ...]) -> None:
    peer_of("Model").save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | changes))
    with refuses(CheckpointError, "config.json", *names):
        read_published(tmp_path)


def test_biases_in_the_norms_only_are_no_model_of_ours(tmp_path: Path) -> None:
    peer_of("Model", norm_bias=True).save_pretrained(tmp_path)
    with refuses(CheckpointError, "final_norm.bias"):
        read_published(tmp_path)


def test_ours_beyond_modernbert_has_no_counterpart() -> None:
    model = MODEL | {"query_key_norm": True}
    learner = task_learner(build(model, vocab_size=VOCABULARY), "classification")
    with refuses(NotInTransformers, "ModernEncoder", "query_key_norm=true"):
        to_published_files(run_with_head(learner, model, "encoder"))


@pytest.mark.parametrize("kind", ["classification", "multi_label", "regression", "tagging", "span"])
@pytest.mark.parametrize("changes", [{}, {"bias": True}, {"norm_eps": 1e-12}])
def test_our_task_heads_answer_the_same_there(tmp_path: Path, kind: Any, changes: dict[str, Any]) -> None:
    names = {"tagging": "TokenClassification", "span": "QuestionAnswering"}
    name = names.get(kind, "SequenceClassification")
    auto = getattr(transformers, f"AutoModelFor{name}")
    files = assert_task_survives(MODEL | changes, kind, auto, tmp_path, segments=False)
    assert files.architecture == f"ModernBertFor{name}"
    assert any("float16" in note for note in files.notes)
    assert files.config["classifier_dropout"] == 0.25
    assert read_published(tmp_path).losses == ()
    labels = 0 if kind == "span" else 3
    learner = task_learner(build(MODEL | changes, vocab_size=VOCABULARY), kind, labels=labels)
    head = read_task_head(tmp_path, kind=kind)
    assert sorted(head) == ["output.bias", "output.weight"]
    for key, tensor in head.items():
        torch.testing.assert_close(tensor, learner.head.state_dict()[key], **CLOSE)


def test_a_classifier_in_bfloat16_is_as_exact_as_bfloat16_allows(tmp_path: Path) -> None:
    learner = task_learner(build(MODEL, vocab_size=VOCABULARY), "classification")
    batch = batch_of(segments=False)
    ours = task_logits(learner, batch)
    write(to_published_files(run_with_head(learner, MODEL, "classification")), tmp_path)
    auto = transformers.AutoModelForSequenceClassification
    half = auto.from_pretrained(tmp_path, dtype=torch.bfloat16).eval()
    whole = auto.from_pretrained(tmp_path).eval()
    inputs = padded(batch, segments=False)
    with torch.no_grad():
        error = half(**inputs).logits.float() - ours
        states = (half.model(**inputs)[0].float() - whole.model(**inputs)[0]).norm() / whole.model(**inputs)[0].norm()
    # The head adds no more than three of its own roundings to the error that the encoder has in bfloat16.
    assert error.norm() / ours.norm() < 4 * max(float(states), 2**-8)


def test_a_last_norm_with_a_weight_of_0_has_no_counterpart() -> None:
    learner = task_learner(build(MODEL, vocab_size=VOCABULARY), "classification")
    with torch.no_grad():
        learner.encoder.stack.final_norm.weight[3] = 0.0
    with refuses(CheckpointError, "last norm", "0"):
        to_published_files(run_with_head(learner, MODEL, "classification"))


def test_a_head_with_another_activation_is_left_out_and_told(tmp_path: Path) -> None:
    peer_of("ForMaskedLM").save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"classifier_activation": "silu"}))
    read = read_published(tmp_path)
    assert read.losses == ()
    assert any("mlm" in note and "classifier_activation=silu" in note for note in read.notes)
