"""The numbers that say how much ``inspect`` shows."""

from __future__ import annotations

from omegaconf import DictConfig

from lmtransfer.config.ranges import Range
from lmtransfer.errors import ConfigError

#: An epoch is found by counting the steps of those before it, and what is shown is read by people.
_RANGES = {
    "rows": Range(0, 10_000),
    "strips": Range(0, 10_000),
    "sample": Range(1, 1_000_000),
    "epoch": Range(0, 1_000),
}


def check_numbers(cfg: DictConfig) -> None:
    """Refuse numbers that would take for ever.

    Raises:
        ConfigError: with all problems.
    """
    problems = [
        f"{key}={cfg[key]} is out of range: {allowed}"
        for key, allowed in _RANGES.items()
        if not allowed.holds(cfg[key])
    ]
    if problems:
        raise ConfigError(problems)
