"""Pretraining that leaves an average of its weights: in phases, gone on with, evaluated, exported, reported."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from fakes.transfer_files import lmtransfer, result
from support.phases import TINY, WORDS, here, made, records, saved, stop_after  # noqa: F401 (fixtures)

from lmtransfer.pretraining import phases
from lmtransfer.training.averaging import LastPartMean

#: One objective throughout, but another rate of masks.
FEWER = [*TINY, "phases=fewer_masks"]
SETTINGS = {"ema": "train.ema_decay=0.5", "last": "train.average_last=0.3"}


def _assert_same(one: str, other: str) -> None:
    for checkpoint in ("last", "best"):
        for file in ("model", "raw", "optimizer"):
            first, second = saved(one, file, checkpoint), saved(other, file, checkpoint)
            assert first.keys() == second.keys()
            assert all(torch.equal(first[name], second[name]) for name in first), (checkpoint, file)
    assert records(one) == records(other)


@pytest.mark.parametrize(
    ("words", "step", "setting"), [(WORDS, 2, "ema"), (WORDS, 3, "last"), (FEWER, 5, "ema"), (WORDS, 8, "last")]
)
def test_a_run_in_phases_goes_on_exactly(words: list[str], step: int, setting: str) -> None:
    words = [*words, SETTINGS[setting]]
    assert lmtransfer(*words, "name=whole") == 0
    with pytest.MonkeyPatch.context() as patch:
        stop_after(step, patch)
        assert lmtransfer(*words, "name=cut") != 0
    assert lmtransfer(*words, "name=cut", "resume=true") == 0
    _assert_same("whole", "cut")


@pytest.mark.parametrize(("words", "begins"), [(WORDS, 3), (FEWER, 0)])
def test_it_begins_anew_with_other_losses_and_else_goes_on(
    words: list[str], begins: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The exponential average by its recurrence, from the weights after every update since it began."""
    seen: list[dict[str, torch.Tensor]] = []
    taken = phases.Trainer._step

    def noted(self: phases.Trainer, steps: object) -> None:
        taken(self, steps)  # type: ignore[arg-type]
        seen.append({name: tensor.detach().clone() for name, tensor in self.learner.named_parameters()})

    monkeypatch.setattr(phases.Trainer, "_step", noted)
    assert lmtransfer(*words, SETTINGS["ema"], "name=run") == 0
    assert len(seen) == 10
    model, raw = saved("run"), saved("run", "raw")
    for name, expected in seen[begins].items():
        for num, weights in enumerate(seen[begins + 1 :], start=1):
            decay = min(0.5, (1 + num) / (10 + num))
            expected = decay * expected + (1 - decay) * weights[name]
        torch.testing.assert_close(model[name], expected, rtol=1e-4, atol=1e-6)
        assert torch.equal(raw[name], seen[-1][name])


def test_the_average_is_what_every_other_command_reads_and_all_say_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert lmtransfer(*TINY, SETTINGS["last"], "name=run") == 0
    shown = capsys.readouterr()
    text, _, _ = str(LastPartMean(0.3)).partition(",")
    assert "30 %" in text
    assert text in shown.err
    assert text in shown.out
    assert text in result("runs/pretrain/run")["weights"]
    assert lmtransfer("evaluate", "run=runs/pretrain/run", "name=again", "hardware=exact") == 0
    measured = result("runs/pretrain/run")["metrics"]["loss"]
    assert result("runs/evaluate/again")["metrics"]["loss"] == pytest.approx(measured)
    assert not torch.equal(*(saved("run", file)["encoder.embeddings.token.weight"] for file in ("model", "raw")))
    assert lmtransfer("export", "run=runs/pretrain/run", "to=out") == 0
    assert text in Path("out/README.md").read_text()
    assert lmtransfer("report", "runs") == 0
    assert text in Path("runs/report/report.html").read_text()


def test_two_averages_are_refused_before_anything_is_read(capsys: pytest.CaptureFixture[str]) -> None:
    assert lmtransfer(*TINY, *SETTINGS.values(), "name=run") == 2
    said = capsys.readouterr().err.strip()
    assert "train.ema_decay=0.5" in said
    assert "train.average_last=0.3" in said
    assert len(said.splitlines()) == 1
    assert not Path("runs/pretrain/run").exists()
