"""Score a probed or finetuned run on a split of a task; measure a pretraining run on its held-out text."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lmtransfer.config.settings import EvaluateSettings
from lmtransfer.config.sweep_names import in_sweep, sweep_name
from lmtransfer.errors import ConfigError, LmtransferError
from lmtransfer.inference.zero_shot import evaluate_zero_shot
from lmtransfer.interop.open_run import is_pretrained, open_saved, run_folder, task_run_folders
from lmtransfer.pretraining.evaluation import evaluate_pretrained
from lmtransfer.reporting.runs.scores import examples_of
from lmtransfer.runs.predictions import file_name, write_predictions
from lmtransfer.runs.result import JointResult, SeedResult
from lmtransfer.runs.run_directory import RunDirectory, versions
from lmtransfer.runs.saved_run import SavedRun, folders_with_checkpoints, pretraining_seed
from lmtransfer.runs.training_setup import eager_hardware
from lmtransfer.system.console import Console
from lmtransfer.system.printable import short_path
from lmtransfer.tasks.answers import LabelAnswer
from lmtransfer.tasks.base import Example, Task, TaskWithoutHead
from lmtransfer.tasks.metrics.scored_examples import Predictions
from lmtransfer.tasks.source import TaskSource
from lmtransfer.training import process_group
from lmtransfer.training.hardware import Hardware
from lmtransfer.training.weights import check_not_nan, num_parameters
from lmtransfer.transfer.experiment.data import encode_split, repeated_texts, task_notes
from lmtransfer.transfer.experiment.messages import print_result
from lmtransfer.transfer.experiment.part_run import open_task_learner, task_of, task_to_answer
from lmtransfer.transfer.experiment.results import compare, condition_of, final_entry, layer_weights, summary
from lmtransfer.transfer.scoring import evaluate

#: Settings that apply to pretraining runs only.
_OF_TEXT = ("memory_lengths", "segment_length", "clamp_length", "same_length")


def run(settings: EvaluateSettings) -> Path:
    """Score the run and write a run directory.

    Returns:
        The run directory.
    """
    if settings.task is not None and issubclass(settings.task.cls, TaskWithoutHead):
        return evaluate_zero_shot(settings, settings.task)
    for key, value in settings.chosen("revisions", "control").items():
        raise ConfigError(f"{key}={value} is only for tasks without training, such as task=blimp; leave it out")
    return _evaluate_pretraining(settings) if is_pretrained(settings.run) else _evaluate_trained(settings)


def _evaluate_pretraining(settings: EvaluateSettings) -> Path:
    """Measure the losses of a pretraining run, which has no task head."""
    if settings.task is not None:
        run, task = settings.run, settings.task.get("name")
        raise ConfigError(
            f"run={run}: a pretraining run has no head for task={task}; train one (lmtransfer finetune init={run} "
            f"task={task}), leave task= out to measure the losses, or give a task that needs no head (task=blimp, "
            "task=sts_zero_shot)"
        )
    return evaluate_pretrained(settings)


@dataclass(frozen=True, slots=True)
class _Scoring:
    """The task, the examples and the hardware of an evaluation.

    Attributes:
        task: the task, whose label order the answers follow.
        split: split of the task.
        examples: examples of the split.
        hardware: device and precision.
    """

    task: Task
    split: str
    examples: Sequence[Example]
    hardware: Hardware


def _evaluate_trained(settings: EvaluateSettings) -> Path:
    """Score a run with a task head and write a run directory."""
    if settings.corpus is not None:
        raise ConfigError(
            f"corpus: run={settings.run} has a task head, and is scored on the task's data: leave corpus out"
        )
    idle = settings.chosen(*_OF_TEXT)
    if idle:
        raise ConfigError([f"{key}={value} is only for pretraining runs; leave it out" for key, value in idle.items()])
    own_task = settings.task is None
    members, controls, parent = _members(settings.run, trust=settings.trust)
    if own_task and members[0].config.get("final") and settings.split in ("train", "dev"):
        raise ConfigError(
            f"split={settings.split}: the final model of run={settings.run} was trained on these examples, so its "
            "score would only measure what it has memorized; choose another split, such as test, or read the scores of "
            f"the models that were not trained on them in {short_path(parent / 'result.json')}"
        )
    hardware = eager_hardware(settings.hardware)
    task = task_to_answer(members[0], node=settings.task, data_root=settings.data_root)
    with process_group.join(hardware.wait_seconds):
        console = Console(highlight=False, quiet=not process_group.is_main())
        scoring = _Scoring(task, settings.split, task.examples(settings.split), hardware)
        scored = [_score(member, scoring) for member in [*members, *controls]]
        results = [result for result, _ in scored[: len(members)]]
        for line in [*task_notes(task), *_notes(members[0], scoring, results[0], own_task=own_task)]:
            console.print(f"note: {line}", markup=False, soft_wrap=True)
        control_results = [result for result, _ in scored[len(members) :]]
        name = sweep_name(settings.name or _default_name(parent, task.name, settings.split, own_task=own_task))
        directory = RunDirectory.create(settings.output_root, "evaluate", name, resume=settings.overwrite or in_sweep())
        resolved = {"run": str(parent), "task": settings.task or members[0].component("task", "data_root", "cache_dir")}
        directory.write_config(settings.model_copy(update=resolved).plain())
        directory.write_versions(versions())
        predictions = [replace(one, is_control=place >= len(members)) for place, (_, one) in enumerate(scored) if one]
        result = _joint(results, control_results, members[0], scoring, predictions)
        if process_group.is_main():
            write_predictions(directory.path, {file_name(one, alone=len(scored) == 1): one for one in predictions})
        directory.write_result(result)
        root = short_path(directory.path.parent.parent)
        commands = [f"lmtransfer report {root}"]
        print_result(console, result.values(), name=parent.name, next_commands=commands, metrics=task.metric_names)
    return directory.path


def _members(path: str, *, trust: bool) -> tuple[list[SavedRun], list[SavedRun], Path]:
    """Return the runs to score (the run itself, or its seeds), those of its control, and the folder that holds all."""
    folders, parent = task_run_folders(path), run_folder(path, key="run").path
    members = [open_saved(folder, key="run", trust=trust) for folder in folders]
    is_final = members[0].config.get("final")  # its control was trained on fewer examples
    controls = [] if is_final else folders_with_checkpoints(parent / "control")
    return members, [open_saved(folder, key="run", trust=trust) for folder in controls], parent


def _score(saved: SavedRun, scoring: _Scoring) -> tuple[SeedResult, Predictions | None]:
    """Return the metrics of one run, and its predictions (None if predictions are not kept)."""
    task, hardware = scoring.task, scoring.hardware
    learner = open_task_learner(saved, task, hardware)
    encoder = learner.encoder
    encoded = encode_split(task, scoring.examples, saved.tokenizer, encoder, split=scoring.split)
    start_time = time.monotonic()
    evaluation = evaluate(
        learner, task, TaskSource(encoded), device=hardware.device, autocast=hardware.precision.autocast, keep=True
    )
    check_not_nan(evaluation.outputs, what=f"the predictions of {short_path(saved.path)}")
    seed, pretraining = saved.config.get("seed"), pretraining_seed(saved)
    trained = saved.directory.read_result().more if saved.directory.is_finished else {}
    result = SeedResult(
        command="evaluate",
        task=task.name,
        task_fingerprint=evaluation.task_fingerprint,
        split=scoring.split,
        metrics=evaluation.metrics,
        main_metric=task.main_metric,
        seconds=time.monotonic() - start_time,
        tokens=int(encoded.lengths.sum()),
        num_parameters=num_parameters(learner),
        seed=seed,
        pretraining_seed=pretraining,
        collapsed=evaluation.collapsed,
        more={
            "num_truncated": encoded.num_truncated,
            "deterministic": bool(trained.get("deterministic")),
            **evaluation.entries,
            **layer_weights(learner),
        },
    )
    if evaluation.answers is None:
        return result, None
    return result, Predictions(
        task=task.name,
        split=scoring.split,
        main_metric=task.main_metric,
        seed=seed,
        pretraining_seed=pretraining,
        is_control=False,
        examples=evaluation.answers,
    )


def _notes(member: SavedRun, scoring: _Scoring, result: SeedResult, *, own_task: bool) -> list[str]:
    """Return what makes the score incomparable: texts that the run was trained on, and a split that has changed."""
    notes: list[str | None] = []
    if own_task and member.directory.is_finished:
        trained = member.directory.read_result()
        fingerprints = {trained.task_fingerprint, result.task_fingerprint}
        if trained.split == scoring.split and None not in fingerprints and len(fingerprints) > 1:
            notes.append(
                f"split {scoring.split} of {scoring.task.name} has changed since the run was scored on it after "
                "training, so the two scores are not of the same examples"
            )
    if scoring.split != "train" or not own_task:
        notes.append(repeated_texts(_training_examples(member), scoring.examples, split=scoring.split))
    return [note for note in notes if note]


def _training_examples(member: SavedRun) -> Sequence[Example]:
    """Return the examples that the run was trained on; none if their files are missing or may not be read."""
    if not member.trusted:
        return ()
    try:
        task = task_of(member)
        splits = [split for split in ("train", "dev") if split == "train" or member.config.get("final")]
        files = [split for split in splits if split in task.splits and Path(task.origin(split)).exists()]
        return [example for split in files for example in task.examples(split)]
    except LmtransferError:  # the file is missing or has changed
        return ()


def _joint(
    results: list[SeedResult],
    controls: list[SeedResult],
    member: SavedRun,
    scoring: _Scoring,
    predictions: list[Predictions],
) -> JointResult:
    """Return the result over seeds, including the control's if there is one."""
    first, majority = results[0], _majority(member, scoring)
    joint: dict[str, Any] = {
        "command": "evaluate",
        "task": scoring.task.name,
        "task_fingerprint": first.task_fingerprint,
        "split": scoring.split,
        "main_metric": first.main_metric,
        **summary(results),
        "control": summary(controls) if controls else None,
        "majority": majority,
        "seconds": sum(result.seconds or 0.0 for result in results),
        "tokens": sum(result.tokens or 0 for result in results),
        "num_parameters": first.num_parameters,
        "labels": list(scoring.task.labels),
        "num_scored": len(scoring.examples),
        "num_truncated": {scoring.split: first.more["num_truncated"]},
    }
    if member.config.get("final") and member.directory.is_finished:
        joint["final"] = final_entry(member.directory.read_result())
    if controls:
        whole = len(predictions) == len(results) + len(controls)
        conditions = (predictions[: len(results)], predictions[len(results) :]) if whole else ([], [])
        examples, control_examples = (examples_of(condition, first.main_metric) for condition in conditions)
        control = condition_of(controls, examples=control_examples)
        joint["difference"] = compare(results, control, majority, examples=examples)
    return JointResult.of(joint)


def _majority(member: SavedRun, scoring: _Scoring) -> dict[str, float] | None:
    """Return the metrics of always predicting the most common training label; None if the run's result lacks them."""
    task = scoring.task
    majority_label = member.directory.read_result().more.get("majority_label") if member.directory.is_finished else None
    if majority_label not in task.labels:
        return None
    answer = LabelAnswer(label=task.labels.index(majority_label), name=majority_label)
    return task.score(scoring.examples, [answer] * len(scoring.examples))


def _default_name(path: Path, task: str, split: str, *, own_task: bool) -> str:
    """Return a name such as ``finetune-imdb-ft-test``; it contains the task's name if the task is not the run's own."""
    parts = path.parts[-4:]
    start = max((i for i, part in enumerate(parts) if part in ("probe", "finetune")), default=len(parts) - 1)
    return "-".join([*parts[start:], *([] if own_task else [task]), split])
