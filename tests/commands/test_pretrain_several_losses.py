"""Several losses of one encoder: left to right first and then masked, or both in turns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from fakes.transfer_files import TASK, lmtransfer, result
from support.phases import TINY, assert_same, here, made, records, saved, stop_after  # noqa: F401 (fixtures)

from lmtransfer.pretraining import phases

PHASES = [*TINY, "phases=left_to_right_then_masked"]
CAUSAL = ["objective=lm" if word == "objective=mlm" else word for word in TINY]
TUNE = ["finetune", *TASK, "hardware=exact", "baseline=null", "train.epochs=1"]


@pytest.mark.parametrize("step", [2, 4, 6])  # in the first phase, in its last step, in the second
def test_a_run_that_goes_on_in_either_attention_is_the_uninterrupted_one(step: int) -> None:
    assert lmtransfer(*PHASES, "name=whole") == 0
    with pytest.MonkeyPatch.context() as patch:
        stop_after(step, patch)
        assert lmtransfer(*PHASES, "name=cut") != 0
    assert lmtransfer(*PHASES, "name=cut", "resume=true") == 0
    assert_same("whole", "cut")
    losses = [[key for key in ("loss/lm", "loss/mlm") if key in record] for record in records("whole")]
    assert losses == [["loss/lm"]] * 4 + [["loss/mlm"]] * 6


def test_one_encoder_is_read_left_to_right_and_then_both_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, int]] = []
    run = phases.Pretraining.run
    step = phases.Trainer._step

    def noted(self: phases.Pretraining, *more: Any, **named: Any) -> None:
        encoder = self.phases[-1].parts.encoder

        def stepped(trainer: Any, steps: Any) -> None:
            seen.append((encoder.attention, id(trainer.learner.encoder)))
            step(trainer, steps)

        monkeypatch.setattr(phases.Trainer, "_step", stepped)
        run(self, *more, **named)

    monkeypatch.setattr(phases.Pretraining, "run", noted)
    assert lmtransfer(*PHASES, "name=run") == 0
    assert [attention for attention, _ in seen] == ["causal"] * 4 + ["bidirectional"] * 6
    assert len({encoder for _, encoder in seen}) == 1
    assert not any("lm." in name for name in saved("run") if name.startswith("objectives.lm"))


def test_transfer_reads_as_the_run_ended_or_as_it_is_told() -> None:
    assert lmtransfer(*PHASES, "name=both") == 0
    assert lmtransfer(*CAUSAL, "name=causal") == 0
    assert result("runs/pretrain/both")["attention"] == "bidirectional"
    assert result("runs/pretrain/causal")["attention"] == "causal"
    scores = {}
    for run, given, read in (
        ("both", [], "auto"),
        ("both", ["transfer.attention=causal"], "causal"),
        ("causal", [], "causal"),
        ("causal", ["transfer.attention=bidirectional"], "bidirectional"),
    ):
        name = f"{run}-{len(given)}"
        assert lmtransfer(*TUNE, f"init=runs/pretrain/{run}", f"name={name}", *given) == 0
        config = yaml.safe_load(Path(f"runs/finetune/{name}/config.yaml").read_text())
        assert config["transfer"]["attention"] == read
        assert config["transfer"]["pieces"] == ("last" if read == "causal" else "first")
        words = ["evaluate", f"run=runs/finetune/{name}", f"name={name}", "split=dev", "hardware=exact"]
        assert lmtransfer(*words) == 0
        scores[name] = result(f"runs/finetune/{name}")["metrics"]
        assert result(f"runs/evaluate/{name}")["metrics"] == pytest.approx(scores[name], rel=1e-6)
    assert len({score["loss"] for score in scores.values()}) == 4
    # From a run of a task: as that read.
    assert lmtransfer(*TUNE, "init=runs/finetune/causal-0", "name=again") == 0
    assert yaml.safe_load(Path("runs/finetune/again/config.yaml").read_text())["transfer"]["attention"] == "causal"


def test_an_attention_that_a_model_cannot_have_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    gpt = ["model=gpt_mini" if word == "model=bert_tiny" else word for word in CAUSAL]
    assert lmtransfer(*gpt, "name=gpt") == 0
    capsys.readouterr()
    assert lmtransfer(*TUNE, "init=runs/pretrain/gpt", "transfer.attention=bidirectional", "name=ft") == 2
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert all(name in said for name in ("transfer.attention=bidirectional", "GptEncoder", "causal", "auto")), said


def test_losses_that_share_no_attention_are_not_listed_together(capsys: pytest.CaptureFixture[str]) -> None:
    lm = "+objective.losses.lm._target_=lmtransfer.objectives.language_model.LanguageModel"
    assert lmtransfer(*TINY, lm, "name=run") == 2
    said = capsys.readouterr().err.strip()
    assert "mlm bidirectional, lm causal" in said
    assert not Path("runs/pretrain/run").exists()


MIXED = ["objective=mlm_lm" if word == "objective=mlm" else word for word in TINY]
NEXT = [*MIXED, "objective.predict=next", "objective.causal_share=0.4"]


def test_a_mixed_run_goes_on_exactly_and_whatever_its_micro_batches() -> None:
    still = [*NEXT, "model.dropout=0.0"]
    assert lmtransfer(*still, "name=whole") == 0
    assert {"loss/mlm", "loss/lm"} <= set().union(*records("whole"))  # four rows of a step may all be of one kind
    assert {"mlm", "lm", "loss"} <= set(result("runs/pretrain/whole")["metrics"])
    with pytest.MonkeyPatch.context() as patch:
        stop_after(5, patch)
        assert lmtransfer(*still, "name=cut") != 0
    assert lmtransfer(*still, "name=cut", "resume=true") == 0
    assert_same("whole", "cut")
    assert lmtransfer(*still, "name=halved", "train.micro_batch_tokens=32") == 0
    one, other = saved("whole"), saved("halved")
    for name, tensor in one.items():
        torch.testing.assert_close(tensor, other[name], atol=2e-4, rtol=1e-3)
    heads = {name for name in one if name.startswith("objectives.")}
    assert heads == {
        f"objectives.mlm.{part}" for part in ("bias", "dense.weight", "dense.bias", "norm.weight", "norm.bias")
    }


def test_a_mixed_run_is_read_either_way_and_fills_masks(capsys: pytest.CaptureFixture[str]) -> None:
    assert lmtransfer(*NEXT, "name=run") == 0
    told = result("runs/pretrain/run")
    assert (told["attention"], told["causal_share"]) == ("bidirectional", 0.4)
    losses = []
    for attention in ("bidirectional", "causal"):
        words = ["finetune", *TASK, "init=runs/pretrain/run", "hardware=exact", "train.epochs=1", "baseline=null"]
        assert lmtransfer(*words, f"transfer.attention={attention}", f"name={attention}") == 0
        losses.append(result(f"runs/finetune/{attention}")["metrics"]["loss"])
    assert losses[0] != losses[1]
    capsys.readouterr()
    assert lmtransfer("predict", "run=runs/pretrain/run", "text=the [MASK] was good", "hardware=exact") == 0
    assert json.loads(capsys.readouterr().out)["masks"][0]["candidates"]
    assert lmtransfer("export", "run=runs/finetune/causal", "to=no") == 2
    assert "transfer.attention=causal" in capsys.readouterr().err
    assert not Path("no").exists()


@pytest.mark.slow  # transformers is asked
def test_a_mixed_run_is_exported_as_a_bert() -> None:
    assert lmtransfer(*NEXT, "name=run") == 0
    assert lmtransfer("export", "run=runs/pretrain/run", "to=out") == 0
    assert json.loads(Path("out/config.json").read_text())["architectures"] == ["BertModel"]
    card = Path("out/README.md").read_text()
    for name in ("(mlm)", "(lm)", "0.4 of the rows", "predict=next"):
        assert name in card


@pytest.mark.parametrize("model", ["albert_lite", "electra_laptop", "modern_laptop"])
def test_left_to_right_first_suits_every_family_that_reads_both_ways(model: str) -> None:
    small = ["model.dim=16", "model.num_heads=2", "model.num_layers=1", "model.hidden_dim=16", "model.max_length=32"]
    words = [word for word in TINY if not word.startswith(("model", "objective="))]
    own = {"electra_laptop": "rtd"}.get(model, "mlm")
    dims = [] if model == "modern_laptop" else ["model.embedding_dim=8"]
    phases = ["phases=left_to_right_then_masked", f"objective={own}"]
    assert lmtransfer(*words, f"model={model}", *small, *dims, *phases, "name=run") == 0
    assert result("runs/pretrain/run")["attention"] == "bidirectional"
    assert yaml.safe_load(Path("runs/pretrain/run/config.yaml").read_text())["phases"]["left_to_right"]["share"] == 0.4
