"""Folders of BERT and MegatronBert in and out, against transformers with random weights."""

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
    there_and_back,
    write,
)
from safetensors.torch import load_file, save_file
from support.refusals import refuses

from lmtransfer.config.component import build
from lmtransfer.errors import CheckpointError
from lmtransfer.interop.reading import read_published, read_task_head
from lmtransfer.interop.writing import to_published_files
from lmtransfer.objectives.learner import PretrainingLearner
from lmtransfer.training.weights import weights

transformers = pytest.importorskip("transformers")

SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 40,
    "max_position_embeddings": 30,
}
MODEL: dict[str, Any] = {
    "_target_": "lmtransfer.models.bert.BertEncoder",
    "dim": 24,
    "num_layers": 2,
    "num_heads": 3,
    "hidden_dim": 40,
    "max_length": 30,
}
KINDS = {"post": "Bert", "pre": "MegatronBert"}


def peer_of(kind: str, architecture: str, **changes: Any) -> Any:
    config = getattr(transformers, f"{kind}Config")(**SIZES, **changes)
    return perturbed(getattr(transformers, f"{kind}{architecture}")(config))


@pytest.mark.parametrize("kind", KINDS.values())
@pytest.mark.parametrize("architecture", ["Model", "ForPreTraining", "ForMaskedLM", "ForNextSentencePrediction"])
def test_every_architecture_computes_the_same_and_goes_back_to_the_byte(
    tmp_path: Path, kind: str, architecture: str
) -> None:
    peer = peer_of(kind, architecture, hidden_act="gelu_new", layer_norm_eps=1e-7)
    published, loaded = there_and_back(peer, tmp_path)
    batch = batch_of(segments=True)
    inputs = padded(batch)
    body = peer if architecture == "Model" else peer.bert
    last = assert_same_layers(encoder_of(published), body, batch, inputs)
    assert published.model["pooler"] == (architecture != "ForMaskedLM")
    with torch.no_grad():
        theirs, again = peer(**inputs), loaded(**inputs)
    if architecture == "Model":
        assert published.losses == ()
        pooled = encoder_of(published).pooler(last[batch.starts_B])
        torch.testing.assert_close(pooled, theirs.pooler_output, **CLOSE)
        assert torch.equal(theirs.pooler_output, again.pooler_output)
        return
    learner = learner_of(published)
    if architecture != "ForNextSentencePrediction":
        logits = theirs.logits if architecture == "ForMaskedLM" else theirs.prediction_logits
        real = inputs["attention_mask"].bool()
        torch.testing.assert_close(mlm_logits(learner, last), logits[real], **CLOSE)
        assert torch.equal(logits, again[0])
    if architecture != "ForMaskedLM":
        logits = theirs.logits if architecture == "ForNextSentencePrediction" else theirs.seq_relationship_logits
        pair = learner.objectives["nsp"].classifier(learner.encoder.pooler(last[batch.starts_B]))
        torch.testing.assert_close(pair, logits, **CLOSE)


@pytest.mark.parametrize("kind", ["classification", "multi_label", "regression", "tagging", "span"])
@pytest.mark.parametrize("norm", KINDS)
def test_our_task_heads_answer_the_same_there(tmp_path: Path, kind: str, norm: str) -> None:
    names = {
        "classification": "SequenceClassification",
        "multi_label": "SequenceClassification",
        "regression": "SequenceClassification",
        "tagging": "TokenClassification",
        "span": "QuestionAnswering",
    }
    auto = getattr(transformers, f"AutoModelFor{names[kind]}")
    files = assert_task_survives(MODEL | {"norm": norm}, kind, auto, tmp_path, segments=True)
    assert files.architecture == f"{KINDS[norm]}For{names[kind]}"
    if kind == "multi_label":
        assert files.config["problem_type"] == "multi_label_classification"
    if kind == "regression":
        assert files.config["problem_type"] == "regression"
        assert list(files.config["id2label"]) == ["0"]
    elif kind != "span":
        assert files.config["id2label"] == {"0": "a", "1": "b", "2": "c"}
        assert files.config["label2id"] == {"a": 0, "b": 1, "c": 2}
        assert files.config["classifier_dropout"] == 0.25
    assert {"mlm", "nsp"}.isdisjoint(read_published(tmp_path).losses)
    head = read_task_head(tmp_path, kind=kind)  # type: ignore[arg-type]
    assert sorted(head) == ["output.bias", "output.weight"]


