"""Compare all results in tables and figures, and say whether pretraining helped."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from lmtransfer.config.check import check
from lmtransfer.errors import ConfigError, RunDirectoryError
from lmtransfer.inference.inspection.example_texts import TaskTexts
from lmtransfer.reporting.page.report import find_sections
from lmtransfer.reporting.records import FILES
from lmtransfer.reporting.runs.collect import collect
from lmtransfer.reporting.runs.entries import make_entries
from lmtransfer.reporting.runs.sweeps import find_sweeps
from lmtransfer.reporting.table import report_console
from lmtransfer.reporting.write import print_report, write_report


def run(cfg: DictConfig) -> Path:
    """Read the runs, print the table, and write the report: report.html, .md and .json, figures/, a ``format`` file."""
    check(cfg, primary="report")
    if cfg.watch:
        return _watch(cfg)
    folders = cfg.runs if OmegaConf.is_list(cfg.runs) else [cfg.runs]
    roots = [Path(str(root)).expanduser() for root in folders]
    entries = make_entries(collect(*roots), margin=cfg.margin)
    if not cfg.verdicts:
        entries = [entry.without_verdicts() for entry in entries]
    sweeps = find_sweeps(entries)
    folder = Path(os.path.commonpath([root.resolve() for root in roots])) / "report"
    if cfg.to is not None:
        folder = Path(str(cfg.to)).expanduser()
    for target in [folder / "figures", *([folder] if cfg.to is None else [])]:
        if target.is_symlink():
            raise RunDirectoryError(
                f"{target} is a link, so the report would be written to another place: delete the link, or "
                "choose another folder with to=<folder>"
            )
    write_report(
        entries,
        sweeps,
        folder,
        title=cfg.title,
        figures=cfg.figures,
        sections=[section if cfg.verdicts else replace(section, sentence="") for section in find_sections(roots)],
        texts=TaskTexts(data_root=cfg.data_root),
        records=cfg.format,
    )
    console = report_console()
    print_report(entries, sweeps, console)
    if cfg.format is not None:
        kind = "Table" if cfg.format == "latex" else "Records"
        console.print(f"{kind}: {folder / FILES[cfg.format]}", markup=False, soft_wrap=True)
    console.print(f"Page with figures, settings and versions: {folder / 'report.html'}", markup=False, soft_wrap=True)
    return folder


def _watch(cfg: DictConfig) -> Path:
    if OmegaConf.is_list(cfg.runs):
        raise ConfigError(f"runs={list(cfg.runs)}: watch=true follows one study; set its folder, runs/study/<name>")
    from lmtransfer.study.progress import watch  # imports torch, which most reports do not need

    folder = Path(str(cfg.runs)).expanduser()
    watch(folder, report_console())
    return folder
