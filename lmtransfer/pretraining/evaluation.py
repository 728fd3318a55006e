"""Evaluation of a pretraining run on held-out text, optionally with other memory lengths."""

from __future__ import annotations

import math
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict
from rich import box
from rich.table import Table

from lmtransfer.config.plain import resolve_config
from lmtransfer.config.settings import HardwareSettings, TrainSettings
from lmtransfer.config.sweep_names import in_sweep, sweep_name
from lmtransfer.data.micro_batches import evaluation_batches
from lmtransfer.data.token_shards import TokenStore
from lmtransfer.errors import ConfigError, DataError
from lmtransfer.interop.open_run import open_saved
from lmtransfer.objectives.batch import PretrainingBatch
from lmtransfer.objectives.learner import PretrainingLearner
from lmtransfer.objectives.rows.stream import LanguageStream
from lmtransfer.objectives.source import PretrainingSource
from lmtransfer.pretraining.build import PretrainingParts, load_learner
from lmtransfer.pretraining.data import PretrainingData
from lmtransfer.pretraining.text import Text, absolute_corpus, read_text
from lmtransfer.runs.result import RunResult
from lmtransfer.runs.run_directory import RunDirectory, versions
from lmtransfer.runs.saved_run import SavedRun
from lmtransfer.runs.training_setup import eager_hardware
from lmtransfer.runs.trust import check_same_text
from lmtransfer.system.console import Console
from lmtransfer.system.printable import short_path
from lmtransfer.training import process_group
from lmtransfer.training.evaluation import evaluate_losses
from lmtransfer.training.hardware import Hardware
from lmtransfer.training.learner import Learner, Loss
from lmtransfer.training.weights import num_parameters

#: Maximum number of contiguous streams into which the text is cut.
_LANES = 8
#: Batch sizes for an imported run, which has no train settings.
_TRAIN = {"batch_tokens": 4096}


@dataclass(frozen=True, slots=True)
class Measurement:
    """A trained model, and the text to evaluate it on.

    Attributes:
        most_tokens: maximum number of tokens for each loss; None means all.
    """

    learner: PretrainingLearner
    parts: PretrainingParts
    text: Text
    hardware: Hardware
    most_tokens: int | None


def read_lengths(cfg: DictConfig) -> list[int] | None:
    """Return the memory lengths to measure, sorted; None if ``memory_lengths`` is not set."""
    numbers = ("segment_length", "clamp_length", "eval_tokens")
    wrong = {key: cfg[key] for key in numbers if cfg[key] is not None and not _is_count(cfg[key], least=1)}
    if wrong:
        raise ConfigError([f"{key}={value} must be a number of tokens" for key, value in wrong.items()])
    if cfg.memory_lengths is None:
        idle = [key for key in ("segment_length", "clamp_length", "same_length") if cfg[key]]
        if idle:
            raise ConfigError(f"{idle[0]} needs memory_lengths: set memory_lengths=[0,64,640], for example")
        return None
    setting = OmegaConf.to_container(OmegaConf.create({"values": cfg.memory_lengths}))["values"]  # type: ignore[index,call-overload]
    values = setting if isinstance(setting, list) else [setting]
    if not values or not all(_is_count(value, least=0) for value in values):
        raise ConfigError(
            f"memory_lengths={setting} must be a list of token counts, such as memory_lengths=[0,64,256,640]"
        )
    return sorted(set(values))


