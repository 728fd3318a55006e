"""The calibration in a ``result.json``: combined over seeds, as text, and for a figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from lmtransfer.reporting.runs.scores import number

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
