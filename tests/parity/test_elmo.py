"""ELMo against published models with their published embeddings, and against a plain per-time-step reference.

The published models lie in a folder ``fixtures`` beside the data folder; each expected file holds the top layer of ten
sentences that follow one another in one place of a batch of three: forward, then backward, states carried in both.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.elmo import FILES, OPTIONS, published, random_weights, read_hdf5, reference, sentences_as_batch
from support.refusals import refuses

from lmtransfer.errors import CheckpointError
from lmtransfer.interop.families.elmo import elmo_arguments, elmo_weights
from lmtransfer.models.elmo import ElmoEncoder
from lmtransfer.tokenizers.words import boundary_character_ids, character_ids


def encoder_of(folder: Path) -> ElmoEncoder:
    options = json.loads((folder / "options.json").read_text())
    encoder = ElmoEncoder(vocab_size=8, dropout=0.0, **elmo_arguments(options))
    encoder.load_state_dict(elmo_weights(read_hdf5(folder / "lm_weights.hdf5"), options))
    return encoder.eval()


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
