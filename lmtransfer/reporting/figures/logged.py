"""Builds charts of metrics logged during training: pretraining losses and task metrics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

from lmtransfer.reporting.figures.spec import Chart, LossCurve, Panel, Place, Series
from lmtransfer.reporting.figures.style import (
    GRAY,
    INK,
    LIGHT_BLUE,
    MAX_CURVES,
    color,
    count_text,
    shorten,
    slug,
    with_count,
)
from lmtransfer.reporting.runs.collect import Run
from lmtransfer.reporting.runs.entries import Entry
from lmtransfer.reporting.runs.reference import entropy_of, normality_text, references_of
from lmtransfer.system.printable import format_metric
from lmtransfer.verdicts.spread import Spread, spread

#: The spread of a metric over seeds at each number of tokens or steps.
Curve = tuple[tuple[Place, Spread], ...]

#: The losses that are comparable with a unigram entropy, in order of preference.
_LOSS_PARTS = ("mlm", "lm")
_PREFIX = "validation/"
_BASE_RATE = "_base_rate"
#: The shares of a part of a mixture: key in ``result.json``, heading, color.
_SHARES = (
    ("share", "of the text", GRAY),
    ("sampled", "of the sampled text", LIGHT_BLUE),
    ("own", "of the vocabulary (pieces most frequent there)", INK),
)


def loss_charts(entries: Sequence[Entry], labels: Mapping[str, str]) -> list[Chart]:
    """Build a chart for each named loss, since LM and MLM losses are not comparable."""
    curves: dict[str, dict[str, list[LossCurve]]] = {}
    for entry in entries:
        if not entry.is_pretraining:
            continue
        runs = entry.seeds or (entry.run,)
        lines = [line for run in runs for line in run.metrics]
        parts = [part for part in _LOSS_PARTS if any(_loss(line, part) is not None for line in lines)]
        part = parts[0] if parts else None
        label = labels[entry.run.key]
        run_curves = [curve for run in runs if (curve := loss_curve(run, label, part)) is not None]
        if run_curves:
            curves.setdefault(part or "loss", {}).setdefault(label, []).extend(run_curves)
    return [_loss_chart(part, by_label) for part, by_label in curves.items()]


def _loss_chart(part: str, runs: Mapping[str, Sequence[LossCurve]]) -> Chart:
    visible = dict(list(runs.items())[:MAX_CURVES])
    losses = tuple(seed for seeds in visible.values() for seed in seeds)
    return Chart(
        "pretraining-loss" + ("" if part == "loss" else f"-{part}"),
        f"Pretraining loss ({part}) of {count_text(len(visible), len(runs))}",
        (Panel("loss", "tokens", part, losses=losses), Panel("loss", "seconds", "", losses=losses)),
        tuple(remark for label, seeds in visible.items() for remark in _remarks(label, seeds[0])),
    )


def _remarks(label: str, curve: LossCurve) -> Iterator[str]:
    loss = float(curve.smooth[-1])
    text = normality_text(curve.references, tokens=curve.tokens[-1], loss=loss, entropy=curve.plateau)
    if text:
        yield f"{label}: {text}; their curves are gray."


def loss_curve(run: Run, label: str, part: str | None = None) -> LossCurve | None:
    """Return the curve of a named loss (by default, the total loss) in a run's metrics; None if there is none."""
    training, validation = [], []
    for line in run.metrics:
        tokens, seconds = line.get("tokens"), line.get("seconds")
        if tokens is None or seconds is None:
            continue
        loss, held_out = _loss(line, part), line.get(f"validation/{part or 'loss'}")
        if loss is not None:
            training.append((tokens, seconds, loss))
        if held_out is not None:
            validation.append((tokens, seconds, held_out))
    if len(training) < 2:
        return None
    tokens_, seconds_, losses = zip(*training, strict=True)
    entropy = entropy_of(run) if part in _LOSS_PARTS else None
    references = () if part is None or entropy is None else tuple(references_of(run, part))
    return LossCurve(label, tokens_, seconds_, losses, tuple(validation), entropy, _changes(run), references)


