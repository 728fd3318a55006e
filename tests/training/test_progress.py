"""The progress line and messages during training."""

from __future__ import annotations

import pytest

from lmtransfer.training.progress import ProgressLine

RECORD = {
    "step": 1200,
    "loss": 5.0,
    "loss/mlm": 4.5,
    "loss/nsp": 0.5,
    "learning_rate": 0.001,
    "tokens_per_second": 17000.4,
    "seconds": 60.0,
}


def test_the_progress_line_says_everything() -> None:
    line = ProgressLine(flops_per_token=1e6, peak_flops=1e11).line(RECORD | {"validation/loss": 4.8}, fraction=0.25)
    for part in ("1,200", "25 %", "loss 5.000", "mlm 4.500", "nsp 0.500", "validation loss 4.800", "1.00e-03"):
        assert part in line
    for part in ("17,000 tokens/s", "MFU 17 %", "GB", "3:00 left"):
        assert part in line


def test_the_remaining_time_does_not_grow_by_what_came_before_the_first_step() -> None:
    record = RECORD | {"seconds": 50.0}
    assert "0:30 left" in ProgressLine().line(record, fraction=0.25, prepared=40.0)
    assert "2:30 left" in ProgressLine().line(record, fraction=0.25)


def test_a_loss_that_is_the_total_is_shown_once() -> None:
    record = {key: value for key, value in RECORD.items() if key != "loss/nsp"} | {"loss": 4.5}
    assert ProgressLine().line(record, fraction=0.5).count("4.500") == 1


def test_without_a_terminal_there_is_a_line_every_ten_seconds(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr("lmtransfer.training.progress.time.monotonic", lambda: now[0])
    with ProgressLine() as progress:
        for step in range(100):
            now[0] += 0.5
            progress.show(RECORD | {"step": step}, fraction=step / 100)
        progress.show(RECORD | {"step": 100}, fraction=1.0, last=True)
        progress.note("something to say")
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 5 + 1 + 1
    assert lines[-2].startswith("step 100 ")
    assert lines[-1] == "something to say"


def test_a_quiet_progress_still_passes_on_notes(capsys: pytest.CaptureFixture[str]) -> None:
    progress = ProgressLine(quiet=True)
    progress.show(RECORD, fraction=0.5, last=True)
    progress.note("a warning")
    assert capsys.readouterr().err == "a warning\n"
