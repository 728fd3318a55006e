from __future__ import annotations

from pathlib import Path

import pytest

from lmtransfer.config.sweep import in_sweep, point_suffix, sweep_name
from lmtransfer.launch.sweep_points import SweepPoint, read_points


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


def test_points_are_read_back_in_the_order_of_the_sweep(tmp_path: Path) -> None:
    points = [
        SweepPoint(number, f"seed={number}", Path(f"runs/{number}") if number % 2 else None) for number in range(11)
    ]
    points[4].error = "no\nluck"
    points[5].seconds = 1.5
    for point in reversed(points):
        point.write(tmp_path)
    assert read_points(tmp_path) == points