def test_a_classifier_over_an_encoder_without_pooler_gets_a_new_one(tmp_path: Path) -> None:
    auto = transformers.AutoModelForSequenceClassification
    files = assert_task_survives(MODEL | {"pooler": False}, "classification", auto, tmp_path, segments=True)
    assert "bert.pooler.dense.weight" in files.tensors


@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "relu"])
def test_our_pretrained_run_answers_the_same_there(tmp_path: Path, activation: str) -> None:
    model = MODEL | {"activation": activation, "num_segments": 1}

    node = {"_target_": "lmtransfer.objectives.masked_lm.MaskedLanguageModel", "activation": activation}
    learner = perturbed(PretrainingLearner(build(model, vocab_size=VOCABULARY), [build(node)]))
    given = run_with_head(
        task_learner(build(model, vocab_size=VOCABULARY), "tagging"),
        model,
        "pretraining",
        pad=VOCABULARY,  # no id of ours: one more row
        encoder=weights(learner.encoder),
        head=weights(learner.objectives),
        loss_arguments={"mlm": node},
    )
    files = to_published_files(given)
    assert files.architecture == "BertForMaskedLM"
    assert any("pooler" in note for note in files.notes)
    assert files.config["vocab_size"] == VOCABULARY + 1
    peer, told = transformers.AutoModelForMaskedLM.from_pretrained(write(files, tmp_path), output_loading_info=True)
    assert not told["missing_keys"]
    assert not told["unexpected_keys"]
    batch = batch_of(segments=False)
    inputs = padded(batch, pad=VOCABULARY, segments=False)
    with torch.no_grad():
        logits = peer.eval()(**inputs).logits[inputs["attention_mask"].bool()]
        ours = mlm_logits(learner, learner.encoder(batch).last)
    torch.testing.assert_close(ours, logits[:, :VOCABULARY], **CLOSE)
    assert logits[:, VOCABULARY].abs().max() == 0
    again = read_published(tmp_path)  # what we wrote, we read
    assert again.model["num_segments"] == 1
    assert_same_tensors(to_published_files(run_of(again, pad=VOCABULARY)).tensors, files.tensors)


def test_a_segment_embedding_of_one_row_counts(tmp_path: Path) -> None:
    peer = peer_of("Bert", "Model", type_vocab_size=1)
    peer.save_pretrained(tmp_path)
    published = read_published(tmp_path)
    assert any("segment embedding" in note for note in published.notes)
    batch = batch_of(segments=False)
    assert_same_layers(encoder_of(published), peer, batch, padded(batch, segments=False))


def saved(folder: Path, architecture: str = "ForPreTraining", **changes: Any) -> dict[str, torch.Tensor]:
    peer_of("Bert", architecture, **changes).save_pretrained(folder)
    return load_file(folder / "model.safetensors")


def test_old_names_prefixes_and_repeated_tensors_read_the_same(tmp_path: Path) -> None:
    tensors = saved(tmp_path)
    expected = read_published(tmp_path)
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensor
        for name, tensor in tensors.items()
    }
    old["cls.predictions.decoder.weight"] = tensors["bert.embeddings.word_embeddings.weight"].clone()
    old["cls.predictions.decoder.bias"] = tensors["cls.predictions.bias"].clone()
    old["bert.embeddings.position_ids"] = torch.arange(30)[None]
    (tmp_path / "model.safetensors").unlink()
    torch.save(old, tmp_path / "pytorch_model.bin")
    read = read_published(tmp_path)
    assert_same_tensors(read.encoder, expected.encoder)
    assert_same_tensors(read.objectives, expected.objectives)
    assert read.losses == ("mlm", "nsp")
    torch.save({name.removeprefix("bert."): tensor for name, tensor in old.items()}, tmp_path / "pytorch_model.bin")
    read = read_published(tmp_path)
    assert_same_tensors(read.encoder, expected.encoder)
    assert_same_tensors(read.objectives, expected.objectives)
    assert read.notes == expected.notes


