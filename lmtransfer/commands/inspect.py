"""Show what the model sees of a corpus or a task, and what training would cost."""

from __future__ import annotations

from omegaconf import DictConfig

from lmtransfer.config.check import check
from lmtransfer.config.ranges import Range
from lmtransfer.errors import ConfigError
from lmtransfer.inspection.pretraining import inspect_pretraining
from lmtransfer.inspection.task import inspect_task
from lmtransfer.pretraining.checks import check_pretraining
from lmtransfer.system.console import Console

#: The limits of some numbers: finding an epoch counts the steps of all earlier ones, and the output is read by people.
_RANGES = {
    "rows": Range(0, 10_000),
    "strips": Range(0, 10_000),
    "sample": Range(1, 1_000_000),
    "epoch": Range(0, 1_000),
}


def run(cfg: DictConfig) -> None:
    """Print everything; only the cache of the corpus is written.

    Raises:
        ConfigError: lists every problem of the config.
        DataError: a corpus or a split is missing, empty or malformed.
    """
    console = Console(highlight=False)
    if cfg.get("task") is not None:
        check(cfg, primary="inspect", nodes={"task": {"data_root", "cache_dir"}})
        _check_numbers(cfg)
        inspect_task(cfg, console)
        return
    check_pretraining(cfg, primary="inspect")
    _check_numbers(cfg)
    inspect_pretraining(cfg, console)


def _check_numbers(cfg: DictConfig) -> None:
    """Refuse numbers that would take too long.

    Raises:
        ConfigError: lists all problems.
    """
    problems = [
        f"{key}={cfg[key]} is out of range: it must be {allowed}"
        for key, allowed in _RANGES.items()
        if not allowed.holds(cfg[key])
    ]
    if problems:
        raise ConfigError(problems)
