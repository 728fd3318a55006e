"""The lines below the table of a probe or of finetuning."""

from __future__ import annotations

from typing import Any

import pytest

from lmtransfer.transfer.experiment.messages import remarks


@pytest.mark.parametrize(
    ("seeds", "line"),
    [
        (1, "examples truncated to max_length: 29 of train, 1,530 of dev"),
        (5, "examples truncated to max_length: 29 of train (all seeds together), 1,530 of dev"),
    ],
)
def test_examples_that_were_cut_are_those_of_all_seeds(seeds: int, line: str) -> None:
    result: dict[str, Any] = {"n": seeds, "collapsed": 0, "main_metric": "accuracy"}
    result["num_truncated"] = {"train": 29, "dev": 1530, "test": 0}
    assert line in remarks(result)