@pytest.mark.parametrize("form", ["sharded", "float16"])
def test_shards_and_half_precision_read_the_same(tmp_path: Path, form: str) -> None:
    peer = peer_of("Bert", "ForMaskedLM")
    if form == "sharded":
        peer.save_pretrained(tmp_path, max_shard_size="20KB")
        assert len(list(tmp_path.glob("model-*.safetensors"))) > 1
    else:
        peer.half().save_pretrained(tmp_path)
    read = read_published(tmp_path)
    assert any("float16" in note for note in read.notes) == (form == "float16")
    files = to_published_files(run_of(read))
    expected = {name: tensor for name, tensor in peer.state_dict().items() if ".decoder." not in name}
    assert_same_tensors(files.tensors, expected)


def test_untied_outputs_and_unknown_heads_are_left_out_and_told(tmp_path: Path) -> None:
    tensors = saved(tmp_path)
    tensors["cls.predictions.decoder.weight"] = tensors["bert.embeddings.word_embeddings.weight"] + 1
    tensors["qa_outputs.weight"] = torch.zeros(2, 24)
    save_file(tensors, tmp_path / "model.safetensors")
    read = read_published(tmp_path)
    assert read.losses == ("nsp",)
    assert any("mlm" in note and "decoder.weight" in note for note in read.notes)
    assert any("qa_outputs.weight" in note for note in read.notes)


def test_all_wrong_tensors_are_named_at_once(tmp_path: Path) -> None:
    tensors = saved(tmp_path)
    del tensors["bert.encoder.layer.1.attention.self.key.bias"]
    tensors["bert.encoder.layer.0.output.dense.weight"] = torch.zeros(24, 39)
    tensors["bert.encoder.layer.0.output.dense.bias"] = torch.zeros(24, dtype=torch.int8)
    tensors["bert.encoder.layer.7.output.dense.bias"] = torch.zeros(24)
    save_file(tensors, tmp_path / "model.safetensors")
    with refuses(CheckpointError) as caught:
        read_published(tmp_path)
    _, *lines = str(caught.value).splitlines()
    for names in (
        ("encoder.layer.1.attention.self.key.bias",),
        ("encoder.layer.0.output.dense.weight", "[24, 39]", "[24, 40]"),
        ("encoder.layer.0.output.dense.bias", "int8"),
        ("encoder.layer.7.output.dense.bias",),
    ):
        assert any(all(name in line for name in names) for line in lines), names
    assert len(lines) == 4


def test_what_we_do_not_compute_is_refused_by_name_all_at_once(tmp_path: Path) -> None:
    saved(tmp_path, "Model")
    config = json.loads((tmp_path / "config.json").read_text())
    changes = {
        "position_embedding_type": "relative_key",
        "is_decoder": True,
        "hidden_act": "silu",
        "hidden_size": "big",
        "num_hidden_layers": 10**9,
        "hidden_dropout_prob": -1,
    }
    (tmp_path / "config.json").write_text(json.dumps(config | changes))
    names = ("hidden_act=silu", "hidden_size='big'", "num_hidden_layers=1000000000", "hidden_dropout_prob=-1")
    with refuses(CheckpointError, "position_embedding_type=relative_key", "is_decoder=true", *names):
        read_published(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(config | {"num_attention_heads": 5}))
    with refuses(CheckpointError, "config.json", "model.num_heads=5"):
        read_published(tmp_path)


def test_foreign_code_in_a_config_is_ignored_and_told(tmp_path: Path) -> None:
    saved(tmp_path, "Model")
    config = json.loads((tmp_path / "config.json").read_text())
    foreign = {"auto_map": {"AutoModel": "evil.Model"}, "_target_": "os.system"}
    (tmp_path / "config.json").write_text(json.dumps(config | foreign))
    read = read_published(tmp_path)
    assert read.model["_target_"] == "lmtransfer.models.bert.BertEncoder"
    assert [sum(key in note for note in read.notes) for key in foreign] == [1, 1]


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"model_type": "t5"}, ("model_type=t5", " bert, ", "megatron-bert")),
        ({"model_type": None}, ("model_type ", " bert, ", "megatron-bert")),
        ({"vocab_size": 0}, ("vocab_size=0",)),
    ],
)
def test_configs_that_name_no_model_of_ours(tmp_path: Path, changes: dict[str, Any], names: tuple[str, ...]) -> None:
    saved(tmp_path, "Model")
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | changes))
    with refuses(CheckpointError, "config.json", *names):
        read_published(tmp_path)


