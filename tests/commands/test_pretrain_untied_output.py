"""Pretraining with an output matrix of its own: at first, or throughout; going on, predicting and exporting."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from fakes.transfer_files import lmtransfer, result
from support.phases import TINY, assert_same, here, made, records, saved, stop_after  # noqa: F401 (fixtures)

from lmtransfer.pretraining.phases import Pretraining, Training

FIRST = [*TINY, "phases=untied_first"]
OWN = "objectives.mlm.output.weight"


@pytest.mark.parametrize("step", [2, 3, 6])  # untied, at the border, tied
def test_a_run_that_is_untied_at_first_goes_on_exactly(step: int) -> None:
    assert lmtransfer(*FIRST, "name=whole") == 0
    with pytest.MonkeyPatch.context() as patch:
        stop_after(step, patch)
        assert lmtransfer(*FIRST, "name=cut") != 0
    assert (OWN in saved("cut")) == (step <= 3)
    assert lmtransfer(*FIRST, "name=cut", "resume=true") == 0
    assert_same("whole", "cut")


def test_the_tied_phase_begins_with_the_embedding_and_the_rest_of_the_head(monkeypatch: pytest.MonkeyPatch) -> None:
    states: list[dict[str, torch.Tensor]] = []

    def noting(method: Callable[..., Any]) -> Callable[..., Any]:
        def noted(self: Pretraining, training: Training, *more: Any) -> Any:
            states.append({name: tensor.detach().clone() for name, tensor in training.learner.state_dict().items()})
            return method(self, training, *more)

        return noted

    for name in ("carry_over", "build_trainer"):
        monkeypatch.setattr(Pretraining, name, noting(getattr(Pretraining, name)))
    assert lmtransfer(*FIRST, "name=run") == 0
    _, untied, tied = states
    assert untied.keys() - tied.keys() == {OWN}
    assert all(torch.equal(untied[name], tied[name]) for name in tied)
    assert not torch.equal(untied[OWN], untied["encoder.embeddings.token.weight"])
    config = yaml.safe_load(Path("runs/pretrain/run/config.yaml").read_text())
    assert config["objective"]["losses"]["mlm"]["tie_output"] is True
    assert config["phases"]["untied"]["objective"]["losses"]["mlm"]["tie_output"] is False


def test_an_untied_run_is_read_by_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert lmtransfer(*TINY, "objective.tie_output=false", "name=run") == 0
    measured = result("runs/pretrain/run")["metrics"]["loss"]
    assert lmtransfer("evaluate", "run=runs/pretrain/run", "name=again", "hardware=exact") == 0
    assert result("runs/evaluate/again")["metrics"]["loss"] == pytest.approx(measured)
    assert lmtransfer("predict", "run=runs/pretrain/run", "text='the [MASK] .'", "hardware=exact") == 0
    capsys.readouterr()
    assert lmtransfer("export", "run=runs/pretrain/run", "to=out") == 0
    said = " ".join(capsys.readouterr().out.split())
    assert re.search(r"\bmlm\b.*\btie_output=False\b.*\bTrue\b", said)


@pytest.mark.slow
def test_gone_on_with_it_keeps_its_matrix_unless_it_is_to_be_tied() -> None:
    assert lmtransfer(*TINY, "objective.tie_output=false", "name=run") == 0
    going = ["init=runs/pretrain/run", "train.steps=1"]
    tiny = [word for word in TINY if not word.startswith(("model", "tokenizer"))]
    assert lmtransfer(*tiny, *going, "name=kept") == 0
    assert OWN in saved("kept")
    assert lmtransfer(*tiny, *going, "objective.tie_output=true", "name=dropped") == 0
    assert OWN not in saved("dropped")
    # A tied one may be untied at first.
    assert lmtransfer(*tiny, "init=runs/pretrain/dropped", "train.steps=10", "phases=untied_first", "name=first") == 0
    config = yaml.safe_load(Path("runs/pretrain/first/config.yaml").read_text())
    assert config["phases"]["untied"]["objective"]["losses"]["mlm"]["tie_output"] is False
    assert config["objective"]["losses"]["mlm"]["tie_output"] is True
