"""Runs whose token embeddings start from counts: what they start from, going on, phases, and what is refused."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from fakes.transfer_files import lmtransfer, make_world, result, sentence
from safetensors.torch import load_file

from lmtransfer.errors import Interrupted
from lmtransfer.objectives.learner import PretrainingLearner
from lmtransfer.pretraining.phases import Pretraining, TrainingPhase
from lmtransfer.training import loop
from lmtransfer.training.budget import Budget

TINY = [
    *("pretrain", "experiment=null", "train.seconds=null", "train.steps=6", "model=bert_tiny", "model.dim=16"),
    *("model.num_heads=2", "model.hidden_dim=16", "model.num_layers=1", "model.max_length=32", "objective=mlm"),
    *("objective.max_length=16", "corpus=text", "corpus.path=data/text.txt", "corpus.validation_fraction=0.2"),
    *("tokenizer.vocab_size=60", "tokenizer.allow_fewer=true", "train.batch_tokens=64", "hardware=exact"),
    *("train.log_every=1", "train.eval_every=6"),
]
COUNTED = [*TINY, "embeddings=counted"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("counted")
    make_world(folder)
    rng = random.Random(0)
    documents = [" . ".join(sentence(k % 2, rng) for _ in range(6)) for k in range(60)]
    (folder / "data/text.txt").write_text("\n\n".join(documents) + "\n")
    return folder


@pytest.fixture(autouse=True)
def here(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    shutil.copytree(made, tmp_path / "world")
    monkeypatch.chdir(tmp_path / "world")
    monkeypatch.setenv("LMTRANSFER_CACHE", str(made / "cache"))
    monkeypatch.delenv("LMTRANSFER_DATA", raising=False)
    threads = torch.get_num_threads()
    yield tmp_path / "world"
    torch.set_num_threads(threads)


def _weights(name: str, checkpoint: str = "last") -> dict[str, torch.Tensor]:
    return load_file(f"runs/pretrain/{name}/checkpoints/{checkpoint}/model.safetensors")


def _table(name: str) -> np.ndarray:
    return _weights(name)["encoder.embeddings.token.weight"].numpy()


def test_a_run_starts_from_the_counts_and_says_so(capfd: pytest.CaptureFixture[str]) -> None:
    still = ["optimizer.rates={embedding: 0, norm: 0, bias: 0, head: 0}", "optimizer.learning_rate=1e-12"]
    assert lmtransfer(*COUNTED, *still, "name=counted") == 0
    assert "from counts" in capfd.readouterr().err
    assert lmtransfer(*TINY, *still, "name=random") == 0
    counted, random_ones = _table("counted"), _table("random")
    changed = (counted != random_ones).any(1)
    assert changed.sum() > 20
    assert np.allclose(counted[changed].mean(0), 0, atol=1e-5)
    assert counted[changed].std() == pytest.approx(0.05, rel=1e-3)
    bias = _weights("counted")["objectives.mlm.bias"]
    assert bias.std() > 0.5
    assert not _weights("random")["objectives.mlm.bias"].any()
    first = result("runs/pretrain/counted")["metrics"]["mlm"]
    assert first < result("runs/pretrain/random")["metrics"]["mlm"]
    assert yaml.safe_load(Path("runs/pretrain/counted/config.yaml").read_text())["embeddings"]["windows"] == [2, 16]


@pytest.mark.parametrize("more", [(), ("phases=words_then_masked",)])
def test_a_stopped_run_goes_on_to_the_same_weights(
    more: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert lmtransfer(*COUNTED, *more, "name=whole") == 0
    for stop in (1, 3):
        name = f"stopped{stop}"
        asked = iter(range(1, 100))
        with monkeypatch.context() as patched:
            patched.setattr(
                loop, "requested_stop", lambda asked=asked, stop=stop: "SIGTERM" if next(asked) == stop else ""
            )
            assert lmtransfer(*COUNTED, *more, f"name={name}") != 0
        assert lmtransfer(*COUNTED, *more, f"name={name}", "resume=true") == 0, capfd.readouterr().err
        for key, value in _weights("whole").items():
            assert torch.equal(value, _weights(name)[key]), key


def test_a_run_that_was_stopped_before_its_first_checkpoint_counts_again() -> None:
    assert lmtransfer(*COUNTED, "name=whole") == 0
    shutil.copytree("runs/pretrain/whole", "runs/pretrain/again")
    shutil.rmtree("runs/pretrain/again/checkpoints")
    Path("runs/pretrain/again/result.json").unlink()
    config = Path("runs/pretrain/again/config.yaml")
    config.write_text(config.read_text().replace("name: whole", "name: again"))
    assert lmtransfer(*COUNTED, "name=again", "resume=true") == 0
    assert np.array_equal(_table("whole"), _table("again"))


CHARACTERS = [
    *("pretrain", "experiment=null", "train.seconds=null", "train.steps=1", "model=elmo_laptop", "objective=bilm"),
    *("tokenizer=words", "corpus=text", "corpus.path=data/text.txt", "objective.max_length=16"),
    *("train.batch_tokens=64", "train.eval_tokens=64", "hardware=exact", "embeddings=counted"),
]


def test_embeddings_of_a_run_are_not_counted_again(capfd: pytest.CaptureFixture[str]) -> None:
    assert lmtransfer(*TINY, "name=first") == 0
    words = [word for word in TINY if not word.startswith(("model", "tokenizer"))]
    capfd.readouterr()
    assert lmtransfer(*words, "init=runs/pretrain/first", "embeddings=counted", "name=refused") != 0
    shown = capfd.readouterr().err
    assert "embeddings: " in shown
    assert "init=" in shown
    assert not Path("runs/pretrain/refused").exists()


def test_a_model_of_characters_starts_from_counted_words(capfd: pytest.CaptureFixture[str]) -> None:
    assert lmtransfer(*CHARACTERS, "name=characters") == 0
    shown = capfd.readouterr().err
    assert "word vectors start from counts" in " ".join(shown.split())


def test_a_recipe_with_counts_leaves_them_out_where_weights_are_gone_on_with(capfd: pytest.CaptureFixture[str]) -> None:
    Path("own/experiment").mkdir(parents=True)
    Path("own/experiment/mine.yaml").write_text(
        "# @package _global_\n# mine\ndefaults:\n  - override /embeddings: counted\n"
    )
    assert lmtransfer(*TINY, "name=first") == 0
    words = [word for word in TINY if not word.startswith(("model", "tokenizer", "experiment"))]
    assert lmtransfer(*words, "--config-dir=own", "experiment=mine", "init=runs/pretrain/first", "name=second") == 0
    assert "from counts" not in capfd.readouterr().err
    assert yaml.safe_load(Path("runs/pretrain/second/config.yaml").read_text())["embeddings"] is None


@pytest.mark.parametrize("sharing", ["tied", "disentangled", "none"])
def test_the_generator_of_electra_starts_from_the_counts_too(sharing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def noted(self: Pretraining, phase: TrainingPhase, learner: PretrainingLearner, *_: Any, **__: Any) -> None:
        objective = learner.listed()[0]
        tables = [phase.parts.encoder.token_embedding, objective.inner()["generator"].tied_embedding]
        seen.extend(table.weight.detach().clone() for table in tables)
        raise Interrupted("seen")

    monkeypatch.setattr(Pretraining, "run", noted)
    words = [word for word in COUNTED if not word.startswith(("model", "objective"))]
    small = ["model.embedding_dim=16", "model.dim=64", "model.num_heads=1", "model.hidden_dim=32", "model.num_layers=1"]
    own = ["model=electra_laptop", *small, "objective=rtd", "objective.max_length=16", f"name={sharing}"]
    lmtransfer(
        *words, *own, "objective.losses.rtd.generator_size=1.0", f"objective.losses.rtd.embedding_sharing={sharing}"
    )
    encoder, generator = seen
    assert torch.equal(encoder, generator)
    assert encoder.std() > 0.03  # random ones have 0.02


def test_heads_of_later_phases_start_from_frequencies() -> None:
    assert lmtransfer(*COUNTED, "phases=words_then_masked", "optimizer.rates.bias=0", "name=phased") == 0
    bias = _weights("phased")["objectives.mlm.bias"]
    assert bias.std() > 0.5


def test_the_share_of_a_budget_in_seconds_is_that_of_what_counting_left() -> None:
    budget = Budget(seconds=10.0)
    assert budget.fraction(steps=0, tokens=0, seconds=4.0, prepared=4.0) == 0
    assert budget.fraction(steps=1, tokens=9, seconds=7.0, prepared=4.0) == pytest.approx(0.5)
    assert budget.fraction_after(0.0, 0, tokens=9, seconds=4.3, prepared=4.0) == pytest.approx(0.05)
    assert budget.fraction(steps=0, tokens=0, seconds=12.0, prepared=12.0) == 1
