"""Weight files of published folders: whole, sharded, old, damaged and hostile."""

from __future__ import annotations

import json
import math
import os
import pickle
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.refusals import refuses
from torch import Tensor

from lmtransfer.errors import CheckpointError
from lmtransfer.interop.reading import read_published, read_weight_files

TENSORS = {"a.weight": torch.arange(6.0).view(2, 3), "a.bias": torch.ones(2), "b.weight": torch.zeros(4)}


def assert_read(folder: Path) -> None:
    found = read_weight_files(folder)
    assert sorted(found) == sorted(TENSORS)
    assert all(torch.equal(found[name], tensor) for name, tensor in TENSORS.items())


def shards(folder: Path, name: str, save: Any) -> dict[str, Any]:
    """Write two shards and their index, and return the path of the index."""
    stem, _, suffix = name.rpartition(".")
    files = [f"{stem}-{number}-of-2.{suffix}" for number in (1, 2)]
    save({name: tensor for name, tensor in TENSORS.items() if name.startswith("a.")}, folder / files[0])
    save({name: tensor for name, tensor in TENSORS.items() if name.startswith("b.")}, folder / files[1])
    index = {"weight_map": {name: files[0] if name.startswith("a.") else files[1] for name in TENSORS}}
    (folder / f"{name}.index.json").write_text(json.dumps(index))
    return index


def test_whole_files_are_read_safetensors_first(tmp_path: Path) -> None:
    torch.save(TENSORS, tmp_path / "pytorch_model.bin")
    assert_read(tmp_path)
    torch.save({"other": torch.zeros(1)}, tmp_path / "pytorch_model.bin")
    save_file(TENSORS, tmp_path / "model.safetensors")
    assert_read(tmp_path)


@pytest.mark.parametrize("zipped", [True, False])
def test_both_formats_of_pytorch_are_read(tmp_path: Path, zipped: bool) -> None:
    torch.save(TENSORS, tmp_path / "pytorch_model.bin", _use_new_zipfile_serialization=zipped)
    assert_read(tmp_path)


