"""A signal that a library turns into an error of its own still ends the command as a signal does."""

from __future__ import annotations

import signal

import pytest

from lmtransfer import cli
from lmtransfer.errors import CheckpointError, Interrupted
from lmtransfer.system import interrupts


@pytest.fixture(autouse=True)
def _unstopped(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("stopped_at", -interrupts._PATIENCE), ("stopped_by", None), ("decided", False)):
        monkeypatch.setattr(interrupts._Ending, name, value)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("error", [ImportError("numpy cannot be loaded twice"), CheckpointError("bad file")])
def test_an_error_that_a_signal_led_to_is_told_as_the_signal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception, number: signal.Signals
) -> None:
    def dispatched(words: list[str]) -> int:
        try:
            interrupts._stop(number, None)
        except interrupts.Stopped:
            raise error from None
        return 0

    monkeypatch.setattr(cli, "_dispatch", dispatched)
    assert cli.main(["list"]) == 128 + number
    assert capsys.readouterr().err == "lmtransfer: interrupted\n"


def test_a_command_that_says_how_to_go_on_after_a_signal_is_heard(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def dispatched(words: list[str]) -> int:
        try:
            interrupts._stop(signal.SIGINT, None)
        except interrupts.Stopped as stop:
            raise Interrupted("the same command goes on with it") from stop
        return 0

    monkeypatch.setattr(cli, "_dispatch", dispatched)
    assert cli.main(["list"]) == 75
    assert "goes on" in capsys.readouterr().err


def test_without_a_signal_the_error_itself_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def dispatched(words: list[str]) -> int:
        raise CheckpointError("bad file")

    monkeypatch.setattr(cli, "_dispatch", dispatched)
    assert cli.main(["list"]) == CheckpointError.exit_code
    assert capsys.readouterr().err == "lmtransfer: bad file\n"
