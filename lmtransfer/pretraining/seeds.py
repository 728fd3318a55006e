"""Pretrain several times with different seeds: one folder for each seed, and one result over all seeds."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from omegaconf import DictConfig, open_dict
from rich import box
from rich.table import Table

from lmtransfer.config.plain import resolved
from lmtransfer.pretraining.run import TEXT_PATHS, pretrain
from lmtransfer.pretraining.text import with_absolute_paths
from lmtransfer.reporting.units import shown
from lmtransfer.runs.result import RunResult, largest
from lmtransfer.runs.resume import check_resumable, use_saved_config
from lmtransfer.runs.run_directory import RunDirectory
from lmtransfer.runs.tracking import tracked
from lmtransfer.runs.training import TrainingSetup
from lmtransfer.system.console import Console
from lmtransfer.system.printable import short_path
from lmtransfer.tokenizers.load import load_tokenizer
from lmtransfer.training import distributed


def pretrain_seeds(cfg: DictConfig, name: str, setup: TrainingSetup, *, resume: bool) -> Path:
    """Train with the seeds ``seed`` to ``seed + seeds - 1``, and write one run directory with a folder for each seed.

    Args:
        cfg: the checked config of the command; its ``seeds`` is more than 1.
        name: name of the run.
        setup: budget, schedule, batch sizes and hardware.
        resume: resume a run of this name; it may have had fewer seeds.

    Returns:
        The run directory.

    Raises:
        RunDirectoryError: the run exists and ``resume`` is false.
        ConfigError: a setting changed that may not change on resume.
    """
    use_saved_config(cfg, RunDirectory(Path(cfg.output_root) / "pretrain" / name))
    plain = with_absolute_paths(resolved(cfg))
    directory = RunDirectory.create(cfg.output_root, "pretrain", name, resume=resume)
    if directory.config_path.is_file():
        started = directory.read_config()
        several = isinstance(started.get("seeds"), int) and started["seeds"] > 1
        # Each seed checks its text itself, wherever the text is.
        check_resumable(started, plain, allowed=[*TEXT_PATHS, *(["seeds"] if several else [])])
    directory.write_config(plain)
    runs = []
    for seed in range(cfg.seed, cfg.seed + cfg.seeds):
        own = cfg.copy()
        with open_dict(own):
            own.seed, own.seeds = seed, 1
        if distributed.is_main():
            print(f"\npretraining seed {seed}, {seed - cfg.seed + 1} of {cfg.seeds}", flush=True)
        runs.append(pretrain(own, f"{name}/seed-{seed}", setup, resume=True))
    distributed.barrier()  # rank 0 writes the results that all ranks read
    if distributed.is_main():
        load_tokenizer(runs[0].tokenizer).save(directory.tokenizer)
    directory.write_versions(runs[0].read_versions())
    seeds = range(cfg.seed, cfg.seed + cfg.seeds)
    result = joint_result({seed: run.read_result() for seed, run in zip(seeds, runs, strict=True)})
    directory.write_result(result)
    with tracked(setup.trackers, directory, quiet=True) as trackers:
        trackers.finish(result)
    if distributed.is_main():
        _print(result, directory.path, Path(cfg.output_root), Console(highlight=False))
    return directory.path


def joint_result(results: Mapping[int, RunResult]) -> RunResult:
    """The result over seeds: means of the metrics, sums of seconds and tokens, largest memory, result of each seed.

    Args:
        results: the result of each seed, by seed.
    """
    each = list(results.values())
    first, metric = each[0], each[0].main_metric
    values = [float(result.metrics[metric]) for result in each] if metric else []
    spread = (
        {
            "mean": statistics.fmean(values),
            "median": statistics.median(values),
            "deviation": statistics.stdev(values) if len(values) > 1 else None,
        }
        if values
        else {}
    )
    return replace(
        first,
        metrics={
            name: statistics.fmean(result.metrics[name] for result in each)
            for name in first.metrics
            if all(name in result.metrics for result in each)
        },
        seconds=sum(float(result.seconds or 0) for result in each),
        tokens=sum(float(result.tokens or 0) for result in each),
        more={
            **first.more,
            **largest(each, "peak_memory"),
            **{
                key: statistics.fmean(result.more[key] for result in each)
                for key in ("checkpoint_step", "steps", "epochs")
            },
            "seeds": [
                {"seed": seed, "metrics": result.metrics, "tokens": result.tokens, "seconds": result.seconds}
                for seed, result in results.items()
            ],
            "n": len(results),
            **spread,
        },
    )


def _print(result: RunResult, path: Path, output_root: Path, console: Console) -> None:
    """Print one row for each seed, and the commands to run next."""
    metric = result.main_metric
    if metric:
        table = Table("seed", f"validation {metric}", box=box.SIMPLE_HEAD)
        for seed in result.more["seeds"]:
            table.add_row(str(seed["seed"]), shown(seed["metrics"][metric], metric))
        deviation, mean = result.more["deviation"], shown(result.more["mean"], metric)
        table.add_row("mean", mean if deviation is None else f"{mean} +- {shown(deviation, metric)}", style="bold")
        console.print(table)
    run = short_path(path)
    console.print(
        f"next, transfer each seed: lmtransfer finetune init={run} task=sst2 seeds=5 control=true\n"
        f"                          lmtransfer report {short_path(output_root.absolute())}",
        soft_wrap=True,
    )
