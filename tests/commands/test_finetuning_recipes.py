"""Each family with each recipe for finetuning, against its own probe, on the built-in task with ten draws of labels.

The encoders are narrow and shallow, except word vectors, and pretrained for a few seconds. Ten minutes on two cores.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from fakes.transfer_files import lmtransfer, result
from scipy import stats

from lmtransfer.runs.predictions import prediction_files, read_predictions

_SMALL = ("model.dim=96", "model.num_layers=2", "model.num_heads=3", "model.hidden_dim=256")
_TWO_WAYS = ("model.dim=192", "model.num_layers=2")
#: The settings of each family's pretraining recipe.
FAMILIES = {
    "albert_laptop": (*_SMALL, "model.embedding_dim=96"),
    "bi_gpt_laptop": (*_TWO_WAYS, "model.num_heads=3", "model.hidden_dim=256"),
    "electra_laptop": (*_SMALL, "model.embedding_dim=96"),
    "elmo_laptop": ("model.dim=96", "model.cell_dim=192", "model.filters=[[1,8],[2,16],[3,32],[4,32]]"),
    "elmo_subword_laptop": (*_TWO_WAYS, "model.cell_dim=192"),
    "gpt_laptop": _SMALL,
    "laptop": _SMALL,  # BERT
    "modern_laptop": _SMALL,
    "roberta_laptop": _SMALL,
    "transformer_xl_laptop": _SMALL,
    "word_embeddings_laptop": (),
    "xlnet_laptop": _SMALL,
}
#: The number of labels that each recipe is for, within the time of a test.
RECIPES = {"few_labels": 100, "laptop_finetune": 300}
SEEDS = 10


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the cache of documentation and vocabularies, for all families."""
    return tmp_path_factory.mktemp("recipes")


def _accuracies(run: str) -> np.ndarray:
    return np.array([100 * seed["metrics"]["accuracy"] for seed in result(run)["seeds"]])


def _confidence(run: str) -> float:
    """Return the mean probability of the predicted label, which is 1/8 if all logits are equal."""
    predictions = [read_predictions(file) for file in prediction_files(Path(run))]
    assert len(predictions) == SEEDS
    return float(np.mean([one.examples.confidences.mean() for one in predictions]))


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_finetuning_is_no_worse_than_a_probe(family: str, shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(shared)
    monkeypatch.setenv("LMTRANSFER_CACHE", str(shared / "cache"))
    tokens = 300_000 if family == "word_embeddings_laptop" else 60_000
    budget = ("train.seconds=null", f"train.tokens={tokens}", "tokenizer.vocab_size=4096")
    words = ("corpus=python_docs", *budget, *FAMILIES[family], f"name={family}")
    assert lmtransfer("pretrain", f"experiment={family}", *words) == 0
    for recipe, num_train in RECIPES.items():
        task = ("task=python_docs", f"task.num_train={num_train}", "task.max_length=48", f"seeds={SEEDS}")
        quick = (f"init=runs/pretrain/{family}", *task, "baseline=null", "keep_weights=false")
        assert lmtransfer("probe", *quick, f"name={family}-{recipe}") == 0
        assert lmtransfer("finetune", f"experiment={recipe}", *quick, f"name={family}-{recipe}") == 0
        gains = _accuracies(f"runs/finetune/{family}-{recipe}") - _accuracies(f"runs/probe/{family}-{recipe}")
        low, high = stats.t.interval(0.95, SEEDS - 1, loc=gains.mean(), scale=stats.sem(gains))
        confidence = _confidence(f"runs/finetune/{family}-{recipe}")
        print(f"{family}, {recipe}: {gains.mean():+.1f} ({low:+.1f} to {high:+.1f}), confidence {confidence:.2f}")
        assert low > -2, recipe
        assert confidence > 0.2, recipe
