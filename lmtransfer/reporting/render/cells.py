"""Rows and points as text, one cell for each column, shared by the tables of all formats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lmtransfer.reporting.runs.rows import Row
from lmtransfer.reporting.runs.sweeps import Sweep, named_values, value_text
from lmtransfer.reporting.verdict_text import detectable_text, interval_text, needed_text, verdict_text
from lmtransfer.system.units import count, duration, in_percent, shown, shown_difference
from lmtransfer.verdicts.difference import Difference
from lmtransfer.verdicts.spread import Spread

PLUS_MINUS = "\u00b1"

#: Headings of the wide table (Markdown, HTML).
COLUMNS = (
    "run",
    "model",
    "objective",
    "corpus",
    "task",
    "transfer",
    "seeds",
    "metric",
    "mean",
    "median",
    "other metrics",
    "difference to control",
    "verdict",
    "difference to baseline",
    "verdict against baseline",
    "smallest detectable",
    "seeds needed",
    "pretraining",
    "parameters",
    "cost",
    "tokens/s",
)


def score_text(score: Spread | None, metric: str, *, plus_minus: str = PLUS_MINUS) -> str:
    """Mean and deviation in the displayed unit of the metric: ``69.6 +- 0.5``; no deviation for a single seed."""
    if score is None:
        return ""
    text = shown(score.mean, metric)
    return text if score.deviation is None else f"{text} {plus_minus} {shown(score.deviation, metric)}"


def other_metrics_texts(scores: Mapping[str, Spread], *, plus_minus: str = PLUS_MINUS) -> list[str]:
    """The metrics that do not decide, each with its unit: ``macro_f1 (%) 69.6 +- 0.5``."""
    return [
        f"{metric_heading(metric)} {score_text(score, metric, plus_minus=plus_minus)}"
        for metric, score in scores.items()
    ]


def difference_text(difference: Difference | None, metric: str) -> str:
    """A difference with its corrected interval: ``+2.8 (+1.2 to +4.4)``."""
    if difference is None:
        return ""
    text, interval = shown_difference(difference.delta, metric), interval_text(difference, metric)
    return f"{text} ({interval})" if interval else text


def baseline_text(difference: Difference | None, baseline: str, metric: str) -> str:
    """The difference to the better baseline with its interval: ``TF-IDF: +2.8 (+1.2 to +4.4)``."""
    return "" if difference is None else f"{baseline}: {difference_text(difference, metric)}"


def metric_heading(metric: str, *, of_pretraining: bool = False) -> str:
    """The metric's name with its unit; losses of pretraining are named as those of the validation documents."""
    if of_pretraining:
        return f"validation {metric}"
    return f"{metric} (%)" if in_percent(metric) else metric


def cells(row: Row) -> list[str]:
    """A row as text, one cell for each column of ``COLUMNS``."""
    budget = [] if row.pretraining_tokens is None else [f"{count(row.pretraining_tokens)} tokens"]
    budget += [] if row.pretraining_seconds is None else [duration(row.pretraining_seconds)]
    return [
        row.run if row.state == "finished" else f"{row.run} ({row.state})",
        row.model,
        row.objective,
        row.corpus,
        "" if row.group == "pretraining" else row.group,
        row.transfer,
        "" if row.score is None else str(row.score.n),
        metric_heading(row.metric, of_pretraining=row.group == "pretraining") if row.metric else "",
        score_text(row.score, row.metric) if row.score is not None else row.note,
        "" if row.score is None or row.score.n < 2 else shown(row.score.median, row.metric),
        ", ".join(other_metrics_texts(row.other_metrics)),
        difference_text(row.difference, row.metric),
        verdict_text(row.difference, row.metric),
        baseline_text(row.baseline_difference, row.better_baseline, row.metric),
        verdict_text(row.baseline_difference, row.metric),
        detectable_text(row.difference, row.metric),
        needed_text(row.difference),
        ", ".join(budget),
        "" if row.num_parameters is None else count(row.num_parameters),
        ", ".join(row.cost.in_full),
        "" if row.tokens_per_second is None else count(row.tokens_per_second),
    ]


def sweep_headings(sweep: Sweep) -> list[str]:
    """The headings of a sweep's table: the swept keys, then the results."""
    of_pretraining = sweep.points[0].entries[0].is_pretraining
    metric = metric_heading(sweep.metric, of_pretraining=of_pretraining) if sweep.metric else "metric"
    return [*sweep.keys, metric, "seeds", "difference to control", "verdict", "other metrics", "tokens/s", "run"]


def sweep_cells(sweep: Sweep, *, plus_minus: str = PLUS_MINUS) -> list[list[str]]:
    """The rows of a sweep's table as text, with a star at the best point."""
    made = []
    for point in sweep.points:
        entry, metric = point.entries[0], sweep.metric or ""
        difference = entry.difference if len(point.entries) == 1 else None  # several runs have one each
        others = entry.other_metrics if len(point.entries) == 1 else {}
        star = " *" if point is sweep.best and len(sweep.points) > 1 else ""
        made.append(
            [
                *(value_text(value) for value in point.values),
                score_text(point.score, metric, plus_minus=plus_minus) + star if point.score else entry.run.state,
                "" if point.score is None else str(point.score.n),
                difference_text(difference, metric),
                verdict_text(difference, metric),
                ", ".join(other_metrics_texts(others, plus_minus=plus_minus)),
                "" if entry.tokens_per_second is None else count(entry.tokens_per_second),
                ", ".join(entry.run.name for entry in point.entries),
            ]
        )
    return made


def failed_cells(sweep: Sweep, label: str) -> list[str]:
    """The row of a point that failed, as in ``sweep_cells``; its label is ``key=value,key=value``."""
    named = named_values(label)
    values = [named.get(key, "") for key in sweep.keys]
    return [*(values if any(values) else [label, *values[1:]]), "failed", "", "", "", "", "", label]


def without_empty(headings: list[str], rows: Sequence[list[str]]) -> tuple[list[str], list[list[str]]]:
    """Remove the columns that are empty in all rows."""
    kept = [place for place in range(len(headings)) if any(row[place] for row in rows)]
    return [headings[place] for place in kept], [[row[place] for place in kept] for row in rows]
