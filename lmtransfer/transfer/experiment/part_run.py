"""One training run (part) of a probe or finetuning command, with its files, and the cross-validation of a seed.

Shape legend: R rows of targets, K columns of a head's outputs.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, cast

import numpy as np
from safetensors.numpy import load_file, save_file

from lmtransfer.config.component import Node, build
from lmtransfer.config.settings import TransferSettings
from lmtransfer.errors import DataError
from lmtransfer.runs.predictions import file_name, write_predictions
from lmtransfer.runs.result import RunResult, SeedResult
from lmtransfer.runs.run_directory import RunDirectory, versions
from lmtransfer.runs.saved_run import SavedRun, new_encoder
from lmtransfer.runs.tracking import open_trackers
from lmtransfer.runs.trust import check_named, mark_as_own
from lmtransfer.system.machine import naming
from lmtransfer.tasks.base import Task
from lmtransfer.tasks.label_checks import find_label, index_labels
from lmtransfer.tasks.metrics.scored_examples import Predictions
from lmtransfer.training import process_group
from lmtransfer.training.hardware import Hardware
from lmtransfer.training.progress import ProgressLine
from lmtransfer.training.trackers.base import Tracker
from lmtransfer.training.weights import read_weights
from lmtransfer.transfer.experiment.results import final_result, majority_entry, run_result
from lmtransfer.transfer.experiment.settings import Part, Setting
from lmtransfer.transfer.experiment.training_run import train_once
from lmtransfer.transfer.learner import TaskLearner
from lmtransfer.transfer.scoring import Evaluation, Outputs, score_outputs

#: File in a fold's run with the head's outputs for the fold.
_OUTPUTS = "outputs.safetensors"


@dataclass(frozen=True, slots=True)
class PartRun:
    """One part and its files, trained from the start or from a checkpoint up to the result."""

    part: Part
    directory: RunDirectory
    command: str
    settings: TransferSettings
    rule: str
    say: Callable[[str], None]
    is_only: bool
    keep_weights: bool

    def result(self) -> SeedResult:
        """Train the run, or read its result if it has finished."""
        part, directory = self.part, self.directory
        if self.part.folder:
            self._drop_other_choice()
            if directory.is_finished:
                self._finish()
                return directory.read_result(SeedResult)
            self._begin(directory)
        with open_trackers(self.settings.tracker, directory, quiet=not self.is_only) as trackers:
            if part.setting.task.folds is None:
                result, evaluation, note = self._train(trackers.all)
            else:
                (result, evaluation), note = self._cross_validate(), ""
            self._keep(evaluation)
            if self.part.folder:
                directory.write_result(result)
            trackers.finish(result)
        if self.part.folder:
            self._finish()
        score = f"{part.setting.score_text(result.score)} on {part.setting.data.split}"
        rate, strength = part.learning_rate, result.more.get("C")  # each fold chooses its own C
        choice = f", learning rate {rate:g}" if rate is not None else "" if strength is None else f", C {strength:g}"
        self.say(f"{self.part.title}{choice}: {score} after {result.seconds:.0f} s{note}")
        return result

    def final_result(self) -> RunResult:
        """Train the final model, or read its result if it has finished."""
        part, directory = self.part, self.directory
        self._drop_other_choice()
        if directory.is_finished:
            return directory.read_result()
        self._begin(directory)
        with open_trackers(self.settings.tracker, directory) as trackers:
            outcome = train_once(part, run=directory, trackers=trackers.all, progress=ProgressLine())
            result = final_result(part, outcome, command=self.command)
            directory.write_result(result)
            trackers.finish(result)
        self.say(
            f"{part.title}: {outcome.num_train:,} labeled examples after {outcome.state.seconds:.0f} s, not scored"
        )
        return result

    def _drop_other_choice(self) -> None:
        """Delete a run with another learning rate or length: with more seeds, the search may have chosen new ones."""
        if not self.directory.config_path.is_file():
            return
        part, config = self.part, self.directory.read_config()
        choice = (part.learning_rate, part.setting.train.steps)
        rate = (config.get("optimizer") or {}).get("learning_rate", part.learning_rate)
        steps = (config.get("train") or {}).get("steps", part.setting.train.steps)
        process_group.barrier()  # until all ranks have read it
        if (rate, steps) != choice and process_group.is_main():
            shutil.rmtree(self.directory.path)
        process_group.barrier()

    def _begin(self, directory: RunDirectory) -> None:
        """Create the directory of this run, or of one of its folds."""
        if process_group.is_main():
            directory.path.mkdir(parents=True, exist_ok=True)
        process_group.barrier()
        write_run_files(directory, self._own_settings(), self.part.setting)

    def _own_settings(self) -> TransferSettings:
        """Return the settings of a command that would train only this run."""
        part, rate, settings = self.part, self.part.learning_rate, self.settings
        own: dict[str, Any] = {
            "init": part.setting.init,
            "seed": part.seed,
            "seeds": 1,
            "control": False,
            "final": part.is_final,
            "learning_rates": None,
            "checkpoint": part.setting.checkpoint,
            "train": part.setting.train,
        }
        if rate is not None:
            own["optimizer"] = settings.optimizer.replace(learning_rate=rate)
        if part.is_control:
            own |= {"init": None, "tokenizer_from": settings.init}
        return settings.model_copy(update=own)

    def _train(self, trackers: Sequence[Tracker]) -> tuple[SeedResult, Evaluation, str]:
        """Train, and return the result, the evaluation, and a note if ``train.min_steps`` lengthened the training."""
        progress = ProgressLine(quiet=not self.is_only)
        outcome = train_once(self.part, run=self.directory, trackers=trackers, progress=progress)
        assert outcome.evaluation is not None
        rates = None if self.settings.is_solved else self.settings.learning_rates
        result = run_result(self.part, outcome, command=self.command, rule=self.rule, learning_rates=rates)
        steps, epochs = result.more["steps"], result.more["epochs"]
        note = f", {steps:,} steps in {epochs:.1f} epochs because of train.min_steps" if outcome.was_lengthened else ""
        return result, outcome.evaluation, note

    def _cross_validate(self) -> tuple[SeedResult, Evaluation]:
        """Train the unfinished folds, each in a run directory of its own; return their joint result and evaluation."""
        data, task = self.part.setting.data, self.part.setting.task
        results, outputs = [], {}
        for fold in range(task.folds or 0):
            part = replace(self.part, fold=fold)
            result, outputs[part.draw] = self._fold(part)
            results.append(result)
        sizes = [result.more["num_scored"] for result in results]
        loss = float(np.average([result.metrics["loss"] for result in results], weights=sizes))
        evaluation = replace(
            score_outputs(task, data.evaluation, Outputs(data.join_outputs(outputs), loss), keep=True),
            collapsed=all(result.collapsed for result in results),
        )
        return self._joint(results, evaluation), evaluation

    def _fold(self, part: Part) -> tuple[SeedResult, np.ndarray]:
        """Train on the other folds, or read a finished result; also return the outputs, shape (R, K)."""
        directory = RunDirectory(self.directory.folds / f"fold-{part.fold}")
        if directory.is_finished:
            result = directory.read_result(SeedResult)
            with naming(directory.path):
                return result, load_file(directory.path / _OUTPUTS)["outputs"]
        self._begin(directory)
        outcome = train_once(part, run=directory, progress=ProgressLine(quiet=True))
        assert outcome.evaluation is not None
        result = run_result(part, outcome, command=self.command, rule=self.rule)
        if process_group.is_main():
            with naming(directory.path):
                save_file({"outputs": outcome.evaluation.outputs}, directory.path / _OUTPUTS)
        directory.write_result(result)
        fold, folds = (part.fold or 0) + 1, part.setting.task.folds
        self.say(f"{part.title}, fold {fold} of {folds}: {part.setting.score_text(result.score)}")
        return result, outcome.evaluation.outputs

    def _joint(self, results: list[SeedResult], evaluation: Evaluation) -> SeedResult:
        setting, first = self.part.setting, results[0]

        def mean(name: str) -> float:
            return fmean(result.more[name] for result in results)

        choice_scores = [result.more["chosen_score"] for result in results]
        more: dict[str, Any] = {
            "labels": list(setting.task.labels),
            **majority_entry(setting, (self.part.seed, 0)),
            "num_train": round(mean("num_train")),
            "num_held_out": round(mean("num_held_out")),
            "num_scored": len(setting.data.evaluation.examples),
            "num_truncated": {"train": setting.data.train.num_truncated},
            "chosen_by": self.rule,
            "chosen_score": None if None in choice_scores else fmean(choice_scores),
            "steps": sum(result.more["steps"] for result in results),
            "epochs": mean("epochs"),
            **evaluation.entries,
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

    def _keep(self, evaluation: Evaluation) -> None:
        if evaluation.answers is None:
            self.say("predictions are not saved: they cannot be scored one by one, or there are too many of them")
            return
        part, setting = self.part, self.part.setting
        predictions = Predictions(
            task=setting.task.name,
            split=setting.data.split,
            main_metric=setting.task.main_metric,
            seed=part.seed,
            pretraining_seed=part.pretraining_seed,
            is_control=part.is_control,
            examples=evaluation.answers,
        )
        if process_group.is_main():
            write_predictions(self.directory.path, {file_name(predictions, alone=True): predictions})
        process_group.barrier()

    def _finish(self) -> None:
        if not self.keep_weights:
            self.directory.delete_weights()


def write_run_files(directory: RunDirectory, settings: TransferSettings, setting: Setting) -> None:
    """Write the files that make a folder a run, the config last; an existing tokenizer is kept."""
    if process_group.is_main() and not directory.config_path.is_file():
        with naming(directory.tokenizer):
            setting.tokenizer.save(directory.tokenizer)
    origin = {"init": setting.origin} if setting.origin else {}
    directory.write_versions(versions(data={"tokenizer": setting.tokenizer.fingerprint, **origin}))
    directory.write_config(settings.plain())
    mark_as_own(directory.path)


def task_of(saved: SavedRun, *, node: Node[Task] | None = None, data_root: str | None = None) -> Task:
    """Return the task of ``node``, by default the run's own task."""
    own: Node[Task] = saved.component("task", "data_root", "cache_dir")
    return (node or own).build(data_root=data_root or saved.data_root, cache_dir=saved.cache_dir)


