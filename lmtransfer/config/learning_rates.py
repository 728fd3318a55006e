"""Whether the learning rates of a recipe are searched.

A recipe may name ``learning_rates``, of which held-out examples choose one. A rate on the command line takes their
place, and where no examples but those that are scored could choose, ``optimizer.learning_rate`` is used.
"""

from __future__ import annotations

from collections.abc import Sequence

from omegaconf import DictConfig

from lmtransfer.config.overrides import named_keys


def complete_learning_rates(cfg: DictConfig, *, overrides: Sequence[str] | None = None) -> None:
    """Set ``learning_rates`` to null where one rate is used, so that the saved config is unambiguous.

    Args:
        cfg: the composed configuration; changed in place. Without ``learning_rates`` nothing happens.
        overrides: the ``key=value`` of the command line; by default those of the running command.
    """
    if cfg.get("learning_rates") is None:
        return
    named = named_keys(overrides)
    if "learning_rates" in named:
        return
    if "optimizer.learning_rate" in named or not _holds_out(cfg):
        cfg.learning_rates = None


def _holds_out(cfg: DictConfig) -> bool:
    """Whether other examples than the scored ones can choose; with cross-validation all are scored."""
    task = cfg.get("task")
    if not isinstance(task, DictConfig):
        return True
    return task.get("folds") is None and (task.get("dev_from_train") is not None or cfg.get("split") != "dev")
