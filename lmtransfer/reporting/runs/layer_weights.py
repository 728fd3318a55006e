"""What a learnt mixture of an encoder's layers weighs: how much each of them has to say to a task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lmtransfer.reporting.runs.scores import number
from lmtransfer.verdicts.spread import spread


def joint_layer_weights(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Mean and sample deviation over seeds.

    Args:
        runs: one a seed: ``gamma``, and ``weights``, one a layer from the embeddings up, which add up to 1.

    Returns:
        The means under the same names, and ``deviation`` with the like; None with a single seed.
    """
    gamma = spread([run["gamma"] for run in runs])
    weights = [spread(values) for values in zip(*(run["weights"] for run in runs), strict=True)]
    deviation = None
    if len(runs) > 1:
        deviation = {"gamma": gamma.deviation, "weights": [weight.deviation for weight in weights]}
    return {"gamma": gamma.mean, "weights": [weight.mean for weight in weights], "deviation": deviation}


def layer_weights_text(learnt: Any, *, plus_minus: str = "+-") -> str:
    """One line: ``layer weights: embeddings 0.21 +- 0.01, layer 1 0.33 +- 0.02, ...; gamma 1.04 +- 0.03``.

    Args:
        learnt: of one run or of several together, as a ``result.json`` says; empty text for anything else.
        plus_minus: what stands between mean and deviation.
    """
    means = _numbers(learnt)
    if not means:
        return ""
    deviations: Sequence[float | None] = _numbers(learnt.get("deviation")) or [None] * len(means)
    names = ["gamma", "embeddings", *(f"layer {number}" for number in range(1, len(means) - 1))]
    gamma, *weights = [
        f"{name} {mean:.2f}" + ("" if deviation is None else f" {plus_minus} {deviation:.2f}")
        for name, mean, deviation in zip(names, means, deviations, strict=True)
    ]
    return f"layer weights: {', '.join(weights)}; {gamma}"


def _numbers(part: Any) -> list[float]:
    """Gamma and the weights, or nothing where they are not all there."""
    if not isinstance(part, Mapping) or not isinstance(part.get("weights"), list):
        return []
    found = [number(value) for value in (part.get("gamma"), *part["weights"])]
    return [] if None in found else [value for value in found if value is not None]
