"""What a result says besides scores: cost, languages, learning rates, calibration and the mix of layers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Literal

import numpy as np

from lmtransfer.reporting.runs.collect import Run
from lmtransfer.system.printable import count, duration, format_metric, memory
from lmtransfer.verdicts.spread import Spread, spread

_LANGUAGE = re.compile(r"language/([^/]+)/([^/]+)")
Edge = Literal["smallest", "largest"]


@dataclass(frozen=True, slots=True)
class RunCost:
    """The cost of one training run; None where unknown.

    Attributes:
        num_trained: number of trained parameters; ``share`` is their share of all parameters of encoder and head.
        peak_memory: in bytes, the maximum over all seeds.
        seconds: duration of training one seed.
    """

    num_trained: float | None = None
    share: float | None = None
    peak_memory: float | None = None
    seconds: float | None = None

    @property
    def share_text(self) -> str:
        """The share in percent: ``<0.01 %``, ``0.4 %``, ``100 %``."""
        if self.share is None:
            return ""
        if self.share >= 0.995:
            return "100 %"
        return f"{100 * self.share:.2g} %" if self.share >= 1e-4 else "<0.01 %"

    @property
    def memory_text(self) -> str:
        """The peak memory: ``612 MB``."""
        return "" if self.peak_memory is None else memory(self.peak_memory)

    @property
    def seconds_text(self) -> str:
        """The duration: ``45 s``."""
        return "" if self.seconds is None else duration(self.seconds)

    def values(self) -> dict[str, float]:
        """Return the known numbers, by name."""
        values = {
            "num_trained_parameters": self.num_trained,
            "peak_memory": self.peak_memory,
            "seconds_per_seed": self.seconds,
        }
        return {name: value for name, value in values.items() if value is not None}

    @property
    def in_short(self) -> list[str]:
        """The known costs in short form: ``0.4 % trained``, ``612 MB``, ``45 s``."""
        trained = f"{self.share_text} trained" if self.share is not None else ""
        return [text for text in (trained, self.memory_text, self.seconds_text) if text]

    @property
    def in_full(self) -> list[str]:
        """The known costs with the number of trained parameters: ``13.1k (0.4 %) trained``, ``612 MB``, ``45 s``."""
        share = f" ({self.share_text})" if self.share is not None else ""
        trained = "" if self.num_trained is None else f"{count(self.num_trained)}{share} trained"
        return [text for text in (trained, self.memory_text, self.seconds_text) if text]


def cost_of(results: Sequence[Mapping[str, Any]]) -> RunCost:
    """Return the cost of a task's run from its result, followed by those of its seeds."""

    def first(name: str) -> float | None:
        return next((float(value) for result in results if (value := result.get(name)) is not None), None)

    trained, parameters, seconds = first("num_trained_parameters"), first("num_parameters"), first("seconds")
    return RunCost(
        num_trained=trained,
        share=trained / parameters if trained is not None and parameters else None,
        peak_memory=first("peak_memory"),
        seconds=None if trained is None or seconds is None else seconds / (first("n") or 1),
    )


def scores_in_languages(result: Mapping[str, Any]) -> dict[str, float]:
    """Return the mean over seeds of the main metric in each language, by language code; empty for other tasks.

    Args:
        result: a result, or the control's part of a result.
    """
    metrics: Mapping[str, float | None] = result.get("metrics") or {}
    return {
        match[1]: value
        for name, value in metrics.items()
        if value is not None and (match := _LANGUAGE.fullmatch(name)) is not None
    }


def languages_text(result: Mapping[str, Any]) -> str:
    """State the scores by language: ``accuracy by language: de 61.2, en 70.1``; empty for other tasks."""
    metric = str(result.get("main_metric"))
    scores = [f"{code} {format_metric(score, metric)}" for code, score in scores_in_languages(result).items()]
    return f"{metric} by language: {', '.join(scores)}" if scores else ""


def edge_of_grid(rate: float | None, grid: Sequence[float] | None) -> Edge | None:
    """Return the edge of the grid of tried rates at which the chosen one is; None inside, or with fewer than three."""
    rates = set(grid or ())
    if len(rates) < 3 or rate is None:
        return None
    return "smallest" if rate == min(rates) else "largest" if rate == max(rates) else None


def edge_text(rate: float, edge: Edge) -> str:
    """Return a warning such as ``learning rate 0.01 is the largest of its grid: a better one may be outside``."""
    return f"learning rate {rate:g} is the {edge} of its grid: a better one may be outside"


def search_text(grid: Sequence[float] | None, rate: float | None = None) -> str:
    """State the search: ``learning rate: best of 3``, or ``best of 3, the largest (0.01)``; empty without a search."""
    num, edge = len(set(grid or ())), edge_of_grid(rate, grid)
    if num < 2:
        return ""
    return f"learning rate: best of {num}" + ("" if edge is None else f", the {edge} ({rate:g})")


