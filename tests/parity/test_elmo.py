"""ELMo against published models with their published embeddings, and against a plain per-time-step reference.

The published models lie in a folder ``fixtures`` beside the data folder; each expected file holds the top layer of ten
sentences that follow one another in one place of a batch of three: forward, then backward, states carried in both.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fakes.published_models import encoder_of, run_of
from support.elmo import FILES, OPTIONS, published, random_weights, read_hdf5, reference, sentences_as_batch
from support.refusals import refuses

from lmtransfer.errors import CheckpointError
from lmtransfer.interop.families.elmo import elmo_arguments, elmo_weights
from lmtransfer.interop.families.family import NotInTransformers
from lmtransfer.interop.reading import read_published
from lmtransfer.interop.writing import to_published_files
from lmtransfer.models.elmo import ElmoEncoder
from lmtransfer.tokenizers.words import boundary_character_ids, character_ids


@pytest.mark.parametrize("name", FILES)
def test_published_models_give_their_published_embeddings(data_root: Path, name: str) -> None:
    folder = published(data_root, name)
    encoder = encoder_of(read_published(folder))
    lanes = json.loads((folder / FILES[name][1]).read_text())
    expected = [read_hdf5(folder / f"lm_embeddings_{lane}.hdf5") for lane in range(3)]
    recurrent_state: dict[str, Any] = {}
    for number in range(10):
        batch = sentences_as_batch([lane[number].split() for lane in lanes])
        assert batch.chars_TC is not None
        with torch.no_grad():
            words = encoder.characters(batch.chars_TC)
            layers, forward, backward = encoder.lstms(words, batch, **recurrent_state)
            stateless = encoder(batch)
        recurrent_state = {"forward_states": forward, "backward_states": backward}
        for place, states in enumerate(layers[2].split(list(batch.lengths))):
            both = torch.cat(list(expected[place][str(number)]), dim=1)
            torch.testing.assert_close(states[1:-1], both, atol=1e-5, rtol=0)
        if number == 0:  # no state is carried yet
            for ours, theirs in zip(stateless.layers, layers, strict=True):
                torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=0)
        else:
            assert (stateless.last - layers[2]).abs().max() > 1e-3


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


def test_published_word_vectors(data_root: Path) -> None:
    folder = published(data_root, "elmo_allennlp")
    words = (folder / "vocab_test.txt").read_text(encoding="utf-8").split()
    (expected,) = read_hdf5(folder / "elmo_token_embeddings.hdf5").values()
    encoder = encoder_of(read_published(folder))
    spelt = character_ids(words)
    spelt[[words.index("<S>"), words.index("</S>")]] = boundary_character_ids()
    with torch.no_grad():
        vectors = encoder.characters(torch.from_numpy(spelt))
    torch.testing.assert_close(vectors, expected[-len(words) :], atol=1e-5, rtol=0)


WORDS = [
    ["A", "word", "na\u00efve", "\u6f22\u5b57", "x" * 70, "w" * 46, "."],
    ["One"],
    ["The", "longest", "of", "these", "rows", "holds", "eleven", "words", ",", "or", "twelve"],
    ["word", "A"],
]


@pytest.mark.parametrize("changes", [{}, {"activation": "tanh"}, {"use_skip_connections": False, "n_layers": 1}])
def test_random_weights_equal_the_reference_in_all_layers(changes: dict[str, Any]) -> None:
    options = {part: {**OPTIONS[part], **{k: v for k, v in changes.items() if k in OPTIONS[part]}} for part in OPTIONS}
    weights = random_weights(options)
    encoder = ElmoEncoder(vocab_size=8, dropout=0.0, **elmo_arguments(options)).double().eval()
    encoder.load_state_dict(elmo_weights({k: torch.from_numpy(v) for k, v in weights.items()}, options))
    batch = sentences_as_batch(WORDS)
    assert batch.chars_TC is not None
    with torch.no_grad():
        layers = [layer.split(list(batch.lengths)) for layer in encoder(batch).layers]
    assert len(layers) == options["lstm"]["n_layers"] + 1
    for place, characters in enumerate(batch.chars_TC.split(list(batch.lengths))):
        expected = reference(weights, options, characters.numpy())
        for layer, states in enumerate(expected):
            torch.testing.assert_close(layers[layer][place], torch.from_numpy(states), atol=1e-9, rtol=0)
        if changes == {}:
            assert (np.abs(expected[1]) == 0.3).any()  # clipping had an effect


def test_a_missing_and_a_spare_tensor_are_told() -> None:
    weights = {name: torch.from_numpy(array) for name, array in random_weights(OPTIONS).items()}
    with refuses(CheckpointError, "options.json", ": more"):
        elmo_weights({**weights, "more": torch.zeros(1)}, OPTIONS)
    weights.pop("CNN_proj/b_proj")
    with refuses(CheckpointError, "CNN_proj/b_proj"):
        elmo_weights(weights, OPTIONS)
    with refuses(CheckpointError, "options.json", "'lstm'"):
        elmo_arguments({})


def saved(folder: Path, options: dict[str, Any] = OPTIONS) -> Path:
    h5py = pytest.importorskip("h5py")
    with h5py.File(folder / "weights.hdf5", "w") as file:
        for name, array in random_weights(OPTIONS).items():
            file[name] = array.astype("float32")
    (folder / "options.json").write_text(json.dumps(options))
    return folder


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
