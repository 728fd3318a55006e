"""Sentence similarity without training: cosines and correlations, compared with a loop over pairs and scipy."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fakes.transfer_files import QUICK, lmtransfer, make_world, result, sentence
from scipy import stats
from support.saved_encoder import load_encoder

from lmtransfer.data.batch import pack
from lmtransfer.models.base import Encoder
from lmtransfer.randomness import derive_seed
from lmtransfer.runs.predictions import read_predictions
from lmtransfer.runs.saved_run import new_encoder

EVALUATE = ["task=sts_zero_shot", "data_root=data", "hardware=exact", "overwrite=true"]
HEADER = "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore\n"


@pytest.fixture(scope="module", autouse=True)
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A random encoder and pairs of sentences; the scores of ``test`` are hidden, as in GLUE."""
    folder = tmp_path_factory.mktemp("world")
    make_world(folder)
    rng = random.Random(0)
    (folder / "data" / "stsb").mkdir()
    for split in ("dev", "test"):
        rows = []
        for number in range(30):
            first, second = (sentence(rng.randrange(2), rng) for _ in range(2))
            score = "-1" if split == "test" else f"{rng.random() * 5:.3f}"
            rows.append(f"{number}\tnone\tf\t2026\t{number}\tnone\tnone\t{first}\t{second}\t{score}\n")
        (folder / "data" / "stsb" / f"{split}.tsv").write_text(HEADER + "".join(rows))
    threads = torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("LMTRANSFER_CACHE", str(folder / "cache"))
        patch.delenv("LMTRANSFER_DATA", raising=False)
        yield folder
    torch.set_num_threads(threads)


def pairs() -> tuple[list[tuple[str, str]], list[float]]:
    rows = [line.split("\t") for line in Path("data/stsb/dev.tsv").read_text().splitlines()[1:]]
    return [(row[7], row[8]) for row in rows], [float(row[9]) for row in rows]


def cosines(encoder: Encoder, tokenizer: Any, layer: int, *, pooling: str = "mean", scaled: bool = False) -> np.ndarray:
    """Compute the cosines pair by pair, in float64 after the encoder."""
    encoder.eval()

    def vector(text: str) -> np.ndarray:
        ids = [tokenizer.cls_id, *tokenizer.encode(text).ids, tokenizer.sep_id]
        with torch.no_grad():
            hidden = encoder(pack([np.array(ids)])).layers[layer].double().numpy()
        return hidden.mean(0) if pooling == "mean" else hidden.max(0)

    vectors = np.array([[vector(text) for text in pair] for pair in pairs()[0]])
    if scaled:
        vectors = (vectors - vectors.mean((0, 1))) / vectors.std((0, 1))
    norms = np.linalg.norm(vectors, axis=2)
    return (vectors[:, 0] * vectors[:, 1]).sum(1) / (norms[:, 0] * norms[:, 1])


@pytest.mark.parametrize(
    ("words", "layer", "choices"),
    [
        ([], 2, {}),
        (["task.pooling=max", "task.layers=1"], 1, {"pooling": "max"}),
        (["task.standardise=true", "task.layers=0"], 0, {"scaled": True}),
    ],
)
def test_correlations_are_those_of_cosines_pair_by_pair(words: list[str], layer: int, choices: dict[str, Any]) -> None:
    assert lmtransfer("evaluate", *EVALUATE, "run=runs/pretrain/base", "split=dev", "name=e", *words) == 0
    found = result("runs/evaluate/e")
    encoder, tokenizer, node = load_encoder("runs/pretrain/base")
    gold = pairs()[1]
    control = new_encoder(node, tokenizer, seed=derive_seed(0, "control"))
    for said, one in ((found["metrics"], encoder), (found["control"]["metrics"], control)):
        wanted = cosines(one, tokenizer, layer, **choices)
        assert said["pearson"] == pytest.approx(stats.pearsonr(wanted, gold).statistic, abs=1e-4)
        assert said["spearman"] == pytest.approx(stats.spearmanr(wanted, gold).statistic, abs=1e-2)
    assert found["metrics"] != found["control"]["metrics"]
    assert (found["main_metric"], found["chance"], found["num_scored"]) == ("pearson", 0.0, 30)
    assert (found["num_truncated"], found["higher_is_better"], found["split"]) == ({"dev": 0}, True, "dev")
    kept = {path.stem: read_predictions(path) for path in Path("runs/evaluate/e/predictions").iterdir()}
    assert sorted(one.is_control for one in kept.values()) == [False, True]
    own = next(one for one in kept.values() if not one.is_control)
    np.testing.assert_allclose(own.examples.predicted, cosines(encoder, tokenizer, layer, **choices), atol=1e-5)


@pytest.mark.slow
def test_any_run_is_scored_also_a_finetuned_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert lmtransfer("finetune", *QUICK, "transfer.pooling=max", "task.num_train=20", "name=ft") == 0
    words = ["run=runs/finetune/ft", "split=dev", "task.pooling=null", "task.layers=null"]
    assert lmtransfer("evaluate", *EVALUATE, *words) == 0
    found = result("runs/evaluate/finetune-ft-sts_zero_shot-dev")
    encoder, tokenizer, _ = load_encoder("runs/finetune/ft")
    wanted = stats.pearsonr(cosines(encoder, tokenizer, 2, pooling="max"), pairs()[1]).statistic
    assert found["metrics"]["pearson"] == pytest.approx(wanted, abs=1e-4)
    assert "pooling=max, layers=last" in found["zero_shot"]
    capsys.readouterr()
    assert lmtransfer("report", "runs") == 0
    said = " ".join(capsys.readouterr().out.split())
    score, control = (f"{part['metrics']['pearson']:.3f}" for part in (found, found["control"]))
    assert score in said
    assert control in said
    assert "seeds=5" not in said


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["split=test"], ("split=test", "30 of 30", "split=dev")),
        (["split=validation"], ("split=validation", "dev")),
        (["split=dev", "task.pooling=family"], ("task.pooling=family", "mean, max, cls")),
        (["split=dev", "task.pooling=attention"], ("task.pooling", "attention")),
        (["split=dev", "task.layers=9"], ("task.layers=9", "0 (embeddings) to 2")),
    ],
)
def test_a_mistake_is_one_clear_message(
    words: list[str], names: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert lmtransfer("evaluate", *EVALUATE, "run=runs/pretrain/base", "name=no", *words) == 2
    said = capsys.readouterr().err
    assert all(name in said for name in names), said
    assert not Path("runs/evaluate/no").exists()


def test_there_is_nothing_to_train(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["init=runs/pretrain/base", "task=sts_zero_shot", "data_root=data", "train.steps=1", "name=no"]
    assert lmtransfer("finetune", *words) == 2
    assert "lmtransfer evaluate" in capsys.readouterr().err
