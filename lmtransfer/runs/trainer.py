"""The trainer that every training command assembles."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import nn

from lmtransfer.config.build import build
from lmtransfer.config.schema import TrainSettings
from lmtransfer.data.stream.stream import PlannedStream
from lmtransfer.runs.run_directory import RunDirectory
from lmtransfer.training.budget import Budget
from lmtransfer.training.hardware import Hardware
from lmtransfer.training.loop import Trainer
from lmtransfer.training.model_selection import ModelSelection
from lmtransfer.training.optim.optimizers import Optimizer
from lmtransfer.training.progress import Progress
from lmtransfer.training.trackers import Jsonl, Tracker
from lmtransfer.training.watchers import Watcher


def build_optimizer(node: Mapping[str, Any], learner: nn.Module) -> Optimizer:
    """The optimiser of a pretraining: ours take the learner, those of ``torch.optim`` its parameters.

    Raises:
        ConfigError: the node is not allowed or does not fit.
    """
    made: Optimizer = build(node, learner=learner, params=[p for p in learner.parameters() if p.requires_grad])
    return made


def make_trainer(
    *,
    learner: nn.Module,
    stream: PlannedStream,
    optimizer: Optimizer,
    schedule: Mapping[str, Any],
    tracker: Mapping[str, Any],
    train: TrainSettings,
    hardware: Hardware,
    seed: int,
    run: RunDirectory | None,
    evaluate: Callable[[], dict[str, float]] | None,
    eval_every: int | None,
    selection: ModelSelection | None,
    progress: Progress,
    watchers: Sequence[Watcher] = (),
) -> Trainer:
    """A trainer by the settings ``train`` and ``hardware``.

    Args:
        learner: on its device already.
        stream: its optimiser steps.
        optimizer: of its parameters.
        schedule: component node.
        tracker: component node.
        train: budget, and what happens how often.
        hardware: where to compute.
        seed: of dropout.
        run: where checkpoints and metrics go; None keeps nothing.
        evaluate: measures the learner on held-out data.
        eval_every: steps between evaluations; None evaluates at the end only.
        selection: which evaluation is best; None saves no ``best``.
        progress: what the user sees.
        watchers: look at every step.
    """
    return Trainer(
        learner=learner,
        stream=stream,
        optimizer=optimizer,
        schedule=build(schedule),
        budget=Budget(
            steps=train.steps,
            tokens=train.tokens,
            epochs=train.epochs,
            seconds=train.seconds,
            steps_per_epoch=stream.steps_per_epoch if train.epochs else None,
        ),
        seed=seed,
        device=hardware.device,
        precision=hardware.precision,
        max_grad_norm=train.max_grad_norm,
        evaluate=evaluate,
        eval_every=eval_every,
        selection=selection,
        checkpoints=None if run is None else run.checkpoints,
        save_every=train.save_every,
        trackers=[] if run is None else _trackers(tracker, run),
        log_every=train.log_every,
        progress=progress,
        watchers=watchers,
        set_micro_batch_tokens=stream.set_micro_batch_tokens,
    )


def _trackers(node: Mapping[str, Any], run: RunDirectory) -> list[Tracker]:
    """``metrics.jsonl``, always, and what the user asks for besides."""
    trackers: list[Tracker] = [Jsonl(folder=run.path)]
    if node["_target_"] != f"{Jsonl.__module__}.{Jsonl.__qualname__}":
        trackers.append(build(node, folder=run.path))
    return trackers
