"""Score a probed or finetuned run on a split of a task; measure a pretraining run on its held-out text."""

from __future__ import annotations

from pathlib import Path

from omegaconf import DictConfig

from lmtransfer.config.check import check
from lmtransfer.config.component import resolve
from lmtransfer.config.in_short import expand_parts
from lmtransfer.errors import ConfigError
from lmtransfer.inference.zero_shot import evaluate_zero_shot
from lmtransfer.interop.importing.opening import is_pretrained
from lmtransfer.pretraining.evaluation import evaluate_pretrained
from lmtransfer.tasks.without_head import TaskWithoutHead
from lmtransfer.transfer.experiment.scoring import evaluate_trained


def run(cfg: DictConfig) -> Path:
    """Score the run and write a run directory.

    Returns:
        The run directory.
    """
    expand_parts(cfg)
    data = {"data_root", "cache_dir"}
    check(cfg, primary="evaluate", nodes={group: data for group in ("task", "corpus") if cfg.get(group) is not None})
    if cfg.get("task") is not None and issubclass(resolve(cfg.task["_target_"], key="task"), TaskWithoutHead):
        return evaluate_zero_shot(cfg)
    return _evaluate_pretraining(cfg) if is_pretrained(cfg.run) else evaluate_trained(cfg)


def _evaluate_pretraining(cfg: DictConfig) -> Path:
    """Measure the losses of a pretraining run, which has no task head.

    Raises:
        ConfigError: a task is given, and it needs a head.
    """
    if cfg.get("task") is not None:
        raise ConfigError(
            f"run={cfg.run}: a pretraining run has no head for task={cfg.task.name}; train one (lmtransfer finetune "
            f"init={cfg.run} task={cfg.task.name}), leave task= out to measure the losses, or give a task that needs "
            "no head (task=blimp, task=sts_zero_shot)"
        )
    return evaluate_pretrained(cfg)