def _changes(run: Run) -> tuple[tuple[float, float, str], ...]:
    """Return where each phase but the first starts: the last logged tokens and seconds of the previous phase."""
    changes, before = [], None
    for line in run.metrics:
        phase, tokens, seconds = line.get("phase"), line.get("tokens"), line.get("seconds")
        if phase is None or tokens is None or seconds is None:
            continue
        if before is not None and before[2] != phase:
            changes.append((before[0], before[1], phase))
        before = (tokens, seconds, phase)
    return tuple(changes)


def _loss(line: Mapping[str, Any], part: str | None) -> float | None:
    if part is None:
        return line.get("loss")
    value = line.get(f"loss/{part}")
    return line.get(part) if value is None else value


def metric_charts(entries: Sequence[Entry], labels: Mapping[str, str]) -> list[Chart]:
    """Chart the metric on held-out examples during training, for each task and number of labels, with controls."""
    groups: dict[tuple[str, str], list[Series]] = {}
    for entry in entries:
        if entry.is_pretraining or entry.metric is None:
            continue
        label, seeds = labels[entry.run.key], tuple(run for run in entry.controls if run.is_seed)
        for runs, name, is_control in (
            (entry.seeds or (entry.run,), label, entry.is_control),
            (seeds or entry.controls, f"{label} control", True),
        ):
            curve = metric_curve(runs, entry.metric)
            if curve:
                groups.setdefault((entry.group, entry.metric), []).append(Series(name, curve, is_control))
    return [
        Chart(
            f"learning-{slug(group)}-{slug(metric)}",
            with_count(f"{group}: {metric} on held-out examples while training", len(series)),
            (Panel("curves", "optimizer steps", metric, tuple(series[:MAX_CURVES])),),
        )
        for (group, metric), series in groups.items()
    ]


def metric_curve(runs: Sequence[Run], metric: str) -> Curve:
    """Return a held-out metric at the steps that all seeds have logged; empty if there are fewer than two."""
    values = []
    for run in runs:
        points = {}
        for line in run.metrics:
            step, value = line.get("step"), line.get(f"{_PREFIX}{metric}")
            if step is not None and value is not None:
                points[step] = value
        values.append(points)
    steps = sorted(set.intersection(*map(set, values))) if values else []
    return tuple((step, spread([points[step] for points in values])) for step in steps) if len(steps) > 1 else ()


def part_charts(entries: Sequence[Entry], labels: Mapping[str, str]) -> list[Chart]:
    """Chart the loss on each part and the shares of the parts, for each run pretrained on a mixture of corpora."""
    charts: list[Chart] = []
    for entry in entries:
        panels = part_panels(entry.run, entry.seeds) if entry.is_pretraining else ()
        if panels:
            charts.append(Chart(f"parts-{len(charts) + 1}", f"{labels[entry.run.key]}: loss on each part", panels))
    return charts


def part_panels(run: Run, seeds: Sequence[Run] = ()) -> tuple[Panel, ...]:
    """Build a panel of the loss on each part of a mixture and, if the parts' shares are known, one that shows them.

    Args:
        seeds: the runs of the seeds, if the run has several; only validations that all seeds have are used.

    Returns:
        The panels; none for a single corpus.
    """
    runs = seeds or (run,)
    names = list(
        dict.fromkeys(
            key
            for member in runs
            for line in member.metrics
            for key in line
            if key.startswith(_PREFIX) and "/" in key[11:]
        )
    )
    losses = list(dict.fromkeys(name.removeprefix(_PREFIX).partition("/")[0] for name in names))
    losses = [loss for loss in losses if not loss.endswith("_accuracy")]
    if not losses:
        return ()
    loss = next((loss for loss in losses if loss != "loss"), "loss")
    curves = {}
    for name in names:
        loss_name, _, part = name.removeprefix(_PREFIX).partition("/")
        points = _over_seeds(runs, name)
        if loss_name == loss and points:
            curves[part] = points
    if not curves:
        return ()
    series = [
        Series(f"{shorten(part, 18)}  {format_metric(points[-1][1].mean, loss)}", points)
        for part, points in curves.items()
    ]
    panels = [Panel("curves", "tokens", f"validation {loss} (nats)", tuple(series))]
    parts = run.result.get("parts")
    if parts:
        shares = [
            Series(
                heading,
                tuple((shorten(part, 18), spread([parts.get(part, {}).get(key) or 0.0])) for part in curves),
                ink=ink,
            )
            for key, heading, ink in _SHARES
        ]
        panels.append(Panel("bars", "", "share", tuple(shares)))
    return tuple(panels)


