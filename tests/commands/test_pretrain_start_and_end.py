"""Runs whose token embeddings start from counts, and runs that save an average of their weights."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from fakes.transfer_files import lmtransfer, result
from support.tiny_runs import (
    TINY,
    WORDS,
    assert_goes_on_exactly,
    here,  # noqa: F401 (a fixture)
    new_name,
    saved,
    trained,
    without,
)

from lmtransfer.errors import Interrupted
from lmtransfer.objectives.learner import PretrainingLearner
from lmtransfer.pretraining import phases
from lmtransfer.pretraining.phases import Pretraining, TrainingPhase
from lmtransfer.training.averaging import LastPartMean
from lmtransfer.training.budget import Budget

COUNTED = [*TINY, "embeddings=counted"]
#: One objective in all phases, but with another masking rate.
FEWER = [*TINY, "phases=fewer_masks"]
EMA, LAST = "train.ema_decay=0.5", "train.average_last=0.3"


@pytest.mark.parametrize(
    ("words", "steps"),
    [
        ([*WORDS, EMA], (2,)),
        ([*FEWER, EMA], (5,)),
        ([*WORDS, LAST], (3, 8)),
        (COUNTED, (1,)),
        ([*COUNTED, "phases=words_then_masked"], (4,)),
    ],
    ids=["ema", "ema of one objective", "last part", "counted", "counted in phases"],
)
def test_a_run_that_goes_on_is_the_uninterrupted_one(words: list[str], steps: tuple[int, ...]) -> None:
    for step in steps:
        assert_goes_on_exactly(*words, after=step)


@pytest.mark.parametrize(("words", "begins"), [(WORDS, 3), (FEWER, 0)])
def test_an_average_begins_anew_with_other_losses_and_else_goes_on(
    words: list[str], begins: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compute the exponential average by its recurrence, from the weights after every update."""
    seen: list[dict[str, torch.Tensor]] = []
    taken = phases.Trainer._step

    def noted(self: phases.Trainer, steps: Any) -> None:
        taken(self, steps)
        seen.append({name: tensor.detach().clone() for name, tensor in self.learner.named_parameters()})

    monkeypatch.setattr(phases.Trainer, "_step", noted)
    run = new_name()
    assert lmtransfer(*words, EMA, f"name={run}") == 0
    assert len(seen) == 10
    model, raw = saved(run), saved(run, "raw")
    for name, expected in seen[begins].items():
        for num, weights in enumerate(seen[begins + 1 :], start=1):
            decay = min(0.5, (1 + num) / (10 + num))
            expected = decay * expected + (1 - decay) * weights[name]
        torch.testing.assert_close(model[name], expected, rtol=1e-4, atol=1e-6)
        assert torch.equal(raw[name], seen[-1][name])


def test_the_average_is_what_every_other_command_reads_and_all_say_so(capsys: pytest.CaptureFixture[str]) -> None:
    run = new_name()
    path = f"runs/pretrain/{run}"
    assert lmtransfer(*TINY, LAST, f"name={run}") == 0
    shown = capsys.readouterr()
    text, _, _ = str(LastPartMean(0.3)).partition(",")
    assert "30 %" in text
    assert all(text in said for said in (shown.err, shown.out, result(path)["weights"]))
    assert lmtransfer("evaluate", f"run={path}", "name=averaged", "hardware=exact") == 0
    assert result("runs/evaluate/averaged")["metrics"]["loss"] == pytest.approx(result(path)["metrics"]["loss"])
    assert not torch.equal(*(saved(run, file)["encoder.embeddings.token.weight"] for file in ("model", "raw")))
    assert lmtransfer("export", f"run={path}", "to=averaged") == 0
    assert text in Path("averaged/README.md").read_text()
    assert lmtransfer("report", path, "to=report_of_averages") == 0
    assert text in Path("report_of_averages/report.html").read_text()


def test_two_averages_are_refused_before_anything_is_read(capsys: pytest.CaptureFixture[str]) -> None:
    assert lmtransfer(*TINY, EMA, LAST, "name=two_averages") == 2
    said = capsys.readouterr().err.strip()
    assert EMA in said
    assert LAST in said
    assert len(said.splitlines()) == 1
    assert not Path("runs/pretrain/two_averages").exists()


def _table(run: str) -> np.ndarray:
    return saved(run)["encoder.embeddings.token.weight"].numpy()


def test_a_run_starts_from_the_counts_and_says_so(capfd: pytest.CaptureFixture[str]) -> None:
    still = ["optimizer.rates={embedding: 0, norm: 0, bias: 0, head: 0}", "optimizer.learning_rate=1e-12"]
    counted = trained(*COUNTED, *still)
    assert "from counts" in capfd.readouterr().err
    plain = trained(*TINY, *still)
    changed = (_table(counted) != _table(plain)).any(1)
    assert changed.sum() > 20
    assert np.allclose(_table(counted)[changed].mean(0), 0, atol=1e-5)
    assert _table(counted)[changed].std() == pytest.approx(0.05, rel=1e-3)
    assert saved(counted)["objectives.mlm.bias"].std() > 0.5
    assert not saved(plain)["objectives.mlm.bias"].any()
    losses = [result(f"runs/pretrain/{run}")["metrics"]["mlm"] for run in (counted, plain)]
    assert losses[0] < losses[1]
    config = yaml.safe_load(Path(f"runs/pretrain/{counted}/config.yaml").read_text())
    assert config["embeddings"]["windows"] == [2, 16]


