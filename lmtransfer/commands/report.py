"""Compare all results in tables and figures, and say whether pretraining helped."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from lmtransfer.config.settings import ReportSettings
from lmtransfer.errors import ConfigError, RunDirectoryError
from lmtransfer.inference.inspection.example_texts import TaskTexts
from lmtransfer.reporting.page.report import find_sections
from lmtransfer.reporting.records import FILES
from lmtransfer.reporting.runs.collect import collect
from lmtransfer.reporting.runs.entries import make_entries
from lmtransfer.reporting.runs.sweeps import find_sweeps
from lmtransfer.reporting.table import report_console
from lmtransfer.reporting.write import print_report, write_report


def run(settings: ReportSettings) -> Path:
    """Read the runs, print the table, and write the report: report.html, .md and .json, figures/, a ``format`` file."""
    if settings.watch:
        return _watch(settings.runs)
    folders = [settings.runs] if isinstance(settings.runs, str) else settings.runs
    roots = [Path(root).expanduser() for root in folders]
    entries = make_entries(collect(*roots), margin=settings.margin)
    if not settings.verdicts:
        entries = [entry.without_verdicts() for entry in entries]
    sweeps = find_sweeps(entries)
    folder = Path(os.path.commonpath([root.resolve() for root in roots])) / "report"
    if settings.to is not None:
        folder = Path(settings.to).expanduser()
    for target in [folder / "figures", *([folder] if settings.to is None else [])]:
        if target.is_symlink():
            raise RunDirectoryError(
                f"{target} is a link, so the report would be written to another place: delete the link, or "
                "choose another folder with to=<folder>"
            )
    write_report(
        entries,
        sweeps,
        folder,
        title=settings.title,
        figures=settings.figures,
        sections=[section if settings.verdicts else replace(section, sentence="") for section in find_sections(roots)],
        texts=TaskTexts(data_root=settings.data_root),
        records=settings.format,
    )
    console = report_console()
    print_report(entries, sweeps, console)
    if settings.format is not None:
        kind = "Table" if settings.format == "latex" else "Records"
        console.print(f"{kind}: {folder / FILES[settings.format]}", markup=False, soft_wrap=True)
    console.print(f"Page with figures, settings and versions: {folder / 'report.html'}", markup=False, soft_wrap=True)
    return folder


def _watch(study: str | Sequence[str]) -> Path:
    if not isinstance(study, str):
        raise ConfigError(f"runs={list(study)}: watch=true follows one study; set its folder, runs/study/<name>")
    from lmtransfer.study.progress import watch  # imports torch, which most reports do not need

    folder = Path(study).expanduser()
    watch(folder, report_console())
    return folder
