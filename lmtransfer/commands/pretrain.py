"""Pretrain an encoder on raw text."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from omegaconf import DictConfig, OmegaConf
from rich.console import Console
from rich.table import Table
from torch import nn

from lmtransfer.commands._parts_table import shares_of
from lmtransfer.commands._pretraining import (
    Parts,
    Text,
    build_parts,
    check_pretraining,
    read_text,
    with_absolute_paths,
)
from lmtransfer.commands._validation import validate
from lmtransfer.config.budget import effective_train
from lmtransfer.config.build import build
from lmtransfer.config.schema import HardwareSettings, TrainSettings
from lmtransfer.config.sweep import in_sweep, sweep_name
from lmtransfer.data.mixture import MixedStore
from lmtransfer.data.store import TokenStore
from lmtransfer.data.stream import PlannedStream, evaluation_batches
from lmtransfer.data.token_shares import token_shares
from lmtransfer.layers.transformer import TransformerLayer
from lmtransfer.objectives.learner import PretrainingLearner, needed_reads
from lmtransfer.objectives.source import PretrainingSource
from lmtransfer.randomness import derived_seed
from lmtransfer.reporting.collect import read_run
from lmtransfer.reporting.entries import make_entries
from lmtransfer.reporting.rows import table_rows
from lmtransfer.reporting.sweeps import make_sweep
from lmtransfer.reporting.tables import sweep_table, terminal_table
from lmtransfer.reporting.terminal import report_console
from lmtransfer.training import distributed
from lmtransfer.training.budget import Budget
from lmtransfer.training.evaluation import evaluate_losses
from lmtransfer.training.hardware import Hardware, setup
from lmtransfer.training.loop import Trainer
from lmtransfer.training.model_selection import ModelSelection
from lmtransfer.training.progress import Progress
from lmtransfer.training.resume import check_resumable
from lmtransfer.training.run_directory import RunDirectory
from lmtransfer.training.trackers import Jsonl
from lmtransfer.training.versions import versions
from lmtransfer.training.watchers import UnigramPlateau, Watcher

#: Tokens of a forward pass in validation.
_EVALUATION_MICRO_BATCH = 8192


def run(cfg: DictConfig) -> Path:
    """Train, and leave a run directory behind.

    Returns:
        The run directory.
    """
    nodes = {"optimizer": {"learner", "params"}, "schedule": set[str](), "tracker": {"folder"}}
    check_pretraining(cfg, primary="pretrain", more_nodes=nodes)
    train = effective_train(cfg, primary="pretrain")
    hardware = setup(**_fields(HardwareSettings.from_config(cfg.hardware)))
    with distributed.process_group():
        name = sweep_name(cfg.name)
        resume = cfg.resume or in_sweep()
        plain = with_absolute_paths(cast(dict[str, Any], OmegaConf.to_container(cfg, resolve=True)))
        found = _found(cfg, name, plain, resume=resume)
        if found is not None and found.is_finished:
            print(f"{found.path} is finished; nothing is left to do")
            return found.path
        console = Console(stderr=True, highlight=False, quiet=not distributed.is_main())
        with console.status("reading the corpus"):
            text = read_text(cfg)
        parts = build_parts(cfg, text.tokenizer)
        learner = _learner(parts, seed=cfg.seed, hardware=hardware)
        directory = found or _new_directory(cfg, name, plain, text)
        console.print(_opening(directory, text, parts, hardware, train), soft_wrap=True)
        entropy = _unigram_entropy(text.prepared.train) if "mlm" in cfg.objective.losses else None
        trainer = _trainer(cfg, train, directory, text, parts, learner, hardware, entropy)
        if found is not None:
            trainer.resume()
        state = trainer.train()
        prefix = "validation/"
        metrics = {key.removeprefix(prefix): value for key, value in state.record.items() if key.startswith(prefix)}
        result = {
            "command": "pretrain",
            "task": None,
            "split": "validation" if metrics else None,
            "metrics": metrics,
            "main_metric": "loss" if metrics else None,
            "control": None,
            "seconds": state.seconds,
            "tokens": state.tokens,
            "tokens_per_second": state.tokens / state.seconds,
            "num_parameters": sum(p.numel() for p in cast(nn.Module, parts.encoder).parameters()),
            "steps": state.step,
            "epochs": state.epoch,
            **({} if entropy is None else {"unigram_entropy": entropy}),
        }
        shares = shares_of(text.prepared, text.tokenizer)
        if shares:
            result["parts"] = {name: share.as_dict() for name, share in shares.items()}
        directory.write_result(result)
        if distributed.is_main():
            _closing(directory, result, Path(cfg.output_root), Console(highlight=False))
    return directory.path


def after_sweep(run_dirs: list[Path]) -> None:
    """One table over the points of a sweep."""
    folder = run_dirs[0].parent
    entries = make_entries([read_run(path, key=f"{folder.name}/{path.name}") for path in run_dirs])
    sweep = make_sweep(folder.name, entries)
    report_console().print(terminal_table(table_rows(entries)) if sweep is None else sweep_table(sweep))


def _found(cfg: DictConfig, name: str, plain: dict[str, Any], *, resume: bool) -> RunDirectory | None:
    """The run to go on with, or None where a new one is to be made.

    Raises:
        RunDirectoryError: a run of this name exists, and ``resume`` is false.
        ConfigError: settings that may not change on resume did.
    """
    path = Path(cfg.output_root) / "pretrain" / name
    if not (path / "config.yaml").is_file():
        return None
    directory = RunDirectory.create(cfg.output_root, "pretrain", name, resume=resume)
    check_resumable(directory.read_config(), plain)
    return directory


def _new_directory(cfg: DictConfig, name: str, plain: dict[str, Any], text: Text) -> RunDirectory:
    """Made once the corpus is read and everything is built, so that a mistake before leaves nothing behind."""
    directory = RunDirectory.create(cfg.output_root, "pretrain", name)
    if distributed.is_main():
        text.tokenizer.save(directory.tokenizer)
    directory.write_versions(
        versions(data={"corpus": text.corpus.fingerprint(), "tokenizer": text.tokenizer.fingerprint})
    )
    directory.write_config(plain)
    return directory


def _learner(parts: Parts, *, seed: int, hardware: Hardware) -> PretrainingLearner:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derived_seed(seed, "heads"))
        learner = PretrainingLearner(parts.encoder, list(parts.objectives)).to(hardware.device)
    if hardware.compile:
        for module in learner.modules():
            if isinstance(module, TransformerLayer):
                module.compile(dynamic=False)
    return learner


def _trainer(
    cfg: DictConfig,
    train: TrainSettings,
    directory: RunDirectory,
    text: Text,
    parts: Parts,
    learner: PretrainingLearner,
    hardware: Hardware,
    entropy: float | None,
) -> Trainer:
    reads = needed_reads(parts.objectives)
    capacity = (train.micro_batch_tokens or train.batch_tokens) if hardware.compile else None
    few_shapes = hardware.device.type == "cpu"

    def source_of(store: TokenStore | MixedStore, *, seed: int = 0) -> PretrainingSource:
        return PretrainingSource(
            store=store,
            rows=parts.rows,
            corruption=parts.corruption,
            seed=seed,
            reads=reads,
            capacity=capacity,
            few_shapes=few_shapes,
        )

    stream = PlannedStream(
        source_of(text.prepared.train, seed=cfg.seed),
        seed=cfg.seed,
        batch_tokens=train.batch_tokens,
        micro_batch_tokens=train.micro_batch_tokens,
        num_workers=train.num_workers,
        rank=distributed.rank(),
        world_size=distributed.world_size(),
        pin_memory=hardware.device.type == "cuda",
        contiguous=parts.rows.contiguous,
    )
    held_out = text.prepared.validation

    def measure(store: TokenStore, most_tokens: int | None) -> dict[str, float]:
        batches = evaluation_batches(
            source_of(store),
            micro_batch_tokens=capacity or _EVALUATION_MICRO_BATCH,
            max_tokens=most_tokens,
            rank=distributed.rank(),
            world_size=distributed.world_size(),
            contiguous=parts.rows.contiguous,
        )
        return evaluate_losses(learner, batches, device=hardware.device, precision=hardware.precision)

    def evaluate() -> dict[str, float]:
        return validate(measure, held_out, most_tokens=cfg.train.eval_tokens)

    watchers: list[Watcher] = []
    if entropy is not None:
        watchers.append(UnigramPlateau(entropy=entropy))
    has_validation = len(source_of(held_out).plan(0).lengths) > 0 if held_out.num_tokens else False
    trackers = [Jsonl(folder=directory.path)]
    if cfg.tracker._target_ != f"{Jsonl.__module__}.{Jsonl.__qualname__}":
        trackers.append(build(cfg.tracker, folder=directory.path))
    return Trainer(
        learner=learner,
        stream=stream,
        optimizer=build(cfg.optimizer, learner=learner),
        schedule=build(cfg.schedule),
        budget=Budget(
            steps=train.steps,
            tokens=train.tokens,
            epochs=train.epochs,
            seconds=train.seconds,
            steps_per_epoch=stream.steps_per_epoch if train.epochs else None,
        ),
        seed=cfg.seed,
        device=hardware.device,
        precision=hardware.precision,
        max_grad_norm=train.max_grad_norm,
        evaluate=evaluate if has_validation else None,
        eval_every=train.eval_every,
        selection=ModelSelection(patience=train.patience) if has_validation else None,
        checkpoints=directory.checkpoints,
        save_every=train.save_every,
        trackers=trackers,
        log_every=train.log_every,
        progress=Progress(),
        watchers=watchers,
    )


def _unigram_entropy(store: TokenStore | MixedStore) -> float:
    """Entropy in nats of how often each token is drawn."""
    shares = token_shares(store)
    shares = shares[shares > 0]
    return float(-(shares * np.log(shares)).sum())


def _opening(directory: RunDirectory, text: Text, parts: Parts, hardware: Hardware, train: TrainSettings) -> str:
    parameters = sum(p.numel() for p in cast(nn.Module, parts.encoder).parameters())
    names = " + ".join(objective.name for objective in parts.objectives)
    budget = next(f"{value:g} {kind}" for kind, value in _budgets(train) if value is not None)
    return (
        f"pretraining {type(parts.encoder).__name__} ({parameters / 1e6:.1f}M parameters) with {names} on "
        f"{text.corpus.name} ({text.prepared.train.num_tokens / 1e6:.1f}M tokens) for {budget}, on {hardware}\n"
        f"run: {directory.path}"
    )


def _budgets(train: TrainSettings) -> list[tuple[str, float | None]]:
    return [(kind, getattr(train, kind)) for kind in ("steps", "tokens", "epochs", "seconds")]


def _closing(directory: RunDirectory, result: dict[str, Any], output_root: Path, console: Console) -> None:
    table = Table(box=None, show_header=False)
    of_parts: dict[str, dict[str, float]] = {}
    for name, value in result["metrics"].items():
        loss, _, part = name.partition("/")
        if part:
            of_parts.setdefault(part, {})[loss] = value
        else:
            table.add_row(f"validation {name}", f"{value:.4f}")
    if "unigram_entropy" in result:
        table.add_row(
            "unigram entropy", f"{result['unigram_entropy']:.4f}  (an MLM loss well below it has learnt context)"
        )
    table.add_row("steps, tokens", f"{result['steps']:,}, {result['tokens']:,} ({result['epochs']:.2f} epochs)")
    table.add_row("speed", f"{result['tokens_per_second']:,.0f} tokens/s over {result['seconds']:,.0f} s, all included")
    console.print(table)
    if of_parts:
        names = list(dict.fromkeys(name for losses in of_parts.values() for name in losses))
        table = Table("validation", *names, box=None)
        for part, losses in of_parts.items():
            table.add_row(part, *(f"{losses[name]:.4f}" if name in losses else "" for name in names))
        console.print(table)
    path = _short(directory.path)
    console.print(
        f"\nnext, does it help?  lmtransfer finetune init={path} task=python_docs task.num_train=100 seeds=3 "
        f"control=true"
        f"\n                     lmtransfer finetune init={path} task=sst2 task.num_train=1000 seeds=3 control=true "
        f"name=sst2 data_root=<folder>"
        f"\n                     lmtransfer report {_short(output_root.absolute())}",
        soft_wrap=True,
    )


def _short(path: Path) -> Path:
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def _fields(settings: HardwareSettings) -> dict[str, Any]:
    return {name: getattr(settings, name) for name in ("device", "precision", "threads", "compile")}
