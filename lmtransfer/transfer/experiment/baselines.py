"""The training and scoring of word-counting baselines on each seed's training examples."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lmtransfer.reporting.runs.scores import examples_of
from lmtransfer.runs.predictions import BASELINES, file_name, write_predictions
from lmtransfer.runs.result import SeedResult
from lmtransfer.runs.run_directory import RunDirectory
from lmtransfer.tasks.counting_baselines import Baseline, counting_baselines
from lmtransfer.tasks.metrics.scored_examples import Predictions
from lmtransfer.training import process_group
from lmtransfer.transfer.experiment.results import BaselineResult
from lmtransfer.transfer.experiment.settings import Setting
from lmtransfer.transfer.scoring import Evaluation, Outputs, score_outputs


def baseline_results(
    setting: Setting, seeds: Sequence[int], directory: RunDirectory, *, command: str
) -> dict[str, BaselineResult]:
    """Train and score a task's baselines, and write their answers.

    With a fixed training set, every seed has the same answers, which are computed once.

    Args:
        setting: task and data of the runs.
        seeds: the seeds, each of which draws its own training examples.
        directory: the command's directory.
        command: "probe" or "finetune".

    Returns:
        The results by baseline name; empty if the task has none.
    """
    return process_group.broadcast(
        _compute_baselines(setting, seeds, directory, command) if process_group.is_main() else None
    )


def _compute_baselines(
    setting: Setting, seeds: Sequence[int], directory: RunDirectory, command: str
) -> dict[str, BaselineResult]:
    task, data = setting.task, setting.data
    baselines: dict[str, BaselineResult] = {}
    files: dict[str, Predictions] = {}
    is_random = task.num_train is not None or task.folds is not None
    for name, baseline in counting_baselines(task, data.train, data.evaluation).items():
        scores: dict[bytes, Evaluation] = {}
        keys = [b"".join(data.whole[draw].train.tobytes() for draw in _draws(setting, seed)) for seed in seeds]
        for seed, key in zip(seeds, keys, strict=True):
            if key not in scores:
                scores[key] = _evaluation(setting, baseline, seed)
        evaluations = [scores[key] for key in keys]
        are_alike = len(seeds) > 1 and len({result.metrics[task.main_metric] for result in evaluations}) == 1
        results, predictions = [], []
        for seed, evaluation in zip(seeds, evaluations, strict=True):
            metrics = {metric: value for metric, value in evaluation.metrics.items() if metric != "loss"}
            results.append(
                SeedResult(
                    command=command,
                    metrics=metrics,
                    main_metric=task.main_metric,
                    seed=seed,
                    collapsed=evaluation.collapsed,
                    more={"deterministic": are_alike or not is_random},
                )
            )
            if evaluation.answers is not None:
                seed_predictions = Predictions(
                    task=task.name,
                    split=data.split,
                    main_metric=task.main_metric,
                    seed=seed,
                    pretraining_seed=None,
                    is_control=False,
                    examples=evaluation.answers,
                    baseline=name,
                )
                predictions.append(seed_predictions)
                files[file_name(seed_predictions, alone=False)] = seed_predictions
        examples = examples_of(predictions, task.main_metric) if len(predictions) == len(results) else None
        baselines[name] = BaselineResult(results, examples)
    if files:
        write_predictions(directory.path / BASELINES, files)
    return baselines


def _draws(setting: Setting, seed: int) -> list[tuple[int, int | None]]:
    folds = setting.task.folds
    return [(seed, None)] if folds is None else [(seed, fold) for fold in range(folds)]


def _evaluation(setting: Setting, baseline: Baseline, seed: int) -> Evaluation:
    """Return a baseline's scores and answers on the examples that a run with this seed is scored on."""
    data = setting.data
    every = np.arange(len(data.evaluation.examples))
    values: np.ndarray | None = None
    for draw in _draws(setting, seed):
        part = data.whole[draw]
        scored = every if part.scored is None else part.scored
        outputs = baseline(part.train, scored)
        if values is None:
            values = np.zeros((len(data.evaluation.targets), outputs.shape[1]), dtype=np.float32)
        values[data.evaluation.target_rows(data.evaluation.sequences_of(scored))] = outputs
    assert values is not None, "there is a draw"
    return score_outputs(setting.task, data.evaluation, Outputs(values, None), keep=True)
