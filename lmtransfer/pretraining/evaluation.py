"""Measure a pretraining run's losses on its held-out text, also with memories of other lengths."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from omegaconf import DictConfig, OmegaConf, open_dict
from rich import box
from rich.table import Table
from torch import nn

from lmtransfer.config.schema import TrainSettings
from lmtransfer.config.sweep import in_sweep, sweep_name
from lmtransfer.data.store.store import TokenStore
from lmtransfer.data.stream.evaluation_batches import evaluation_batches
from lmtransfer.errors import ConfigError, DataError
from lmtransfer.importing.opening import open_saved
from lmtransfer.objectives.batch import PretrainingBatch
from lmtransfer.objectives.learner import PretrainingLearner
from lmtransfer.objectives.rows.stream import LanguageStream
from lmtransfer.objectives.source import PretrainingSource
from lmtransfer.pretraining.data import PretrainingData
from lmtransfer.pretraining.parts import Parts, learnt
from lmtransfer.pretraining.text import Text, absolute_corpus, read_text
from lmtransfer.runs.result import RunResult
from lmtransfer.runs.run_directory import RunDirectory
from lmtransfer.runs.saved import SavedRun
from lmtransfer.runs.training import eager_hardware
from lmtransfer.runs.trust import same_text
from lmtransfer.runs.versions import versions
from lmtransfer.system.console import Console
from lmtransfer.system.printable import short_path
from lmtransfer.tokenizers.base import Tokenizer
from lmtransfer.training import distributed
from lmtransfer.training.evaluation import evaluate_losses
from lmtransfer.training.hardware import Hardware
from lmtransfer.training.learner import Loss
from lmtransfer.training.weights import num_parameters

#: Stretches of the text that are read side by side, at most.
_LANES = 8

#: Batch sizes for a run that was not trained here.
_TRAIN = {"batch_tokens": 4096}


@dataclass(frozen=True, slots=True)
class _Measuring:
    """A trained model, and what it is measured on.

    Attributes:
        learner: the model with the heads of its objectives, on its device.
        parts: rows, corruption and objectives.
        text: the corpus.
        hardware: where to compute.
        most_tokens: tokens to count for each number, at most.
    """

    learner: PretrainingLearner
    parts: Parts
    text: Text
    hardware: Hardware
    most_tokens: int | None


def evaluate_pretrained(cfg: DictConfig) -> Path:
    """Measure, and leave a run directory behind.

    Args:
        cfg: the config of ``evaluate``, checked; its ``run`` is one of pretraining.

    Returns:
        The run directory.
    """
    saved = open_saved(cfg.run, key="run", trust=cfg.trust)
    lengths = _checked_lengths(cfg)
    hardware = eager_hardware(cfg)
    with distributed.process_group():
        measuring = _measuring(cfg, saved, hardware)
        began = time.monotonic()
        if lengths is None:
            data = PretrainingData(
                measuring.text,
                measuring.parts,
                train=TrainSettings.from_config(OmegaConf.create({"train": saved.config.get("train") or _TRAIN}).train),
                hardware=hardware,
                seed=0,
            )
            metrics = data.validate(measuring.learner, most_tokens=measuring.most_tokens)
            more: dict[str, Any] = {}
        else:
            losses = _by_memory(measuring, lengths, cfg)
            metrics = {"loss": losses[-1]} | {f"loss/memory {n}": loss for n, loss in zip(lengths, losses, strict=True)}
            more = {"curve": {"key": "memory_length", "values": lengths, "losses": losses}}
        with open_dict(cfg):
            cfg.run = str(saved.path)
        name = sweep_name(cfg.name or _default_name(cfg, saved, lengths))
        directory = RunDirectory.create(cfg.output_root, "evaluate", name, resume=cfg.overwrite or in_sweep())
        plain = cast("dict[str, Any]", OmegaConf.to_container(cfg, resolve=True))
        if plain.get("corpus") is not None:
            plain["corpus"] = absolute_corpus(plain["corpus"])
        directory.write_config(plain)
        text = measuring.text
        prints = {"corpus": text.corpus.fingerprint(), "tokenizer": text.tokenizer.fingerprint}
        directory.write_versions(versions(data=prints))
        directory.write_result(
            RunResult(
                command="evaluate",
                split="validation",
                metrics=metrics,
                main_metric="loss",
                seconds=time.monotonic() - began,
                tokens=_num_counted(measuring),
                num_parameters=num_parameters(measuring.learner),
                more={"higher_is_better": False, **more},
            )
        )
        if distributed.is_main():
            _print(metrics, saved, directory, Console(highlight=False))
    return directory.path


def _default_name(cfg: DictConfig, saved: SavedRun, lengths: list[int] | None) -> str:
    """The run, and what else it was measured on than its own text in its own way."""
    parts = ["pretrain", saved.path.name]
    parts += [str(cfg.corpus.name)] if cfg.get("corpus") is not None else []
    return "-".join([*parts, *(["memory"] if lengths is not None else [])])


def _measuring(cfg: DictConfig, saved: SavedRun, hardware: Hardware) -> _Measuring:
    """The run's model and its text, or another one that is given, with its tokenizer.

    Raises:
        ConfigError: the run knows of no text, and none is given.
        RunDirectoryError: the run was made by others, and the text that it names is not the one it was trained on.
    """
    config: Any = OmegaConf.create(saved.config)
    config.init = str(saved.path)
    config.data_root = cfg.data_root or (config.get("data_root") if saved.trusted else None)
    config.cache_dir = config.get("cache_dir") if saved.trusted else None
    config.tokenizer = None  # the run's own, whatever it was made of
    if cfg.get("corpus") is not None:
        config.corpus = cfg.corpus
    elif config.get("corpus") is None:
        raise ConfigError(
            f"run={cfg.run}: was imported, and what it was trained on is not known here: give text to measure it on, "
            "such as corpus=text corpus.path=my/texts (a part of it is held out, and read), or a task=..."
        )
    elif not saved.trusted:
        versions_then = saved.directory.read_versions()
        same_text(saved.config["corpus"], versions_then, saved.directory.config_path, data_root=config.data_root)
    text = read_text(config)
    config.init = None
    parts, learner = learnt(saved, config)
    return _Measuring(learner.to(hardware.device), parts, text, hardware, cfg.eval_tokens)


def _checked_lengths(cfg: DictConfig) -> list[int] | None:
    """The memory lengths to measure, or None where none are given.

    Raises:
        ConfigError: something else than numbers of tokens, or settings of such a measurement without it.
    """
    numbers = ("segment_length", "clamp_length", "eval_tokens")
    wrong = {key: cfg[key] for key in numbers if cfg[key] is not None and not _is_count(cfg[key], least=1)}
    if wrong:
        raise ConfigError([f"{key}={value} is not allowed: use a number of tokens" for key, value in wrong.items()])
    if cfg.memory_lengths is None:
        idle = [key for key in ("segment_length", "clamp_length", "same_length") if cfg[key]]
        if idle:
            raise ConfigError(f"{idle[0]} is of use with memory_lengths only, such as memory_lengths=[0,64,640]")
        return None
    given = OmegaConf.to_container(OmegaConf.create({"values": cfg.memory_lengths}))["values"]  # type: ignore[index,call-overload]
    values = given if isinstance(given, list) else [given]
    if not values or not all(_is_count(value, least=0) for value in values):
        raise ConfigError(
            f"memory_lengths={given} is not allowed: list numbers of tokens, such as memory_lengths=[0,64,256,640]"
        )
    return sorted(set(values))


def _is_count(value: Any, *, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _by_memory(measuring: _Measuring, lengths: list[int], cfg: DictConfig) -> list[float]:
    """The loss with each length of memory.

    All are measured on the same tokens: windows of ``segment_length`` that go on from one another in a few lanes. The
    first windows of a lane fill the longest memory, and are not counted.

    Raises:
        ConfigError: the model has no memory, or cannot read such windows.
        DataError: too little text.
    """
    encoder = measuring.learner.encoder

    def remember(length: int) -> None:
        encoder.set_memory(length, clamp_length=cfg.clamp_length, same_length=bool(cfg.same_length))

    remember(lengths[0])
    segment_length = cfg.segment_length or measuring.parts.rows.max_length
    if segment_length > encoder.max_length:
        raise ConfigError(f"segment_length={segment_length} is longer than model.max_length={encoder.max_length}")
    held_out = measuring.text.prepared.validation
    if not isinstance(held_out, TokenStore) or not held_out.num_tokens:
        raise DataError("memory_lengths: the run's corpus is a mixture or holds nothing out, and this needs one text")
    source = _lanes_source(measuring, held_out, measuring.text.tokenizer, segment_length)
    num_windows = int((source.plan(0).lengths == segment_length).sum())
    warm_up = -(-lengths[-1] // segment_length)
    num_lanes = max(min(_LANES, num_windows // (4 * max(warm_up, 1))), 1)
    if num_windows <= warm_up:
        raise DataError(
            f"memory_lengths: the held-out text has {num_windows} windows of {segment_length} tokens, and a memory of "
            f"{lengths[-1]} takes {warm_up} to fill: lower memory_lengths, or use a run with more held-out text"
        )
    losses = []
    for length in lengths:
        remember(length)
        batches = evaluation_batches(
            source,
            micro_batch_tokens=num_lanes * segment_length,
            max_tokens=_with_warm_up(measuring.most_tokens, warm_up * num_lanes * segment_length),
            rank=distributed.rank(),
            world_size=distributed.world_size(),
            num_lanes=num_lanes,
        )
        losses.append(_mean_loss(measuring, batches, warm_up=warm_up))
    return losses


def _with_warm_up(most_tokens: int | None, more: int) -> int | None:
    return None if most_tokens is None else most_tokens + more


def _lanes_source(
    measuring: _Measuring, held_out: TokenStore, tokenizer: Tokenizer, segment_length: int
) -> PretrainingSource:
    rows = LanguageStream(max_length=segment_length, frame="none", contiguous=True, tokenizer=tokenizer)
    return PretrainingSource(
        store=held_out,
        rows=rows,
        corruption=measuring.parts.corruption,
        seed=0,
        reads={objective.reads for objective in measuring.parts.objectives},
    )


def _mean_loss(measuring: _Measuring, batches: Iterable[Any], *, warm_up: int) -> float:
    learner = _AfterWarmUp(measuring.learner, windows=warm_up)
    hardware = measuring.hardware
    loss = evaluate_losses(learner, batches, device=hardware.device, precision=hardware.precision)["loss"]
    assert math.isfinite(loss), "a finished run has finite weights"
    return loss


class _AfterWarmUp(nn.Module):
    """A learner that counts nothing in the first windows, which only fill its memory."""

    def __init__(self, learner: PretrainingLearner, *, windows: int) -> None:
        super().__init__()
        self.learner, self.windows = learner, windows

    def counts(self, batch: PretrainingBatch) -> dict[str, int]:
        """Of the learner."""
        return self.learner.counts(batch)

    def losses(self, batch: PretrainingBatch, carry: Any = None) -> tuple[dict[str, Loss], Any]:
        """Of the learner, once it is warm; the carry is its own, with the number of windows so far."""
        seen, inner = carry if batch.follows and carry is not None else (0, None)
        losses, inner = self.learner.losses(batch, inner)
        return losses if seen >= self.windows else {}, (seen + 1, inner)


def _num_counted(measuring: _Measuring) -> int:
    most, there = measuring.most_tokens, measuring.text.prepared.validation.num_tokens
    return there if most is None else min(most, there)


def _print(metrics: dict[str, float], saved: SavedRun, directory: RunDirectory, console: Console) -> None:
    table = Table(title=f"{saved.path.name}, held-out text", title_justify="left", title_style="bold", box=box.SIMPLE)
    table.add_column("")
    table.add_column("", justify="right")
    for name, value in metrics.items():
        table.add_row(name, f"{value:.4f}")
    console.print(table)
    console.print(f"next: lmtransfer report {short_path(directory.path.parent.parent)}", soft_wrap=True)
