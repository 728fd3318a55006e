"""Reference loss curves from earlier runs of the built-in recipes, which show whether a run's loss is normal.

Texts differ, so losses are compared by their distance below the unigram entropy, which is the loss of a model that
knows only token frequencies. Machines differ in speed, so curves are compared after the same number of tokens. The
curves are package data; ``tests/support/write_reference_curves.py`` writes them from run directories.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

import numpy as np

from lmtransfer.reporting.runs.collect import Run
from lmtransfer.system.printable import count
from lmtransfer.system.validation import value_at

#: The settings that must be the same in a run and its reference.
SETTINGS = (
    "tokenizer._target_",
    "tokenizer.vocab_size",
    "embeddings.windows",
    "model._target_",
    "model.dim",
    "model.num_layers",
    "objective.losses",
    "objective.corruption.mask_prob",
    "objective.max_length",
    "optimizer._target_",
    "optimizer.learning_rate",
    "train.batch_tokens",
)
#: A distance is normal if it is in the range of the references, which is extended by this fraction on both sides.
_TOLERANCE = 0.2
#: Minimum number of tokens for a remark; before that, the loss of every run is close to the unigram entropy.
_FEWEST_TOKENS = 300_000


@dataclass(frozen=True, slots=True)
class ReferenceCurve:
    """The loss curve of one earlier run.

    Attributes:
        settings: the values of ``SETTINGS`` in this run.
        part: the name of the loss, such as ``mlm``.
        entropy: the unigram entropy of the text in nats.
        loss: the smoothed training loss at each point in nats.
    """

    recipe: str
    corpus: str
    seed: int
    settings: Mapping[str, Any]
    part: str
    entropy: float
    tokens: tuple[float, ...]
    loss: tuple[float, ...]

    def below_entropy(self, tokens: float) -> float | None:
        """Return by how many nats the loss is below the unigram entropy after ``tokens``; None outside the curve."""
        if not self.tokens[0] <= tokens <= self.tokens[-1]:
            return None
        return self.entropy - float(np.interp(tokens, self.tokens, self.loss))


@functools.cache
def reference_curves() -> tuple[ReferenceCurve, ...]:
    """Return all curves in the package."""
    text = resources.files("lmtransfer.reporting").joinpath("reference_curves.json").read_text(encoding="utf-8")
    return tuple(
        ReferenceCurve(**{**curve, "tokens": tuple(curve["tokens"]), "loss": tuple(curve["loss"])})
        for curve in json.loads(text)
    )


def settings_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of ``SETTINGS`` in a configuration, with losses as names and components as class names."""
    settings: dict[str, Any] = {}
    for key in SETTINGS:
        value = value_at(config, key)
        if value is not None and key == "objective.losses":
            value = sorted(value)
        elif value is not None and key.endswith("._target_"):
            value = value.rpartition(".")[2]
        settings[key] = value
    return settings


def references_of(run: Run, part: str) -> list[ReferenceCurve]:
    """Return the reference curves of this loss for a run's settings; empty if the run continues another run."""
    if run.config.get("init") or not run.config:
        return []
    settings = settings_of(run.config)
    return [curve for curve in reference_curves() if curve.part == part and dict(curve.settings) == settings]


def normality_text(
    references: Sequence[ReferenceCurve], *, tokens: float, loss: float, entropy: float | None
) -> str | None:
    """State whether a loss is normal; None if it cannot be compared with a reference."""
    if entropy is None or tokens < _FEWEST_TOKENS:
        return None
    distances = [value for curve in references if (value := curve.below_entropy(tokens)) is not None]
    if not distances:
        return None
    distance, low, high = entropy - loss, min(distances), max(distances)
    verdict = "higher than normal" if distance < low * (1 - _TOLERANCE) else "normal"
    verdict = "lower than normal" if distance > high * (1 + _TOLERANCE) else verdict
    texts = " and ".join(sorted({curve.corpus for curve in references}))
    runs = f"{len(distances)} reference runs" if len(distances) > 1 else "the reference run"
    normal_range = f"{low:.2f} to {high:.2f}" if len(distances) > 1 else f"{low:.2f}"
    return (
        f"after {count(tokens)} tokens, the loss is {verdict}: it is {distance:.2f} nats below the unigram entropy; "
        f"{runs} with this recipe ({texts}) had a distance of {normal_range} after the same number of tokens"
    )


def entropy_of(run: Run) -> float | None:
    """Return the unigram entropy of a run's text, from its result or its metrics."""
    value = run.result.get("unigram_entropy")
    if value is not None:
        return value
    return next((value for line in run.metrics if (value := line.get("unigram_entropy")) is not None), None)
