"""Probed and finetuned runs, loaded as encoder and head, with labels in a task's order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from omegaconf import DictConfig, OmegaConf

from lmtransfer.config.component import build
from lmtransfer.errors import DataError
from lmtransfer.runs.saved import SavedRun, new_encoder
from lmtransfer.runs.trust import restrict_task, strip_data
from lmtransfer.tasks.base import Task
from lmtransfer.training.hardware import Hardware
from lmtransfer.training.weights import read_weights
from lmtransfer.transfer.learner import TaskLearner


def task_of(saved: SavedRun, *, node: DictConfig | None = None, data_root: str | None = None) -> Task:
    """Return the task that a run was trained on, with its training labels, or another task to answer.

    Args:
        saved: the run; if the run is not trusted, its own task has no data.
        node: component node of another task.
        data_root: folder that holds the data folders; None for the folder in the run's config.
    """
    own = saved.component("task", "data_root", "cache_dir")
    if not saved.trusted:
        task_node = OmegaConf.create(strip_data(saved.config["task"])) if node is None else node
        return cast(Task, build(task_node, data_root=data_root, cache_dir=None))
    root = data_root or saved.data_root
    return cast(Task, build(own if node is None else node, data_root=root, cache_dir=saved.config.get("cache_dir")))


def task_to_answer(saved: SavedRun, *, node: DictConfig | None, data_root: str | None) -> Task:
    """Return the task to answer: the user's choice, or the run's own task.

    Args:
        node: component node of the user's task; None for the run's own task.
        data_root: as for ``task_of``.
    """
    if node is None and not saved.trusted:
        node = OmegaConf.create(restrict_task(saved.config["task"], saved.directory, data_root=data_root))
    return task_of(saved, node=node, data_root=data_root)


def open_task_learner(saved: SavedRun, task: Task, hardware: Hardware) -> TaskLearner:
    """Return a run's learner, on the device and in evaluation mode, with outputs in the order of the task's labels.

    Args:
        task: the task to answer; it may be another task with the same label names in any order.

    Raises:
        DataError: the task needs another kind of answer, or has other label names.
        CheckpointError: a tensor is missing or unexpected or has a wrong shape.
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
    """Return the run's index of each of the task's labels, matched by name; None if the order is the same.

    Raises:
        DataError: the names differ.
    """
    if list(run_labels) == list(task_labels):
        return None
    if sorted(run_labels) != sorted(task_labels):
        raise DataError(
            f"the run has the labels {', '.join(run_labels)}, but the task has {', '.join(task_labels)}; labels are "
            "matched by name, so set the same names with task.labels, or choose another task"
        )
    return [list(run_labels).index(label) for label in task_labels]
