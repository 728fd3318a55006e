"""A comparison as headings and cells, for the terminal and for the page."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lmtransfer.reporting.comparison.comparison import Comparison, GroupDifference
from lmtransfer.reporting.comparison.flipped import Flip
from lmtransfer.reporting.render.cells import PLUS_MINUS, metric_heading, score_text
from lmtransfer.reporting.verdict_text import grounds, interval_text, reach, verdict_text, words_do_as_well
from lmtransfer.system.printable import printable
from lmtransfer.system.units import in_percent, shown, shown_difference
from lmtransfer.verdicts.difference import VERDICTS, Difference
from lmtransfer.verdicts.spread import spread

#: Longer texts in a table are cut.
_LONGEST = 60
#: Highest number of settings that are named; if there are more, they are only counted.
_MOST_SETTINGS = 40


@dataclass(frozen=True, slots=True)
class Section:
    """A table.

    Attributes:
        title: title of the table.
        headings: headings of the columns.
        rows: the cells.
        note: a line below the table.
    """

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""


def headline(found: Comparison) -> str:
    """The difference in one sentence."""
    one, other = found.sides
    difference, metric = found.difference, one.metric
    where = one.scored_on
    if difference is None:
        return f"There is no valid difference between {one.name} and {other.name}."
    points = " points" if in_percent(metric) else ""
    start = (
        f"On {where}, {one.name} against {other.name}: {shown_difference(difference.delta, metric)}{points} {metric}"
    )
    if difference.verdict in VERDICTS:
        return f"{start}, {verdict_text(difference, metric)} ({_grounds(found, difference)})."
    known = f" ({_grounds(found, difference)})" if difference.interval else ""
    return f"{start}{known}: no verdict."


def remarks(found: Comparison) -> list[str]:
    """Notes: what was not compared and why, and which difference could be found; one line each."""
    if found.difference is None:
        return [printable(line) for line in found.missing]
    one, other = (side.name for side in found.sides)
    explanation = "predicts the same label for every example, or scores the same as the majority label"
    why = {
        "collapsed": f"no verdict: every seed of {one} {explanation}",
        "control collapsed": f"no verdict: every seed of {other} {explanation}",
        "seeds all alike": "no verdict: all seeds of one side, or the differences of all pairs, are equal",
    }.get(found.difference.verdict, "")
    counted = [
        f"{side.name}: {words_do_as_well(entry.baseline_difference, entry.better_baseline)}"
        for side in found.sides
        for entry in side.entries[:1]
        if entry.baseline_difference is not None and words_do_as_well(entry.baseline_difference, entry.better_baseline)
    ]
    lines = [why, *counted, reach(found.difference, found.sides[0].metric), _variance(found.difference)]
    return [printable(line) for line in (*found.missing, *lines) if line]


def _grounds(found: Comparison, difference: Difference) -> str:
    """The basis of the verdict; for pretraining it names the held-out text instead of examples."""
    of = "this text" if found.sides[0].first.is_pretraining else "these examples"
    return grounds(difference, found.sides[0].metric, of=of)


def _variance(difference: Difference) -> str:
    """The sources of the difference's variance; empty if unknown."""
    shares: dict[str, float] = {}
    for part in difference.parts:
        shares[part.source] = shares.get(part.source, 0.0) + part.variance
    whole = sum(shares.values())
    if not whole:
        return ""
    listed = ", ".join(f"{source} {100 * share / whole:.0f} %" for source, share in shares.items())
    return f"variance of the difference: {listed}"


def sections(found: Comparison, *, most: int, plus_minus: str = PLUS_MINUS) -> list[Section]:
    """The tables that have rows.

    Args:
        found: the comparison.
        most: the highest number of flipped examples shown for each side.
        plus_minus: the plus-minus sign.
    """
    made = [
        _scores(found, plus_minus),
        _losses(found),
        _groups(found, "By class", found.classes),
        _groups(found, "By length of the input", found.lengths),
        *_flips(found, most),
        _settings(found),
    ]
    return [section for section in made if section.rows]


def to_json(found: Comparison) -> str:
    """The whole comparison as JSON, in plain units."""

    def groups(rows: Sequence[GroupDifference]) -> list[dict[str, Any]]:
        return [
            {
                "name": row.name, "examples": row.num, "metric": row.metric, "one": row.one, "other": row.other,
                "difference": None if row.difference is None else row.difference.as_values(),
            }
            for row in rows
        ]  # fmt: skip

    def flips(rows: Sequence[Flip]) -> list[dict[str, Any]]:
        return [{"id": f.id, "gold": f.gold, "one": f.one, "other": f.other, "scores": f.scores} for f in rows]

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
            for side, values in zip(found.sides, found.values, strict=True)
        ],
        "difference": None if found.difference is None else found.difference.as_values(),
        "examples": found.num_examples,
        "missing": remarks(found),
        "losses": groups(found.losses),
        "classes": groups(found.classes),
        "lengths": groups(found.lengths),
        "flipped": None
        if found.flips is None
        else {
            "score": found.flips.score,
            "counts": found.flips.counts,
            "to_one": flips(found.flips.to_one),
            "to_other": flips(found.flips.to_other),
        },
        "settings": [{"key": s.key, "one": s.one, "other": s.other} for s in found.settings],
    }
    return json.dumps(content, indent=1, allow_nan=False, default=str) + "\n"


