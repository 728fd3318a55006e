"""Learned scalar mixes of an encoder's layers. Their weights show how much a task uses each layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lmtransfer.reporting.runs.scores import number
from lmtransfer.verdicts.spread import spread


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
