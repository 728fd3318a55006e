"""Score a probed or finetuned run on a split of a task; measure a pretraining run on its held-out text."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from omegaconf import DictConfig, OmegaConf, open_dict
from rich.console import Console

from lmtransfer.commands._evaluate_pretrained import evaluate_pretrained
from lmtransfer.commands._runs import SavedRun, new_encoder, open_saved
from lmtransfer.commands._task_data import encode_split
from lmtransfer.commands._task_results import Result, compare, layer_weights, summary
from lmtransfer.commands._task_table import print_result, short
from lmtransfer.config.build import build
from lmtransfer.config.check import check
from lmtransfer.config.schema import HardwareSettings
from lmtransfer.config.sweep import in_sweep, sweep_name
from lmtransfer.errors import DataError, RunDirectoryError
from lmtransfer.metrics.baseline import majority_baseline
from lmtransfer.tasks.base import Example, Task
from lmtransfer.tasks.source import TaskSource
from lmtransfer.training import distributed
from lmtransfer.training.hardware import Hardware, setup
from lmtransfer.training.run_directory import RunDirectory
from lmtransfer.training.versions import versions
from lmtransfer.training.weights import load_weights, read_weights
from lmtransfer.transfer.evaluation import evaluate


@dataclass(frozen=True, slots=True)
class _Scoring:
    """What is scored, and where.

    Attributes:
        task: the task, whose label order counts.
        split: of the task.
        examples: of the split.
        hardware: where to compute.
    """

    task: Task
    split: str
    examples: list[Example]
    hardware: Hardware


def run(cfg: DictConfig) -> Path:
    """Score, and leave a run directory behind.

    Returns:
        The run directory.
    """
    chosen_task = cfg.get("task") is not None
    check(cfg, primary="evaluate", nodes={"task": {"data_root", "cache_dir"}} if chosen_task else {})
    if not chosen_task and _is_pretrained(cfg.run):
        return evaluate_pretrained(cfg)
    members, controls, parent = _members(cfg.run)
    settings = HardwareSettings.from_config(cfg.hardware)
    hardware = setup(device=settings.device, precision=settings.precision, threads=settings.threads, compile=False)
    node = cfg.task if chosen_task else members[0].config["task"]
    data_root = cfg.data_root or members[0].config.get("data_root")
    cache_dir = members[0].config.get("cache_dir")
    task: Task = build(node, data_root=data_root, cache_dir=cache_dir)
    with distributed.process_group():
        console = Console(highlight=False, quiet=not distributed.is_main())
        scoring = _Scoring(task, cfg.split, task.examples(cfg.split), hardware)
        results = [_score(member, scoring) for member in members]
        control_results = [_score(control, scoring) for control in controls]
        with open_dict(cfg):
            cfg.run, cfg.task = str(parent.path), node
        name = sweep_name(cfg.name or _default_name(parent.path, task.name, cfg.split, own_task=not chosen_task))
        directory = RunDirectory.create(cfg.output_root, "evaluate", name, resume=cfg.overwrite or in_sweep())
        directory.write_config(cast("dict[str, Any]", OmegaConf.to_container(cfg, resolve=True)))
        directory.write_versions(versions())
        result = _joint(results, control_results, members[0], scoring)
        directory.write_result(result)
        root = short(directory.path.parent.parent)
        print_result(console, result, name=parent.path.name, next_commands=[f"lmtransfer report {root}"])
    return directory.path


def _is_pretrained(path: str) -> bool:
    """Whether the run was trained on text without labels."""
    config = RunDirectory.open(Path(path).expanduser()).read_config()
    return "objective" in config and "task" not in config


def _members(path: str) -> tuple[list[SavedRun], list[SavedRun], RunDirectory]:
    """The runs to score: the one named, or its seeds; the same for its control.

    Raises:
        RunDirectoryError: no run of a task there, or none that has a checkpoint.
    """
    parent = RunDirectory.open(Path(path).expanduser())
    if "transfer" not in parent.read_config() or "task" not in parent.read_config():
        raise RunDirectoryError(
            f"run={path}: was not trained on a task; give a run of probe or finetune, made by lmtransfer finetune "
            f"init={path}"
        )
    members = _with_seeds(parent.path)
    if not members:
        raise RunDirectoryError(f"run={path}: holds no checkpoint yet; let it finish, or go on with it by resume=true")
    return members, _with_seeds(parent.path / "control"), parent


def _with_seeds(path: Path) -> list[SavedRun]:
    folders = [path] if (path / "checkpoints").is_dir() else []
    if not folders and path.is_dir():
        seeds = [found for found in path.glob("seed-*") if (found / "checkpoints").is_dir()]
        folders = sorted(seeds, key=lambda found: int(found.name.removeprefix("seed-")))
    return [open_saved(folder, key="run") for folder in folders]


def _score(saved: SavedRun, scoring: _Scoring) -> Result:
    """The metrics of one run."""
    task, hardware = scoring.task, scoring.hardware
    labels = _labels_of(saved)
    encoder = new_encoder(saved.model_node, saved.tokenizer, seed=0)
    learner = build(saved.config["transfer"]).learner(encoder, num_labels=len(labels), seed=0)
    load_weights(learner, read_weights(saved.checkpoint()), source=str(saved.checkpoint()))
    encoded = encode_split(task, scoring.examples, saved.tokenizer, encoder, split=scoring.split)
    began = time.monotonic()
    evaluation = evaluate(
        learner.to(hardware.device),
        TaskSource(encoded),
        task.metrics(),
        device=hardware.device,
        autocast=hardware.precision.autocast,
        index_map=match_labels(labels, task.labels),
    )
    return {
        "metrics": evaluation.metrics,
        "main_metric": task.main_metric,
        "higher_is_better": task.metrics()[0].higher_is_better,
        "collapsed": evaluation.collapsed,
        "seed": saved.config.get("seed"),
        "seconds": time.monotonic() - began,
        "tokens": int(encoded.lengths.sum()),
        "num_truncated": encoded.num_truncated,
        "num_parameters": sum(parameter.numel() for parameter in learner.parameters()),
        **layer_weights(learner),
    }


def match_labels(of_run: list[str], of_task: tuple[str, ...]) -> np.ndarray | None:
    """The task's index of each of the run's labels, matched by name; None where they are the same.

    Raises:
        DataError: the names differ.
    """
    if tuple(of_run) == of_task:
        return None
    if sorted(of_run) != sorted(of_task):
        raise DataError(
            f"the run tells apart {', '.join(of_run)}; the task's labels are {', '.join(of_task)}. Labels are matched "
            "by name: name them alike (task.labels), or choose another task"
        )
    return np.array([of_task.index(label) for label in of_run])


def _labels_of(saved: SavedRun) -> list[str]:
    if saved.directory.is_finished:
        return list(saved.directory.read_result()["labels"])
    return list(build(saved.config["task"], data_root=None, cache_dir=None).labels)


def _joint(results: list[Result], controls: list[Result], member: SavedRun, scoring: _Scoring) -> Result:
    """The ``result.json`` over seeds, with the control's if there is one."""
    first, seconds = results[0], sum(result["seconds"] for result in results)
    tokens = sum(result["tokens"] for result in results)
    joint: Result = {
        "command": "evaluate",
        "task": scoring.task.name,
        "split": scoring.split,
        "main_metric": first["main_metric"],
        "higher_is_better": first["higher_is_better"],
        **summary(results),
        "control": summary(controls) if controls else None,
        "majority": _majority(member, scoring),
        "seconds": seconds,
        "tokens": tokens,
        "tokens_per_second": tokens / seconds if seconds else 0.0,
        "num_parameters": first["num_parameters"],
        "labels": list(scoring.task.labels),
        "num_scored": len(scoring.examples),
        "num_truncated": {scoring.split: first["num_truncated"]},
    }
    if controls:
        joint["difference"] = compare(results, controls)
    return joint


def _majority(member: SavedRun, scoring: _Scoring) -> dict[str, float] | None:
    """Metrics of the label that was most frequent in training, where the run says which."""
    task = scoring.task
    said = member.directory.read_result().get("majority_label") if member.directory.is_finished else None
    if said not in task.labels:
        return None
    labels = np.array([example.label for example in scoring.examples])
    answer = np.array([task.labels.index(said)])
    return majority_baseline(answer, labels, task.metrics(), num_labels=len(task.labels))


def _default_name(path: Path, task: str, split: str, *, own_task: bool) -> str:
    """Such as ``finetune-imdb-ft-test``; with the task's name where it is not the run's own."""
    parts = path.parts[-4:]
    start = max((i for i, part in enumerate(parts) if part in ("probe", "finetune")), default=len(parts) - 1)
    return "-".join([*parts[start:], *([] if own_task else [task]), split])