def _is_count(value: Any, *, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def losses_by_memory(measurement: Measurement, lengths: list[int], cfg: DictConfig) -> list[float]:
    """Measure the loss with each memory length, all on the same tokens.

    The text is cut into a few contiguous streams, and these into windows of ``segment_length`` tokens. The first
    windows of a stream only fill the longest memory, and their losses do not count.
    """
    encoder = measurement.learner.encoder

    def remember(length: int) -> None:
        encoder.set_memory(length, clamp_length=cfg.clamp_length, same_length=bool(cfg.same_length))

    remember(lengths[0])
    segment_length = cfg.segment_length or measurement.parts.rows.max_length
    if segment_length > encoder.max_length:
        raise ConfigError(f"segment_length={segment_length} is longer than model.max_length={encoder.max_length}")
    held_out = measurement.text.prepared.validation
    if not isinstance(held_out, TokenStore) or not held_out.num_tokens:
        raise DataError(
            "memory_lengths: the corpus of the run is a mixture, or has no held-out part; use a run with a single "
            "corpus and a held-out part"
        )
    source = PretrainingSource(
        store=held_out,
        rows=LanguageStream(
            max_length=segment_length, frame="none", contiguous=True, tokenizer=measurement.text.tokenizer
        ),
        corruption=measurement.parts.corruption,
        seed=0,
        output_positions={objective.output_positions for objective in measurement.parts.objectives},
    )
    num_windows = int((source.plan(0).lengths == segment_length).sum())
    warm_up = -(-lengths[-1] // segment_length)
    num_streams = max(min(_LANES, num_windows // (4 * max(warm_up, 1))), 1)
    if num_windows <= warm_up:
        raise DataError(
            f"memory_lengths: the held-out text has {num_windows} windows of {segment_length} tokens, but a memory of "
            f"{lengths[-1]} tokens needs {warm_up} windows to fill: lower memory_lengths, or use a run with more "
            "held-out text"
        )
    windows, most_tokens = num_streams * segment_length, measurement.most_tokens
    losses = []
    for length in lengths:
        remember(length)
        batches = evaluation_batches(
            source,
            micro_batch_tokens=windows,
            max_tokens=None if most_tokens is None else max(most_tokens, windows) + warm_up * windows,
            rank=process_group.rank(),
            world_size=process_group.world_size(),
            num_streams=num_streams,
        )
        learner, hardware = _AfterWarmUp(measurement.learner, windows=warm_up), measurement.hardware
        loss, *of_parts = evaluate_losses(
            learner, batches, device=hardware.device, precision=hardware.precision
        ).values()
        assert of_parts, "at least one window of each stream is counted"
        assert math.isfinite(loss), "a finished run has finite weights"
        losses.append(loss)
    return losses


class _AfterWarmUp(Learner):
    """A learner whose first windows only fill the memory and have no losses."""

    def __init__(self, learner: PretrainingLearner, *, windows: int) -> None:
        super().__init__()
        self.learner, self.windows = learner, windows

    def counts(self, batch: PretrainingBatch) -> dict[str, int]:
        """Return the counts of the wrapped learner."""
        return self.learner.counts(batch)

    def losses(self, batch: PretrainingBatch, recurrent_state: Any = None) -> tuple[dict[str, Loss], Any]:
        """Return no losses during the warm-up; the state consists of a window count and the inner learner's state."""
        seen, inner = recurrent_state if batch.follows and recurrent_state is not None else (0, None)
        losses, inner = self.learner.losses(batch, inner)
        return losses if seen >= self.windows else {}, (seen + 1, inner)


def evaluate_pretrained(cfg: DictConfig) -> Path:
    """Evaluate the pretraining run ``cfg.run``, write a run directory, and return the path of the directory."""
    saved = open_saved(cfg.run, key="run", trust=cfg.trust)
    lengths = read_lengths(cfg)
    hardware = eager_hardware(HardwareSettings.from_config(cfg.hardware))
    with process_group.join():
        measurement = _measurement(cfg, saved, hardware)
        start_time = time.monotonic()
        if lengths is None:
            data = PretrainingData(
                measurement.text,
                measurement.parts,
                train=TrainSettings.from_config(OmegaConf.create({"train": saved.config.get("train") or _TRAIN}).train),
                hardware=hardware,
                seed=0,
            )
            notes: list[str] = []
            if not data.has_validation(note=notes.append):
                why = "; ".join(notes) or "there is no held-out text"
                raise DataError(
                    f"run={short_path(saved.path)}: the held-out text yields no rows ({why}): choose a corpus "
                    "that has a document of several sentences, with corpus=..., and set corpus.validation_fraction "
                    "above 0"
                )
            for note in notes if process_group.is_main() else ():
                print(f"warning: {note}", file=sys.stderr)
            metrics = data.validate(measurement.learner, most_tokens=measurement.most_tokens)
            more: dict[str, Any] = {}
        else:
            losses = losses_by_memory(measurement, lengths, cfg)
            metrics = {"loss": losses[-1]} | {f"loss/memory {n}": loss for n, loss in zip(lengths, losses, strict=True)}
            more = {"curve": {"key": "memory_length", "values": lengths, "losses": losses}}
        with open_dict(cfg):
            cfg.run = saved.reference
        name = sweep_name(cfg.name or _default_name(cfg, saved, lengths))
        directory = RunDirectory.create(cfg.output_root, "evaluate", name, resume=cfg.overwrite or in_sweep())
        plain = resolve_config(cfg)
        if plain.get("corpus") is not None:
            plain["corpus"] = absolute_corpus(plain["corpus"])
        directory.write_config(plain)
        text, most_tokens = measurement.text, measurement.most_tokens
        num_there = text.prepared.validation.num_tokens
        prints = {"corpus": text.corpus.fingerprint(), "tokenizer": text.tokenizer.fingerprint}
        directory.write_versions(versions(data=prints))
        directory.write_result(
            RunResult(
                command="evaluate",
                split="validation",
                metrics=metrics,
                main_metric="loss",
                seconds=time.monotonic() - start_time,
                tokens=num_there if most_tokens is None else min(most_tokens, num_there),
                num_parameters=num_parameters(measurement.learner),
                more={"higher_is_better": False, **more},
            )
        )
        if process_group.is_main():
            _print(metrics, saved, directory, Console(highlight=False))
    return directory.path


def _default_name(cfg: DictConfig, saved: SavedRun, lengths: list[int] | None) -> str:
    """Return a name from that of the run, that of another corpus, if set, and ``memory`` for memory lengths."""
    parts = ["pretrain", saved.name]
    parts += [str(cfg.corpus.name)] if cfg.get("corpus") is not None else []
    return "-".join([*parts, *(["memory"] if lengths is not None else [])])


def _measurement(cfg: DictConfig, saved: SavedRun, hardware: Hardware) -> Measurement:
    """Load the run's model; and tokenize ``cfg.corpus``, or else the run's own corpus, with the run's tokenizer."""
    config: Any = OmegaConf.create(saved.config)
    config.init = saved.reference
    config.data_root = cfg.data_root or saved.data_root
    config.cache_dir = config.get("cache_dir") if saved.trusted else None
    config.tokenizer = None  # use the run's saved tokenizer
    if cfg.get("corpus") is not None:
        config.corpus, config.screening = cfg.corpus, None
    elif config.get("corpus") is None:
        raise ConfigError(
            f"run={cfg.run} was imported, so its training text is unknown: choose a corpus for the evaluation, such as "
            "corpus=text corpus.path=my/texts (the held-out part is used), or a task with task=..."
        )
    elif not saved.trusted:
        check_same_text(saved.config, saved.directory, data_root=config.data_root)
        config.screening = None  # do not read the files that an untrusted config names
    text = read_text(config)
    config.init = None
    parts, learner = load_learner(saved, config)
    return Measurement(learner.to(hardware.device), parts, text, hardware, cfg.eval_tokens)


def _print(metrics: dict[str, float], saved: SavedRun, directory: RunDirectory, console: Console) -> None:
    table = Table(title=f"{saved.name}, held-out text", title_justify="left", title_style="bold", box=box.SIMPLE)
    table.add_column("")
    table.add_column("", justify="right")
    for name, value in metrics.items():
        table.add_row(name, f"{value:.4f}")
    console.print(table)
    console.print(f"next: lmtransfer report {short_path(directory.path.parent.parent)}", soft_wrap=True)
