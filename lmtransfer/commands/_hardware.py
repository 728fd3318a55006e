"""Where a command computes that reads each batch once, so that compiling would not pay."""

from __future__ import annotations

from omegaconf import DictConfig

from lmtransfer.config.schema import HardwareSettings
from lmtransfer.training.hardware import Hardware, setup


def eager_hardware(cfg: DictConfig) -> Hardware:
    """The configured hardware, without compilation; see ``training.hardware.setup``."""
    settings = HardwareSettings.from_config(cfg.hardware)
    return setup(device=settings.device, precision=settings.precision, threads=settings.threads, compile=False)
