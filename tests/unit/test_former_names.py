"""Every name that a saved run may use leads to something that is there, in one step."""

from __future__ import annotations

import pytest

from lmtransfer.config.target import resolve
from lmtransfer.former_names import TARGETS


@pytest.mark.parametrize("former", TARGETS)
def test_a_former_name_leads_to_a_class(former: str) -> None:
    today = TARGETS[former]
    assert today not in TARGETS
    found = resolve(today)
    assert f"{found.__module__}.{found.__qualname__}" == today
