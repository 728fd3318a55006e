"""One pretraining run: its directory, what is trained in it, and what it came to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig

from lmtransfer.config.plain import resolved
from lmtransfer.data.store.token_shares import part_shares, unigram_entropy
from lmtransfer.errors import ConfigError
from lmtransfer.models.compilation import compile_blocks
from lmtransfer.objectives.base import masked_loss, selection_metric
from lmtransfer.objectives.learner import PretrainingLearner
from lmtransfer.pretraining.data import PretrainingData
from lmtransfer.pretraining.diagnostics import watchers_of
from lmtransfer.pretraining.going_on import TakenHeads, recipe_remark, take_heads
from lmtransfer.pretraining.messages import closing, opening
from lmtransfer.pretraining.parts import Parts, build_parts
from lmtransfer.pretraining.text import Text, read_text, with_absolute_paths
from lmtransfer.pretraining.utilisation import pretraining_flops
from lmtransfer.randomness import derived_seed
from lmtransfer.runs.result import RunResult
from lmtransfer.runs.resume import check_resumable
from lmtransfer.runs.run_directory import RunDirectory
from lmtransfer.runs.training import TrainingSetup, build_optimizer
from lmtransfer.runs.trust import seal
from lmtransfer.runs.versions import versions
from lmtransfer.system.console import Console
from lmtransfer.system.machine import naming
from lmtransfer.tokenizers.load import load_tokenizer
from lmtransfer.training import distributed
from lmtransfer.training.flops import peak_flops
from lmtransfer.training.hardware import Hardware
from lmtransfer.training.loop import Trainer
from lmtransfer.training.model_selection import ModelSelection, Validation
from lmtransfer.training.progress import Progress
from lmtransfer.training.state import TrainState


def pretrain(cfg: DictConfig, name: str, setup: TrainingSetup, *, resume: bool) -> RunDirectory:
    """Train one encoder, or go on with it.

    Args:
        cfg: the command's, checked.
        name: of the run.
        setup: budget, optimiser and the like, and where to compute.
        resume: whether a run of this name may exist.

    Raises:
        RunDirectoryError: it exists, and ``resume`` is false.
        ConfigError: settings or text that may not change on resume did.
        Interrupted: SIGTERM or Ctrl-C; all is saved.
    """
    plain = with_absolute_paths(resolved(cfg))
    found = _found(cfg, name, plain, resume=resume)
    if found is not None and found.is_finished:
        print(f"{found.path} is finished; nothing is left to do")
        return found
    console = Console(stderr=True, highlight=False, quiet=not distributed.is_main())
    with console.status("reading the corpus"):
        text = read_text(cfg)
    parts = build_parts(cfg, text.tokenizer)
    if found is not None:
        _check_text(found, text)
        seal(found)  # the same settings, given here and now
    learner, heads = _learner(parts, seed=cfg.seed, hardware=setup.hardware)
    directory = found or _new_directory(cfg, name, plain, text)
    console.print(opening(directory.path, text, parts, setup), soft_wrap=True)
    for note in text.notes:
        console.print(f"note: {note}", markup=False, soft_wrap=True)
    if cfg.init:
        console.print(f"going on from {cfg.init}; {heads}", markup=False, soft_wrap=True)
        if remark := recipe_remark():
            console.print(f"note: {remark}", markup=False, soft_wrap=True)
    entropy = None if masked_loss(parts.objectives) is None else unigram_entropy(text.prepared.train)
    data = PretrainingData(text, parts, train=setup.train, hardware=setup.hardware, seed=cfg.seed)
    trainer = _trainer(cfg, setup, directory, data, learner, entropy)
    if found is not None:
        trainer.resume()
    result = _result(trainer.train(), parts, text, entropy)
    directory.write_result(result)
    if distributed.is_main():
        closing(directory.path, result, output_root=Path(cfg.output_root), console=Console(highlight=False))
    return directory


def _result(state: TrainState, parts: Parts, text: Text, entropy: float | None) -> RunResult:
    metrics = state.best_metrics  # of the checkpoint that every other command takes
    shares = part_shares(text.prepared.train, text.tokenizer)
    return RunResult(
        command="pretrain",
        split="validation" if metrics else None,
        metrics=metrics,
        main_metric="loss" if metrics else None,
        seconds=state.seconds,
        tokens=state.tokens,
        num_parameters=sum(p.numel() for p in parts.encoder.parameters()),
        more={
            "checkpoint": "best" if metrics else "last",
            "checkpoint_step": state.best_step if metrics else state.step,
            "steps": state.step,
            "epochs": state.epoch,
            **({} if entropy is None else {"unigram_entropy": entropy}),
            **({"parts": {name: share.as_dict() for name, share in shares.items()}} if shares else {}),
        },
    )


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
        with naming(directory.tokenizer):
            text.tokenizer.save(directory.tokenizer)
    directory.write_versions(
        versions(data={"corpus": text.corpus.fingerprint(), "tokenizer": text.tokenizer.fingerprint})
    )
    directory.write_config(plain)
    seal(directory)
    return directory


def _check_text(found: RunDirectory, text: Text) -> None:
    """Refuse to go on with other text, or other words, than the run was begun with.

    Raises:
        ConfigError: they are others, though the settings are the same.
    """
    begun_with = (found.read_versions().get("data") or {}).get("corpus")
    if begun_with is not None and begun_with != text.corpus.fingerprint():
        raise ConfigError(
            f"corpus: its text is not that which {found.path} was begun with: its files have changed since; put them "
            "back, or start a run under another name="
        )
    if found.tokenizer.is_dir() and load_tokenizer(found.tokenizer).fingerprint != text.tokenizer.fingerprint:
        raise ConfigError(
            f"the tokenizer of {found.path} is another one than the corpus, init and tokenizer.add give now: the files "
            "have changed since the run was started; put them back, or start a run under another name="
        )


def _learner(parts: Parts, *, seed: int, hardware: Hardware) -> tuple[PretrainingLearner, TakenHeads]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derived_seed(seed, "heads"))
        learner = PretrainingLearner(parts.encoder, list(parts.objectives)).to(hardware.device)
    heads = take_heads(learner, parts.heads)
    if hardware.compile:
        compile_blocks(learner)
    return learner, heads


def _trainer(
    cfg: DictConfig,
    setup: TrainingSetup,
    directory: RunDirectory,
    data: PretrainingData,
    learner: PretrainingLearner,
    entropy: float | None,
) -> Trainer:
    train, peak = setup.train, peak_flops(setup.hardware.device)
    flops = None if peak is None else pretraining_flops(data, learner)
    progress = Progress(flops_per_token=flops, peak_flops=peak)
    validation = None
    if data.has_validation(note=progress.note):
        validation = Validation(
            measure=lambda: data.validate(learner, most_tokens=cfg.train.eval_tokens),
            every=train.eval_every,
            selection=ModelSelection(metric=selection_metric(data.parts.objectives), patience=train.patience),
        )
    watchers = watchers_of(learner, seconds=train.seconds, entropy=entropy, from_scratch=not cfg.init)
    return Trainer(
        learner=learner,
        stream=data.stream,
        optimizer=build_optimizer(cfg.optimizer, learner),
        plan=setup.plan(data.stream, seed=cfg.seed),
        validation=validation,
        output=setup.output(directory, progress=progress, watchers=watchers),
    )
