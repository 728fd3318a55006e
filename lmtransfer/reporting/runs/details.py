"""Learned scalar mixes of an encoder's layers. Their weights show how much a task uses each layer."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Literal

from lmtransfer.reporting.runs.collect import Run
from lmtransfer.reporting.runs.scores import number
from lmtransfer.system.printable import count, duration, format_metric, memory
from lmtransfer.verdicts.spread import Spread, spread


@dataclass(frozen=True, slots=True)
class RunCost:
    """The cost of one training run; None where unknown.

    Attributes:
        num_trained: number of trained parameters.
        share: the trained share of all parameters of encoder and head.
        peak_memory: peak memory in bytes, the maximum over all seeds.
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
    """Return the cost of a task's run.

    Args:
        results: the run's result, then those of its seeds.
    """

    def first(name: str) -> float | None:
        return next((value for result in results if (value := number(result.get(name))) is not None), None)

    trained, parameters, seconds = first("num_trained_parameters"), first("num_parameters"), first("seconds")
    seeds = next((result["n"] for result in results if number(result.get("n"))), 1)
    return RunCost(
        num_trained=trained,
        share=trained / parameters if trained is not None and parameters else None,
        peak_memory=first("peak_memory"),
        seconds=None if trained is None or seconds is None else seconds / seeds,
    )


_NAME = re.compile(r"language/([^/]+)/([^/]+)")


def scores_in_languages(result: Any) -> dict[str, float]:
    """Return the mean over seeds of the main metric in each language, by language code; empty for other tasks.

    Args:
        result: a result, or the control's part of a result.
    """
    metrics = result.get("metrics") if isinstance(result, Mapping) else None
    scores = {}
    for name, value in metrics.items() if isinstance(metrics, Mapping) else ():
        match, score = _NAME.fullmatch(str(name)), number(value)
        if match is not None and score is not None:
            scores[match[1]] = score
    return scores


def languages_text(result: Any) -> str:
    """State the scores by language: ``accuracy by language: de 61.2, en 70.1``; empty for other tasks."""
    scores = scores_in_languages(result)
    if not scores:
        return ""
    metric = str(result.get("main_metric"))
    return f"{metric} by language: " + ", ".join(
        f"{code} {format_metric(score, metric)}" for code, score in scores.items()
    )


Edge = Literal["smallest", "largest"]


def edge_of_grid(rate: Any, grid: Any) -> Edge | None:
    """Return the edge of the grid at which the chosen learning rate is; None if it is inside.

    In a grid of two, both rates are extreme, so such a grid has no edge.

    Args:
        grid: the tried rates; anything but a list of at least three different rates counts as no grid.
    """
    rates = _rates(grid)
    choice = number(rate)
    if len(rates) < 3 or choice is None:
        return None
    return "smallest" if choice == min(rates) else "largest" if choice == max(rates) else None


def edge_text(rate: float, edge: Edge) -> str:
    """Return a warning such as ``learning rate 0.01 is the largest of its grid: a better one may be outside``."""
    return f"learning rate {rate:g} is the {edge} of its grid: a better one may be outside"


def search_text(grid: Any, rate: Any = None) -> str:
    """State the search: ``learning rate: best of 3``, or ``best of 3, the largest (0.01)``; empty without a search.

    Args:
        grid: the tried rates; anything but a list of at least two different rates counts as no search.
        rate: the chosen rate, which is named if it is the smallest or the largest.
    """
    rates, edge = _rates(grid), edge_of_grid(rate, grid)
    if len(rates) < 2:
        return ""
    return f"learning rate: best of {len(rates)}" + ("" if edge is None else f", the {edge} ({rate:g})")


def rate_scores(run: Run, condition: str) -> dict[float, Spread]:
    """Return the scores of each learning rate by seed, on the examples used for the choice; empty if damaged.

    Args:
        run: a task's run.
        condition: "pretrained" or "control".

    Returns:
        Scores by ascending rate, over the seeds that tried all rates, in the same order; only the mean if no seed tried
        all rates.
    """
    tries = run.result.get("learning_rate_tries")
    scores: dict[float, dict[object, float]] = {}
    for place, entry in enumerate(tries if isinstance(tries, list) else []):
        if isinstance(entry, Mapping) and entry.get("arm") == condition:
            rate, score = number(entry.get("learning_rate")), number(entry.get("score"))
            seeds = number(entry.get("pretraining_seed")), number(entry.get("seed"))
            if rate is not None and score is not None:
                scores.setdefault(rate, {})[place if seeds[1] is None else seeds] = score
    common_seeds = [
        seed for seed in next(iter(scores.values()), {}) if all(seed in by_seed for by_seed in scores.values())
    ]
    values = {
        rate: [by_seed[seed] for seed in common_seeds] or [fmean(by_seed.values())] for rate, by_seed in scores.items()
    }
    return {rate: spread(values[rate]) for rate in sorted(values)}


