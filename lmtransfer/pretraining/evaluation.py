"""Evaluation of a pretraining run on held-out text, optionally with other memory lengths."""

from __future__ import annotations

import math
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich import box
from rich.table import Table

from lmtransfer.config.check import read_group
from lmtransfer.config.settings import EvaluateSettings, TrainSettings
from lmtransfer.config.sources import with_absolute_paths
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
from lmtransfer.pretraining.text import Text, build_corpus, check_same_text, read_text
from lmtransfer.runs.result import RunResult
from lmtransfer.runs.run_directory import RunDirectory, versions
from lmtransfer.runs.saved_run import SavedRun
from lmtransfer.runs.training_setup import eager_hardware
from lmtransfer.system.console import Console
from lmtransfer.system.machine import cache_folder
from lmtransfer.system.printable import short_path
from lmtransfer.training import process_group
from lmtransfer.training.evaluation import evaluate_losses
from lmtransfer.training.hardware import Hardware
from lmtransfer.training.learner import Learner, Loss
from lmtransfer.training.weights import check_not_nan, num_parameters

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


def _memory_lengths(settings: EvaluateSettings) -> list[int] | None:
    """Return the memory lengths to measure, sorted; None if ``memory_lengths`` is null."""
    lengths = settings.memory_lengths
    if lengths is None:
        idle = [*settings.chosen("segment_length", "clamp_length", "same_length")]
        if idle:
            raise ConfigError(f"{idle[0]} needs memory_lengths: set memory_lengths=[0,64,640], for example")
        return None
    if not lengths:
        raise ConfigError("memory_lengths=[] contains no length: set memory_lengths=[0,64,256,640], for example")
    return sorted(set(lengths))


def losses_by_memory(measurement: Measurement, lengths: list[int], settings: EvaluateSettings) -> list[float]:
    """Measure the loss with each memory length, all on the same tokens.

    The text is cut into a few contiguous streams, and these into windows of ``segment_length`` tokens. The first
    windows of a stream only fill the longest memory, and their losses do not count.
    """
    encoder = measurement.learner.encoder

    def remember(length: int) -> None:
        encoder.set_memory(length, clamp_length=settings.clamp_length, same_length=settings.same_length)

    remember(lengths[0])
    segment_length = settings.segment_length or measurement.parts.rows.max_length
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


def evaluate_pretrained(settings: EvaluateSettings) -> Path:
    """Evaluate a pretraining run, write a run directory, and return the path of the directory."""
    saved = open_saved(settings.run, key="run", trust=settings.trust)
    lengths = _memory_lengths(settings)
    hardware = eager_hardware(settings.hardware)
    with process_group.join(hardware.wait_seconds):
        measurement = _measurement(settings, saved, hardware)
        start_time = time.monotonic()
        if lengths is None:
            data = PretrainingData(
                measurement.text,
                measurement.parts,
                train=read_group(TrainSettings, saved.config.get("train") or _TRAIN, key="train"),
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
            losses = losses_by_memory(measurement, lengths, settings)
            metrics = {"loss": losses[-1]} | {f"loss/memory {n}": loss for n, loss in zip(lengths, losses, strict=True)}
            more = {"curve": {"key": "memory_length", "values": lengths, "losses": losses}}
        check_not_nan(np.array([list(metrics.values())]), what=f"the losses of {short_path(saved.path)}")
        name = sweep_name(settings.name or _default_name(settings, saved, lengths))
        resume = settings.overwrite or in_sweep()
        directory = RunDirectory.create(settings.output_root, "evaluate", name, resume=resume)
        resolved: dict[str, Any] = {"run": saved.reference}
        if settings.corpus is not None:
            resolved["corpus"] = replace(settings.corpus, values=with_absolute_paths(settings.corpus.values))
        directory.write_config(settings.model_copy(update=resolved).plain())
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


def _default_name(settings: EvaluateSettings, saved: SavedRun, lengths: list[int] | None) -> str:
    """Return a name from that of the run, that of another corpus, if set, and ``memory`` for memory lengths."""
    parts = ["pretrain", saved.name]
    parts += [] if settings.corpus is None else [str(settings.corpus.get("name"))]
    return "-".join([*parts, *(["memory"] if lengths is not None else [])])


def _measurement(settings: EvaluateSettings, saved: SavedRun, hardware: Hardware) -> Measurement:
    """Load the run's model, and tokenize ``corpus``, or else the run's own corpus, with the run's tokenizer."""
    data_root = settings.data_root or saved.data_root
    node, screening = settings.corpus, None
    if node is None and saved.config.get("corpus") is None:
        raise ConfigError(
            f"run={settings.run} was imported, so its training text is unknown: choose a corpus for the evaluation, "
            "such as corpus=text corpus.path=my/texts (the held-out part is used), or a task with task=..."
        )
    if node is None:
        node = saved.component("corpus", "data_root", "cache_dir")
        if not saved.trusted:  # and do not read the files that its screening names
            check_same_text(saved, data_root=data_root)
        elif saved.config.get("screening") is not None:
            screening = saved.component("screening", "overlap_with", "cache_dir")
    cache_dir = cache_folder(saved.cache_dir)
    corpus = build_corpus(node, screening, data_root=data_root, cache_dir=cache_dir)
    max_length = saved.config["objective"]["max_length"]
    text = read_text(corpus, saved.tokenizer, cache_dir=cache_dir, max_length=max_length)
    parts, learner = load_learner(saved)
    return Measurement(learner.to(hardware.device), parts, text, hardware, settings.eval_tokens)


def _print(metrics: dict[str, float], saved: SavedRun, directory: RunDirectory, console: Console) -> None:
    table = Table(title=f"{saved.name}, held-out text", title_justify="left", title_style="bold", box=box.SIMPLE)
    table.add_column("")
    table.add_column("", justify="right")
    for name, value in metrics.items():
        table.add_row(name, f"{value:.4f}")
    console.print(table)
    console.print(f"next: lmtransfer report {short_path(directory.path.parent.parent)}", soft_wrap=True)
