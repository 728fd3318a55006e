"""Cross-validation: a training run for each fold of the training file, and one result for all folds of a seed.

Shape legend: R rows of targets, K columns of a head's outputs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from lmtransfer.runs.result import SeedResult
from lmtransfer.runs.run_directory import RunDirectory
from lmtransfer.system.machine import naming
from lmtransfer.training import distributed
from lmtransfer.training.progress import Progress
from lmtransfer.transfer.evaluation import Evaluation, Outputs, score_outputs
from lmtransfer.transfer.experiment.results import calibration_of, run_result, usual_label
from lmtransfer.transfer.experiment.setting import Member
from lmtransfer.transfer.experiment.training_run import train_once

#: File of a fold's run with the outputs of its head for the fold.
_OUTPUTS = "outputs.safetensors"


@dataclass(frozen=True, slots=True)
class CrossValidation:
    """The cross-validation of one seed.

    Attributes:
        member: seed, condition and learning rate.
        run: directory of the seed; each fold has a run directory in its ``folds``.
        command: "probe" or "finetune".
        rule: how checkpoints were chosen, in words.
        begin: writes the first files of a run directory.
        say: called with each fold from 1 and its result.
    """

    member: Member
    run: RunDirectory
    command: str
    rule: str
    begin: Callable[[RunDirectory], None]
    say: Callable[[int, SeedResult], None]

    def result(self) -> tuple[SeedResult, Evaluation]:
        """Train the folds that are not finished; returns the result of all folds, and all answers."""
        data, task = self.member.setting.data, self.member.setting.task
        results, values = [], None
        for fold in range(task.folds or 0):
            member = replace(self.member, fold=fold)
            result, outputs = self._fold(member)
            results.append(result)
            part = data.whole[member.draw].scored
            assert part is not None, "a fold is scored on its own examples"
            if values is None:
                values = np.zeros((len(data.evaluation.targets), outputs.shape[1]), dtype=np.float32)
            values[data.evaluation.target_rows(data.evaluation.sequences_of(part))] = outputs
        assert values is not None, "there are two folds or more"
        sizes = [result.more["num_scored"] for result in results]
        loss = float(np.average([result.metrics["loss"] for result in results], weights=sizes))
        evaluation = replace(
            score_outputs(task, data.evaluation, Outputs(values, loss), keep=True),
            collapsed=all(result.collapsed for result in results),
        )
        return self._joint(results, evaluation), evaluation

    def _fold(self, member: Member) -> tuple[SeedResult, np.ndarray]:
        """Train on the other folds, or read the result if that has finished; outputs of shape (R, K)."""
        directory = RunDirectory(self.run.folds / f"fold-{member.fold}")
        if directory.is_finished:
            return directory.read_result(SeedResult), _read_outputs(directory.path)
        self.begin(directory)
        outcome = train_once(member, run=directory, progress=Progress(quiet=True))
        assert outcome.evaluation is not None
        result = run_result(member, outcome, command=self.command, rule=self.rule)
        if distributed.is_main():
            with naming(directory.path):
                save_file({"outputs": outcome.evaluation.outputs}, directory.path / _OUTPUTS)
        directory.write_result(result)
        self.say((member.fold or 0) + 1, result)
        return result, outcome.evaluation.outputs

    def _joint(self, results: list[SeedResult], evaluation: Evaluation) -> SeedResult:
        setting, first = self.member.setting, results[0]

        def mean(name: str) -> float:
            return fmean(result.more[name] for result in results)

        chosen = [result.more["chosen_score"] for result in results]
        more: dict[str, Any] = {
            "labels": list(setting.task.labels),
            **usual_label(setting),
            "num_train": round(mean("num_train")),
            "num_held_out": round(mean("num_held_out")),
            "num_scored": len(setting.data.evaluation.examples),
            "num_truncated": {"train": setting.data.train.num_truncated},
            "chosen_by": self.rule,
            "chosen_score": None if None in chosen else fmean(chosen),
            "steps": sum(result.more["steps"] for result in results),
            "epochs": mean("epochs"),
            **calibration_of(evaluation),
            **evaluation.undefined,
            "folds": [
                {
                    "score": result.score,
                    **{name: result.more[name] for name in ("num_train", "num_scored", "chosen_score", "chosen_step")},
                }
                for result in results
            ],
        }
        return replace(
            first,
            metrics=evaluation.metrics,
            task_fingerprint=evaluation.task_fingerprint,
            seconds=sum(result.seconds or 0.0 for result in results),
            tokens=sum(result.tokens or 0 for result in results),
            collapsed=evaluation.collapsed,
            more=more,
        )


def _read_outputs(folder: Path) -> np.ndarray:
    with naming(folder):
        found: np.ndarray = load_file(folder / _OUTPUTS)["outputs"]
    return found
