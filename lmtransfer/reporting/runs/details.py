"""Details of a result besides its scores: cost, languages, learning rates, calibration and layer weights."""

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
        num_trained: the number of trained parameters.
        share: ``num_trained`` divided by the number of parameters in the encoder and the head.
        peak_memory: the maximum over all seeds, in bytes.
        seconds: the training time of one seed.
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
        """Return the known numbers, keyed by name."""
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
        """The known costs in full form: ``13.1k (0.4 %) trained``, ``612 MB``, ``45 s``."""
        share = f" ({self.share_text})" if self.share is not None else ""
        trained = "" if self.num_trained is None else f"{count(self.num_trained)}{share} trained"
        return [text for text in (trained, self.memory_text, self.seconds_text) if text]


def cost_of(results: Sequence[Mapping[str, Any]]) -> RunCost:
    """Return the cost of a run on a task.

    Args:
        results: the run's result, then the results of its seeds; each cost comes from the first one that states it.
    """

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
    """Return the main metric in each language, by language code; empty for tasks that are not scored by language.

    Args:
        result: a result, or its entry for the control.
    """
    metrics: Mapping[str, float | None] = result.get("metrics") or {}
    return {
        match[1]: value
        for name, value in metrics.items()
        if value is not None and (match := _LANGUAGE.fullmatch(name)) is not None
    }


def languages_text(result: Mapping[str, Any]) -> str:
    """State the scores by language, if any: ``accuracy by language: de 61.2, en 70.1``."""
    metric = str(result.get("main_metric"))
    scores = [f"{code} {format_metric(score, metric)}" for code, score in scores_in_languages(result).items()]
    return f"{metric} by language: {', '.join(scores)}" if scores else ""


def final_lines(result: Mapping[str, Any]) -> list[str]:
    """Say how the final model was trained and, last, which scores are its own; empty if there is no final model."""
    final: Mapping[str, Any] | None = result.get("final")
    if not final:
        return []
    model = f"final model, trained on all {final['num_train']:,} labeled examples"
    if result.get("command") == "evaluate":
        return [f"the scores are of the {model}"]
    steps, rate, strength = final.get("steps"), final.get("learning_rate"), final.get("C")
    how = "" if rate is None else f", {steps:,} steps at learning rate {rate:g}"
    how += "" if strength is None else f", C {strength:g}"
    lines = [f"final model: all {final['num_train']:,} labeled examples{how}; {final.get('chosen_by', '')}"]
    if result.get("main_metric") is None:
        return [*lines, f"the {model}, was not measured: there are neither folds nor a dev file"]
    num_train = result.get("num_train")
    fewer = "fewer" if num_train is None else f"{num_train:,}"
    return [*lines, f"the scores are of models trained on {fewer} examples; the {model}, was not scored"]


def edge_of_grid(rate: float | None, grid: Sequence[float] | None) -> Edge | None:
    """Return the edge of the grid at which the chosen rate lies; None if it is inside, or with fewer than 3 rates."""
    rates = set(grid or ())
    if len(rates) < 3 or rate is None:
        return None
    return "smallest" if rate == min(rates) else "largest" if rate == max(rates) else None


def edge_text(rate: float, edge: Edge) -> str:
    """Return the warning that the chosen learning rate lies at an edge of the grid."""
    return f"learning rate {rate:g} is the {edge} of its grid: a better one may be outside"


def search_text(grid: Sequence[float] | None, rate: float | None = None) -> str:
    """State how the learning rate was chosen: ``learning rate: best of 3, the largest (0.01)``; empty for one rate."""
    num, edge = len(set(grid or ())), edge_of_grid(rate, grid)
    if num < 2:
        return ""
    return f"learning rate: best of {num}" + ("" if edge is None else f", the {edge} ({rate:g})")


def rate_scores(run: Run, condition: str) -> dict[float, Spread]:
    """Return the score of each learning rate that a run tried, on the examples used for the choice.

    Args:
        condition: "pretrained" or "control".

    Returns:
        The spread of the scores by ascending rate, over the seeds that tried all rates and in the order of these seeds;
        if no seed tried all rates, only the mean over seeds.
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
    """The scalar mix of a run (Peters et al. 2018, equation 1): means and deviations over seeds.

    Attributes:
        gamma: the scale of the mix.
        weights: the softmax weight s_j of each layer, starting with the embeddings; the weights add up to 1.
        deviations: the sample deviation of each weight; None for a single seed.
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
    """Return the means of the mixes of all seeds, and, as ``deviation``, the sample deviations (None for one seed)."""
    gamma = spread([run["gamma"] for run in runs])
    weights = [spread(values) for values in zip(*(run["weights"] for run in runs), strict=True)]
    deviation = None
    if len(runs) > 1:
        deviation = {"gamma": gamma.deviation, "weights": [weight.deviation for weight in weights]}
    return {"gamma": gamma.mean, "weights": [weight.mean for weight in weights], "deviation": deviation}


def read_layer_weights(
    result: Mapping[str, Any], label: str, *, is_control: bool = False, seeds: Sequence[Mapping[str, Any]] = ()
) -> LayerWeights | None:
    """Return the scalar mix in a result, or in its entry for a control; None if there is none."""
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
    """State the scalar mix, if any: ``layer weights: embeddings 0.21 +- 0.01, layer 1 0.33 +- 0.02; gamma 1.04``."""
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
    """Combine the calibrations of all seeds: errors, losses and temperatures are averaged, and bins are pooled."""
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
    """State the calibration, if known: ``calibration error (ECE) 8.1 %, 2.3 % with temperature 1.71, ...``."""
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
