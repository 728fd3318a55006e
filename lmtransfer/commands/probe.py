"""Train a head on a frozen encoder, to measure what the encoder has learned in pretraining."""

from __future__ import annotations

from pathlib import Path

from omegaconf import DictConfig

from lmtransfer.config.budget import effective_train
from lmtransfer.transfer.experiment.checks import check_transfer
from lmtransfer.transfer.experiment.messages import print_sweep
from lmtransfer.transfer.experiment.run_transfer import run_transfer


def run(cfg: DictConfig) -> Path:
    """Train and write a run directory.

    Returns:
        The run directory.
    """
    return run_transfer(cfg, command="probe")


def check_settings(cfg: DictConfig) -> None:
    """Check the settings of a run before any work.

    Raises:
        ConfigError: lists all problems.
    """
    check_transfer(cfg, "probe")
    effective_train(cfg, primary="probe")


def after_sweep(run_dirs: list[Path], failed: list[str]) -> None:
    """Print one table over the points of a sweep, with the labels of those that failed."""
    print_sweep(run_dirs, failed)
