"""A difference as plain values, written and read back."""

from __future__ import annotations

import json

from lmtransfer.verdicts.compare import compare_conditions, correct_column
from lmtransfer.verdicts.conditions import condition
from lmtransfer.verdicts.difference import Difference


def test_values_are_plain_and_read_back() -> None:
    found = correct_column(
        [
            compare_conditions(condition([3.0, 2.9, 3.2]), condition([0.0, 0.1, 0.0])),
            compare_conditions(condition([0.3, -0.2, 0.4]), condition([0.0, 0.1, 0.0])),
        ]
    )
    for one in found:
        written = json.loads(json.dumps(one.as_values(), allow_nan=False))
        assert Difference.from_values(written) == one
    alone = compare_conditions(condition([0.9]), condition([0.5]))
    assert Difference.from_values(json.loads(json.dumps(alone.as_values()))) == alone
    assert Difference.from_values(None) is None
