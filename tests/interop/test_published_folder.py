from __future__ import annotations

from pathlib import Path

import pytest
from support.refusals import refuses

from lmtransfer.errors import CheckpointError, RunDirectoryError
from lmtransfer.interop.open_run import run_folder
from lmtransfer.interop.published_folder import PublishedFolder, find_published, select_files


def test_safetensors_are_wanted_and_legacy_files_only_without_them() -> None:
    tokenizer = ["special_tokens_map.json", "tokenizer.json", "vocab.txt"]
    other = ["README.md", "flax_model.msgpack", "onnx/model.safetensors", "training_args.bin", "tf_model.h5", ".git/x"]
    both = ["config.json", "model.safetensors", "pytorch_model.bin", *tokenizer, *other]
    assert select_files(both) == sorted(["config.json", "model.safetensors", *tokenizer])
    shards = ["pytorch_model-00001-of-00002.bin", "pytorch_model-00002-of-00002.bin", "pytorch_model.bin.index.json"]
    assert select_files(["config.json", *shards, *other]) == sorted(["config.json", *shards])
    sharded = ["model-00001-of-00001.safetensors", "model.safetensors.index.json"]
    assert select_files([*shards, *sharded]) == sorted(sharded)
    generator = ["generator/config.json", "generator/model.safetensors"]
    assert set(generator) <= set(select_files([*both, *generator]))


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("/models/bert base", "bert-base"),
        ("owner/tiny-bert@v1.0", "tiny-bert"),
        ("bert-base-uncased", "bert-base-uncased"),
        ("/", "model"),
    ],
)
def test_a_name_is_made_of_the_source(source: str, name: str, tmp_path) -> None:
    assert PublishedFolder(tmp_path, source).name == name


@pytest.mark.parametrize("given", ["../up", "a/b/c", "./here", "hf:a b/c", "owner/", "x@../../y z"])
def test_what_is_no_folder_and_no_name_is_told_without_asking_the_net(given: str, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    with refuses(CheckpointError, f"source={given}", "config.json", "owner/name") as raised:
        find_published(given, key="source")
    assert raised.value.__cause__ is None  # the hub was not queried


@pytest.mark.parametrize(
    ("path", "advice"),
    [
        ("bert-base-uncased", "init=hf:bert-base-uncased"),
        ("owner/model@main", "init=hf:owner/model@main"),
        ("published", "init=hf:published"),
        ("runs/pretrain/lost", None),
        ("runs/lost", None),
    ],
)
def test_a_published_model_without_its_prefix_is_told_the_prefix(
    path: str, advice: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("runs", "published"):
        (tmp_path / folder).mkdir()
    (tmp_path / "published/config.json").write_text("{}")
    with refuses(RunDirectoryError, "init", path.partition("@")[0], advice or "") as caught:
        run_folder(path, key="init")
    assert ("hf:" in str(caught.value)) == (advice is not None)
