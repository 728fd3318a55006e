"""Score a pretraining run on minimal pairs of sentences, without training."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, cast

import numpy as np
from omegaconf import DictConfig, OmegaConf, open_dict
from rich import box
from rich.table import Table

from lmtransfer.config.build import build
from lmtransfer.config.sweep import in_sweep, sweep_name
from lmtransfer.importing.opening import open_saved
from lmtransfer.kept_predictions.file import file_name, is_kept, write_predictions
from lmtransfer.kept_predictions.scored import Kept
from lmtransfer.objectives.base import Objective
from lmtransfer.reporting.units import shown
from lmtransfer.runs.result import RunResult
from lmtransfer.runs.run_directory import RunDirectory
from lmtransfer.runs.saved import SavedRun, pretraining_seed
from lmtransfer.runs.training import eager_hardware
from lmtransfer.runs.versions import versions
from lmtransfer.system.console import Console
from lmtransfer.system.printable import short_path
from lmtransfer.tasks.file_formats.blimp import MinimalPair
from lmtransfer.tasks.text.minimal_pairs import CHANCE, MinimalPairs
from lmtransfer.training import distributed
from lmtransfer.training.hardware import Hardware
from lmtransfer.training.weights import num_parameters
from lmtransfer.zero_shot.pretrained import Pretrained, open_pretrained, token_predictor
from lmtransfer.zero_shot.sentence_log_probability import SentenceScorer, SentenceScores


def evaluate_zero_shot(cfg: DictConfig) -> Path:
    """Score a pretraining run on minimal pairs and write a run directory.

    Args:
        cfg: the checked config of ``evaluate``; its ``run`` is a pretraining run, its ``task`` has minimal pairs.

    Returns:
        The run directory.

    Raises:
        ConfigError: the run's objective gives no token probabilities.
    """
    saved = open_saved(cfg.run, key="run", trust=cfg.trust)
    hardware = eager_hardware(cfg)
    task: MinimalPairs = build(
        cfg.task, data_root=cfg.data_root or (saved.config.get("data_root") if saved.trusted else None)
    )
    with distributed.process_group():
        pretrained = open_pretrained(saved, hardware=hardware)
        predictor = token_predictor(pretrained.learner)
        pairs = task.examples(cfg.split)
        start_time = time.monotonic()
        scores = _scores(pairs, task, saved, pretrained, predictor, hardware)
        seconds = time.monotonic() - start_time
        with open_dict(cfg):
            cfg.run = str(saved.path)
        name = sweep_name(cfg.name or f"pretrain-{saved.path.name}-{task.name}-{cfg.split}")
        directory = RunDirectory.create(cfg.output_root, "evaluate", name, resume=cfg.overwrite or in_sweep())
        directory.write_config(cast("dict[str, Any]", OmegaConf.to_container(cfg, resolve=True)))
        directory.write_versions(versions())
        good_and_bad = scores.log_probabilities.reshape(-1, 2)
        result = RunResult(
            command="evaluate",
            task=task.name,
            split=cfg.split,
            metrics=task.score(pairs, ((good, bad) for good, bad in good_and_bad.tolist())),
            main_metric=task.main_metric,
            seconds=seconds,
            tokens=scores.num_tokens,
            num_parameters=num_parameters(pretrained.learner),
            more={
                "zero_shot": _method(predictor, task),
                "pretraining_seed": pretraining_seed(saved),
                "higher_is_better": True,
                "chance": CHANCE,
                "num_scored": len(pairs),
                "num_sentences": 2 * len(pairs),
                "num_paradigms": len({pair.paradigm for pair in pairs}),
                "num_ties": int((good_and_bad[:, 0] == good_and_bad[:, 1]).sum()),
            },
        )
        kept = Kept(
            task=task.name,
            split=cfg.split,
            main_metric=task.main_metric,
            seed=None,
            pretraining_seed=pretraining_seed(saved),
            is_control=False,
            examples=task.scored_examples(pairs, [(good, bad) for good, bad in good_and_bad.tolist()]),
        )
        if distributed.is_main() and is_kept(kept.examples):
            write_predictions(directory.path, {file_name(kept, alone=True): kept})
        directory.write_result(result)
        if distributed.is_main():
            _print(result.values(), saved, directory, Console(highlight=False))
    return directory.path


def _scores(
    pairs: list[MinimalPair],
    task: MinimalPairs,
    saved: SavedRun,
    pretrained: Pretrained,
    predictor: Objective,
    hardware: Hardware,
) -> SentenceScores:
    """The scores of the sentences: good and bad of each pair alternate; each rank scores a share of the pairs."""
    scorer = SentenceScorer(
        predictor=predictor,
        tokenizer=saved.tokenizer,
        frame=pretrained.frame,
        hidden=task.hidden,
        device=hardware.device,
        autocast=hardware.precision.autocast,
    )
    rank, world_size = distributed.rank(), distributed.world_size()
    own = pairs[rank::world_size]
    parts = distributed.gather(scorer.score([sentence for pair in own for sentence in (pair.good, pair.bad)]))
    together = np.zeros((len(pairs), 2))
    for number, part in enumerate(parts):
        together[number::world_size] = part.log_probabilities.reshape(-1, 2)
    return SentenceScores(together.reshape(-1), sum(part.num_tokens for part in parts))


def _method(predictor: Objective, task: MinimalPairs) -> str:
    """A description of the scoring method."""
    if predictor.predicts != "masked":
        return f"log-probability by {predictor.name}"
    return f"pseudo-log-likelihood by {predictor.name}, hidden: {task.hidden}"


def _print(result: dict[str, Any], saved: SavedRun, directory: RunDirectory, console: Console) -> None:
    title = f"{result['task']}, {result['split']}: accuracy (%) of {result['num_scored']:,} pairs"
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE)
    table.add_column("")
    table.add_column("", justify="right")
    table.add_row("chance", shown(result["chance"], "accuracy"))
    metrics = result["metrics"]
    table.add_row(saved.path.name, shown(metrics["accuracy"], "accuracy"), style="bold")
    for name, value in metrics.items():
        kind, _, rest = name.partition("/")
        if kind == "phenomenon":
            table.add_row(f"  {rest.removesuffix('/accuracy')}", shown(value, "accuracy"))
    console.print(table)
    ties = f"; {result['num_ties']:,} ties, which count as wrong" if result["num_ties"] else ""
    console.print(f"{result['num_paradigms']} paradigms, {result['zero_shot']}{ties}", soft_wrap=True)
    console.print(f"next: lmtransfer report {short_path(directory.path.parent.parent)}", soft_wrap=True)
