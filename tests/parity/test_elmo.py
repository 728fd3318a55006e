"""ELMo against published models with their published embeddings, and against a plain per-time-step reference.

The published models lie in a folder ``fixtures`` beside the data folder; each expected file holds the top layer of ten
sentences that follow one another in one place of a batch of three: forward, then backward, states carried in both.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from refusals import refuses
from torch import Tensor

from lmtransfer.data.batch import PackedBatch, pack
from lmtransfer.errors import CheckpointError
from lmtransfer.interop.families.elmo import elmo_arguments, elmo_weights
from lmtransfer.models.elmo import ElmoEncoder
from lmtransfer.tokenizers.characters import boundary_character_ids, character_ids

FILES = {
    "elmo_allennlp": ("", "sentences.json"),
    "elmo_bilm_tf": ("model", "lm_embeddings_sentences.json"),
}


def published(root: Path, name: str) -> Path:
    folder = root.parent / "fixtures" / name / FILES[name][0]
    if not (folder / "lm_weights.hdf5").is_file():
        pytest.skip(f"{folder} holds no published ELMo model")
    return folder


def read_hdf5(path: Path) -> dict[str, Tensor]:
    h5py = pytest.importorskip("h5py")
    found: dict[str, Tensor] = {}

    def visit(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset):
            found[name] = torch.from_numpy(item[...])

    with h5py.File(path, "r") as file:
        file.visititems(visit)
    return found


def encoder_of(folder: Path) -> ElmoEncoder:
    options = json.loads((folder / "options.json").read_text())
    encoder = ElmoEncoder(vocab_size=8, dropout=0.0, **elmo_arguments(options))
    encoder.load_state_dict(elmo_weights(read_hdf5(folder / "lm_weights.hdf5"), options))
    return encoder.eval()


def sentences_as_batch(sentences: list[list[str]]) -> PackedBatch:
    """Sentences with ELMo's marks of begin and end."""
    begin, end = boundary_character_ids()
    spelt = [np.concatenate([begin[None], character_ids(words), end[None]]) for words in sentences]
    batch = pack([np.zeros(len(rows), dtype=np.int64) for rows in spelt])
    return replace(batch, chars_TC=torch.from_numpy(np.concatenate(spelt)))


@pytest.mark.parametrize("name", FILES)
def test_published_models_give_their_published_embeddings(data_root: Path, name: str) -> None:
    folder = published(data_root, name)
    encoder = encoder_of(folder)
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
        if number == 0:  # nothing is carried yet
            for ours, theirs in zip(stateless.layers, layers, strict=True):
                torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=0)
        else:
            assert (stateless.last - layers[2]).abs().max() > 1e-3


@pytest.mark.parametrize("name", FILES)
def test_published_models_equal_the_reference_in_all_layers(data_root: Path, name: str) -> None:
    folder = published(data_root, name)
    options = json.loads((folder / "options.json").read_text())
    weights = {key: tensor.double().numpy() for key, tensor in read_hdf5(folder / "lm_weights.hdf5").items()}
    lane = json.loads((folder / FILES[name][1]).read_text())[0]
    batch = sentences_as_batch([sentence.split() for sentence in lane])
    assert batch.chars_TC is not None
    with torch.no_grad():
        layers = encoder_of(folder)(batch).layers
    ours = [layer.split(list(batch.lengths)) for layer in layers]
    for place, characters in enumerate(batch.chars_TC.split(list(batch.lengths))):
        for layer, expected in enumerate(reference(weights, options, characters.numpy())):
            torch.testing.assert_close(ours[layer][place].double(), torch.from_numpy(expected), atol=1e-5, rtol=0)


