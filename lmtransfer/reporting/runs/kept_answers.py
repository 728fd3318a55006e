"""Kept predictions, read as the contribution of each example to each score."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lmtransfer.errors import RunDirectoryError
from lmtransfer.reporting.runs import scores
from lmtransfer.runs.predictions import prediction_files, read_predictions
from lmtransfer.tasks.metrics.scored_examples import Predictions, contributions
from lmtransfer.verdicts.conditions import Examples


def kept_answers(run: Path, problems: list[str] | None = None) -> list[Predictions]:
    """Read the kept predictions of a run, its seeds, its control and its baselines; skip unreadable files.

    Args:
        problems: receives one message for each skipped file.
    """
    answers = []
    for file in prediction_files(run):
        try:
            answers.append(read_predictions(file))
        except RunDirectoryError as error:
            if problems is not None:
                problems.append(str(error))
    return answers


def examples_of(predictions: Sequence[Predictions], metric: str) -> Examples | None:
    """The contribution of each example to each of the scores.

    Args:
        predictions: the predictions, in the order of the scores.

    Returns:
        The contributions; None if the predictions are of different examples, or do not determine the metric.
    """
    if not predictions:
        return None
    keys, order = np.unique(predictions[0].examples.keys, return_index=True)
    rows = []
    for one in predictions:
        parts = contributions(one.examples, metric)
        own, place = np.unique(one.examples.keys, return_index=True)
        if parts is None or not np.array_equal(own, keys):
            return None
        rows.append(parts[place])
    clusters = predictions[0].examples.clusters[order]
    alone = len(np.unique(clusters)) == len(clusters)
    return Examples(np.stack(rows), keys, None if alone else clusters)


def kept_of(
    predictions: Sequence[Predictions],
    seeds: Sequence[tuple[int | None, int | None]],
    *,
    split: str,
    is_control: bool = False,
    baseline: str = "",
) -> list[Predictions] | None:
    """Select the predictions of the given scores of a run, in order; None if some are missing or ambiguous.

    Args:
        predictions: all predictions that the run has kept.
        seeds: finetuning seed and pretraining seed of each score, if known.
        split: the scored split.
        is_control: whether the scores are those of the run's control.
        baseline: the baseline with these scores; empty for a model.
    """
    own = [one for one in predictions if (one.split, one.is_control, one.baseline) == (split, is_control, baseline)]
    of_seeds = []
    for seed, pretraining_seed in seeds:
        fitting = [
            one
            for one in own
            if (seed is None or one.seed == seed)
            and (pretraining_seed is None or one.pretraining_seed == pretraining_seed)
        ]
        if len(fitting) != 1:
            return None
        of_seeds.append(fitting[0])
    return of_seeds


def examples_of_score(
    predictions: Sequence[Predictions],
    node: Any,
    metric: str,
    seeds: Sequence[Mapping[str, Any]] = (),
    *,
    split: str,
    is_control: bool = False,
    baseline: str = "",
) -> Examples | None:
    """The contribution of each example to the scores of a result, in the order of ``scores.seed_values``.

    Args:
        predictions: the predictions that the run has kept.
        node: its result, or the control's part of one.
        seeds: the results from the run directories of the seeds.
        split: the scored split.
        is_control: whether ``node`` is the control's part.
        baseline: the baseline that ``node`` describes; empty for a model.
    """
    values = scores.seed_values(node, metric, seeds)
    named = [(value.seed, value.pretraining_seed) for value in values]
    of_seeds = (
        kept_of(predictions, named, split=split, is_control=is_control, baseline=baseline) if predictions else None
    )
    return None if of_seeds is None else examples_of(of_seeds, metric)