def test_heads_of_another_shape_are_refused_saying_why() -> None:
    learner = task_learner(build(MODEL, vocab_size=VOCABULARY), "span", labels=3)
    with refuses(CheckpointError, "BertForQuestionAnswering", " 4 "):
        to_published_files(run_with_head(learner, MODEL, "span"))
    head = {"hidden.weight": torch.zeros(24, 24), "hidden.bias": torch.zeros(24)} | learner.head.state_dict()
    with refuses(CheckpointError, "BertForTokenClassification", "hidden layer"):
        to_published_files(run_with_head(learner, MODEL, "tagging", head=head))
    bare = MODEL | {"pooler": False}
    encoder = build(bare, vocab_size=VOCABULARY)
    learner = task_learner(encoder, "tagging")
    with refuses(CheckpointError, "BertForSequenceClassification", "pooler"):
        to_published_files(run_with_head(learner, bare, "classification"))


@pytest.mark.parametrize("name", ["bert.embeddings.position_embeddings.weight", "bert.embeddings.LayerNorm.weight"])
def test_tensors_of_another_rank_are_one_message(tmp_path: Path, name: str) -> None:
    for rows in (1, 2):
        tensors = saved(tmp_path, "ForMaskedLM", type_vocab_size=rows)
        save_file(tensors | {name: torch.tensor(1.0)}, tmp_path / "model.safetensors")
        with refuses(CheckpointError, name.removeprefix("bert."), "[]"):
            read_published(tmp_path)


def test_folders_that_are_none(tmp_path: Path) -> None:
    with refuses(CheckpointError, str(tmp_path / "gone"), "config.json"):
        read_published(tmp_path / "gone")
    with refuses(CheckpointError, str(tmp_path / "config.json")):
        read_published(tmp_path)
    saved(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"architectures": 3}))
    assert read_published(tmp_path).losses == ("mlm", "nsp")
    (tmp_path / "model.safetensors").write_bytes(b"")
    with refuses(CheckpointError, str(tmp_path / "model.safetensors")):
        read_published(tmp_path)


@pytest.mark.parametrize("prefix", ["net.module.", "encoder.", "model.model."])
@pytest.mark.parametrize("architecture", ["Model", "ForMaskedLM"])
def test_a_prefix_of_all_names_is_removed(prefix: str, architecture: str, tmp_path: Path) -> None:
    peer = peer_of("Bert", architecture)
    peer.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    for part in ("embeddings.", "layer.0."):  # compiled apart
        tensors = {name.replace(part, f"{part}_orig_mod."): tensor for name, tensor in tensors.items()}
    renamed = {f"_orig_mod.{prefix}{name}": tensor for name, tensor in tensors.items()}
    save_file(renamed, tmp_path / "model.safetensors")
    published = read_published(tmp_path)
    batch = batch_of(segments=True)
    assert_same_layers(encoder_of(published), peer if architecture == "Model" else peer.bert, batch, padded(batch))
    assert published.losses == (() if architecture == "Model" else ("mlm",))
    assert any(repr(prefix) in note for note in published.notes)


@pytest.mark.parametrize(
    ("prefixes", "said"),
    [(["student.", "teacher."], ["'student.' or 'teacher.'"]), (["student."], ["'student.'", "loss.scale"])],
)
def test_a_prefix_of_some_names_is_named(prefixes: list[str], said: list[str], tmp_path: Path) -> None:
    peer_of("Bert", "Model").save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    renamed = {f"{prefix}{name}": tensor.clone() for prefix in prefixes for name, tensor in tensors.items()}
    save_file({**renamed, "loss.scale": torch.ones(1)}, tmp_path / "model.safetensors")
    with refuses(CheckpointError, *said):
        read_published(tmp_path)
