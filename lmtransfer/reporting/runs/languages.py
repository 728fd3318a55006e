"""The main metric in each language of a task that is scored in several."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from lmtransfer.reporting.runs.scores import number
from lmtransfer.system.units import format_metric

_NAME = re.compile(r"language/([^/]+)/([^/]+)")


def scores_in_languages(result: Any) -> dict[str, float]:
    """Return the mean over seeds of the main metric in each language, by language code; empty for other tasks.

    Args:
        result: a result, or the control's part of one.
    """
    metrics = result.get("metrics") if isinstance(result, Mapping) else None
    scores = {}
    for name, value in metrics.items() if isinstance(metrics, Mapping) else ():
        matched, score = _NAME.fullmatch(str(name)), number(value)
        if matched is not None and score is not None:
            scores[matched[1]] = score
    return scores


def languages_text(result: Any) -> str:
    """One line: ``accuracy by language: de 61.2, en 70.1``; empty for other tasks."""
    scores = scores_in_languages(result)
    if not scores:
        return ""
    metric = str(result.get("main_metric"))
    return f"{metric} by language: " + ", ".join(
        f"{code} {format_metric(score, metric)}" for code, score in scores.items()
    )
