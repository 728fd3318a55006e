"""What is wrong with a composed configuration."""

from __future__ import annotations

from omegaconf import DictConfig

from lmtransfer.config.effective import complete_values
from lmtransfer.errors import ConfigError
from lmtransfer.launch.run_once import settings_of


def problems(command: str, cfg: DictConfig) -> list[str]:
    """What a command would say about a configuration before it works, but for what depends on the data."""
    try:
        complete_values(cfg, command)
        settings_of(command, cfg)
    except ConfigError as error:
        return error.problems
    return []
