"""Folders of published ELMo models: options.json and HDF5 weights."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes.published_models import encoder_of, run_of
from support.elmo import FILES, OPTIONS, published, random_weights, read_hdf5, reference, sentences_as_batch
from support.refusals import refuses

from lmtransfer.errors import CheckpointError
from lmtransfer.interop.families.family import NotInTransformers
from lmtransfer.interop.reading import read_published
from lmtransfer.interop.writing import to_published_files


def saved(folder: Path, options: dict[str, Any] = OPTIONS) -> Path:
    h5py = pytest.importorskip("h5py")
    with h5py.File(folder / "weights.hdf5", "w") as file:
        for name, array in random_weights(OPTIONS).items():
            file[name] = array.astype("float32")
    (folder / "options.json").write_text(json.dumps(options))
    return folder


@pytest.mark.parametrize("name", FILES)
def test_published_models_are_read_and_compute_the_reference(data_root: Path, name: str) -> None:
    pytest.importorskip("h5py")
    folder = published(data_root, name)
    read = read_published(folder)
    lane = json.loads((folder / FILES[name][1]).read_text())[0][:2]
    batch = sentences_as_batch([sentence.split() for sentence in lane])
    assert batch.chars_TC is not None
    with torch.no_grad():
        layers = encoder_of(read)(batch).layers
    weights = {key: tensor.double().numpy() for key, tensor in read_hdf5(folder / "lm_weights.hdf5").items()}
    for place, characters in enumerate(batch.chars_TC.split(list(batch.lengths))):
        for layer, expected in enumerate(reference(weights, read.config, characters.numpy())):
            ours = layers[layer].split(list(batch.lengths))[place].double()
            torch.testing.assert_close(ours, torch.from_numpy(expected), atol=1e-5, rtol=0)


def test_nothing_in_transformers_loads_it(tmp_path: Path) -> None:
    read = read_published(saved(tmp_path))
    assert read.vocab_size == 0
    with refuses(NotInTransformers, "ElmoEncoder", "transformers"):
        to_published_files(run_of(read))


def test_settings_and_tensors_that_do_not_fit_are_told(tmp_path: Path) -> None:
    saved(tmp_path, OPTIONS | {"lstm": OPTIONS["lstm"] | {"projection_dim": 5}})
    with refuses(CheckpointError, "weights.hdf5", "shape", "characters.projection.weight"):
        read_published(tmp_path)
    saved(tmp_path, OPTIONS | {"lstm": OPTIONS["lstm"] | {"n_layers": 10**9}})
    with refuses(CheckpointError, "options.json", "1000000000"):
        read_published(tmp_path)
    saved(tmp_path, OPTIONS | {"char_cnn": OPTIONS["char_cnn"] | {"activation": "exec"}})
    with refuses(CheckpointError, "options.json", "activation=exec", "relu, tanh"):
        read_published(tmp_path)
    saved(tmp_path)
    (tmp_path / "weights.hdf5").write_bytes(b"no hdf5")
    with refuses(CheckpointError, str(tmp_path / "weights.hdf5"), "HDF5"):
        read_published(tmp_path)
    (tmp_path / "weights.hdf5").unlink()
    with refuses(CheckpointError, str(tmp_path), "options.json", "weights.hdf5", "none"):
        read_published(tmp_path)


def test_without_h5py_one_line_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved(tmp_path)
    monkeypatch.setitem(sys.modules, "h5py", None)
    with refuses(CheckpointError, "weights.hdf5", "h5py", "pip install 'lmtransfer[elmo]'"):
        read_published(tmp_path)
