"""The spread over seeds, compared with closed forms."""

from __future__ import annotations

import math

import pytest
from support.refusals import refuses

from lmtransfer.verdicts.spread import spread


def test_spread_is_the_closed_form() -> None:
    found = spread([2.0, 4.0, 9.0])
    assert found.mean == pytest.approx(5.0)
    assert found.median == 4.0
    assert found.deviation == pytest.approx(math.sqrt((9 + 1 + 16) / 2))  # n - 1 in the denominator
    assert (found.n, found.values) == (3, (2.0, 4.0, 9.0))
    assert spread([0.9]).deviation is None
    with refuses(ValueError, "spread"):
        spread([])
