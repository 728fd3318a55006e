"""Label weights in the training loss, for labels that are rare or that matter more.

Shape legend: N examples, C labels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from lmtransfer.errors import ConfigError
from lmtransfer.tasks.label_checks import list_labels, quote_label

#: ``balanced``, or the weight of each label in order.
ClassWeights = Literal["balanced"] | tuple[float, ...]


def weights_in_order(
    weights: Literal["balanced"] | Mapping[str, float] | None, labels: Sequence[str]
) -> ClassWeights | None:
    """Return the labels' weights in order; the default weight is 1.

    Args:
        weights: the setting ``task.class_weights``.

    Raises:
        ConfigError: a name is not a label, or a weight is not a positive number.
    """
    if weights is None or weights == "balanced":
        return weights
    by_name = {str(name): weight for name, weight in weights.items()}
    for name, weight in by_name.items():
        if name not in labels:
            raise ConfigError(f"task.class_weights: {quote_label(name)} is not one of the labels {list_labels(labels)}")
        if not (weight > 0 and math.isfinite(weight)):
            raise ConfigError(f"task.class_weights.{name}={weight}: must be a number above 0, such as 2.5")
    return tuple(float(by_name.get(label, 1.0)) for label in labels)


def balanced_weights(labels_N: np.ndarray, *, num_labels: int) -> np.ndarray:
    """Return weights that give all labels the same total weight: N / (labels that occur * count of the label).

    These are the weights of scikit-learn's ``class_weight="balanced"``. A label that does not occur has weight 1.

    Args:
        labels_N: label indices of the training examples.
        num_labels: C.

    Returns:
        float64, shape (C,).
    """
    counts_C = np.bincount(labels_N, minlength=num_labels)
    even = len(labels_N) / max(1, int((counts_C > 0).sum()))
    return np.divide(even, counts_C, out=np.ones(num_labels), where=counts_C > 0)
