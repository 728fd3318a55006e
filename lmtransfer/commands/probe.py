"""Train a head over a frozen encoder, to see what pretraining has put into it."""

from __future__ import annotations

from pathlib import Path

from omegaconf import DictConfig

from lmtransfer.transfer.experiment.experiment import run_transfer
from lmtransfer.transfer.experiment.messages import print_sweep


def run(cfg: DictConfig) -> Path:
    """Train and write a run directory.

    Returns:
        The run directory.
    """
    return run_transfer(cfg, command="probe")


def after_sweep(run_dirs: list[Path]) -> None:
    """Print one table over the points of a sweep."""
    print_sweep(run_dirs)
