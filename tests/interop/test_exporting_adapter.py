"""Runs of ``transfer=lora`` for transformers and peft: merged, or as an adapter that peft loads onto the base."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fakes.transfer_files import TASK, lmtransfer, make_world
from omegaconf import OmegaConf
from safetensors.torch import load_file, save_file
from support.nodes import build

from lmtransfer.interop.open_run import open_saved
from lmtransfer.runs.run_directory import RunDirectory
from lmtransfer.tasks.source import TaskSource
from lmtransfer.tokenizers.load import load_tokenizer
from lmtransfer.training.hardware import setup
from lmtransfer.transfer.experiment.data import encode_examples
from lmtransfer.transfer.experiment.part_run import open_task_learner, task_of

SIZES = {"dim": 16, "num_layers": 2, "num_heads": 2, "hidden_dim": 32, "max_length": 24, "dropout": 0.0}
TAGS = ["task=tagging", "task.files.train=data/tags_train.conll", "task.files.dev=data/tags_dev.conll"]
#: For each family: the settings of the encoder, and those of the run.
FAMILIES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "bert": ({"_target_": "lmtransfer.models.bert.BertEncoder"}, TASK),
    "bert_all": ({"_target_": "lmtransfer.models.bert.BertEncoder"}, [*TASK, "transfer.lora_matrices=all"]),
    "megatron": ({"_target_": "lmtransfer.models.bert.BertEncoder", "norm": "pre"}, TASK),
    "roberta": ({"_target_": "lmtransfer.models.roberta.RobertaEncoder"}, TASK),
    "distilbert": ({"_target_": "lmtransfer.models.distilbert.DistilBertEncoder"}, TASK),
    "albert": ({"_target_": "lmtransfer.models.albert.AlbertEncoder", "embedding_dim": 8}, TASK),
    "electra": ({"_target_": "lmtransfer.models.electra.ElectraEncoder", "embedding_dim": 8}, TASK),
    # One fused, transposed matrix; all three of its parts are updated, or two of them.
    "gpt2": ({"_target_": "lmtransfer.models.gpt.GptEncoder"}, TAGS),
    "gpt2_all": ({"_target_": "lmtransfer.models.gpt.GptEncoder"}, [*TAGS, "transfer.lora_matrices=all"]),
    "xlnet": (
        {"_target_": "lmtransfer.models.xlnet.XlnetEncoder", "memory_length": 0},
        [*TASK, "transfer.lora_matrices=[expand,contract]"],
    ),
    "modern": ({"_target_": "lmtransfer.models.modern.ModernEncoder", "window": 8}, TASK),
    "modern_tags": ({"_target_": "lmtransfer.models.modern.ModernEncoder", "window": 8}, TAGS),
}
AUTO = {"SEQ_CLS": "AutoModelForSequenceClassification", "TOKEN_CLS": "AutoModelForTokenClassification"}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("world")
    make_world(folder)
    for split in ("train", "dev"):
        lines = (folder / f"data/{split}.tsv").read_text().splitlines()[1:]
        texts = [line.partition("\t")[0].split() for line in lines]
        tagged = ["\n".join(f"{word}\t{'LONG' if len(word) > 4 else 'O'}" for word in text) for text in texts]
        (folder / f"data/tags_{split}.conll").write_text("\n\n".join(tagged) + "\n")
    return folder


def _trained(family: str, *other: str) -> None:
    """Write ``runs/finetune/lora`` with large updates, from an encoder with random weights."""
    arguments, words = FAMILIES[family]
    model = {**arguments, **SIZES}
    tokenizer = load_tokenizer(Path("runs/pretrain/base/tokenizer"))
    run = RunDirectory.create("runs", "pretrain", family)
    tokenizer.save(run.tokenizer)
    run.write_config({"model": model, "seed": 0})
    torch.manual_seed(1)
    encoder = build(OmegaConf.create(model), vocab_size=tokenizer.vocab_size)
    factors = {name: 5 if tensor.ndim == 2 else 1 for name, tensor in encoder.state_dict().items()}
    weights = {f"encoder.{name}": factors[name] * tensor for name, tensor in encoder.state_dict().items()}
    run.checkpoints.save("last", tensors={"model": weights}, state={"step": 1})
    more = [f"init=runs/pretrain/{family}", "transfer=lora", "transfer.lora_rank=4", "hardware=exact", "train.epochs=1"]
    more += ["optimizer.learning_rate=0.01", "transfer.encoder_rate=10", "checkpoint=last", "baseline=null"]
    more.append("name=lora")
    assert lmtransfer("finetune", *words, *more, *other) == 0


def _ours() -> tuple[list[str], list[np.ndarray]]:
    """The texts of dev, and the run's own logits, with the updates separate from their matrices."""
    saved = open_saved("runs/finetune/lora", key="run")
    task = task_of(saved)
    learner = open_task_learner(saved, task, setup(device="cpu", precision="fp32", threads=1))
    examples = task.examples("dev")
    encoded = encode_examples(task, examples, saved.tokenizer, learner.encoder)
    source = TaskSource(encoded)
    logits, texts = [], []
    for row, example in enumerate(examples):
        with torch.no_grad():
            logits.append(learner.logits(source.build(0, source.plan(0), [row])).numpy())
        texts.append(example.text if hasattr(example, "text") else " ".join(example.words))
    return texts, logits


