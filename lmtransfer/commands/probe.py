"""Train a head on a frozen encoder, to measure what the encoder has learned in pretraining."""

from __future__ import annotations

from pathlib import Path

from omegaconf import DictConfig

from lmtransfer.commands.finetune import check_settings_of, transfer


def run(cfg: DictConfig) -> Path:
    """Train and write a run directory; ``probe`` and ``finetune`` differ only in their defaults."""
    return transfer(cfg, command="probe")


def check_settings(cfg: DictConfig) -> None:
    """Check the settings of a run before any work starts."""
    check_settings_of(cfg, command="probe")
