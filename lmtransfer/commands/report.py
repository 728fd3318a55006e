"""Compare all results in tables and figures, and say whether pretraining helped."""

from __future__ import annotations

import os
from pathlib import Path

from omegaconf import DictConfig

from lmtransfer.config.check import check
from lmtransfer.reporting.collect import collect
from lmtransfer.reporting.entries import make_entries
from lmtransfer.reporting.sweeps import find_sweeps
from lmtransfer.reporting.terminal import print_report, report_console
from lmtransfer.reporting.write import write_report


def run(cfg: DictConfig) -> Path:
    """Read the runs, print the table, and write report.html, report.md, report.json and figures/.

    Returns:
        The folder of the report.

    Raises:
        ConfigError: an unknown key.
        RunDirectoryError: no runs there, or the report cannot be written.
    """
    check(cfg, primary="report")
    roots = [Path(cfg.runs)] if isinstance(cfg.runs, str) else [Path(str(root)) for root in cfg.runs]
    entries = make_entries(collect(*roots))
    sweeps = find_sweeps(entries)
    folder = Path(cfg.to) if cfg.to else Path(os.path.commonpath([root.resolve() for root in roots])) / "report"
    write_report(entries, sweeps, folder, title=cfg.title, figures=cfg.figures)
    console = report_console()
    print_report(entries, sweeps, console)
    console.print(f"With figures, configurations and versions: {folder / 'report.html'}", markup=False, soft_wrap=True)
    return folder
