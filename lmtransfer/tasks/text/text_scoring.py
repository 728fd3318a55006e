"""Predictions and gold answers of single texts and pairs, streamed into metrics."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

import numpy as np

from lmtransfer.errors import DataError
from lmtransfer.metrics.base import Metric
from lmtransfer.tasks.text.text_example import TextExample

#: Answers that are taken in at once; memory does not grow with the set.
CHUNK = 4096


def score_numbers(
    examples: Sequence[TextExample], predictions: Iterable[float], metrics: Sequence[Metric]
) -> dict[str, float]:
    """The value of each metric.

    Args:
        examples: with gold labels or scores.
        predictions: the label index or the score of each.
        metrics: fresh metrics.

    Raises:
        DataError: an example has no gold answer.
    """
    pairs = zip(predictions, map(_gold, examples), strict=True)
    for chunk in _chunks(pairs):
        said, gold = np.array(chunk, dtype=np.float64).T
        for metric in metrics:
            metric.update(said, gold)
    return {metric.name: metric.compute() for metric in metrics}


def _gold(example: TextExample) -> float:
    gold = example.score if example.label is None else example.label
    if gold is None:
        raise DataError(f"{example.id} has no gold answer (as in published test files), so it cannot be scored")
    return gold


def _chunks(pairs: Iterator[tuple[float, float]]) -> Iterator[list[tuple[float, float]]]:
    while chunk := list(islice(pairs, CHUNK)):
        yield chunk