def rate_scores(run: Run, condition: str) -> dict[float, Spread]:
    """Return the scores of each learning rate of a task's run by seed, on the examples used for the choice.

    Args:
        condition: "pretrained" or "control".

    Returns:
        Scores by ascending rate, over the seeds that tried all rates, in the same order; only the mean if no seed tried
        all rates.
    """
    scores: dict[float, dict[object, float]] = {}
    for entry in run.result.get("learning_rate_tries") or ():
        if entry.get("arm") == condition and None not in (entry.get("learning_rate"), entry.get("score")):
            seeds = entry.get("pretraining_seed"), entry.get("seed")
            scores.setdefault(entry["learning_rate"], {})[seeds] = entry["score"]
    common_seeds = [
        seed for seed in next(iter(scores.values()), {}) if all(seed in by_seed for by_seed in scores.values())
    ]
    return {
        rate: spread([by_seed[seed] for seed in common_seeds] or [fmean(by_seed.values())])
        for rate, by_seed in sorted(scores.items())
    }


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """The scalar mix of one run (Peters et al. 2018, equation 1); deviations are over seeds, None for a single one.

    Attributes:
        gamma: the scale of the mix, mean over seeds.
        weights: softmax weight s_j of each layer from the embeddings up, mean over seeds; they add up to 1.
        seeds: the weights of each seed, if known.
    """

    label: str
    gamma: float
    weights: tuple[float, ...]
    deviations: tuple[float, ...] | None
    gamma_deviation: float | None = None
    is_control: bool = False
    seeds: tuple[tuple[float, ...], ...] = ()


def joint_layer_weights(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Combine the mixes of all seeds: means, and under ``deviation`` sample deviations (None with a single seed)."""
    gamma = spread([run["gamma"] for run in runs])
    weights = [spread(values) for values in zip(*(run["weights"] for run in runs), strict=True)]
    deviation = None
    if len(runs) > 1:
        deviation = {"gamma": gamma.deviation, "weights": [weight.deviation for weight in weights]}
    return {"gamma": gamma.mean, "weights": [weight.mean for weight in weights], "deviation": deviation}


def read_layer_weights(
    result: Mapping[str, Any], label: str, *, is_control: bool = False, seeds: Sequence[Mapping[str, Any]] = ()
) -> LayerWeights | None:
    """Return the scalar mix in a result, or in the part about a control; None if it has no mix."""
    mix = result.get("layer_weights")
    if mix is None:
        return None
    deviation = mix.get("deviation")
    of_seeds = [tuple(seed["layer_weights"]["weights"]) for seed in seeds if "layer_weights" in seed]
    return LayerWeights(
        label=label,
        gamma=mix["gamma"],
        weights=tuple(mix["weights"]),
        deviations=None if deviation is None else tuple(deviation["weights"]),
        gamma_deviation=None if deviation is None else deviation["gamma"],
        is_control=is_control,
        seeds=tuple(weights for weights in of_seeds if len(weights) == len(mix["weights"])),
    )


def layer_weights_text(result: Mapping[str, Any], *, plus_minus: str = "+-") -> str:
    """State the mix: ``layer weights: embeddings 0.21 +- 0.01, layer 1 0.33 +- 0.02, ...; gamma 1.04 +- 0.03``."""
    mix = read_layer_weights(result, "")
    if mix is None:
        return ""
    names = ["embeddings", *(f"layer {number}" for number in range(1, len(mix.weights))), "gamma"]
    deviations = [None] * len(names) if mix.deviations is None else [*mix.deviations, mix.gamma_deviation]
    *weights, gamma = [
        f"{name} {mean:.2f}" + ("" if deviation is None else f" {plus_minus} {deviation:.2f}")
        for name, mean, deviation in zip(names, (*mix.weights, mix.gamma), deviations, strict=True)
    ]
    return f"layer weights: {', '.join(weights)}; {gamma}"


def joint_calibration(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Combine the calibration over seeds: average errors, losses and temperatures; pool all answers in the bins."""
    scaled = [run["scaled"] for run in runs]
    has_temperature = None not in scaled
    return {
        "plain": _combine([run["plain"] for run in runs]),
        "scaled": _combine(scaled) if has_temperature else None,
        "temperature": fmean(run["temperature"] for run in runs) if has_temperature else None,
        "fitted_on": runs[0]["fitted_on"] if has_temperature else None,
    }


def _combine(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    counts = np.array([part["counts"] for part in parts])

    def pooled(name: str) -> list[float]:
        sums = (counts * np.array([part[name] for part in parts])).sum(axis=0)
        values: list[float] = (sums / np.maximum(1, counts.sum(axis=0))).tolist()
        return values

    means = {name: fmean(part[name] for part in parts) for name in ("ece", "loss")}
    bins = {name: pooled(name) for name in ("confidences", "accuracies")}
    return {**means, "counts": counts.sum(axis=0).tolist(), **bins}


def calibration_text(result: Mapping[str, Any]) -> str:
    """State the calibration: ``calibration error (ECE) 8.1 %, 2.3 % with temperature 1.71, ...``; empty without one."""
    calibration = result.get("calibration")
    if calibration is None:
        return ""
    text = f"calibration error (ECE) {100 * calibration['plain']['ece']:.1f} %"
    if calibration["scaled"] is None:
        return text
    return (
        f"{text}, {100 * calibration['scaled']['ece']:.1f} % with temperature {calibration['temperature']:.2f}, "
        "fitted on other examples of the split"
    )
