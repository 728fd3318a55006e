"""Published families, read and written: against transformers with random weights.

ELMo and Transformer-XL, which transformers lacks, are tested in ``tests/parity/test_elmo.py`` and
``test_families_transformer_xl.py``.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

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
from safetensors.torch import load_file, save_file
from support.nodes import build
from support.refusals import refuses
from torch import Tensor

from lmtransfer.errors import CheckpointError
from lmtransfer.interop.families.family import NotInTransformers
from lmtransfer.interop.reading import read_published
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
BERT = SIZES | {"hidden_act": "gelu_new", "layer_norm_eps": 1e-7}
ROBERTA = SIZES | {"max_position_embeddings": 29, "pad_token_id": 1, "type_vocab_size": 1, "layer_norm_eps": 1e-5}
SPECIALS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
GPT = {"vocab_size": VOCABULARY, "n_embd": 24, "n_layer": 2, "n_head": 3, "n_positions": 30, **SPECIALS}
SMALL = {"vocab_size": VOCABULARY, "hidden_dim": 40, "max_position_embeddings": 30, "activation": "relu"}
MODERN = SIZES | SPECIALS | {"cls_token_id": 1, "sep_token_id": 2, "num_hidden_layers": 4, "local_attention": 6}
CONFIGS: dict[str, dict[str, Any]] = {
    "Bert": BERT,
    "MegatronBert": BERT,
    "Roberta": ROBERTA,
    "RobertaPreLayerNorm": ROBERTA,
    "XLMRoberta": ROBERTA,
    "Camembert": ROBERTA,
    "Albert": SIZES | {"embedding_size": 16, "num_hidden_layers": 3},
    "Electra": SIZES | {"embedding_size": 16, "intermediate_size": 48},
    "DistilBert": SMALL | {"dim": 24, "n_layers": 2, "n_heads": 3},
    "ModernBert": MODERN | {"attn_implementation": "eager"},
    "GPT2": GPT | {"n_inner": 40},
    "OpenAIGPT": GPT,
    "XLNet": {"vocab_size": VOCABULARY, "d_model": 24, "n_layer": 2, "n_head": 3, "d_inner": 40, "mem_len": None},
}
#: Families whose rows have two segments.
PAIRED = ("Bert", "MegatronBert", "Albert", "Electra", "XLNet")
MLM = {"Model": {}, "ForMaskedLM": {"mlm": "logits"}}
PAIRS = {"mlm": "prediction_logits", "nsp": "seq_relationship_logits"}
#: The classes of each family, and for each objective the attribute of the output that holds its logits.
CLASSES: dict[str, dict[str, dict[str, str]]] = {
    **dict.fromkeys(
        ("Bert", "MegatronBert"), MLM | {"ForPreTraining": PAIRS, "ForNextSentencePrediction": {"nsp": "logits"}}
    ),
    **dict.fromkeys(("Roberta", "RobertaPreLayerNorm", "DistilBert", "ModernBert"), MLM),
    "Albert": MLM | {"ForPreTraining": {"mlm": "prediction_logits", "sop": "sop_logits"}},
    "Electra": MLM | {"ForPreTraining": {}},  # without a generator there is no objective
    **dict.fromkeys(("GPT2", "OpenAIGPT"), {"Model": {}, "LMHeadModel": {"lm": "logits"}}),
    "XLNet": {"Model": {}, "LMHeadModel": {"plm": "logits"}},
}
BIASES = {"attention_bias": True, "mlp_bias": True, "norm_bias": True, "classifier_bias": True}
#: Other settings of a family, and the matching arguments of our encoder.
SETTINGS: dict[str, list[tuple[dict[str, Any], dict[str, Any]]]] = {
    "Roberta": [({}, {"max_length": 27})],
    "Electra": [({}, {}), ({"embedding_size": 24}, {"embedding_dim": 24})],
    "ModernBert": [
        ({}, {"global_every": 3}),
        (BIASES, {"bias": True}),
        ({"global_attn_every_n_layers": 2, "decoder_bias": False}, {"global_every": 2}),
    ],
    "XLNet": [
        ({}, {"clamp_length": None, "memory_length": 0}),
        ({"clamp_len": 7, "mem_len": 5, "ff_activation": "relu"}, {"clamp_length": 7, "memory_length": 5}),
    ],
}


def peer_of(family: str, architecture: str = "Model", *, seed: int = 0, **changes: Any) -> Any:
    config = getattr(transformers, f"{family}Config")(**CONFIGS[family] | changes)
    return perturbed(getattr(transformers, f"{family}{architecture}")(config), seed=seed)


def inputs_of(family: str) -> tuple[Any, dict[str, Tensor], int]:
    """Return a batch, the same rows as inputs for transformers, and their padding id."""
    batch, pad = batch_of(segments=family in PAIRED), CONFIGS[family].get("pad_token_id", 0)
    return batch, padded(batch, pad=pad, segments=family in PAIRED, left=family == "XLNet"), pad


def edit_config(folder: Path, changes: dict[str, Any]) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))


@pytest.mark.parametrize(
    ("family", "architecture", "changes", "ours"),
    [
        (family, architecture, *settings)
        for family, architectures in CLASSES.items()
        for architecture in architectures
        for settings in SETTINGS.get(family, [({}, {})])
    ],
)
def test_every_architecture_computes_the_same_and_goes_back_to_the_byte(
    tmp_path: Path, family: str, architecture: str, changes: dict[str, Any], ours: dict[str, Any]
) -> None:
    peer, heads = peer_of(family, architecture, **changes), CLASSES[family][architecture]
    batch, inputs, pad = inputs_of(family)
    published, loaded = there_and_back(peer, tmp_path, pad=pad)
    assert published.model.items() >= ours.items()
    assert list(published.losses) == list(heads)
    encoder, real = encoder_of(published), inputs["attention_mask"].bool()
    last = assert_same_layers(encoder, peer.base_model, batch, inputs)
    with torch.no_grad():
        theirs, again = peer(**inputs), loaded(**inputs)
        pooled = None if encoder.pooler is None else encoder.pooler(last[batch.starts_B])
        for loss, output in heads.items():
            objective = cast(Any, learner_of(published).objectives[loss])
            logits = objective.token_logits(last)
            expected = theirs[output][real] if logits is not None else theirs[output]
            torch.testing.assert_close(objective.text_logits(pooled) if logits is None else logits, expected, **CLOSE)
            torch.testing.assert_close(again[output][real] if logits is not None else again[output], expected)
    if pooled is not None and architecture == "Model":
        torch.testing.assert_close(pooled, theirs.pooler_output, **CLOSE)
    if family == "Electra" and architecture == "ForPreTraining":
        assert any("rtd" in note and "generator" in note for note in published.notes)


@pytest.mark.parametrize("family", ["XLMRoberta", "Camembert"])
def test_other_names_of_the_same_model_are_read(tmp_path: Path, family: str) -> None:
    peer = peer_of(family, "ForMaskedLM")
    peer.save_pretrained(tmp_path)
    published = read_published(tmp_path)
    batch, inputs, pad = inputs_of(family)
    last = assert_same_layers(encoder_of(published), peer.base_model, batch, inputs)
    files = to_published_files(run_of(published, pad=pad))
    again = transformers.AutoModelForMaskedLM.from_pretrained(write(files, tmp_path / "ours")).eval()
    with torch.no_grad():
        theirs, real = peer(**inputs).logits, inputs["attention_mask"].bool()
        torch.testing.assert_close(mlm_logits(learner_of(published), last), theirs[real], **CLOSE)
        assert torch.equal(again(**inputs).logits, theirs)


# Our heads and our pretrained runs, published.


def node_of(module: str, encoder: str, **changes: Any) -> dict[str, Any]:
    target = f"lmtransfer.models.{module}.{encoder}Encoder"
    return {
        "_target_": target,
        "dim": 24,
        "num_layers": 2,
        "num_heads": 3,
        "hidden_dim": 40,
        "max_length": 30,
    } | changes


OURS: dict[str, dict[str, Any]] = {
    "Bert": node_of("bert", "Bert"),
    "MegatronBert": node_of("bert", "Bert", norm="pre"),
    "Roberta": node_of("roberta", "Roberta", max_length=28),
    "RobertaPreLayerNorm": node_of("roberta", "Roberta", norm="pre"),
    "Albert": node_of("albert", "Albert", embedding_dim=16, num_layers=3),
    "Electra": node_of("electra", "Electra", embedding_dim=16, hidden_dim=48),
    "DistilBert": node_of("distilbert", "DistilBert"),
    "ModernBert": node_of("modern", "Modern", num_layers=4, window=6),
    "GPT2": node_of("gpt", "Gpt"),
    "XLNet": node_of("xlnet", "Xlnet", memory_length=0, num_segments=2),
}
NAMES = {"tagging": "TokenClassification", "span": "QuestionAnswering"}
TASKS: list[tuple[str, dict[str, Any], tuple[str, ...]]] = [
    *((family, {}, ("tagging" if family == "GPT2" else "classification", "span")) for family in OURS),
    ("Bert", {}, ("regression", "multi_label", "tagging")),
    ("Bert", {"pooler": False}, ("classification",)),
    ("Roberta", {"positions_from_two": True, "type_row": True}, ("classification", "span")),
    ("ModernBert", {}, ("multi_label",)),
    ("ModernBert", {"bias": True}, ("regression", "span")),
    ("ModernBert", {"norm_eps": 1e-12}, ("classification", "tagging")),
    ("XLNet", {"num_segments": 1}, ("classification", "tagging")),
]


@pytest.mark.parametrize(
    ("family", "changes", "kind"), [(family, changes, kind) for family, changes, kinds in TASKS for kind in kinds]
)
def test_our_task_heads_answer_the_same_there(tmp_path: Path, family: str, changes: dict[str, Any], kind: str) -> None:
    model = OURS[family] | changes
    name = NAMES.get(kind, "SequenceClassification")
    segments = family in PAIRED and model.get("num_segments", 2) == 2
    pad = 2 if family.startswith("Roberta") else 0
    auto = getattr(transformers, f"AutoModelFor{name}")
    files = assert_task_survives(model, kind, auto, tmp_path, segments=segments, pad=pad, left=family == "XLNet")
    assert files.architecture.removesuffix("Simple") == f"{family}For{name}"
    labels = {"0": "a", "1": "b", "2": "c"}
    if kind in ("regression", "multi_label"):
        assert files.config["problem_type"] == {"multi_label": "multi_label_classification"}.get(kind, kind)
    if kind in ("classification", "tagging"):
        assert (files.config["id2label"], files.config["label2id"]) == (labels, {"a": 0, "b": 1, "c": 2})
    if family in ("Bert", "ModernBert") and kind != "span":
        assert files.config["classifier_dropout"] == 0.25
    published = read_published(tmp_path)
    assert not published.losses
    assert published.model.get("max_length") == (512 if family == "XLNet" else model["max_length"])
    again = to_published_files(run_of(published, pad=pad)).tensors
    body = [name for name in files.tensors if any(name.endswith(f".{other}") for other in again)]
    assert len(body) >= len(again) - 2  # except a pooler, which the class may lack
    assert all(torch.equal(again[name.partition(".")[2]], files.tensors[name]) for name in body)


PRETRAINED = [
    ("Bert", {"activation": activation, "num_segments": 1}, {"activation": activation}, VOCABULARY)
    for activation in ("gelu", "gelu_tanh", "relu")
] + [
    ("ModernBert", {"bias": bias, "global_theta": 1e4, "local_theta": 1e3, "global_every": 2}, {"norm_eps": 1e-5}, 0)
    for bias in (False, True)
]


@pytest.mark.parametrize(("family", "changes", "head", "pad"), PRETRAINED)
def test_our_pretrained_run_answers_the_same_there(
    tmp_path: Path, family: str, changes: dict[str, Any], head: dict[str, Any], pad: int
) -> None:
    """Either with a new id for padding, which adds a row, or with norms whose biases are zero in transformers."""
    model = OURS[family] | changes
    node = {"_target_": "lmtransfer.objectives.masked_lm.MaskedLanguageModel", **head}
    learner = perturbed(PretrainingLearner(build(model, vocab_size=VOCABULARY), [build(node)]))
    files = to_published_files(pretrained_run(learner, model, {"mlm": node}, pad=pad))
    assert files.architecture == f"{family}ForMaskedLM"
    assert any("pooler" in note for note in files.notes) == (family == "Bert")
    peer = loaded(transformers.AutoModelForMaskedLM, write(files, tmp_path))
    batch = batch_of(segments=False)
    inputs = padded(batch, pad=pad, segments=False)
    with torch.no_grad():
        logits = peer(**inputs).logits[inputs["attention_mask"].bool()]
        torch.testing.assert_close(mlm_logits(learner, learner.encoder(batch).last), logits[:, :VOCABULARY], **CLOSE)
    assert not logits[:, VOCABULARY:].any()
    assert files.config["vocab_size"] == logits.shape[1] == VOCABULARY + (pad == VOCABULARY)
    again = read_published(tmp_path)
    assert again.model.items() >= changes.items()
    assert_same_tensors(to_published_files(run_of(again, pad=pad)).tensors, files.tensors)


def pretrained_run(learner: PretrainingLearner, model: dict[str, Any], nodes: dict[str, Any], *, pad: int) -> Any:
    return run_with_head(
        task_learner(build(model, vocab_size=VOCABULARY), "tagging"),
        model,
        "pretraining",
        pad=pad,
        encoder=weights(learner.encoder),
        head=weights(learner.objectives),
        loss_arguments=nodes,
    )


def loaded(auto: Any, folder: Path) -> Any:
    """Load a model that must find exactly its own tensors."""
    peer, told = auto.from_pretrained(folder, output_loading_info=True)
    assert not told["missing_keys"]
    assert not told["unexpected_keys"]
    return peer.eval()


# ELECTRA's generator.


def assert_both_answer(learner: PretrainingLearner, discriminator: Any, generator: Any, *, pad: int = 0) -> None:
    batch = batch_of(segments=True)
    inputs = padded(batch, pad=pad)
    real, rtd = inputs["attention_mask"].bool(), cast(Any, learner.objectives["rtd"])
    with torch.no_grad():
        found = rtd.token_logits(learner.encoder(batch).last)
        torch.testing.assert_close(found, discriminator(**inputs).logits[real], **CLOSE)
        hidden = rtd.generator_head.transform(rtd.generator(batch).last)
        words = hidden @ cast(Any, learner.encoder).token_embedding.weight.T + rtd.generator_head.bias
        torch.testing.assert_close(words, generator(**inputs).logits[real][:, :VOCABULARY], **CLOSE)


def test_discriminator_and_generator_together_are_the_objective(tmp_path: Path) -> None:
    discriminator = peer_of("Electra", "ForPreTraining")
    narrow = {"hidden_size": 8, "num_attention_heads": 1, "intermediate_size": 16}
    generator = peer_of("Electra", "ForMaskedLM", seed=1, **narrow)
    generator.electra.embeddings.load_state_dict(discriminator.electra.embeddings.state_dict())
    discriminator.save_pretrained(tmp_path)
    generator.save_pretrained(tmp_path / "generator")
    published = read_published(tmp_path)
    assert list(published.losses) == ["rtd"]
    assert_both_answer(learner_of(published), discriminator, generator)
    files = to_published_files(run_of(published))
    assert_same_tensors(files.tensors, load_file(tmp_path / "model.safetensors"))
    (small,) = files.more.values()
    assert small.architecture == "ElectraForMaskedLM"
    assert_same_tensors(small.tensors, load_file(tmp_path / "generator" / "model.safetensors"))
    perturbed(generator).save_pretrained(tmp_path / "generator")
    read = read_published(tmp_path)
    assert not read.losses
    assert any("generator" in note and "embeddings" in note for note in read.notes)


def test_our_run_with_a_generator_answers_the_same_there(tmp_path: Path) -> None:
    node = {"_target_": "lmtransfer.objectives.replaced_token.ReplacedTokenDetection", "generator_size": 0.5}
    model = OURS["Electra"]
    learner = perturbed(PretrainingLearner(build(model, vocab_size=VOCABULARY), [build(node)]))
    write(to_published_files(pretrained_run(learner, model, {"rtd": node}, pad=VOCABULARY)), tmp_path)
    discriminator = loaded(transformers.AutoModelForPreTraining, tmp_path)
    generator = loaded(transformers.AutoModelForMaskedLM, tmp_path / "generator")
    assert_both_answer(learner, discriminator, generator, pad=VOCABULARY)
    assert list(read_published(tmp_path).losses) == ["rtd"]


def test_a_subfolder_that_leads_back_is_no_generator(tmp_path: Path) -> None:
    peer_of("Electra", "ForPreTraining").save_pretrained(tmp_path)
    (tmp_path / "generator").symlink_to(tmp_path, target_is_directory=True)
    read = read_published(tmp_path)
    assert not read.losses
    assert any("generator" in note and "mlm" in note for note in read.notes)


# Names, prefixes and file formats.


def saved(folder: Path, architecture: str = "ForPreTraining", **changes: Any) -> dict[str, Tensor]:
    peer_of("Bert", architecture, **changes).save_pretrained(folder)
    return load_file(folder / "model.safetensors")


def test_a_segment_embedding_of_one_row_counts(tmp_path: Path) -> None:
    peer = peer_of("Bert", type_vocab_size=1)
    peer.save_pretrained(tmp_path)
    published = read_published(tmp_path)
    assert any("segment embedding" in note for note in published.notes)
    batch = batch_of(segments=False)
    assert_same_layers(encoder_of(published), peer, batch, padded(batch, segments=False))


def test_another_padding_id_moves_the_positions(tmp_path: Path) -> None:
    peer = peer_of("Roberta", "ForMaskedLM", pad_token_id=5, max_position_embeddings=33)
    peer.save_pretrained(tmp_path)
    published = read_published(tmp_path)
    assert any("first 6 rows" in note and "position" in note for note in published.notes)
    assert published.model["max_length"] == 27
    batch = batch_of(segments=False, first=6)
    assert_same_layers(encoder_of(published), peer.base_model, batch, padded(batch, pad=5, segments=False))


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
    for prefix in ("", "bert."):
        torch.save({name.removeprefix(prefix): tensor for name, tensor in old.items()}, tmp_path / "pytorch_model.bin")
        read = read_published(tmp_path)
        assert_same_tensors(read.encoder, expected.encoder)
        assert_same_tensors(read.objectives, expected.objectives)
        assert (list(read.losses), read.notes) == (["mlm", "nsp"], expected.notes)


def test_sizes_left_out_and_tensors_of_old_files(tmp_path: Path) -> None:
    peer_of("GPT2", "LMHeadModel", n_inner=None).save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    old = {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}
    old |= {"h.0.attn.bias": torch.ones(1, 1, 30, 30), "h.0.attn.masked_bias": torch.tensor(-1e4)}
    old["lm_head.weight"] = old["wte.weight"].clone()
    save_file(old, tmp_path / "model.safetensors")
    read = read_published(tmp_path)
    assert read.model["hidden_dim"] == 96
    assert list(read.losses) == ["lm"]
    assert any("attn_pdrop=0.1" in note for note in read.notes)


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


@pytest.mark.parametrize("prefix", ["net.module.", "encoder.", "model.model."])
@pytest.mark.parametrize("architecture", ["Model", "ForMaskedLM"])
def test_a_prefix_of_all_names_is_removed(prefix: str, architecture: str, tmp_path: Path) -> None:
    tensors = saved(tmp_path, architecture)
    expected = read_published(tmp_path)
    for part in ("embeddings.", "layer.0."):  # compiled separately
        tensors = {name.replace(part, f"{part}_orig_mod."): tensor for name, tensor in tensors.items()}
    renamed = {f"_orig_mod.{prefix}{name}": tensor for name, tensor in tensors.items()}
    save_file(renamed, tmp_path / "model.safetensors")
    published = read_published(tmp_path)
    assert_same_tensors(published.encoder, expected.encoder)
    assert_same_tensors(published.objectives, expected.objectives)
    assert any(repr(prefix) in note for note in published.notes)


@pytest.mark.parametrize(
    ("prefixes", "said"),
    [(["student.", "teacher."], ["'student.' or 'teacher.'"]), (["student."], ["'student.'", "loss.scale"])],
)
def test_a_prefix_of_some_names_is_named(prefixes: list[str], said: list[str], tmp_path: Path) -> None:
    tensors = saved(tmp_path, "Model")
    renamed = {f"{prefix}{name}": tensor.clone() for prefix in prefixes for name, tensor in tensors.items()}
    save_file({**renamed, "loss.scale": torch.ones(1)}, tmp_path / "model.safetensors")
    with refuses(CheckpointError, *said):
        read_published(tmp_path)


def test_foreign_code_in_a_config_is_ignored_and_told(tmp_path: Path) -> None:
    saved(tmp_path, "Model")
    foreign = {"auto_map": {"AutoModel": "evil.Model"}, "_target_": "os.system"}
    edit_config(tmp_path, foreign)
    read = read_published(tmp_path)
    assert read.model["_target_"] == "lmtransfer.models.bert.BertEncoder"
    assert [sum(key in note for note in read.notes) for key in foreign] == [1, 1]


def test_a_head_with_another_activation_is_left_out_and_told(tmp_path: Path) -> None:
    peer_of("ModernBert", "ForMaskedLM").save_pretrained(tmp_path)
    edit_config(tmp_path, {"classifier_activation": "silu"})
    read = read_published(tmp_path)
    assert not read.losses
    assert any("mlm" in note and "classifier_activation=silu" in note for note in read.notes)


# Rejected folders and models.


def test_untied_outputs_and_unknown_heads_are_left_out_and_told(tmp_path: Path) -> None:
    tensors = saved(tmp_path)
    tensors["cls.predictions.decoder.weight"] = tensors["bert.embeddings.word_embeddings.weight"] + 1
    tensors["qa_outputs.weight"] = torch.zeros(2, 24)
    save_file(tensors, tmp_path / "model.safetensors")
    read = read_published(tmp_path)
    assert list(read.losses) == ["nsp"]
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


@pytest.mark.parametrize(
    ("family", "changes", "names"),
    [
        (
            "Bert",
            {"position_embedding_type": "relative_key", "is_decoder": True, "hidden_act": "silu",
             "hidden_size": "big", "num_hidden_layers": 10**9, "hidden_dropout_prob": -1},
            ("position_embedding_type=relative_key", "is_decoder=true", "hidden_act=silu", "hidden_size='big'",
             "num_hidden_layers=1000000000", "hidden_dropout_prob=-1"),
        ),
        ("Bert", {"num_attention_heads": 5}, ("model.num_heads=5",)),
        ("Bert", {"model_type": "t5"}, ("model_type=t5", " bert, ", "megatron-bert")),
        ("Bert", {"model_type": None}, ("model_type ", " bert, ", "megatron-bert")),
        ("Bert", {"vocab_size": 0}, ("vocab_size=0",)),
        ("Roberta", {"type_vocab_size": 2}, ("type_vocab_size=2",)),
        ("Albert", {"num_hidden_groups": 3, "inner_group_num": 2}, ("num_hidden_groups=3", "inner_group_num=2")),
        ("GPT2", {"scale_attn_by_inverse_layer_idx": True}, ("scale_attn_by_inverse_layer_idx=true",)),
        ("ModernBert", {"mlp_bias": True}, ("mlp_bias=true", "attention_bias=false")),
        ("ModernBert", {"layer_types": ["full_attention", "sliding_attention", *["full_attention"] * 2]},
         ("layer_types=",)),
        ("ModernBert", {"rope_parameters": {"full_attention": {"rope_type": "yarn"}}}, ("rope_parameters=",)),
        ("ModernBert", {"local_attention": 7}, ("model.window=7",)),
    ],
)  # fmt: skip
def test_what_we_do_not_compute_is_refused_by_name(
    tmp_path: Path, family: str, changes: dict[str, Any], names: tuple[str, ...]
) -> None:
    peer_of(family).save_pretrained(tmp_path)
    edit_config(tmp_path, changes)
    with refuses(CheckpointError, "config.json", *names):
        read_published(tmp_path)


def test_biases_in_the_norms_only_are_no_model_of_ours(tmp_path: Path) -> None:
    peer_of("ModernBert", norm_bias=True).save_pretrained(tmp_path)
    with refuses(CheckpointError, "final_norm.bias"):
        read_published(tmp_path)


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
    edit_config(tmp_path, {"architectures": 3})
    assert list(read_published(tmp_path).losses) == ["mlm", "nsp"]
    (tmp_path / "model.safetensors").write_bytes(b"")
    with refuses(CheckpointError, str(tmp_path / "model.safetensors")):
        read_published(tmp_path)


@pytest.mark.parametrize(
    ("family", "changes", "names"),
    [
        ("Albert", {"norm": "pre"}, ("AlbertEncoder", "norm=pre")),
        ("Albert", {"share": "none"}, ("AlbertEncoder", "share=none")),
        ("GPT2", {"norm": "post", "activation": "gelu", "hidden_dim": 96}, ("GptEncoder", "activation=gelu")),
        ("GPT2", {"norm": "post", "hidden_dim": 95}, ("GptEncoder", "hidden_dim=95")),
        ("ModernBert", {"query_key_norm": True}, ("ModernEncoder", "query_key_norm=true")),
    ],
)
def test_models_without_a_counterpart_are_refused(family: str, changes: dict[str, Any], names: tuple[str, ...]) -> None:
    model = OURS[family]
    learner = task_learner(build(model, vocab_size=VOCABULARY), "classification")
    with refuses(NotInTransformers, *names):
        to_published_files(run_with_head(learner, model | changes, "encoder"))


def zero_norm(learner: Any) -> None:
    with torch.no_grad():
        learner.encoder.stack.final_norm.weight[3] = 0.0


HIDDEN = {"hidden.weight": torch.zeros(24, 24), "hidden.bias": torch.zeros(24), "output.bias": torch.zeros(3)}


@pytest.mark.parametrize(
    ("family", "changes", "kind", "run", "edit", "names"),
    [
        ("Bert", {}, "span", {}, None, ("BertForQuestionAnswering", " 4 ")),
        ("Bert", {}, "tagging", {"head": HIDDEN}, None, ("BertForTokenClassification", "hidden layer")),
        ("Bert", {"pooler": False}, "classification", {"head": {"output.bias": torch.zeros(3)}}, None,
         ("BertForSequenceClassification", "pooler")),
        ("GPT2", {}, "classification", {}, None, ("GPT", "bias")),
        ("ModernBert", {}, "classification", {}, zero_norm, ("last norm", "0")),
    ],
)  # fmt: skip
def test_heads_of_another_shape_are_refused_saying_why(
    family: str,
    changes: dict[str, Any],
    kind: str,
    run: dict[str, Any],
    edit: Callable[[Any], None] | None,
    names: tuple[str, ...],
) -> None:
    model = OURS[family] | changes
    learner = task_learner(build(model, vocab_size=VOCABULARY), kind, labels=3)
    if edit is not None:
        edit(learner)
    with refuses(CheckpointError, *names) as caught:
        to_published_files(run_with_head(learner, model, kind, **run))
    assert not isinstance(caught.value, NotInTransformers)


def test_a_classifier_in_bfloat16_is_as_exact_as_bfloat16_allows(tmp_path: Path) -> None:
    model = OURS["ModernBert"]
    learner = task_learner(build(model, vocab_size=VOCABULARY), "classification")
    batch, inputs, _ = inputs_of("ModernBert")
    ours = task_logits(learner, batch)
    files = to_published_files(run_with_head(learner, model, "classification"))
    assert any("float16" in note for note in files.notes)
    auto = transformers.AutoModelForSequenceClassification
    half = auto.from_pretrained(write(files, tmp_path), dtype=torch.bfloat16).eval()
    whole = auto.from_pretrained(tmp_path).eval()
    with torch.no_grad():
        error = half(**inputs).logits.float() - ours
        states = (half.model(**inputs)[0].float() - whole.model(**inputs)[0]).norm() / whole.model(**inputs)[0].norm()
    # The head adds no more than three of its own roundings to the error that the encoder has in bfloat16.
    assert error.norm() / ours.norm() < 4 * max(float(states), 2**-8)
