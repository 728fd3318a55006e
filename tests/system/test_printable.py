from __future__ import annotations

import pytest

from lmtransfer.system.printable import count, duration, format_difference, format_metric, in_percent


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (950, "950"),
        (999.6, "1.0k"),
        (13_120, "13.1k"),
        (999_960, "1.0M"),
        (3_200_000, "3.2M"),
        (2.5e11, "250G"),
    ],
)
def test_counts(value, text):
    assert count(value) == text


@pytest.mark.parametrize(("seconds", "text"), [(4.2, "4.2 s"), (45, "45 s"), (750, "12.5 min"), (11_520, "3.2 h")])
def test_durations(seconds, text):
    assert duration(seconds) == text


def test_metrics_are_shown_in_their_unit():
    assert [in_percent(name) for name in ("accuracy", "macro_f1", "validation/accuracy", "matthews", "loss")] == [
        True,
        True,
        True,
        False,
        False,
    ]
    exact = ("exact", "best_exact", "HasAns_exact", "heq_q", "unfiltered_f1", "unanswerable")
    assert all(in_percent(name) for name in exact)
    assert not any(in_percent(name) for name in ("best_exact_thresh", "best_f1_thresh", "pearson", "spearman"))
    assert format_metric(0.6963, "accuracy") == "69.6"
    assert format_metric(4.0816, "loss") == "4.082"
    assert format_difference(0.028, "accuracy") == "+2.8"
    assert format_difference(-0.12, "loss") == "-0.120"
