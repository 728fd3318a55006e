"""Pretrain an encoder on raw text."""

from __future__ import annotations

from pathlib import Path

from omegaconf import DictConfig

from lmtransfer.config.budget import effective_train
from lmtransfer.config.phases import phases_of
from lmtransfer.config.settings import TrainSettings
from lmtransfer.config.sweep import in_sweep, sweep_name
from lmtransfer.pretraining.checks import check_pretraining
from lmtransfer.pretraining.run import pretrain
from lmtransfer.pretraining.save_points import check_reached
from lmtransfer.pretraining.seeds import pretrain_seeds
from lmtransfer.reporting.render.terminal import report_console, sweep_table, terminal_table
from lmtransfer.reporting.runs.collect import read_run
from lmtransfer.reporting.runs.entries import make_entries
from lmtransfer.reporting.runs.rows import table_rows
from lmtransfer.reporting.runs.sweeps import make_sweep
from lmtransfer.runs.training import TrainingSetup, training_hardware
from lmtransfer.training import distributed


def run(cfg: DictConfig) -> Path:
    """Train and write a run directory; with several seeds it has a folder for each.

    Returns:
        The run directory.
    """
    train = check_settings(cfg)
    name = sweep_name(cfg.name)
    hardware = training_hardware(cfg, run=Path(cfg.output_root) / "pretrain" / name, compile_by_itself=True)
    setup = TrainingSetup.of(cfg, train, hardware)
    with distributed.process_group():
        resume = bool(cfg.resume) or in_sweep()
        if cfg.seeds > 1:
            return pretrain_seeds(cfg, name, setup, resume=resume)
        return pretrain(cfg, name, setup, resume=resume).path


def check_settings(cfg: DictConfig) -> TrainSettings:
    """Check the settings of a run before any work.

    Returns:
        The budget and the batch sizes.

    Raises:
        ConfigError: lists all problems.
    """
    check_pretraining(cfg, primary="pretrain")
    train = effective_train(cfg, primary="pretrain")
    check_reached(train, phases_of(cfg))
    return train


def after_sweep(run_dirs: list[Path], failed: list[str]) -> None:
    """Print one table over the points of a sweep, with the labels of those that failed."""
    folder = run_dirs[0].parent
    entries = make_entries([read_run(path, key=f"{folder.name}/{path.name}") for path in run_dirs])
    sweep = make_sweep(folder.name, entries)
    if sweep is not None:
        table = sweep_table(sweep, failed=failed)
    else:
        table = terminal_table(table_rows(entries))
        for label in failed:
            table.add_row(label, "", "failed")
    report_console().print(table)
