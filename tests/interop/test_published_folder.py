from __future__ import annotations

import json
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


def _write(folder: Path, *names: str, content: str = "{}") -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)


@pytest.mark.parametrize(
    ("files", "given", "advice"),
    [
        (
            ["a/checkpoint-500/config.json", "a/checkpoint-1000/config.json"],
            "a",
            "hf:a/checkpoint-1000 or hf:a/checkpoint-500",
        ),
        (["a/0_Transformer/config.json", "a/x.txt"], "a", "a/0_Transformer"),
        (["a/elmo/options.json"], "a", "a/elmo"),
        (
            [f"a/run-{step}/config.json" for step in range(12)],
            "a",
            "hf:a/run-11 or hf:a/run-10 or hf:a/run-9 or another",
        ),
        (["c/models--own--bert/snapshots/0a/config.json"], "c/models--own--bert", "hf:own/bert"),
        (["c/models--own--bert/snapshots/0a/config.json"], "c/models--own--bert/snapshots", "snapshots/0a"),
        (["c/models--own--bert/refs/main", "c/models--t5/refs/main", "c/version.txt"], "c", "hf:own/bert or hf:t5"),
        (["h/hub/models--own--bert/refs/main"], "h", "hf:own/bert"),
        (["a/readme.md"], "a", "pytorch_model.bin"),
    ],
)
def test_a_folder_beside_the_model_leads_to_the_model(
    files: list[str], given: str, advice: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    _write(tmp_path, *files)
    with refuses(CheckpointError, f"init=hf:{given}", "config.json", advice):
        find_published(f"hf:{given}", key="init")


@pytest.mark.parametrize(("base", "named"), [("own/bert-base", "own/bert-base"), ("/models/mine", "/models/mine")])
def test_an_adapter_is_no_model_and_names_its_base(base: str, named: str, tmp_path: Path) -> None:
    _write(tmp_path, "adapter_config.json", content=json.dumps({"base_model_name_or_path": base, "r": 8}))
    _write(tmp_path, "adapter_model.safetensors")
    with refuses(CheckpointError, "adapter", named, "merge_and_unload"):
        find_published(str(tmp_path), key="source")


POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:{}\nsize 437955512\n".format("ab" * 32)


@pytest.mark.parametrize(
    "pointers",
    [
        ["pytorch_model-00003-of-00003.bin", "merges.txt"],
        ["model.safetensors"],
        ["tokenizer.json", "model-00002-of-00002.safetensors"],
        ["spm.model"],
    ],
)
def test_files_that_git_lfs_has_not_fetched_are_named(pointers: list[str], tmp_path: Path) -> None:
    suffix = ".bin" if any(name.endswith(".bin") for name in pointers) else ".safetensors"
    whole = f"{'pytorch_' if suffix == '.bin' else ''}model-00001-of-00002{suffix}"
    _write(tmp_path, "config.json", whole, "vocab.txt", "README.md")
    _write(tmp_path, *pointers, content=POINTER)
    with refuses(CheckpointError, *pointers, "git lfs pull") as caught:
        find_published(str(tmp_path), key="source")
    assert "00001" not in str(caught.value)
    _write(tmp_path, *pointers)
    assert find_published(str(tmp_path), key="source").path == tmp_path
