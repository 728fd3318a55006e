"""Folders of XLNet in and out, against transformers with random weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from fakes.published_models import (
    CLOSE,
    LENGTHS,
    VOCABULARY,
    assert_task_survives,
    batch_of,
    encoder_of,
    learner_of,
    perturbed,
    there_and_back,
)

transformers = pytest.importorskip("transformers")

MODEL: dict[str, Any] = {
    "_target_": "lmtransfer.models.xlnet.XlnetEncoder",
    "dim": 24,
    "num_layers": 2,
    "num_heads": 3,
    "hidden_dim": 40,
    "memory_length": 0,
}


@pytest.mark.parametrize("architecture", ["Model", "LMHeadModel"])
@pytest.mark.parametrize("changes", [{}, {"clamp_len": 7, "mem_len": 5, "ff_activation": "relu"}])
def test_every_architecture_computes_the_same_and_goes_back_to_the_byte(
    tmp_path: Path, architecture: str, changes: dict[str, Any]
) -> None:
    config = transformers.XLNetConfig(
        **{
            "vocab_size": VOCABULARY,
            "d_model": 24,
            "n_layer": 2,
            "n_head": 3,
            "d_inner": 40,
            "mem_len": None,
            **changes,
        }
    )
    peer = perturbed(getattr(transformers, f"XLNet{architecture}")(config))
    published, loaded = there_and_back(peer, tmp_path)
    assert published.model["clamp_length"] == changes.get("clamp_len")
    assert published.model["memory_length"] == changes.get("mem_len", 0)
    batch = batch_of(segments=True)
    encoder = encoder_of(published)
    with torch.no_grad():
        layers = [layer.split(LENGTHS) for layer in encoder(batch).layers]
        tokens, segments = batch.tokens_T.split(LENGTHS), batch.segments_T.split(LENGTHS)
        for row, (ids, segment) in enumerate(zip(tokens, segments, strict=True)):
            inputs = {"input_ids": ids[None], "token_type_ids": segment[None]}
            theirs = peer(**inputs, output_hidden_states=True)
            for ours, their in zip(layers, theirs.hidden_states, strict=True):
                torch.testing.assert_close(ours[row], their[0], **CLOSE)
            torch.testing.assert_close(theirs[0], loaded(**inputs)[0], atol=1e-6, rtol=1e-6)
            if architecture == "LMHeadModel":
                bias = learner_of(published).objectives["plm"].bias
                logits = layers[-1][row] @ encoder.token_embedding.weight.T + bias
                torch.testing.assert_close(logits, theirs.logits[0], **CLOSE)


@pytest.mark.parametrize("kind", ["classification", "regression", "tagging", "span"])
@pytest.mark.parametrize("num_segments", [1, 2])
def test_our_task_heads_answer_the_same_there(tmp_path: Path, kind: str, num_segments: int) -> None:
    names = {"tagging": "TokenClassification", "span": "QuestionAnswering"}
    auto = getattr(transformers, f"AutoModelFor{names.get(kind, 'SequenceClassification')}")
    model = MODEL | {"num_segments": num_segments}
    assert_task_survives(model, kind, auto, tmp_path, segments=num_segments == 2, left=True)
