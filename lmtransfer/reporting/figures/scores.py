"""Builds charts of final scores, and draws all figures of a report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from pathlib import Path, PurePath
from typing import Any, TypeVar

from lmtransfer.reporting.figures.drawing import draw
from lmtransfer.reporting.figures.logged import detection_charts, loss_charts, metric_charts, part_charts
from lmtransfer.reporting.figures.spec import Chart, Panel, Place, Series, make_series, points_panel
from lmtransfer.reporting.figures.style import FILLS, INK, MAX_CURVES, SavedFigure, shorten, slug, with_count
from lmtransfer.reporting.result_tables import ReportRow, table_rows
from lmtransfer.reporting.runs.collect import Run, is_seed
from lmtransfer.reporting.runs.details import (
    LayerWeights,
    rate_scores,
    read_layer_weights,
    scores_in_languages,
)
from lmtransfer.reporting.runs.entries import Entry, distinct_names
from lmtransfer.reporting.runs.scores import control_part, number
from lmtransfer.reporting.runs.sweeps import PRETRAINING_TOKENS, Sweep, value_text, values_of_sweep
from lmtransfer.verdicts.spread import Spread, expected_best, spread

#: Maximum number of runs in a chart of layer weights; with more, the columns would be too narrow.
_MAX_RUNS = 6
#: Maximum number of runs in a chart of bars; the title says if runs are omitted.
_MAX_BARS = 20
#: The start of the name of a chart that compares runs on a task.
COMPARISON = "comparison"
#: What runs are compared with.
_REFERENCES = ("majority", "baseline", "control")

_Item = TypeVar("_Item")
#: A label of a series, whether the series is a control, a place on the x axis, and a score.
SeriesScore = tuple[str, bool, Place, Spread]
#: An evaluation, the key that was varied, and the loss at each value of the key.
_Evaluation = tuple[Entry, str, list[tuple[float, float]]]


def draw_figures(entries: Sequence[Entry], sweeps: Sequence[Sweep], folder: Path) -> list[SavedFigure]:
    """Draw all figures for which the runs have data, and save them in ``folder`` as SVG and PNG."""
    return [draw(chart, folder) for chart in make_charts(entries, sweeps)]


def make_charts(entries: Sequence[Entry], sweeps: Sequence[Sweep]) -> list[Chart]:
    """Build the charts for which the runs have data."""
    labels = distinct_names(entries)
    charts = [*comparison_charts(entries), *label_charts(entries), *setting_charts(entries), *revision_charts(entries)]
    charts += [*layer_charts(entries, labels), *sweep_charts(sweeps), *language_charts(entries, labels)]
    charts += [*reliability_charts(entries, labels), *evaluation_charts(entries), *search_charts(entries)]
    labels |= _point_labels(sweeps)
    charts += [*part_charts(entries, labels), *detection_charts(entries, labels)]
    return [*charts, *loss_charts(entries, labels), *metric_charts(entries, labels)]


def _point_labels(sweeps: Sequence[Sweep]) -> dict[str, str]:
    return {
        entry.run.key: _values_text(sweep.keys, point.values, " ")
        for sweep in sweeps
        for point in sweep.points
        for entry in point.entries
    }


def _values_text(keys: Sequence[str], values: Sequence[Any], comma: str) -> str:
    pairs = zip(keys, values, strict=True)
    return comma.join(f"{key.rsplit('.', 1)[-1]}={value_text(value)}" for key, value in pairs)


def _group(items: Iterable[tuple[Hashable, _Item]]) -> dict[Any, list[_Item]]:
    groups: dict[Any, list[_Item]] = {}
    for key, item in items:
        groups.setdefault(key, []).append(item)
    return groups


def _with_controls(
    entries: Sequence[Entry], labels: Mapping[str, str]
) -> Iterator[tuple[Entry, str, bool, Any, list[Any]]]:
    """Yield each run and its control: entry, label, whether it is a control, result, and results of the seeds."""
    for entry in entries:
        label, result = labels[entry.run.key], entry.run.result
        yield entry, label, entry.is_control, result, [seed.result for seed in entry.seeds]
        yield entry, f"{label} control", True, control_part(result), [seed.result for seed in entry.controls]


def comparison_charts(entries: Sequence[Entry]) -> Iterator[Chart]:
    """Chart majority, baselines, controls, probes and finetuned runs as bars, for each task with at least two bars."""
    rows = [row for row in table_rows(entries) if row.entry.score is not None and row.entry.group != "pretraining"]
    groups = _group(((row.entry.group, row.entry.metric), row) for row in rows)
    for (group, metric), members in groups.items():
        visible, title = _best_rows(members), f"{group}: {metric}"
        if len(visible) < len(members):
            title += f", the best {_MAX_BARS} runs"
        bars = [
            Series(
                "",
                ((row.label, score),),
                ink=FILLS.get(row.entry.transfer, FILLS["finetuned"]),
                differences={} if row.entry.difference is None else {row.label: row.entry.difference},
            )
            for row in visible
            if (score := row.entry.score) is not None
        ]
        if len(bars) > 1:
            panels = [Panel("bars", "", metric, tuple(bars))]
            counted = list(_differences_from_counts(visible))
            if counted or any(bar.differences for bar in bars):
                panels.append(Panel("differences", "", metric, (*bars, *counted)))
            yield Chart(comparison_name(group, metric), title, tuple(panels))


def comparison_name(group: str, metric: str) -> str:
    """Return the name of the chart that compares the runs of a group."""
    return f"{COMPARISON}-{slug(group)}-{slug(metric)}"


def _differences_from_counts(rows: Sequence[ReportRow]) -> Iterator[Series]:
    """Yield the difference of each run from the better word-count baseline."""
    for row in rows:
        if (difference := row.entry.baseline_difference) is not None and (score := row.entry.score) is not None:
            yield Series("word counts", ((row.label, score),), ink=INK, differences={row.label: difference})


def _best_rows(rows: Sequence[ReportRow]) -> list[ReportRow]:
    """Leave out all but the best ``_MAX_BARS`` runs and the controls of other runs; keep the order of ``rows``."""
    ranked = sorted((row.entry for row in rows if row.entry.transfer not in _REFERENCES), key=attrgetter("order"))
    omitted = {entry.run.key for entry in ranked[_MAX_BARS:]}
    return [row for row in rows if row.entry.run.key not in omitted or row.entry.transfer in ("majority", "baseline")]


def label_charts(entries: Sequence[Entry]) -> Iterator[Chart]:
    """Chart the metric against the number of labels, for each task with at least two sizes of the training set."""
    tasks = _group(
        ((", ".join(filter(None, (entry.task, entry.split))), entry.metric), entry)
        for entry in entries
        if entry.num_train and entry.score is not None and entry.metric is not None
    )
    for (task, metric), members in tasks.items():
        series = make_series(_transfer_scores(members))
        if max(len(line.points) for line in series) > 1:
            panel = points_panel("num_train", metric, series)
            yield Chart(f"labels-{slug(task)}-{slug(metric)}", f"{task}: {metric} by number of labels", (panel,))


def _transfer_scores(entries: Sequence[Entry]) -> Iterator[SeriesScore]:
    """Yield the scores by transfer method and pretraining run, and those of the controls."""
    for entry in entries:
        size, source = float(entry.num_train or 0), "" if entry.source is None else entry.source.name
        if entry.score is not None:
            label = entry.transfer if entry.is_control else f"{entry.transfer} {source}".strip()
            yield label, entry.is_control, size, entry.score
        if entry.control is not None:
            yield f"{entry.transfer} control", True, size, entry.control


def _with_control(entry: Entry, label: str, place: Place) -> Iterator[SeriesScore]:
    if entry.score is not None:
        yield label, False, place, entry.score
    if entry.control is not None:
        yield f"{label}, control", True, place, entry.control


def setting_charts(entries: Sequence[Entry]) -> list[Chart]:
    """Chart the loss and task scores against a setting, for pretraining runs in a folder that differ in one number."""
    folders = _group(
        (entry.run.key.rpartition("/")[0], entry)
        for entry in entries
        if entry.is_pretraining and entry.score is not None
    )
    charts: list[Chart] = []
    for members in folders.values():
        keys, table = values_of_sweep([entry.run for entry in members])
        values = [row[0] for row in table] if len(keys) == 1 else []
        if len(set(values)) < 2 or not all(isinstance(v, int | float) and not isinstance(v, bool) for v in values):
            continue
        at = {entry.run.path: float(value) for entry, value in zip(members, values, strict=True)}
        losses = _join_scores(
            line for entry in members for line in _with_control(entry, "pretraining", at[entry.run.path])
        )
        loss = Panel(
            "points",
            keys[0],
            f"validation {members[0].metric or 'loss'}",
            losses,
            note="losses at other values may not be comparable",
        )
        transfers = _group(
            ((entry.group, entry.metric), (entry, at[entry.source.path]))
            for entry in entries
            if entry.source is not None and entry.source.revision is None and entry.source.path in at
            if entry.score is not None and entry.metric
        )
        for (task, metric), scores in transfers.items():
            series = _join_scores(
                line for entry, value in scores for line in _with_control(entry, entry.transfer, value)
            )
            if max(len(line.points) for line in series) > 1:
                title = f"{keys[0]}: pretraining loss, and scores on {task}"
                panels = (loss, Panel("points", keys[0], metric, series))
                charts.append(Chart(f"setting-{len(charts) + 1}", title, panels))
    return charts


def _join_scores(scores: Iterable[SeriesScore]) -> tuple[Series, ...]:
    """Build series, with the spread of the means wherever a series has several scores at one place."""
    groups = _group(((label, is_control, place), score) for label, is_control, place, score in scores)
    return make_series(
        (*key, members[0] if len(members) == 1 else spread([score.mean for score in members]))
        for key, members in groups.items()
    )


def revision_charts(entries: Sequence[Entry]) -> Iterator[Chart]:
    """Chart scores against pretraining tokens, for each task with runs that start from several revisions.

    The x axis shows words if the budget or the revisions of every pretraining run are given in words.
    """
    scored = [entry for entry in entries if entry.source and entry.score and entry.metric]
    paths = {entry.source.path for entry in scored if entry.source and entry.source.revision is not None}
    groups = _group(
        ((entry.group, entry.metric), (entry, entry.source.path))
        for entry in scored
        if entry.source and entry.source.path in paths
    )
    for (task, metric), members in groups.items():
        has_several_runs = len({path for _, path in members}) > 1
        words = [_words_read(entry.source) for entry, _ in members]
        in_words = None not in words
        series = make_series(
            line
            for (entry, path), num_words in zip(members, words, strict=True)
            for line in _with_control(
                entry,
                f"{entry.transfer} {path.name}" if has_several_runs else entry.transfer,
                (num_words if in_words else entry.pretraining_tokens) or 0.0,
            )
        )
        if max(len(line.points) for line in series) > 1:
            name = f"revisions-{slug(task)}-{slug(metric)}"
            panel = points_panel("words" if in_words else "tokens", metric, series)
            yield Chart(name, f"{task}: {metric} by {'words read' if in_words else PRETRAINING_TOKENS}", (panel,))


def _words_read(source: Run | None) -> float | None:
    """Return the number of words that a pretraining run has read; None if it does not count in words."""
    train = source.config.get("train") if source else None
    if source is None or not isinstance(train, Mapping) or not (train.get("words") or train.get("save_at_words")):
        return None
    return number(source.result.get("words"))


def layer_charts(entries: Sequence[Entry], labels: Mapping[str, str]) -> list[Chart]:
    """Chart the layer weights of the runs with a scalar mix, for each task and number of layers."""
    groups = _group(
        ((entry.group, len(mix.weights)), mix)
        for entry, label, is_control, result, seeds in _with_controls(entries, labels)
        if (mix := read_layer_weights(result, label, is_control=is_control, seeds=seeds)) is not None
    )
    return [
        Chart(f"layers-{number}", f"{group}: weight of each layer", (layer_panel(mixtures[:_MAX_RUNS]),))
        for number, ((group, _), mixtures) in enumerate(groups.items(), start=1)
    ]


def layer_panel(mixtures: Sequence[LayerWeights]) -> Panel:
    """Build a panel with a column for each layer and run, and a dashed line at equal weights."""
    num_layers = len(mixtures[0].weights)
    names = ["embeddings", *(f"layer {number}" for number in range(1, num_layers))]
    series = [
        Series(
            f"{shorten(mix.label)}  (gamma {mix.gamma:.2f})",
            tuple(zip(names, _by_layer(mix), strict=True)),
            mix.is_control,
        )
        for mix in mixtures
    ]
    equal = Series("equal weights", ((names[0], spread([1 / num_layers])),), is_reference=True)
    return Panel("columns", "", "softmax weight", (*series, equal))


def _by_layer(mix: LayerWeights) -> Iterator[Spread]:
    for layer, weight in enumerate(mix.weights):
        values = tuple(seed[layer] for seed in mix.seeds)
        deviation = None if mix.deviations is None else mix.deviations[layer]
        yield Spread(mean=weight, median=weight, deviation=deviation, n=max(1, len(values)), values=values)


def sweep_charts(sweeps: Sequence[Sweep]) -> Iterator[Chart]:
    """Chart the metric against the first swept key, for each sweep with at least two points.

    Each combination of the other keys has its own line. Sweeps over revisions are left to ``revision_charts``.
    """
    for place, sweep in enumerate(sweeps, start=1):
        scored = [point for point in sweep.points if point.score is not None]
        if sweep.keys != (PRETRAINING_TOKENS,) and len(scored) > 1 and sweep.metric is not None:
            key = sweep.keys[0]
            metric = f"validation {sweep.metric}" if scored[0].entries[0].is_pretraining else sweep.metric
            panel = points_panel(key, metric, make_series(_sweep_scores(sweep)))
            yield Chart(f"sweep-{place}-{slug(sweep.name)}", f"{metric} by {key}", (panel,))


def _sweep_scores(sweep: Sweep) -> Iterator[SeriesScore]:
    """Yield the scores of a sweep, and those of the controls if one key was swept and all points have a control."""
    scored = [(point, point.score) for point in sweep.points if point.score is not None]
    first = [point.values[0] for point, _ in scored]
    numeric = all(isinstance(value, int | float) and not isinstance(value, bool) for value in first)
    places: list[Place] = [float(value) if numeric else value_text(value) for value in first]
    for (point, score), place in zip(scored, places, strict=True):
        yield _values_text(sweep.keys[1:], point.values[1:], ", ") or "pretrained", False, place, score
    controls = [point.entries[0].control if len(point.entries) == 1 else None for point, _ in scored]
    if len(sweep.keys) == 1 and None not in controls:
        for place, control in zip(places, controls, strict=True):
            if control is not None:
                yield "control", True, place, control


def language_charts(entries: Sequence[Entry], labels: Mapping[str, str]) -> Iterator[Chart]:
    """Chart the mean score in each language, for each task that is scored by language, with the controls."""
    groups = _group(
        ((entry.group, entry.metric), [(label, is_control, code, spread([score])) for code, score in scores.items()])
        for entry, label, is_control, result, _ in _with_controls(entries, labels)
        if (scores := scores_in_languages(result)) and entry.metric
    )
    for (group, metric), runs in groups.items():
        series = make_series(score for run in runs[:MAX_CURVES] for score in run)
        title = with_count(f"{group}: {metric} by language", len(runs))
        yield Chart(f"languages-{slug(group)}", title, (Panel("points", "", metric, series, note="mean over seeds"),))


def reliability_charts(entries: Sequence[Entry], labels: Mapping[str, str]) -> Iterator[Chart]:
    """Chart accuracy against confidence, before and after temperature scaling, for each task with calibrated runs."""
    groups = _group(
        (entry.group, (labels[entry.run.key], entry.run.result["calibration"]))
        for entry in entries
        if "calibration" in entry.run.result
    )
    for group, runs in groups.items():
        plain = tuple(_reliability(label, calibration["plain"]) for label, calibration in runs[:MAX_CURVES])
        scaled = tuple(_reliability(label, calibration["scaled"]) for label, calibration in runs[:MAX_CURVES])
        x, plain_note = "confidence (%)", "without a temperature; dashed: perfect calibration"
        panels = (
            Panel("reliability", x, "accuracy", plain, note=plain_note),
            Panel("reliability", x, "", scaled, note="with a temperature fitted on other examples"),
        )
        yield Chart(f"reliability-{slug(group)}", with_count(f"{group}: reliability", len(runs)), panels)


def _reliability(label: str, curve: Mapping[str, Any] | None) -> Series:
    if curve is None:
        return Series(label, ())
    bins = zip(curve["counts"], curve["confidences"], curve["accuracies"], strict=True)
    points = tuple((confidence, spread([accuracy])) for count, confidence, accuracy in bins if count)
    return Series(f"{shorten(label, 26)}, ECE {100 * curve['ece']:.1f}", points)


def evaluation_charts(entries: Sequence[Entry]) -> list[Chart]:
    """Chart the loss against each key that evaluations varied, such as memory length (Dai et al. 2019, section 4.3).

    Each run has one line, which is the mean over seeds.
    """
    curves = [(entry, entry.run.result["curve"]) for entry in entries if "curve" in entry.run.result]
    runs = _by_run(
        [
            (entry, curve["key"], sorted(zip(curve["values"], curve["losses"], strict=True)))
            for entry, curve in curves
            if len(curve["values"]) > 1
        ]
    )
    names = Counter(_evaluated_name(members[0][0]) for members in runs)
    lines: dict[str, list[Series]] = {}
    for members in runs:
        entry, key, points = members[0]
        name = _evaluated_name(entry) if names[_evaluated_name(entry)] == 1 else entry.name
        losses = zip(*([loss for _, loss in seed_points] for _, _, seed_points in members), strict=True)
        scores = tuple((value, spread(values)) for (value, _), values in zip(points, losses, strict=True))
        series = Series(name, scores)
        lines.setdefault(key, []).append(series)
    return [
        Chart(
            f"loss-against-{number}",
            f"Validation loss by {key.replace('_', ' ')}" + (f": {series[0].label}" if len(series) == 1 else ""),
            (points_panel(key, "validation loss", series),),
        )
        for number, (key, series) in enumerate(lines.items(), start=1)
    ]


def _by_run(curves: Sequence[_Evaluation]) -> list[list[_Evaluation]]:
    """Group the curves of the seeds of each run, if each seed was measured once and at the same values."""
    groups: dict[object, list[_Evaluation]] = {}
    for place, (entry, key, points) in enumerate(curves):
        path = _evaluated_path(entry)
        is_of_seed = path is not None and is_seed(path.name)
        values = tuple(value for value, _ in points)
        groups.setdefault((path.parent, key, values) if is_of_seed and path else place, []).append(curves[place])
    evaluations = []
    for members in groups.values():
        are_distinct = len({_evaluated_path(entry) for entry, _, _ in members}) == len(members)
        evaluations += [members] if are_distinct else [[member] for member in members]
    return evaluations


def _evaluated_name(entry: Entry) -> str:
    """Return the name of the evaluated run; for a seed, the name of its parent run."""
    path = _evaluated_path(entry)
    if path is None:
        return entry.name
    return path.parent.name if is_seed(path.name) else path.name


def _evaluated_path(entry: Entry) -> PurePath | None:
    path = entry.run.config.get("run")
    return None if path is None else PurePath(path)


def search_charts(entries: Sequence[Entry]) -> list[Chart]:
    """Chart the expected best score against the number of learning rates, for runs that tried at least three."""
    charts: list[Chart] = []
    for entry in entries:
        series = make_series(_search_scores(entry))
        if series:
            title = f"{entry.group}: expected best held-out {entry.metric or ''} of {entry.name}"
            panel = points_panel("num_rates", entry.metric or "", series)
            charts.append(Chart(f"search-{len(charts) + 1}", title, (panel,)))
    return charts


def _search_scores(entry: Entry) -> Iterator[SeriesScore]:
    """Yield the expected score of the best of k rates for each seed; the best rate has the best mean over seeds."""
    for condition, label in (("pretrained", entry.name), ("control", "control")):
        rates = list(rate_scores(entry.run, condition).values())
        if len(rates) > 2:
            means = [rate.mean for rate in rates]
            seeds = zip(*(rate.values for rate in rates), strict=True)
            best = [expected_best(means, scores=scores, higher_is_better=entry.higher_is_better) for scores in seeds]
            for k, values in enumerate(zip(*best, strict=True), start=1):
                yield label, condition == "control", float(k), spread(values)
