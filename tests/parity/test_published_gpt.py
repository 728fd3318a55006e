"""Folders of GPT and GPT-2 in and out, against transformers with random weights."""

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
    assert_task_survives,
    batch_of,
    encoder_of,
    padded,
    perturbed,
    run_with_head,
    task_learner,
    there_and_back,
)
from safetensors.torch import load_file, save_file
from support.refusals import refuses

from lmtransfer.config.component import build
from lmtransfer.errors import CheckpointError
from lmtransfer.interop.families.family import NotInTransformers
from lmtransfer.interop.reading import read_published
from lmtransfer.interop.writing import to_published_files

transformers = pytest.importorskip("transformers")

MODEL: dict[str, Any] = {
    "_target_": "lmtransfer.models.gpt.GptEncoder",
    "dim": 24,
    "num_layers": 2,
    "num_heads": 3,
    "hidden_dim": 40,
    "max_length": 30,
}
LM = {"lm": {"_target_": "lmtransfer.objectives.language_model.LanguageModel"}}


def peer_of(kind: str, architecture: str, **changes: Any) -> Any:
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=VOCABULARY,
        n_embd=24,
        n_layer=2,
        n_head=3,
        n_positions=30,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
        **changes,
    )
    return perturbed(getattr(transformers, f"{kind}{architecture}")(config))


@pytest.mark.parametrize("kind", ["GPT2", "OpenAIGPT"])
@pytest.mark.parametrize("architecture", ["Model", "LMHeadModel"])
def test_every_architecture_computes_the_same_and_goes_back_to_the_byte(
    tmp_path: Path, kind: str, architecture: str
) -> None:
    peer = peer_of(kind, architecture, **({"n_inner": 40} if kind == "GPT2" else {}))
    published, loaded = there_and_back(peer, tmp_path)
    assert published.losses == (("lm",) if architecture == "LMHeadModel" else ())
    batch = batch_of(segments=False)
    inputs = padded(batch, segments=False)
    last = assert_same_layers(encoder_of(published), peer.base_model, batch, inputs)
    with torch.no_grad():
        theirs, again = peer(**inputs)[0], loaded(**inputs)[0]
    assert torch.equal(theirs, again)
    if architecture == "LMHeadModel":
        ours = last @ published.encoder["embeddings.token.weight"].T
        torch.testing.assert_close(ours, theirs[inputs["attention_mask"].bool()], **CLOSE)


def test_sizes_left_out_and_tensors_of_old_files(tmp_path: Path) -> None:
    peer_of("GPT2", "LMHeadModel").save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    old = {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}
    old |= {"h.0.attn.bias": torch.ones(1, 1, 30, 30), "h.0.attn.masked_bias": torch.tensor(-1e4)}
    old["lm_head.weight"] = old["wte.weight"].clone()
    save_file(old, tmp_path / "model.safetensors")
    read = read_published(tmp_path)
    assert read.model["hidden_dim"] == 96
    assert read.losses == ("lm",)
    assert any("attn_pdrop=0.1" in note for note in read.notes)


@pytest.mark.parametrize("kind", ["tagging", "span"])
def test_our_task_heads_answer_the_same_there(tmp_path: Path, kind: str) -> None:
    names = {"tagging": "TokenClassification", "span": "QuestionAnswering"}
    auto = getattr(transformers, f"AutoModelFor{names[kind]}")
    assert_task_survives(MODEL, kind, auto, tmp_path, segments=False)


def test_heads_and_models_without_a_counterpart_are_refused_saying_why() -> None:
    learner = task_learner(build(MODEL, vocab_size=VOCABULARY), "classification")
    with refuses(CheckpointError, "GPT", "bias") as caught:
        to_published_files(run_with_head(learner, MODEL, "classification"))
    assert not isinstance(caught.value, NotInTransformers)
    for changes in ({"activation": "gelu", "hidden_dim": 96}, {"hidden_dim": 95}):
        model = MODEL | {"norm": "post"} | changes
        run = run_with_head(learner, model, "pretraining", head={}, loss_arguments=LM)
        named = next(iter(changes))
        with refuses(NotInTransformers, "GptEncoder", f"{named}={changes[named]}"):
            to_published_files(run)


def test_keys_that_change_the_computation_are_refused(tmp_path: Path) -> None:
    peer_of("GPT2", "Model").save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"scale_attn_by_inverse_layer_idx": True}))
    with refuses(CheckpointError, "config.json", "scale_attn_by_inverse_layer_idx=true"):
        read_published(tmp_path)