@pytest.mark.extras
@pytest.mark.parametrize("family", FAMILIES)
def test_peft_gives_the_logits_of_the_run(world: Path, family: str) -> None:
    import peft
    import transformers

    _trained(family)
    assert lmtransfer("export", "run=runs/finetune/lora", "to=adapter", "format=adapter") == 0
    config = json.loads(Path("adapter/adapter_config.json").read_text())
    labels = 2
    base = getattr(transformers, AUTO[config["task_type"]]).from_pretrained("adapter/base", num_labels=labels)
    model = peft.PeftModel.from_pretrained(base, "adapter").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained("adapter")
    texts, ours = _ours()
    for text, logits in zip(texts[:12], ours[:12], strict=True):
        with torch.no_grad():
            theirs = model(**tokenizer(text, return_tensors="pt")).logits.squeeze(0).numpy()
        np.testing.assert_allclose(theirs, logits.squeeze(), atol=1e-5)
    plain = model.unload() if hasattr(model, "unload") else model
    with torch.no_grad():
        without = plain(**tokenizer(texts[0], return_tensors="pt")).logits.squeeze(0).numpy()
    assert not np.allclose(without, ours[0].squeeze(), atol=1e-3), "the updates change nothing"


@pytest.mark.slow
@pytest.mark.parametrize("family", ["bert", "albert"])
def test_the_merged_model_is_an_ordinary_one(world: Path, family: str) -> None:
    _trained(family)
    _assert_merged()


def _assert_merged() -> None:
    transformers = pytest.importorskip("transformers")
    assert lmtransfer("export", "run=runs/finetune/lora", "to=merged") == 0  # verified against transformers
    assert not any("updates" in name for name in load_file("merged/model.safetensors"))
    model = transformers.AutoModelForSequenceClassification.from_pretrained("merged").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained("merged")
    texts, ours = _ours()
    for text, logits in zip(texts[:6], ours[:6], strict=True):
        with torch.no_grad():
            theirs = model(**tokenizer(text, return_tensors="pt")).logits.numpy()
        np.testing.assert_allclose(theirs, logits, atol=1e-5)


@pytest.mark.slow
def test_onnx_has_the_merged_weights(world: Path) -> None:
    pytest.importorskip("onnxruntime")
    _trained("bert")
    assert lmtransfer("export", "run=runs/finetune/lora", "to=onnx") == 0  # compared with the run
    assert Path("runs/finetune/lora/onnx/model.onnx").is_file()


@pytest.mark.slow
def test_an_adapter_is_read_back_and_its_base_is_checked(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _trained("gpt2_all")
    assert lmtransfer("export", "run=runs/pretrain/gpt2", "to=exported") != 0  # there is no such run
    assert lmtransfer("export", "run=runs/pretrain/gpt2_all", "to=exported") == 0
    words = ["export", "run=runs/finetune/lora", "format=adapter"]
    assert lmtransfer(*words, "to=adapter", "base=exported") == 0
    assert not Path("adapter/base").exists()
    config = json.loads(Path("adapter/adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == "exported"
    assert config["r"] in (4, 12)
    assert {*config["rank_pattern"].values(), config["r"]} == {4, 12}  # three matrices of rank 4 are fused
    alphas = {config["alpha_pattern"].get(name, config["lora_alpha"]) / config["rank_pattern"].get(name, config["r"])
              for name in config["target_modules"]}  # fmt: skip
    assert alphas == {16 / 4}
    tensors = load_file("exported/model.safetensors")
    tensors["h.0.ln_1.weight"] += 0.25
    save_file(tensors, "exported/model.safetensors", metadata={"format": "pt"})
    capsys.readouterr()
    for base, names in (("exported", ("base=", "stack.layers.0.attention_norm.weight", "1 of")), ("data", ("base=",))):
        assert lmtransfer(*words, "to=other", f"base={base}") == 2
        said = "".join(capsys.readouterr().err.split())
        assert all("".join(name.split()) in said for name in names), said
        assert not Path("other").exists()


@pytest.mark.slow
def test_an_adapter_of_modernbert_has_a_base_of_its_own(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _trained("modern")
    _assert_merged()
    assert lmtransfer("export", "run=runs/pretrain/modern", "to=exported") == 0
    words = ["export", "run=runs/finetune/lora", "format=adapter"]
    capsys.readouterr()
    assert lmtransfer(*words, "to=adapter", "base=exported") == 2
    said = capsys.readouterr().err
    assert all(name in said for name in ("base=exported", "classifier_activation=linear", "leave base out")), said
    assert not Path("adapter").exists()
    assert lmtransfer(*words, "to=adapter") == 0
    config = json.loads(Path("adapter/base/config.json").read_text())
    assert (config["classifier_activation"], config["classifier_pooling"]) == ("linear", "mean")


@pytest.mark.slow
def test_what_peft_cannot_update_is_refused(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _trained("xlnet", "transfer.lora_matrices=[query,value]")
    capsys.readouterr()
    assert lmtransfer("export", "run=runs/finetune/lora", "to=adapter", "format=adapter") == 2
    said = capsys.readouterr().err
    names = ("rel_attn.v", "format=auto", "lora_matrices=[expand,contract]")
    assert all(name in said for name in names), said
    assert not Path("adapter").exists()
