"""serve without its packages names the extra, before the run is opened."""

from __future__ import annotations

import pytest

from lmtransfer.cli import main
from lmtransfer.system import optional


def test_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(optional, "find_spec", lambda package: None)
    assert main(["serve", "run=runs/nothing"]) == 2
    assert "lmtransfer[serve]" in capsys.readouterr().err
