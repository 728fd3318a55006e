"""The losses of a pretraining run on its held-out text, optionally with other memory lengths."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict
from rich import box
from rich.table import Table

from lmtransfer.config.plain import resolve_config
from lmtransfer.config.settings import TrainSettings
from lmtransfer.config.sweep import in_sweep, sweep_name
from lmtransfer.errors import ConfigError, DataError
from lmtransfer.interop.open_run import open_saved
from lmtransfer.pretraining.data import PretrainingData
from lmtransfer.pretraining.memory_lengths import Measurement, losses_by_memory, read_lengths
from lmtransfer.pretraining.parts import load_learner
from lmtransfer.pretraining.text import absolute_corpus, read_text
from lmtransfer.runs.result import RunResult
from lmtransfer.runs.run_directory import RunDirectory
from lmtransfer.runs.saved import SavedRun
from lmtransfer.runs.training import eager_hardware
from lmtransfer.runs.trust import check_same_text
from lmtransfer.runs.versions import versions
from lmtransfer.system.console import Console
from lmtransfer.system.printable import short_path
from lmtransfer.training import process_group
from lmtransfer.training.hardware import Hardware
from lmtransfer.training.weights import num_parameters

#: Batch sizes for an imported run, which has no train settings.
_TRAIN = {"batch_tokens": 4096}


def evaluate_pretrained(cfg: DictConfig) -> Path:
    """Measure the losses of a pretraining run and write a run directory.

    Args:
        cfg: the checked config of ``evaluate``; its ``run`` is a pretraining run.

    Returns:
        The run directory.
    """
    saved = open_saved(cfg.run, key="run", trust=cfg.trust)
    lengths = read_lengths(cfg)
    hardware = eager_hardware(cfg)
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
                    f"run={short_path(saved.path)}: the held-out text yields no rows ({why}): set corpus=..., with "
                    "corpus.validation_fraction above 0 and a document of several sentences"
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
        text = measurement.text
        prints = {"corpus": text.corpus.fingerprint(), "tokenizer": text.tokenizer.fingerprint}
        directory.write_versions(versions(data=prints))
        directory.write_result(
            RunResult(
                command="evaluate",
                split="validation",
                metrics=metrics,
                main_metric="loss",
                seconds=time.monotonic() - start_time,
                tokens=_num_counted(measurement),
                num_parameters=num_parameters(measurement.learner),
                more={"higher_is_better": False, **more},
            )
        )
        if process_group.is_main():
            _print(metrics, saved, directory, Console(highlight=False))
    return directory.path


def _default_name(cfg: DictConfig, saved: SavedRun, lengths: list[int] | None) -> str:
    """Return the run's name, followed by the name of another corpus, if set, and ``memory`` for memory lengths."""
    parts = ["pretrain", saved.name]
    parts += [str(cfg.corpus.name)] if cfg.get("corpus") is not None else []
    return "-".join([*parts, *(["memory"] if lengths is not None else [])])


def _measurement(cfg: DictConfig, saved: SavedRun, hardware: Hardware) -> Measurement:
    """Combine the run's model and its corpus, or ``cfg.corpus`` if set, tokenized by the run's tokenizer."""
    config: Any = OmegaConf.create(saved.config)
    config.init = saved.reference
    config.data_root = cfg.data_root or saved.data_root
    config.cache_dir = config.get("cache_dir") if saved.trusted else None
    config.tokenizer = None  # use the run's saved tokenizer
    if cfg.get("corpus") is not None:
        config.corpus, config.screening = cfg.corpus, None
    elif config.get("corpus") is None:
        raise ConfigError(
            f"run={cfg.run} was imported, so its training text is unknown: set a text to score it on, such as "
            "corpus=text corpus.path=my/texts (of which the held-out part is used), or a task=..."
        )
    elif not saved.trusted:
        check_same_text(saved.config, saved.directory, data_root=config.data_root)
        config.screening = None  # it only reports; do not read the files that it names
    text = read_text(config)
    config.init = None
    parts, learner = load_learner(saved, config)
    return Measurement(learner.to(hardware.device), parts, text, hardware, cfg.eval_tokens)


def _num_counted(measurement: Measurement) -> int:
    most, there = measurement.most_tokens, measurement.text.prepared.validation.num_tokens
    return there if most is None else min(most, there)


def _print(metrics: dict[str, float], saved: SavedRun, directory: RunDirectory, console: Console) -> None:
    table = Table(title=f"{saved.name}, held-out text", title_justify="left", title_style="bold", box=box.SIMPLE)
    table.add_column("")
    table.add_column("", justify="right")
    for name, value in metrics.items():
        table.add_row(name, f"{value:.4f}")
    console.print(table)
    console.print(f"next: lmtransfer report {short_path(directory.path.parent.parent)}", soft_wrap=True)
