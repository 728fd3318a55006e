from __future__ import annotations

import pytest

from lmtransfer.config.sweep_names import in_sweep, point_suffix, sweep_name


def test_outside_a_sweep_a_name_is_a_name() -> None:
    assert not in_sweep()
    assert sweep_name("imdb") == "imdb"


@pytest.mark.parametrize(
    ("overrides", "suffix"),
    [
        ("objective.mask_prob=0.15", "objective.mask_prob=0.15"),
        ("model=bert_mini,train.steps=500", "model=bert_mini,train.steps=500"),
        ("a='x'", "a=x"),
    ],
)
def test_readable_overrides_are_the_suffix(overrides: str, suffix: str) -> None:
    assert point_suffix(overrides) == suffix


def test_what_cannot_be_in_a_file_name_is_replaced_and_stays_distinct() -> None:
    names = [point_suffix(text) for text in ("a=x/y", "a=x-y", "a=x y", "b=" + "z" * 300, "b=" + "z" * 301)]
    assert len(set(names)) == len(names)
    assert all("/" not in name and " " not in name and len(name) <= 140 for name in names)
    assert names[0].startswith("a=x-y-")
