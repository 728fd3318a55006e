"""Folders of ALBERT in and out, against transformers with random weights."""

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
    learner_of,
    mlm_logits,
    padded,
    perturbed,
    run_of,
    there_and_back,
)
from support.refusals import refuses

from lmtransfer.errors import CheckpointError
from lmtransfer.interop.families.family import NotInTransformers
from lmtransfer.interop.reading import read_published
from lmtransfer.interop.writing import RunToPublish, to_published_files

transformers = pytest.importorskip("transformers")

MODEL: dict[str, Any] = {
    "_target_": "lmtransfer.models.albert.AlbertEncoder",
    "embedding_dim": 16,
    "dim": 24,
    "num_layers": 3,
    "num_heads": 3,
    "hidden_dim": 40,
    "max_length": 30,
}


def peer_of(architecture: str, **changes: Any) -> Any:
    config = transformers.AlbertConfig(
        vocab_size=VOCABULARY,
        embedding_size=16,
        hidden_size=24,
        num_hidden_layers=3,
        num_attention_heads=3,
        intermediate_size=40,
        max_position_embeddings=30,
        **changes,
    )
    return perturbed(getattr(transformers, f"Albert{architecture}")(config))


@pytest.mark.parametrize("architecture", ["Model", "ForPreTraining", "ForMaskedLM"])
def test_every_architecture_computes_the_same_and_goes_back_to_the_byte(tmp_path: Path, architecture: str) -> None:
    peer = peer_of(architecture)
    published, loaded = there_and_back(peer, tmp_path)
    batch = batch_of(segments=True)
    inputs = padded(batch)
    encoder = encoder_of(published)
    body = peer if architecture == "Model" else peer.albert
    with torch.no_grad():
        theirs, again, ours = peer(**inputs), loaded(**inputs), encoder(batch)
        last = body(**inputs).last_hidden_state[inputs["attention_mask"].bool()]
    torch.testing.assert_close(ours.last, last, **CLOSE)
    assert torch.equal(theirs[0], again[0])
    if architecture == "Model":
        torch.testing.assert_close(encoder.pooler(ours.last[batch.starts_B]), theirs.pooler_output, **CLOSE)
        assert_same_layers(encoder, body, batch, inputs)
        return
    learner = learner_of(published)
    torch.testing.assert_close(mlm_logits(learner, ours.last), theirs[0][inputs["attention_mask"].bool()], **CLOSE)
    if architecture == "ForPreTraining":
        order = learner.objectives["sop"].classifier(learner.encoder.pooler(ours.last[batch.starts_B]))
        torch.testing.assert_close(order, theirs.sop_logits, **CLOSE)


@pytest.mark.parametrize("kind", ["classification", "regression", "tagging", "span"])
def test_our_task_heads_answer_the_same_there(tmp_path: Path, kind: str) -> None:
    names = {"tagging": "TokenClassification", "span": "QuestionAnswering"}
    auto = getattr(transformers, f"AutoModelFor{names.get(kind, 'SequenceClassification')}")
    assert_task_survives(MODEL, kind, auto, tmp_path, segments=True)


def test_several_groups_of_layers_are_refused(tmp_path: Path) -> None:
    peer_of("Model").save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"num_hidden_groups": 3, "inner_group_num": 2}))
    with refuses(CheckpointError, "num_hidden_groups=3", "inner_group_num=2"):
        read_published(tmp_path)


@pytest.mark.parametrize(("changes", "named"), [({"norm": "pre"}, "norm=pre"), ({"share": "none"}, "share=none")])
def test_what_transformers_has_no_class_for_is_refused(tmp_path: Path, changes: dict[str, Any], named: str) -> None:
    peer_of("Model").save_pretrained(tmp_path)
    run = run_of(read_published(tmp_path))
    fields = {name: getattr(run, name) for name in RunToPublish.__slots__}
    with refuses(NotInTransformers, "AlbertEncoder", named):
        to_published_files(RunToPublish(**fields | {"model": {**run.model, **changes}}))