def _rates(grid: Any) -> set[float]:
    """Return the numbers in a list; empty if it is not a list."""
    entries: Sequence[Any] = grid if isinstance(grid, Sequence) and not isinstance(grid, str) else ()
    return {value for value in map(number, entries) if value is not None}


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """The scalar mix of one run (Peters et al. 2018, equation 1).

    Attributes:
        label: name of the run.
        gamma: the scale of the mix, mean over seeds.
        weights: softmax weight s_j of each layer from the embeddings up, mean over seeds; they add up to 1.
        deviations: deviation over seeds for each layer; None with a single seed.
        gamma_deviation: deviation of the scale; None with a single seed.
        is_control: whether the mix is a control's, which is drawn gray.
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
    """Compute mean and sample deviation over seeds.

    Args:
        runs: one mapping per seed: ``gamma``, and ``weights`` of the layers from the embeddings up, which add up to 1.

    Returns:
        The means under the same names, and ``deviation`` with the same entries; None with a single seed.
    """
    gamma = spread([run["gamma"] for run in runs])
    weights = [spread(values) for values in zip(*(run["weights"] for run in runs), strict=True)]
    deviation = None
    if len(runs) > 1:
        deviation = {"gamma": gamma.deviation, "weights": [weight.deviation for weight in weights]}
    return {"gamma": gamma.mean, "weights": [weight.mean for weight in weights], "deviation": deviation}


def read_layer_weights(
    result: Any, label: str, *, is_control: bool = False, seeds: Sequence[Mapping[str, Any]] = ()
) -> LayerWeights | None:
    """Return the scalar mix in a ``result.json`` or in its part about a control; None if it has no mix.

    Args:
        result: the result, or its part about the control.
        label: name of the run.
        is_control: whether the mix is a control's.
        seeds: the results from the seeds' run directories.
    """
    node = result.get("layer_weights") if isinstance(result, Mapping) else None
    means = _numbers(node)
    if not means:
        return None
    deviations = _numbers(node.get("deviation")) if isinstance(node, Mapping) else []
    has_deviations = len(deviations) == len(means)
    return LayerWeights(
        label=label,
        gamma=means[0],
        weights=tuple(means[1:]),
        deviations=tuple(deviations[1:]) if has_deviations else None,
        gamma_deviation=deviations[0] if has_deviations else None,
        is_control=is_control,
        seeds=tuple(
            mix.weights
            for mix in (read_layer_weights(seed, label) for seed in seeds)
            if mix is not None and len(mix.weights) == len(means) - 1
        ),
    )


def layer_weights_text(learned: Any, *, plus_minus: str = "+-") -> str:
    """State the mix: ``layer weights: embeddings 0.21 +- 0.01, layer 1 0.33 +- 0.02, ...; gamma 1.04 +- 0.03``.

    Args:
        learned: the mix in a ``result.json``, of one run or combined over several; the text is empty for anything else.
        plus_minus: the sign between mean and deviation.
    """
    mix = read_layer_weights({"layer_weights": learned}, "")
    if mix is None:
        return ""
    names = ["embeddings", *(f"layer {number}" for number in range(1, len(mix.weights)))]
    deviations: Sequence[float | None] = mix.deviations or [None] * len(names)
    parts = list(zip(names, mix.weights, deviations, strict=True))
    *weights, gamma = [
        f"{name} {mean:.2f}" + ("" if deviation is None else f" {plus_minus} {deviation:.2f}")
        for name, mean, deviation in [*parts, ("gamma", mix.gamma, mix.gamma_deviation)]
    ]
    return f"layer weights: {', '.join(weights)}; {gamma}"


def _numbers(part: Any) -> list[float]:
    """Return gamma and the weights; empty if any is missing."""
    if not isinstance(part, Mapping) or not isinstance(part.get("weights"), list):
        return []
    numbers = [number(value) for value in (part.get("gamma"), *part["weights"])]
    return [] if None in numbers else [value for value in numbers if value is not None]
