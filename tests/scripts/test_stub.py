"""The package's stub, which editors and type checkers read."""

from __future__ import annotations

import lmtransfer
from scripts import stub


def test_the_stub_is_current() -> None:
    assert stub.PATH.read_text(encoding="utf-8") == stub.content(), "run python -m scripts.stub"


def test_the_stub_has_all_names_and_every_setting_a_description() -> None:
    text = stub.content()
    assert all(f"def {name}(" in text or f"import {name} as {name}" in text for name in lmtransfer.__all__)
    assert ": None" not in text.replace("-> None", "")