def _scores(found: Comparison, plus_minus: str) -> Section:
    rows: list[tuple[str, ...]] = []
    for side, values in zip(found.sides, found.values, strict=True):
        pretrainings = {member.pretraining for member in side.members}
        weights = "random" if pretrainings == {None} else f"{len(pretrainings)} pretrained"
        metric = side.metric
        cell = score_text(spread(values), metric, plus_minus=plus_minus)
        rows.append((side.name, side.scored_on, metric_heading(metric), cell, str(len(values)), weights))
    rows += _baseline_rows(found, plus_minus)
    number = "" if not found.num_examples else f" on {found.num_examples:,} examples"
    return Section(f"Scores{number}", ("", "scored on", "metric", "mean", "seeds", "weights"), tuple(rows))


def _baseline_rows(found: Comparison, plus_minus: str) -> list[tuple[str, ...]]:
    """The baselines of both sides, and their majority, each once if it scores the same on both."""
    rows: dict[tuple[str, float], tuple[str, ...]] = {}
    for side in found.sides:
        baselines = dict(side.first.baselines)
        if baselines and side.first.majority is not None:
            baselines = {"majority": spread((side.first.majority,)), **baselines}
        for name, score in baselines.items():
            cell = score_text(score, side.metric, plus_minus=plus_minus)
            row = (name, side.scored_on, metric_heading(side.metric), cell, str(score.n), "none")
            rows.setdefault((name, score.mean), row)
    return list(rows.values())


def _losses(found: Comparison) -> Section:
    """The table by loss and accuracy of pretraining, which has no examples."""
    section = _groups(found, "", found.losses)
    rows = tuple((name, *cells) for name, _, *cells in section.rows)
    headings = (section.headings[0], *section.headings[2:])
    return Section("By part of the loss", headings, rows, section.note)


def _groups(found: Comparison, title: str, groups: Sequence[GroupDifference]) -> Section:
    names = [side.name for side in found.sides]
    rows = []
    for group in groups:
        d, metric = group.difference, group.metric
        rows.append(
            (
                _cut(group.name),
                "" if group.num is None else f"{group.num:,}",
                shown(group.one, metric),
                shown(group.other, metric),
                "" if d is None else shown_difference(d.delta, metric),
                "" if d is None else interval_text(d, metric),
                "" if d is None else d.verdict if d.verdict in VERDICTS else "",
            )
        )
    heading = metric_heading(groups[0].metric) if groups else ""
    note = "Intervals and verdicts are corrected for the rows of the table."
    return Section(
        f"{title}: {heading}", ("", "examples", *names, "difference", "95 % interval", "verdict"), tuple(rows), note
    )


def _flips(found: Comparison, most: int) -> list[Section]:
    if found.flips is None:
        return []
    one, other = (side.name for side in found.sides)
    flips, made = found.flips, []
    if flips.counts is not None:
        both, first, second, neither = flips.counts
        counted = ((f"{both:,}", f"{first:,}", f"{second:,}", f"{neither:,}"),)
        headings = ("both", f"only {one}", f"only {other}", "neither")
        note = f"A side answers an example correctly if the mean {flips.score} of its seeds is above one half."
        made.append(Section("Examples answered correctly by", headings, counted, note))
    better = "closer" if flips.counts is None else "right"
    for name, rows_of in ((one, flips.to_one), (other, flips.to_other)):
        rows = tuple((_cut(f.id), _cut(f.gold), _cut(f.one), _cut(f.other)) for f in rows_of[:most])
        more = f"{len(rows_of) - most:,} more are in the .json" if len(rows_of) > most else ""
        made.append(Section(f"Examples on which only {name} is {better}", ("example", "gold", one, other), rows, more))
    return made


def _settings(found: Comparison) -> Section:
    rows = tuple((_cut(s.key), _value(s.one), _value(s.other)) for s in found.settings[:_MOST_SETTINGS])
    more = len(found.settings) - _MOST_SETTINGS
    note = f"{more} more are in the .json" if more > 0 else ""
    return Section("Settings that differ", ("", *(side.name for side in found.sides)), rows, note)


def _value(value: object) -> str:
    text = "" if value is None else str(value)
    if text.startswith("/") and len(text) > _LONGEST:  # the end of a path is more specific than its beginning
        text = f"...{text[3 - _LONGEST :]}"
    return _cut(text)


def _cut(text: str) -> str:
    clean = " ".join(printable(text).split())
    return clean if len(clean) <= _LONGEST else f"{clean[: _LONGEST - 3]}..."