@pytest.mark.parametrize(("name", "save"), [("model.safetensors", save_file), ("pytorch_model.bin", torch.save)])
class TestShards:
    """A checkpoint of several files with an index."""

    def test_all_are_read(self, tmp_path: Path, name: str, save: Any) -> None:
        shards(tmp_path, name, save)
        assert_read(tmp_path)

    def test_a_missing_file_and_a_missing_tensor_are_named(self, tmp_path: Path, name: str, save: Any) -> None:
        index = shards(tmp_path, name, save)
        index["weight_map"]["c.weight"] = index["weight_map"]["b.weight"]
        (tmp_path / f"{name}.index.json").write_text(json.dumps(index))
        with refuses(CheckpointError, index["weight_map"]["b.weight"], "c.weight"):
            read_weight_files(tmp_path)
        gone = index["weight_map"]["a.bias"]
        (tmp_path / gone).unlink()
        with refuses(CheckpointError, f"{name}.index.json", gone):
            read_weight_files(tmp_path)

    @pytest.mark.parametrize("place", ["../secret.bin", "/etc/passwd", "deep/file.bin", "..", "", "a\\b"])
    def test_a_path_out_of_the_folder_is_refused(self, tmp_path: Path, name: str, save: Any, place: str) -> None:
        inside = tmp_path / "in"
        inside.mkdir()
        save(TENSORS, tmp_path / "secret.bin")
        (inside / f"{name}.index.json").write_text(json.dumps({"weight_map": {"a.weight": place}}))
        with refuses(CheckpointError, f"{name}.index.json", place):
            read_weight_files(inside)

    def test_an_index_of_another_form_is_told(self, tmp_path: Path, name: str, save: Any) -> None:
        for content in ("{}", '{"weight_map": ["a"]}', '{"weight_map": {"a": 1}}'):
            (tmp_path / f"{name}.index.json").write_text(content)
            with refuses(CheckpointError, f"{name}.index.json", "weight_map"):
                read_weight_files(tmp_path)


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
@pytest.mark.parametrize("keep", [0, 5, 0.5, 0.99])
def test_truncated_files_are_told(tmp_path: Path, name: str, keep: float) -> None:
    path = tmp_path / name
    (save_file if name.startswith("model") else torch.save)(TENSORS, path)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(keep if keep > 1 else keep * len(whole))])
    with refuses(CheckpointError, str(path)):
        read_weight_files(tmp_path)


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
@pytest.mark.parametrize("content", [b"\x00" * 64, b"not weights at all, but long enough to be read", b"\xff" * 64])
def test_files_of_another_format_are_told(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with refuses(CheckpointError, str(tmp_path / name)):
        read_weight_files(tmp_path)


class Code:
    """An object whose pickle runs code when it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.path}",)


@pytest.mark.parametrize("form", ["torch", "torch_old", "pickle"])
def test_a_pickle_with_code_is_refused_and_not_run(tmp_path: Path, form: str) -> None:
    content: dict[str, Any] = {**TENSORS, "code": Code(tmp_path / "ran")}
    path = tmp_path / "pytorch_model.bin"
    if form == "pickle":
        path.write_bytes(pickle.dumps(content["code"]))
    else:
        torch.save(content, path, _use_new_zipfile_serialization=form == "torch")
    with refuses(CheckpointError, str(path)):
        read_weight_files(tmp_path)
    assert not (tmp_path / "ran").exists()
    if form != "pickle":
        with refuses(CheckpointError, str(path), f"{os.name}.system"):
            read_weight_files(tmp_path)


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ([torch.zeros(1)], "list"),
        ({"state": TENSORS}, "state"),
        ({1: torch.zeros(1)}, "dict"),
        (torch.zeros(1), "Tensor"),
    ],
)
def test_other_things_than_tensors_by_name_are_told(tmp_path: Path, content: Any, named: str) -> None:
    torch.save(content, tmp_path / "pytorch_model.bin")
    with refuses(CheckpointError, str(tmp_path / "pytorch_model.bin"), named):
        read_weight_files(tmp_path)


def test_no_weights_and_weights_of_other_programs_are_told(tmp_path: Path) -> None:
    with refuses(CheckpointError, str(tmp_path), "model.safetensors", "pytorch_model.bin"):
        read_weight_files(tmp_path)
    (tmp_path / "tf_model.h5").write_bytes(b"")
    with refuses(CheckpointError, "tf_model.h5"):
        read_weight_files(tmp_path)


@pytest.mark.parametrize(
    "content",
    [
        b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 4\n",
        b"<!DOCTYPE html><html><body>404</body></html>",
        b"",
        b"\x80\x02}q\x00.",  # a pickle of an empty mapping, not of torch.save
        b"\x80\x04\x95\x00\x00",
        b"PK\x03\x04 no archive",
        pickle.dumps({"a": [1, 2]}),
    ],
)
def test_what_is_no_file_of_tensors_never_leads_to_unsafe_loading(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(content)
    with refuses(CheckpointError, str(tmp_path / "pytorch_model.bin")) as caught:
        read_weight_files(tmp_path)
    message = str(caught.value)
    assert not re.search("weights.only|trusted|arbitrary code|torch.load|PyTorch 2", message, re.IGNORECASE)
    assert "\n" not in message
    if content.startswith(b"version"):
        assert "git lfs pull" in message
    elif not content.startswith((b"PK", b"\x80")):
        assert repr(content[:24]) in message


def saved(folder: Path) -> dict[str, Tensor]:
    """Write a published BERT with its pretraining heads, and return its tensors."""
    pytest.importorskip("transformers")
    from fakes.published_folder import make_published

    make_published(folder)
    return load_file(folder / "model.safetensors")


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_weights_that_are_not_finite_are_refused_by_name(value: float, dtype: torch.dtype, tmp_path: Path) -> None:
    tensors = {name: tensor.to(dtype) for name, tensor in saved(tmp_path).items()}
    bad = ["encoder.layer.1.attention.self.query.weight", "embeddings.LayerNorm.bias"]
    for name in bad:
        tensors[f"bert.{name}"].view(-1)[3] = value
    save_file(tensors, tmp_path / "model.safetensors")
    with refuses(CheckpointError, str(tmp_path), *bad) as caught:
        read_published(tmp_path)
    assert str(caught.value).count("\n") == 2


def test_a_head_that_is_not_finite_is_refused_if_it_is_used_and_otherwise_noted(tmp_path: Path) -> None:
    tensors = saved(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    torch.save(tensors | {"classifier.weight": torch.tensor([1.0, math.nan])}, tmp_path / "pytorch_model.bin")
    assert any("NaN" in note and "classifier.weight" in note for note in read_published(tmp_path).notes)
    tensors["cls.predictions.bias"][2] = math.nan
    torch.save(tensors, tmp_path / "pytorch_model.bin")
    with refuses(CheckpointError, "cls.predictions.bias"):
        read_published(tmp_path)
