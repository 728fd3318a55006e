"""Show what the model sees of a corpus or a task, and what training would cost."""

from __future__ import annotations

from omegaconf import DictConfig

from lmtransfer.config.check import check
from lmtransfer.inference.inspection.pretraining import inspect_pretraining
from lmtransfer.inference.inspection.task import inspect_task
from lmtransfer.pretraining.checks import check_pretraining
from lmtransfer.system.console import Console


def run(cfg: DictConfig) -> None:
    """Print the full report; nothing is written to disk except the corpus cache."""
    console = Console(highlight=False)
    if cfg.get("task") is not None:
        check(cfg, primary="inspect", nodes={"task": {"data_root", "cache_dir"}})
        inspect_task(cfg, console)
        return
    check_pretraining(cfg, primary="inspect")
    inspect_pretraining(cfg, console)
