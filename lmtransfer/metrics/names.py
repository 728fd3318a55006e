"""Make metrics by the names that a task's YAML file uses."""

from __future__ import annotations

from typing import Literal

from lmtransfer.metrics.base import Metric
from lmtransfer.metrics.confusion import F1, Accuracy, Matthews
from lmtransfer.metrics.correlation import Pearson, Spearman

MetricName = Literal["accuracy", "f1", "macro_f1", "matthews", "pearson", "spearman"]


def make_metric(name: MetricName, *, num_labels: int, positive: int = 1) -> Metric:
    """Make a new metric.

    Args:
        name: name of the metric.
        num_labels: number of labels (ignored by correlations).
        positive: index of the label whose F1 counts.
    """
    if name == "accuracy":
        return Accuracy(num_labels=num_labels)
    if name == "f1":
        return F1(num_labels=num_labels, positive=positive)
    if name == "macro_f1":
        return F1(num_labels=num_labels, positive="macro")
    if name == "matthews":
        return Matthews(num_labels=num_labels)
    return Pearson() if name == "pearson" else Spearman()
