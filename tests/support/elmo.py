"""ELMo's published folders, tensors of their kind, and a plain reference that reads one time step after the other."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from lmtransfer.data.batch import PackedBatch, pack
from lmtransfer.tokenizers.words import boundary_character_ids, character_ids

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


def sentences_as_batch(sentences: list[list[str]]) -> PackedBatch:
    """Sentences with ELMo's marks of begin and end."""
    begin, end = boundary_character_ids()
    spelt = [np.concatenate([begin[None], character_ids(words), end[None]]) for words in sentences]
    batch = pack([np.zeros(len(rows), dtype=np.int64) for rows in spelt])
    return replace(batch, chars_TC=torch.from_numpy(np.concatenate(spelt)))


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
