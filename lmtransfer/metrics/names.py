"""Make metrics by the names that a task's YAML file uses."""

from __future__ import annotations

from lmtransfer.metrics.base import Metric
from lmtransfer.metrics.confusion import F1, Accuracy, Matthews
from lmtransfer.metrics.correlation import Pearson, Spearman
from lmtransfer.metrics.label_sets import AveragePrecision, LabelSetF1


def make_metric(name: str, *, num_labels: int, positive: int = 1) -> Metric:
    """Make a new metric of one label or one number for each example.

    Args:
        name: ``accuracy``, ``f1``, ``macro_f1``, ``matthews``, ``pearson`` or ``spearman``.
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


def make_label_set_metric(name: str, *, num_labels: int) -> Metric:
    """Make a new metric of a set of labels for each example.

    Args:
        name: ``micro_f1``, ``macro_f1`` or ``average_precision``.
        num_labels: number of labels.
    """
    if name == "average_precision":
        return AveragePrecision(num_labels=num_labels)
    return LabelSetF1(num_labels=num_labels, average="micro" if name == "micro_f1" else "macro")
