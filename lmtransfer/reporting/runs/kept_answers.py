"""Saved predictions, and the contribution of each example to each score."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from lmtransfer.errors import RunDirectoryError
from lmtransfer.reporting.runs import scores
from lmtransfer.reporting.runs.scores import number
from lmtransfer.runs.predictions import prediction_files, read_predictions
from lmtransfer.tasks.metrics.scored_examples import Predictions, contributions
from lmtransfer.verdicts.conditions import Examples


def read_answers(run: Path, problems: list[str] | None = None) -> list[Predictions]:
    """Read the kept predictions of a run, its seeds, its control and its baselines; skip unreadable files.

    Args:
        problems: receives one message for each skipped file.
    """
    answers = []
    for file in prediction_files(run):
        try:
            answers.append(read_predictions(file))
        except RunDirectoryError as error:
            if problems is not None:
                problems.append(str(error))
    return answers


def examples_of(predictions: Sequence[Predictions], metric: str) -> Examples | None:
    """Return the contribution of each example to each of the scores.

    Args:
        predictions: the predictions, in the order of the scores.

    Returns:
        The contributions; None if the predictions are of different examples, or do not determine the metric.
    """
    if not predictions:
        return None
    keys, order = np.unique(predictions[0].examples.keys, return_index=True)
    rows = []
    for of_seed in predictions:
        parts = contributions(of_seed.examples, metric)
        own, place = np.unique(of_seed.examples.keys, return_index=True)
        if parts is None or not np.array_equal(own, keys):
            return None
        rows.append(parts[place])
    clusters = predictions[0].examples.clusters[order]
    are_independent = len(np.unique(clusters)) == len(clusters)
    return Examples(np.stack(rows), keys, None if are_independent else clusters)


def select_predictions(
    predictions: Sequence[Predictions],
    seeds: Sequence[tuple[int | None, int | None]],
    *,
    split: str,
    is_control: bool = False,
    baseline: str = "",
) -> list[Predictions] | None:
    """Select the predictions behind some of a run's scores, in order; None if some are missing or ambiguous.

    Args:
        predictions: all predictions that the run has kept.
        seeds: finetuning seed and pretraining seed of each score, if known.
        split: the scored split.
        is_control: whether the scores are those of the run's control.
        baseline: the baseline with these scores; empty for a model.
    """
    candidates = [p for p in predictions if (p.split, p.is_control, p.baseline) == (split, is_control, baseline)]
    selection = []
    for seed, pretraining_seed in seeds:
        matches = [
            candidate
            for candidate in candidates
            if (seed is None or candidate.seed == seed)
            and (pretraining_seed is None or candidate.pretraining_seed == pretraining_seed)
        ]
        if len(matches) != 1:
            return None
        selection.append(matches[0])
    return selection


def examples_of_score(
    predictions: Sequence[Predictions],
    node: Any,
    metric: str,
    seeds: Sequence[Mapping[str, Any]] = (),
    *,
    split: str,
    is_control: bool = False,
    baseline: str = "",
) -> Examples | None:
    """Return the contribution of each example to the scores of a result, in the order of ``scores.seed_values``.

    Args:
        predictions: the predictions that the run has kept.
        node: the run's result, or the control's part of a result.
        seeds: the results from the seeds' run directories.
        split: the scored split.
        is_control: whether ``node`` is the control's part.
        baseline: the baseline that ``node`` describes; empty for a model.
    """
    values = scores.seed_values(node, metric, seeds)
    names = [(value.seed, value.pretraining_seed) for value in values]
    selection = (
        select_predictions(predictions, names, split=split, is_control=is_control, baseline=baseline)
        if predictions
        else None
    )
    return None if selection is None else examples_of(selection, metric)


#: The entries about the bins.
_BINS = ("counts", "confidences", "accuracies")


@dataclass(frozen=True, slots=True)
class ReliabilityCurve:
    """How often the answers in each confidence bin are right.

    Attributes:
        error: expected calibration error, 0 to 1.
        points: mean confidence and accuracy of each non-empty bin, 0 to 1.
    """

    error: float
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class RunCalibration:
    """The calibration of a run.

    Attributes:
        plain: the reliability of the unscaled probabilities.
        scaled: the reliability with a temperature fitted on other examples; None if none was fitted.
        temperature: the fitted temperature.
    """

    plain: ReliabilityCurve
    scaled: ReliabilityCurve | None
    temperature: float | None


def joint_calibration(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Combine the calibration over seeds: average errors, losses and temperatures; pool all answers in the bins.

    Args:
        runs: the calibration entry of each seed.
    """
    scaled = [run["scaled"] for run in runs]
    temperatures = [run["temperature"] for run in runs]
    has_temperature = None not in scaled
    return {
        "plain": _combine([run["plain"] for run in runs]),
        "scaled": _combine(scaled) if has_temperature else None,
        "temperature": fmean(temperatures) if has_temperature else None,
        "fitted_on": runs[0]["fitted_on"] if has_temperature else None,
    }


def _combine(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    counts = [sum(values) for values in zip(*(part["counts"] for part in parts), strict=True)]

    def weighted(name: str) -> list[float]:
        sums = (
            sum(part["counts"][place] * part[name][place] for part in parts) / max(1, count)
            for place, count in enumerate(counts)
        )
        return list(sums)

    means = {name: fmean(part[name] for part in parts) for name in ("ece", "loss")}
    return {**means, "counts": counts, **{name: weighted(name) for name in _BINS[1:]}}


def read_calibration(result: Any) -> RunCalibration | None:
    """Return the calibration in a ``result.json`` or in the control's part of one; None if there is none."""
    node = result.get("calibration") if isinstance(result, Mapping) else None
    if not isinstance(node, Mapping):
        return None
    plain, scaled = _read(node.get("plain")), _read(node.get("scaled"))
    return None if plain is None else RunCalibration(plain, scaled, number(node.get("temperature")))


def _read(part: Any) -> ReliabilityCurve | None:
    if not isinstance(part, Mapping) or not all(isinstance(part.get(name), list) for name in _BINS):
        return None
    error = number(part.get("ece"))
    bins = [tuple(map(number, values)) for values in zip(*(part[name] for name in _BINS), strict=False)]
    if error is None or any(value is None for values in bins for value in values):
        return None
    points = ((confidence, accuracy) for count, confidence, accuracy in bins if count)
    return ReliabilityCurve(error, tuple((x, y) for x, y in points if x is not None and y is not None))


def calibration_text(result: Any) -> str:
    """State the calibration: ``calibration error (ECE) 8.1 %, 2.3 % with temperature 1.71, fitted on ...``.

    Args:
        result: a result; the text is empty without a calibration.
    """
    fit = read_calibration(result)
    if fit is None:
        return ""
    text = f"calibration error (ECE) {100 * fit.plain.error:.1f} %"
    if fit.scaled is None or fit.temperature is None:
        return text
    return (
        f"{text}, {100 * fit.scaled.error:.1f} % with temperature {fit.temperature:.2f}, fitted on other examples "
        "of the split"
    )
