"""Folders of RoBERTa and its pre-norm variant in and out, against transformers with random weights."""

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
    there_and_back,
    write,
)
from support.refusals import refuses

from lmtransfer.errors import CheckpointError
from lmtransfer.interop.reading import read_published
from lmtransfer.interop.writing import to_published_files

transformers = pytest.importorskip("transformers")

MODEL: dict[str, Any] = {
    "_target_": "lmtransfer.models.roberta.RobertaEncoder",
    "dim": 24,
    "num_layers": 2,
    "num_heads": 3,
    "hidden_dim": 40,
    "max_length": 28,
}
KINDS = {"post": "Roberta", "pre": "RobertaPreLayerNorm"}


def peer_of(kind: str, architecture: str, *, pad: int = 1, **changes: Any) -> Any:
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=VOCABULARY,
        hidden_size=24,
        num_hidden_layers=2,
        num_attention_heads=3,
        intermediate_size=40,
        max_position_embeddings=27 + pad + 1,
        pad_token_id=pad,
        **{"type_vocab_size": 1, "layer_norm_eps": 1e-5, **changes},
    )
    return perturbed(getattr(transformers, f"{kind}{architecture}")(config))


@pytest.mark.parametrize(
    ("kind", "architecture"),
    [
        ("Roberta", "Model"),
        ("Roberta", "ForMaskedLM"),
        ("RobertaPreLayerNorm", "Model"),
        ("RobertaPreLayerNorm", "ForMaskedLM"),
    ],
)
def test_every_architecture_computes_the_same_and_goes_back_to_the_byte(
    tmp_path: Path, kind: str, architecture: str
) -> None:
    peer = peer_of(kind, architecture)
    published, loaded = there_and_back(peer, tmp_path, pad=1)
    batch = batch_of(segments=False)
    inputs = padded(batch, pad=1, segments=False)
    body = peer if architecture == "Model" else peer.base_model
    last = assert_same_layers(encoder_of(published), body, batch, inputs)
    assert published.model["max_length"] == 27
    with torch.no_grad():
        theirs, again = peer(**inputs), loaded(**inputs)
    assert torch.equal(theirs[0], again[0])
    if architecture == "ForMaskedLM":
        real = inputs["attention_mask"].bool()
        torch.testing.assert_close(mlm_logits(learner_of(published), last), theirs.logits[real], **CLOSE)


@pytest.mark.parametrize("kind", ["XLMRoberta", "Camembert"])
def test_other_names_of_the_same_model_are_read(tmp_path: Path, kind: str) -> None:
    peer = peer_of(kind, "ForMaskedLM")
    peer.save_pretrained(tmp_path)
    published = read_published(tmp_path)
    batch = batch_of(segments=False)
    inputs = padded(batch, pad=1, segments=False)
    last = assert_same_layers(encoder_of(published), peer.base_model, batch, inputs)
    with torch.no_grad():
        theirs = peer(**inputs).logits[inputs["attention_mask"].bool()]
    torch.testing.assert_close(mlm_logits(learner_of(published), last), theirs, **CLOSE)
    files = to_published_files(run_of(published, pad=1))
    again = transformers.AutoModelForMaskedLM.from_pretrained(write(files, tmp_path / "ours")).eval()
    with torch.no_grad():
        assert torch.equal(again(**inputs).logits[inputs["attention_mask"].bool()], theirs)


def test_another_padding_id_moves_the_positions(tmp_path: Path) -> None:
    peer = peer_of("Roberta", "ForMaskedLM", pad=5)
    peer.save_pretrained(tmp_path)
    published = read_published(tmp_path)
    assert any("first 6 rows" in note and "position" in note for note in published.notes)
    assert published.model["max_length"] == 27
    batch = batch_of(segments=False, first=6)
    assert_same_layers(encoder_of(published), peer.base_model, batch, padded(batch, pad=5, segments=False))


@pytest.mark.parametrize("kind", ["classification", "regression", "tagging", "span"])
@pytest.mark.parametrize("changes", [{}, {"norm": "pre"}, {"positions_from_two": True, "type_row": True}])
def test_our_task_heads_answer_the_same_there(tmp_path: Path, kind: str, changes: dict[str, Any]) -> None:
    names = {
        "classification": "SequenceClassification",
        "regression": "SequenceClassification",
        "tagging": "TokenClassification",
        "span": "QuestionAnswering",
    }
    auto = getattr(transformers, f"AutoModelFor{names[kind]}")
    files = assert_task_survives(MODEL | changes, kind, auto, tmp_path, segments=False, pad=2)
    assert files.architecture == f"{KINDS[changes.get('norm', 'post')]}For{names[kind]}"
    assert files.config["max_position_embeddings"] == 28 + 3
    assert files.config["type_vocab_size"] == 1
    published = read_published(tmp_path)  # what we wrote, we read, and write again
    assert published.model["max_length"] == 28
    again = to_published_files(run_of(published, pad=2))
    body = {name: tensor for name, tensor in files.tensors.items() if name.startswith("roberta")}
    assert_same_tensors({f"{next(iter(body)).partition('.')[0]}.{n}": t for n, t in again.tensors.items()}, body)


def test_segments_are_refused(tmp_path: Path) -> None:
    peer_of("Roberta", "Model", type_vocab_size=2).save_pretrained(tmp_path)
    with refuses(CheckpointError, "config.json", "type_vocab_size=2"):
        read_published(tmp_path)
