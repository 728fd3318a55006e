"""Folders of DistilBERT in and out, against transformers with random weights."""

from __future__ import annotations

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
    learner_of,
    mlm_logits,
    padded,
    perturbed,
    there_and_back,
)

transformers = pytest.importorskip("transformers")

MODEL: dict[str, Any] = {
    "_target_": "lmtransfer.models.distilbert.DistilBertEncoder",
    "dim": 24,
    "num_layers": 2,
    "num_heads": 3,
    "hidden_dim": 40,
    "max_length": 30,
}


@pytest.mark.parametrize("architecture", ["Model", "ForMaskedLM"])
def test_every_architecture_computes_the_same_and_goes_back_to_the_byte(tmp_path: Path, architecture: str) -> None:
    config = transformers.DistilBertConfig(
        vocab_size=VOCABULARY,
        dim=24,
        n_layers=2,
        n_heads=3,
        hidden_dim=40,
        max_position_embeddings=30,
        activation="relu",
    )
    peer = perturbed(getattr(transformers, f"DistilBert{architecture}")(config))
    published, loaded = there_and_back(peer, tmp_path)
    batch = batch_of(segments=False)
    inputs = padded(batch, segments=False)
    last = assert_same_layers(encoder_of(published), peer.base_model, batch, inputs)
    with torch.no_grad():
        theirs, again = peer(**inputs)[0], loaded(**inputs)[0]
    assert torch.equal(theirs, again)
    if architecture == "ForMaskedLM":
        real = inputs["attention_mask"].bool()
        torch.testing.assert_close(mlm_logits(learner_of(published), last), theirs[real], **CLOSE)


@pytest.mark.parametrize("kind", ["classification", "regression", "tagging", "span"])
def test_our_task_heads_answer_the_same_there(tmp_path: Path, kind: str) -> None:
    names = {"tagging": "TokenClassification", "span": "QuestionAnswering"}
    auto = getattr(transformers, f"AutoModelFor{names.get(kind, 'SequenceClassification')}")
    assert_task_survives(MODEL, kind, auto, tmp_path, segments=False)
