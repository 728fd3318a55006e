"""Published folders as runs: the objective's node, and vectors as sentence-transformers' files define them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fakes.published_models import perturbed
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from support.refusals import refuses

from lmtransfer.api import load
from lmtransfer.config import paths
from lmtransfer.errors import ConfigError
from lmtransfer.interop.importing import build_objective_node
from lmtransfer.launch.composing import built_in_node


@pytest.mark.slow
def test_the_node_of_every_objective_is_what_hydra_composes() -> None:
    choices = paths.group_options("objective", [paths.conf_dir()])
    assert len(choices) > 20
    with initialize_config_dir(config_dir=str(paths.conf_dir()), version_base="1.3"):
        for choice in choices:
            composed = compose(None, overrides=[f"+objective={choice}", "objective.max_length=24"])
            wanted = OmegaConf.to_container(composed.objective, resolve=True)
            assert built_in_node("objective", choice, max_length=24) == wanted, choice


@pytest.mark.parametrize(
    ("losses", "choice"),
    [
        (("mlm", "nsp"), "mlm_nsp"),
        (("rtd",), "rtd"),
        (("plm",), "plm"),
    ],
)
def test_the_node_is_what_hydra_composes(losses: tuple[str, ...], choice: str) -> None:
    with initialize_config_dir(config_dir=str(paths.conf_dir()), version_base="1.3"):
        words = ["~experiment", "model=bert_base", f"objective={choice}", "objective.max_length=24"]
        cfg = compose("pretrain", overrides=words)
    wanted = OmegaConf.to_container(cfg.objective, resolve=True)
    assert build_objective_node({name: {} for name in losses}, max_length=24) == wanted


def test_the_heads_arguments_win_and_the_weights_stay() -> None:
    given = {"mlm": {"_target_": "lmtransfer.objectives.masked_lm.MaskedLanguageModel", "norm_eps": 1e-5}}
    node = build_objective_node(given, max_length=512)
    assert node is not None
    assert node["losses"]["mlm"]["norm_eps"] == 1e-5
    assert node["losses"]["mlm"]["weight"] == 1.0
    assert node["max_length"] == node["rows"]["max_length"] == 128


def test_losses_that_nothing_trains_together_are_none() -> None:
    assert build_objective_node({"mlm": {}, "plm": {}}, max_length=24) is None
    assert build_objective_node({}, max_length=24) is None


transformers = pytest.importorskip("transformers")

TEXTS = ["a b c", "C b", "b b a c a b c c a b a b c a", ""]
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "c", "C"]


def folder_of(folder: Path, *, cased: bool = False, **files: Any) -> Path:
    """Write a BERT with random weights and more files, whose names have ``__`` for a dot and ``___`` for a slash."""
    config = transformers.BertConfig(
        vocab_size=len(PIECES),
        hidden_size=8,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=12,
    )
    perturbed(transformers.BertModel(config)).save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(PIECES) + "\n")
    settings = {"tokenizer_class": "BertTokenizer", "do_lower_case": not cased}
    for name, content in {"tokenizer_config__json": {}, **files}.items():
        path = folder / name.replace("___", "/").replace("__", ".")
        path.parent.mkdir(exist_ok=True)
        merged = settings | content if path.name == "tokenizer_config.json" else content
        path.write_text(json.dumps(merged))
    return folder


def modules(*kinds: str) -> list[dict[str, Any]]:
    """Return the content of modules.json."""
    places = [("", "Transformer"), *((f"{i}_{kind}", kind) for i, kind in enumerate(kinds, start=1))]
    return [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (path, kind) in enumerate(places)
    ]


def states(folder: Path, text: str, longest: int) -> np.ndarray:
    """Compute the last layer for one text with transformers, (tokens, width)."""
    tokenizer = transformers.BertTokenizer.from_pretrained(folder)
    model = transformers.BertModel.from_pretrained(folder).eval()
    ids = tokenizer(text, truncation=True, max_length=longest, return_tensors="pt")
    with torch.no_grad():
        return np.asarray(model(**ids).last_hidden_state[0])


def unit(vector: np.ndarray) -> np.ndarray:
    return vector / np.linalg.norm(vector)


POOL: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "cls": lambda states: states[0],
    "mean": lambda states: states.mean(0),
    "max": lambda states: states.max(0),
    "last": lambda states: states[-1],
}
NO_MEAN = {"pooling_mode_mean_tokens": False}
CASES: dict[str, tuple[dict[str, Any], str, int, bool]] = {
    "last token, normalised": (
        {
            "modules__json": modules("Pooling", "Normalize"),
            "1_Pooling___config__json": {"pooling_mode_lasttoken": True, **NO_MEAN},
            "sentence_bert_config__json": {"max_seq_length": 6},
        },
        "last",
        6,
        True,
    ),
    "max, and the tokenizer's limit": (
        {
            "modules__json": modules("Pooling", "Dropout"),
            "1_Pooling___config__json": {"pooling_mode_max_tokens": True, **NO_MEAN},
            "tokenizer_config__json": {"model_max_length": 7},
        },
        "max",
        7,
        False,
    ),
    "the mean is the library's default": (
        {"modules__json": modules("Pooling"), "sentence_bert_config__json": {"max_seq_length": 500}},
        "mean",
        12,
        False,
    ),
    "a new name of a pooling": (
        {"modules__json": modules("Pooling", "Normalize"), "1_Pooling___config__json": {"pooling_mode": "cls"}},
        "cls",
        12,
        True,
    ),
    "no modules": ({"tokenizer_config__json": {"model_max_length": 5}}, "mean", 5, False),
}


@pytest.mark.parametrize("case", CASES)
def test_vectors_are_those_of_the_publisher(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files, pooling, longest, normalised = CASES[case]
    monkeypatch.setenv("LMTRANSFER_CACHE", str(tmp_path / "cache"))
    folder = folder_of(tmp_path / "model", **files)
    run = load(f"hf:{folder}", device="cpu", precision="fp32")
    for text, found in zip(TEXTS, run.vectors(TEXTS), strict=True):
        wanted = POOL[pooling](states(folder, text, longest))
        np.testing.assert_allclose(found, unit(wanted) if normalised else wanted, atol=2e-6)
    for text, found in zip(TEXTS[:2], run.vectors(TEXTS[:2], pooling="max"), strict=True):  # the user's own choice
        np.testing.assert_allclose(found, POOL["max"](states(folder, text, 12)), atol=2e-6)


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"1_Pooling___config__json": {"pooling_mode_weightedmean_tokens": True, **NO_MEAN}}, "weightedmean_tokens"),
        ({"1_Pooling___config__json": {"pooling_mode_cls_token": True}}, "cls_token and mean_tokens"),
        ({"modules__json": modules("Pooling", "Dense")}, "the module Dense (2_Dense)"),
        (
            {"config_sentence_transformers__json": {"prompts": {"q": "query: "}, "default_prompt_name": "q"}},
            "the prompt 'query: '",
        ),
        ({"sentence_bert_config__json": {"do_lower_case": True}}, "lower-cased texts"),
    ],
)
def test_what_lmtransfer_cannot_do_is_refused_by_default(
    files: dict[str, Any], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LMTRANSFER_CACHE", str(tmp_path / "cache"))
    folder = folder_of(tmp_path / "model", cased=True, **{"modules__json": modules("Pooling"), **files})
    run = load(f"hf:{folder}", device="cpu", precision="fp32")
    with refuses(ConfigError, "pooling", said, "mean, cls, max or last_token"):
        run.vectors(TEXTS)
    found = run.vectors(TEXTS[0], pooling="mean")[0]
    np.testing.assert_allclose(found, POOL["mean"](states(folder, TEXTS[0], 12)), atol=2e-6)
