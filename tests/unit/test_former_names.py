"""Every name that a saved run may use leads to something that is there, in one step."""

from __future__ import annotations

import pytest

from lmtransfer.config.component import resolve
from lmtransfer.former_names import TARGETS, current_config


@pytest.mark.parametrize("former", TARGETS)
def test_a_former_name_leads_to_a_class(former: str) -> None:
    today = TARGETS[former]
    assert today not in TARGETS
    found = resolve(today)
    assert f"{found.__module__}.{found.__qualname__}" == today


def test_a_key_that_is_gone_is_left_out_of_an_old_config() -> None:
    node = {"embeddings": {"_target_": "x.Y", "deviation": 0.05, "character_steps": 500}, "steps": [{"a": 1}]}
    assert current_config(node) == {"embeddings": {"_target_": "x.Y", "deviation": 0.05}, "steps": [{"a": 1}]}