def test_published_word_vectors(data_root: Path) -> None:
    folder = published(data_root, "elmo_allennlp")
    words = (folder / "vocab_test.txt").read_text(encoding="utf-8").split()
    (expected,) = read_hdf5(folder / "elmo_token_embeddings.hdf5").values()
    encoder = encoder_of(folder)
    spelt = character_ids(words)
    spelt[[words.index("<S>"), words.index("</S>")]] = boundary_character_ids()
    with torch.no_grad():
        vectors = encoder.characters(torch.from_numpy(spelt))
    torch.testing.assert_close(vectors, expected[-len(words) :], atol=1e-5, rtol=0)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def reference(weights: dict[str, np.ndarray], options: dict[str, Any], characters: np.ndarray) -> list[np.ndarray]:
    """ELMo as its code is published, one word, one filter window and one time step at a time, in float64."""
    lstm, cnn = options["lstm"], options["char_cnn"]
    embedding = np.vstack([np.zeros((1, cnn["embedding"]["dim"])), weights["char_embed"]])
    vectors = []
    for word in characters:
        letters = embedding[word]
        pooled = []
        for number, (width, _) in enumerate(cnn["filters"]):
            kernel = weights[f"CNN/W_cnn_{number}"][0]  # (width, in, out)
            windows = [
                np.einsum("wi,wio->o", letters[start : start + width], kernel) + weights[f"CNN/b_cnn_{number}"]
                for start in range(len(letters) - width + 1)
            ]
            pooled.append(np.max(windows, axis=0))
        vector = np.concatenate(pooled)
        vector = np.maximum(vector, 0) if cnn["activation"] == "relu" else np.tanh(vector)
        for number in range(cnn["n_highway"]):
            place = f"CNN_high_{number}"
            recurrent_state = sigmoid(vector @ weights[f"{place}/W_carry"] + weights[f"{place}/b_carry"])
            new = np.maximum(vector @ weights[f"{place}/W_transform"] + weights[f"{place}/b_transform"], 0)
            vector = recurrent_state * new + (1 - recurrent_state) * vector
        vectors.append(vector @ weights["CNN_proj/W_proj"] + weights["CNN_proj/b_proj"])
    layers = [[vector, vector] for vector in vectors]
    outputs = [np.array([np.concatenate(pair) for pair in layers])]
    halves = [np.array(vectors), np.array(vectors)]
    for layer in range(lstm["n_layers"]):
        for direction in (0, 1):
            cell = f"RNN_{direction}/RNN/MultiRNNCell/Cell{layer}/LSTMCell"
            inputs = halves[direction][:: -1 if direction else 1]
            state, memory = np.zeros(lstm["projection_dim"]), np.zeros(lstm["dim"])
            states = []
            for x in inputs:
                i, j, f, o = np.split(np.concatenate([x, state]) @ weights[f"{cell}/W_0"] + weights[f"{cell}/B"], 4)
                memory = sigmoid(f + 1) * memory + sigmoid(i) * np.tanh(j)
                memory = np.clip(memory, -lstm["cell_clip"], lstm["cell_clip"])
                state = (sigmoid(o) * np.tanh(memory)) @ weights[f"{cell}/W_P_0"]
                state = np.clip(state, -lstm["proj_clip"], lstm["proj_clip"])
                states.append(state)
            result = np.array(states)
            if layer and lstm.get("use_skip_connections"):
                result = result + inputs
            halves[direction] = result[:: -1 if direction else 1]
        outputs.append(np.concatenate(halves, axis=1))
    return outputs


OPTIONS: dict[str, Any] = {
    "lstm": {
        "cell_clip": 0.5,
        "proj_clip": 0.3,
        "use_skip_connections": True,
        "n_layers": 3,
        "projection_dim": 6,
        "dim": 20,
    },
    "char_cnn": {"embedding": {"dim": 5}, "filters": [[1, 3], [2, 4], [5, 7]], "n_highway": 2, "activation": "relu"},
}


def random_weights(options: dict[str, Any]) -> dict[str, np.ndarray]:
    """Tensors with the names and shapes of the published files; large enough that clipping clips."""
    rng = np.random.default_rng(0)
    lstm, cnn = options["lstm"], options["char_cnn"]
    shapes: dict[str, tuple[int, ...]] = {"char_embed": (261, cnn["embedding"]["dim"])}
    total = sum(count for _, count in cnn["filters"])
    for number, (width, count) in enumerate(cnn["filters"]):
        shapes[f"CNN/W_cnn_{number}"] = (1, width, cnn["embedding"]["dim"], count)
        shapes[f"CNN/b_cnn_{number}"] = (count,)
    for number in range(cnn["n_highway"]):
        for part in ("carry", "transform"):
            shapes[f"CNN_high_{number}/W_{part}"] = (total, total)
            shapes[f"CNN_high_{number}/b_{part}"] = (total,)
    width, cells = lstm["projection_dim"], lstm["dim"]
    shapes.update({"CNN_proj/W_proj": (total, width), "CNN_proj/b_proj": (width,)})
    for direction in (0, 1):
        for layer in range(lstm["n_layers"]):
            cell = f"RNN_{direction}/RNN/MultiRNNCell/Cell{layer}/LSTMCell"
            shapes.update({f"{cell}/W_0": (2 * width, 4 * cells), f"{cell}/B": (4 * cells,)})
            shapes[f"{cell}/W_P_0"] = (cells, width)
    return {name: rng.standard_normal(shape) * 0.5 for name, shape in shapes.items()}


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
            assert (np.abs(expected[1]) == 0.3).any()  # the clip did something


def test_a_missing_and_a_spare_tensor_are_told() -> None:
    weights = {name: torch.from_numpy(array) for name, array in random_weights(OPTIONS).items()}
    with refuses(CheckpointError, "options.json", ": more"):
        elmo_weights({**weights, "more": torch.zeros(1)}, OPTIONS)
    weights.pop("CNN_proj/b_proj")
    with refuses(CheckpointError, "CNN_proj/b_proj"):
        elmo_weights(weights, OPTIONS)
    with refuses(CheckpointError, "options.json", "'lstm'"):
        elmo_arguments({})