def task_to_answer(saved: SavedRun, *, node: Node[Task] | None, data_root: str | None) -> Task:
    """Return the task whose split is predicted: the user's choice, or the run's own task."""
    if node is None and not saved.trusted:
        check_named(saved.config["task"], "task", saved.path, data_root=data_root)
    return task_of(saved, node=node, data_root=data_root)


def open_task_learner(saved: SavedRun, task: Task, hardware: Hardware) -> TaskLearner:
    """Return a run's learner, on the device and in evaluation mode, with outputs in the order of the task's labels.

    The task may differ from the run's own task, but must have the same kind of head and the same label names, in any
    order; otherwise a DataError is raised.
    """
    if task.zero_shot:
        raise DataError(
            f"task {task.name} needs a pretraining run, but {saved.path} has the head of another task; choose a "
            "pretraining run"
        )
    own_task = task_of(saved)
    if own_task.head.kind != task.head.kind:
        raise DataError(
            f"the run {saved.path} was trained on {own_task.name} (a {own_task.head.kind} task), but {task.name} is a "
            f"{task.head.kind} task; choose another task or another run"
        )
    order = match_labels(own_task.labels, task.labels)
    node, method, folder = saved.model_node, build(saved.component("transfer")), saved.checkpoint()
    learner = saved.with_weights(
        lambda: method.learner(new_encoder(node, saved.tokenizer, seed=0), head=task.head, seed=0),
        read_weights(folder),
        checkpoint=folder,
        keys="model, transfer and task",
    )
    if order is not None:
        learner.head.reorder(order)
    return cast(TaskLearner, learner.to(hardware.device).eval())


def match_labels(run_labels: Sequence[str], task_labels: Sequence[str]) -> list[int] | None:
    """Return the index in the run of each label of the task, matched by name; None if the order is the same."""
    if list(run_labels) == list(task_labels):
        return None
    indices = index_labels(run_labels)
    order = [index for index in (find_label(label, indices) for label in task_labels) if index is not None]
    if sorted(order) != list(range(len(run_labels))) or len(task_labels) != len(run_labels):
        raise DataError(
            f"the run has the labels {', '.join(run_labels)}, but the task has {', '.join(task_labels)}; labels are "
            "matched by name, so set the same names with task.labels, or choose another task"
        )
    return order