def test_a_run_that_was_stopped_before_its_first_checkpoint_counts_again() -> None:
    whole, again = trained(*COUNTED), new_name()
    shutil.copytree(f"runs/pretrain/{whole}", f"runs/pretrain/{again}")
    shutil.rmtree(f"runs/pretrain/{again}/checkpoints")
    Path(f"runs/pretrain/{again}/result.json").unlink()
    config = Path(f"runs/pretrain/{again}/config.yaml")
    config.write_text(config.read_text().replace(f"name: {whole}", f"name: {again}"))
    assert lmtransfer(*COUNTED, f"name={again}", "resume=true") == 0
    assert np.array_equal(_table(whole), _table(again))


def test_embeddings_of_a_run_are_not_counted_again(capfd: pytest.CaptureFixture[str]) -> None:
    first = f"init=runs/pretrain/{trained(*TINY)}"
    words = without(TINY, "model", "tokenizer", "train.steps")
    capfd.readouterr()
    assert lmtransfer(*words, "train.steps=2", first, "embeddings=counted", "name=refused") == 2
    said = capfd.readouterr().err
    assert all(name in said for name in ("embeddings: ", "init=")), said
    assert not Path("runs/pretrain/refused").exists()
    # A recipe with counts ignores them here.
    Path("own/experiment").mkdir(exist_ok=True)
    Path("own/experiment/mine.yaml").write_text(
        "# @package _global_\n# mine\ndefaults:\n  - override /embeddings: counted\n"
    )
    run = trained(*without(words, "experiment"), "train.steps=2", "--config-dir=own", "experiment=mine", first)
    assert "from counts" not in capfd.readouterr().err
    assert yaml.safe_load(Path(f"runs/pretrain/{run}/config.yaml").read_text())["embeddings"] is None


def test_a_model_of_characters_starts_from_counted_words(capfd: pytest.CaptureFixture[str]) -> None:
    sizes = ["model.dim=16", "model.cell_dim=16", "model.char_dim=4", "model.filters=[[1,8],[2,8]]"]
    own = ["model=elmo_laptop", *sizes, "objective=bilm", "tokenizer=words", "train.eval_tokens=64"]
    words = without(COUNTED, "model", "objective=", "tokenizer", "train.steps", "train.eval_every")
    trained(*words, *own, "train.steps=2")
    assert "word vectors start from counts" in " ".join(capfd.readouterr().err.split())


@pytest.mark.parametrize("sharing", ["tied", "disentangled", "none"])
def test_the_generator_of_electra_starts_from_the_counts_too(sharing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def noted(self: Pretraining, phase: TrainingPhase, learner: PretrainingLearner, *_: Any, **__: Any) -> None:
        objective = learner.objective_list()[0]
        tables = [phase.parts.encoder.token_embedding, objective.inner()["generator"].tied_embedding]
        seen.extend(table.weight.detach().clone() for table in tables)
        raise Interrupted("seen")

    monkeypatch.setattr(Pretraining, "run", noted)
    small = ["model.embedding_dim=16", "model.dim=64", "model.num_heads=1", "model.hidden_dim=32", "model.num_layers=1"]
    own = ["model=electra_laptop", *small, "objective=rtd", "objective.max_length=16", f"name={sharing}"]
    more = ["objective.losses.rtd.generator_size=1.0", f"objective.losses.rtd.embedding_sharing={sharing}"]
    lmtransfer(*without(COUNTED, "model", "objective"), *own, *more)
    encoder, generator = seen
    assert torch.equal(encoder, generator)
    assert encoder.std() > 0.03  # random ones have 0.02


def test_heads_of_later_phases_start_from_frequencies() -> None:
    run = trained(*COUNTED, "phases=words_then_masked", "optimizer.rates.bias=0")
    assert saved(run)["objectives.mlm.bias"].std() > 0.5


def test_the_share_of_a_budget_in_seconds_is_that_of_what_counting_left() -> None:
    budget = Budget(seconds=10.0)
    assert budget.fraction(steps=0, tokens=0, seconds=4.0, prepared=4.0) == 0
    assert budget.fraction(steps=1, tokens=9, seconds=7.0, prepared=4.0) == pytest.approx(0.5)
    assert budget.fraction_after(0.0, 0, tokens=9, seconds=4.3, prepared=4.0) == pytest.approx(0.05)
    assert budget.fraction(steps=0, tokens=0, seconds=12.0, prepared=12.0) == 1