def detection_charts(entries: Sequence[Entry], labels: Mapping[str, str]) -> list[Chart]:
    """Build a chart of how well discriminators detect replaced tokens, for the runs that logged this."""
    labeled_curves = [
        (labels[entry.run.key], curves)
        for entry in entries
        if entry.is_pretraining and (curves := detection_curves(entry)) is not None
    ]
    precisions, recalls = [], []
    for index, (label, (precision, recall, base_rate)) in enumerate(labeled_curves[:MAX_CURVES]):
        precisions.append(Series(label, precision, ink=color(index)))
        precisions.append(Series("base rate", base_rate, is_reference=True, ink=color(index)))
        recalls.append(Series(label, recall))
    note = "dashed: base rate, the share of replaced tokens among all tokens"
    panels = (
        Panel("curves", "tokens", "precision", tuple(precisions), note=note, limits=(0, 100)),
        Panel("curves", "tokens", "recall", tuple(recalls), limits=(0, 100)),
    )
    title = with_count("Replaced tokens found in held-out text", len(labeled_curves))
    return [Chart("replaced-tokens", title, panels)] if labeled_curves else []


def detection_curves(entry: Entry) -> tuple[Curve, Curve, Curve] | None:
    """Return the discriminator's curves of a pretraining run, over all its seeds; None if none were logged.

    Returns:
        Precision (the share of replaced tokens among those marked as replaced; no point if none is marked), recall (the
        share of marked tokens among the replaced ones), and base rate (the share of replaced tokens among all tokens,
        which is the precision of guessing).
    """
    runs = entry.seeds or (entry.run,)
    keys = {key for run in runs for line in run.metrics for key in line if key.startswith(_PREFIX)}
    name = next((key.removesuffix(_BASE_RATE) for key in sorted(keys) if key.endswith(_BASE_RATE)), None)
    if name is None:
        return None
    precision, recall, rate = (_over_seeds(runs, f"{name}{ending}") for ending in ("_precision", "_recall", _BASE_RATE))
    return (precision, recall, rate) if recall and rate else None


def _over_seeds(runs: Sequence[Run], name: str) -> Curve:
    """Return a metric such as ``validation/mlm`` at the validations that all seeds have.

    Seeds without any validation are ignored. The number of tokens in a step differs between seeds and is averaged.
    """
    seeds = [validations for run in runs if (validations := _validations(run, name))]
    common_steps = [step for step in seeds[0] if all(step in seed for seed in seeds)] if seeds else []
    return tuple(
        (fmean(seed[step][0] for seed in seeds), spread([seed[step][1] for seed in seeds])) for step in common_steps
    )


def _validations(run: Run, name: str) -> dict[object, tuple[float, float]]:
    """Return the number of tokens and the metric at each validation, by step, or by tokens if no step was logged."""
    losses: dict[object, tuple[float, float]] = {}
    for line in run.metrics:
        tokens, value = line.get("tokens"), line.get(name)
        if tokens is not None and value is not None:
            step = line.get("step")
            losses[f"{tokens} tokens" if step is None else step] = (tokens, value)
    return losses
