"""Prints a comparison, or writes it as a self-contained page."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lmtransfer.errors import RunDirectoryError
from lmtransfer.reporting.comparison.comparison import Comparison, GroupDifference
from lmtransfer.reporting.comparison.sides import Side
from lmtransfer.reporting.page.document import document
from lmtransfer.reporting.table import Cell, ReportTable, mark_of, metric_heading, plain_table, print_table, score_text
from lmtransfer.reporting.verdict_text import (
    difference_with_unit,
    grounds,
    interval_text,
    power_text,
    verdict_lines,
    verdict_text,
)
from lmtransfer.system.printable import format_difference, format_metric, printable
from lmtransfer.verdicts.difference import BETTER, VERDICTS, Difference
from lmtransfer.verdicts.spread import Spread, spread

if TYPE_CHECKING:
    from lmtransfer.system.console import Console


#: Maximum length of a text in a table; longer texts are truncated.
_MAX_CHARACTERS = 60
#: Maximum number of settings to list; further settings are only counted.
_MAX_SETTINGS = 40


def headline(comparison: Comparison) -> str:
    """State the difference in one sentence."""
    one, other = comparison.sides
    difference, metric = comparison.difference, one.metric
    where = one.scored_on
    if difference is None:
        return f"There is no valid difference between {one.name} and {other.name}."
    start = f"On {where}, {one.name} against {other.name}: {difference_with_unit(difference.delta, metric)} {metric}"
    if difference.verdict in VERDICTS:
        return f"{start}, {verdict_text(difference, metric)} ({_grounds(comparison, difference)})."
    basis = f" ({_grounds(comparison, difference)})" if difference.interval else ""
    return f"{start}{basis}: no verdict."


def remarks(comparison: Comparison) -> list[str]:
    """Return remarks on missing comparisons and on the detectable difference, one line each."""
    if comparison.difference is None:
        return [printable(line) for line in comparison.missing]
    one, other = (side.name for side in comparison.sides)
    explanation = "predicts the same label for every example, or scores the same as the majority label"
    why = {
        "collapsed": f"no verdict: every seed of {one} {explanation}",
        "control collapsed": f"no verdict: every seed of {other} {explanation}",
        "seeds all alike": "no verdict: all seeds of one side, or the differences of all pairs, are equal",
    }.get(comparison.difference.verdict, "")
    counted = [
        f"{side.name}: {verdict_lines(difference, side.metric, reference=side.first.better_baseline)[0]}"
        for side in comparison.sides
        if (difference := side.first.baseline_difference) is not None and difference.verdict not in BETTER
    ]
    lines = [
        why,
        *counted,
        power_text(comparison.difference, comparison.sides[0].metric),
        _variance(comparison.difference),
    ]
    return [printable(line) for line in (*comparison.missing, *lines) if line]


def _grounds(comparison: Comparison, difference: Difference) -> str:
    """State the basis of the verdict, which is held-out text for pretraining and examples otherwise."""
    of = "this text" if comparison.sides[0].first.is_pretraining else "these examples"
    return grounds(difference, comparison.sides[0].metric, of=of)


def _variance(difference: Difference) -> str:
    shares: dict[str, float] = {}
    for part in difference.parts:
        shares[part.source] = shares.get(part.source, 0.0) + part.variance
    whole = sum(shares.values())
    if not whole:
        return ""
    sources = ", ".join(f"{source} {100 * share / whole:.0f} %" for source, share in shares.items())
    return f"variance of the difference: {sources}"


def tables(comparison: Comparison, *, most: int) -> list[ReportTable]:
    """Build the tables that are not empty.

    Args:
        most: the maximum number of flipped examples to show per side.
    """
    candidates = [
        _scores(comparison),
        _losses(comparison),
        _groups(comparison, "By class", comparison.classes),
        _groups(comparison, "By length of the input", comparison.lengths),
        *_flips(comparison, most),
        _settings(comparison),
    ]
    return [replace(table, title=table.name) for table in candidates if table.lines]


def to_json(comparison: Comparison) -> str:
    """Convert a comparison to JSON, with scores as fractions."""

    def groups(rows: Sequence[GroupDifference]) -> list[dict[str, Any]]:
        return [
            {
                "name": row.name, "examples": row.num, "metric": row.metric, "one": row.one, "other": row.other,
                "difference": None if row.difference is None else row.difference.as_values(),
            }
            for row in rows
        ]  # fmt: skip

    content = {
        "sides": [
            {
                "name": side.name,
                "runs": [str(entry.run.path) for entry in side.entries],
                "task": side.first.task,
                "split": side.first.split,
                "metric": side.metric,
                "scores": [
                    {"value": value, "seed": member.seed, "pretraining": member.pretraining}
                    for value, member in zip(values, side.members, strict=True)
                ],
            }
            for side, values in zip(comparison.sides, comparison.values, strict=True)
        ],
        "difference": None if comparison.difference is None else comparison.difference.as_values(),
        "examples": comparison.num_examples,
        "missing": remarks(comparison),
        "losses": groups(comparison.losses),
        "classes": groups(comparison.classes),
        "lengths": groups(comparison.lengths),
        "flipped": None if comparison.flips is None else asdict(comparison.flips),
        "settings": [asdict(setting) for setting in comparison.settings],
    }
    return json.dumps(content, indent=1, allow_nan=False, default=str) + "\n"


def _scores(comparison: Comparison) -> ReportTable:
    """Tabulate the scores of both sides and of their baselines; baselines that score the same on both have one row."""
    rows = []
    for side, values in zip(comparison.sides, comparison.values, strict=True):
        pretrainings = {member.pretraining for member in side.members}
        weights = "random" if pretrainings == {None} else f"{len(pretrainings)} pretrained"
        rows.append(_score(side.name, side, spread(values), weights))
    baselines: dict[tuple[str, float], tuple[str, ...]] = {}
    for side in comparison.sides:
        first = side.first
        majority = {} if first.majority is None or not first.baselines else {"majority": spread((first.majority,))}
        for name, score in {**majority, **first.baselines}.items():
            baselines.setdefault((name, score.mean), _score(name, side, score, "none"))
    number = "" if not comparison.num_examples else f" on {comparison.num_examples:,} examples"
    headings = ("", "scored on", "metric", "mean", "seeds", "weights")
    return plain_table(f"Scores{number}", headings, [*rows, *baselines.values()])


def _score(name: str, side: Side, score: Spread, weights: str) -> tuple[str, ...]:
    return name, side.scored_on, metric_heading(side.metric), score_text(score, side.metric), str(score.n), weights


def _losses(comparison: Comparison) -> ReportTable:
    table = _groups(comparison, "", comparison.losses)
    return replace(table, name="By part of the loss", columns=(table.columns[0], *table.columns[2:]))


def _groups(comparison: Comparison, title: str, groups: Sequence[GroupDifference]) -> ReportTable:
    names = [side.name for side in comparison.sides]
    rows = []
    for group in groups:
        d, metric = group.difference, group.metric
        rows.append(
            (
                _cut(group.name),
                "" if group.num is None else f"{group.num:,}",
                format_metric(group.one, metric),
                format_metric(group.other, metric),
                "" if d is None else format_difference(d.delta, metric),
                "" if d is None else interval_text(d, metric),
                "" if d is None or d.verdict not in VERDICTS else Cell(d.verdict, mark=mark_of(d)),
            )
        )
    heading = metric_heading(groups[0].metric) if groups else ""
    note = "Intervals and verdicts are corrected for the rows of the table."
    headings = ("", "examples", *names, "difference", "95 % interval", "verdict")
    return plain_table(f"{title}: {heading}", headings, rows, note=note)


def _flips(comparison: Comparison, most: int) -> list[ReportTable]:
    if comparison.flips is None:
        return []
    one, other = (side.name for side in comparison.sides)
    flips, flip_tables = comparison.flips, []
    if flips.counts is not None:
        both, first, second, neither = flips.counts
        counts = ((f"{both:,}", f"{first:,}", f"{second:,}", f"{neither:,}"),)
        headings = ("both", f"only {one}", f"only {other}", "neither")
        note = f"A side gets an example right if the mean {flips.score} of its seeds is above one half."
        flip_tables.append(plain_table("Examples that the sides get right", headings, counts, note=note))
    better = "closer" if flips.counts is None else "right"
    for name, examples in ((one, flips.to_one), (other, flips.to_other)):
        rows = [(_cut(f.id), _cut(f.gold), _cut(f.one), _cut(f.other)) for f in examples[:most]]
        more = f"{len(examples) - most:,} more are in the .json file" if len(examples) > most else ""
        title, headings = f"Examples on which only {name} is {better}", ("example", "gold", one, other)
        flip_tables.append(plain_table(title, headings, rows, note=more))
    return flip_tables


def _settings(comparison: Comparison) -> ReportTable:
    rows = [(_cut(s.key), _value(s.one), _value(s.other)) for s in comparison.settings[:_MAX_SETTINGS]]
    more = len(comparison.settings) - _MAX_SETTINGS
    note = f"{more} more are in the .json file" if more > 0 else ""
    return plain_table("Settings that differ", ("", *(side.name for side in comparison.sides)), rows, note=note)


def _value(value: object) -> str:
    text = "" if value is None else str(value)
    if text.startswith("/") and len(text) > _MAX_CHARACTERS:  # the end of a path says more than the beginning
        text = f"...{text[3 - _MAX_CHARACTERS :]}"
    return _cut(text)


def _cut(text: str) -> str:
    clean = " ".join(printable(text).split())
    return clean if len(clean) <= _MAX_CHARACTERS else f"{clean[: _MAX_CHARACTERS - 3]}..."


def print_comparison(comparison: Comparison, console: Console, *, most: int) -> None:
    """Print the headline, the remarks and the tables."""
    console.print(headline(comparison), style="bold", markup=False, soft_wrap=True)
    for line in remarks(comparison):
        console.print(line, markup=False, soft_wrap=True)
    for table in tables(comparison, most=most):
        print_table(table, console)


def write_comparison(comparison: Comparison, folder: Path | None, *, most: int) -> Path:
    """Write the page and a JSON file next to the page; return the path of the page.

    Args:
        folder: the output folder; by default, the folder ``compare`` in the nearest folder that contains both sides and
            is not a run.
        most: the maximum number of flipped examples to show per side.
    """
    folder = _default_folder(comparison) if folder is None else folder
    path = folder / f"{_slug(comparison.sides[0].name)}-against-{_slug(comparison.sides[1].name)}.html"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(html_comparison(comparison, most=most), encoding="utf-8")
        path.with_suffix(".json").write_text(to_json(comparison), encoding="utf-8")
    except OSError as error:
        raise RunDirectoryError(
            f"to={folder}: the comparison cannot be written ({error.strerror or error}); choose another folder with "
            "to=..."
        ) from error
    return path


def html_comparison(comparison: Comparison, *, most: int) -> str:
    """Return the page as HTML."""
    return document(
        "comparison.html.j2",
        title=f"{comparison.sides[0].name} against {comparison.sides[1].name}",
        headline=headline(comparison),
        remarks=remarks(comparison),
        tables=tables(comparison, most=most),
    )


def _default_folder(comparison: Comparison) -> Path:
    """Return the folder ``compare`` in the nearest folder above both sides that is not a run."""
    tops = [entry.run.path.resolve() for side in comparison.sides for entry in side.entries]
    common = Path(os.path.commonpath([top.parent for top in tops]))
    while (common / "config.yaml").is_file() and common != common.parent:
        common = common.parent
    return common / "compare"


def _slug(text: str) -> str:
    return re.sub(r"[^\w.=-]+", "-", text).strip("-.")[:60] or "run"
