"""Left to right first, then masked: one encoder, read in one way and then in the other."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from fakes.transfer_files import TASK, lmtransfer, result
from support.phases import TINY, assert_same, made, records, saved, stop_after  # noqa: F401  (made is a fixture)

from lmtransfer.pretraining import phases

PHASES = [*TINY, "phases=left_to_right_then_masked"]
CAUSAL = ["objective=lm" if word == "objective=mlm" else word for word in TINY]
TUNE = ["finetune", *TASK, "hardware=exact", "train.epochs=1"]


@pytest.fixture(autouse=True)
def here(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:  # noqa: F811
    shutil.copytree(made, tmp_path / "world")
    monkeypatch.chdir(tmp_path / "world")
    monkeypatch.setenv("LMTRANSFER_CACHE", str(made / "cache"))
    monkeypatch.delenv("LMTRANSFER_DATA", raising=False)
    threads = torch.get_num_threads()
    yield tmp_path / "world"
    torch.set_num_threads(threads)


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
