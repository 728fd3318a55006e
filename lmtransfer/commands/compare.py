"""Compare two runs, or two groups of runs: the difference, its verdict, and the examples that differ."""

from __future__ import annotations

from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from lmtransfer.config.check import check
from lmtransfer.reporting.comparison.comparison import add_margin
from lmtransfer.reporting.comparison.page import print_comparison, write_comparison
from lmtransfer.reporting.comparison.pretraining import compare_pretrainings
from lmtransfer.reporting.comparison.sides import read_sides
from lmtransfer.reporting.comparison.task import compare_sides
from lmtransfer.reporting.table import report_console


def run(cfg: DictConfig) -> Path:
    """Read both sides, print the comparison, and write its page."""
    check(cfg, primary="compare")
    runs = [str(path) for path in cfg.runs] if OmegaConf.is_list(cfg.runs) else [str(cfg.runs)]
    one, other = read_sides(runs)
    comparison = add_margin(
        (compare_pretrainings if one.first.is_pretraining else compare_sides)(one, other), cfg.margin
    )
    console = report_console()
    print_comparison(comparison, console, most=cfg.most)
    path = write_comparison(comparison, None if cfg.to is None else Path(str(cfg.to)).expanduser(), most=cfg.most)
    content = "everything" if comparison.flips is None else "all flipped examples"
    console.print(f"Page, with {content} in a .json file next to it: {path}", markup=False, soft_wrap=True)
    return path.parent
