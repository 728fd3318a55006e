"""Run directories as the commands write them, made by hand with numbers that the tests choose."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

MODEL = {"_target_": "lmtransfer.models.bert.BertEncoder", "num_layers": 4, "dim": 256, "norm": "pre"}
VERSIONS = {"lmtransfer": "0.1.0", "python": "3.11.9", "torch": "2.13.0"}


def write_run(
    folder: Path,
    *,
    config: dict[str, Any] | None = None,
    result: dict[str, Any] | None = None,
    metrics: Sequence[dict[str, Any]] = (),
    versions: dict[str, Any] | None = None,
) -> Path:
    """Write the given files of a run directory."""
    folder.mkdir(parents=True, exist_ok=True)
    if config is not None:
        (folder / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    if result is not None:
        (folder / "result.json").write_text(json.dumps({"format": 1, **result}), encoding="utf-8")
    if metrics:
        (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in metrics), encoding="utf-8")
    if versions is not None:
        (folder / "versions.json").write_text(json.dumps(versions), encoding="utf-8")
    return folder


def loss_lines(final: float, *, steps: int = 200, plateau: float = 6.0) -> list[dict[str, Any]]:
    """Metrics of a pretraining run that stays at ``plateau`` for a third of its steps and then falls to ``final``."""
    lines = []
    for step in range(1, steps + 1):
        fallen = max(0.0, 1.5 * (step / steps - 1 / 3))
        loss = plateau + 2 * math.exp(-step / 8) - (plateau - final) * fallen + 0.05 * math.sin(7.0 * step)
        line = {
            "step": step,
            "tokens": 2048 * step,
            "seconds": 0.15 * step,
            "loss": loss + 0.4,
            "loss/mlm": loss,
            "learning_rate": 0.02,
            "tokens_per_second": 13000.0,
        }
        if step % 50 == 0:
            line |= {"validation/mlm": loss + 0.1, "validation/loss": loss + 0.5}
        lines.append(line)
    return lines


def pretraining(folder: Path, *, final: float = 4.5, mask_prob: float = 0.15, **config: Any) -> Path:
    """A finished pretraining run."""
    settings = {
        "name": folder.name,
        "seed": 0,
        "init": None,
        "model": MODEL,
        "objective": {"mask_prob": mask_prob, "losses": {"mlm": {"weight": 1.0}, "nsp": {"weight": 1.0}}},
        "corpus": {"_target_": "lmtransfer.data.corpora.corpus.FileCorpus", "name": "imdb_unsup"},
    }
    result = {
        "command": "pretrain",
        "task": "mlm+nsp",
        "split": "validation",
        "metrics": {"loss": final + 0.5, "mlm": final + 0.1},
        "main_metric": "loss",
        "control": None,
        "seconds": 30.0,
        "tokens": 409600,
        "tokens_per_second": 13653.0,
        "num_parameters": 5_300_000,
        "unigram_entropy": 6.01,
    }
    return write_run(folder, config=settings | config, result=result, metrics=loss_lines(final), versions=VERSIONS)


def task_lines(final: float, *, steps: int = 100) -> list[dict[str, Any]]:
    """Metrics of a finetuning run whose development accuracy goes from one half to ``final``."""
    return [
        {
            "step": step,
            "tokens": 900 * step,
            "seconds": 0.1 * step,
            "loss": 0.7 - 0.2 * step / steps,
            "learning_rate": 1e-4,
            "tokens_per_second": 9000.0,
            "validation/accuracy": 0.5 + (final - 0.5) * step / steps,
        }
        for step in range(10, steps + 1, 10)
    ]


def transfer(
    folder: Path,
    scores: Sequence[float],
    *,
    controls: Sequence[float] = (),
    command: str = "finetune",
    init: str | None = "runs/pretrain/imdb",
    num_train: int | None = 1000,
    majority: float | None = 0.509,
    baselines: Mapping[str, Sequence[float]] | None = None,
    collapsed: int = 0,
    settings: dict[str, Any] | None = None,
    fingerprint: str | None = None,
) -> Path:
    """A finished probe or finetuned run on SST-2 with one accuracy a seed, as the commands lay it out."""
    config = {
        "name": folder.name,
        "init": init,
        "seeds": len(scores),
        "model": MODEL,
        "task": {
            "_target_": "lmtransfer.tasks.text.classification.TextClassification",
            "name": "sst2",
            "num_train": num_train,
        },
        "transfer": {"freeze": "frozen" if command == "probe" else "full"},
    }
    for key, value in (settings or {}).items():
        *groups, last = key.split(".")
        node = config
        for group in groups:
            node[group] = node = dict(node.get(group) or {})
        node[last] = value
    if len(scores) > 1:
        for seed, score in enumerate(scores):
            write_run(folder / f"seed-{seed}", config=config, result=_one(command, score), metrics=task_lines(score))
    for seed, score in enumerate(controls):
        inside = folder / "control" if len(controls) == 1 else folder / "control" / f"seed-{seed}"
        result = _one(command, score) | {"control": True}
        write_run(inside, config=config | {"init": None}, result=result, metrics=task_lines(score))
    result = _one(command, scores[0]) | _summary(scores) | {"collapsed": collapsed, "task": config["task"]["name"]}
    result["majority"] = None if majority is None else {"accuracy": majority}
    result["control"] = _summary(controls) if controls else None
    result["baselines"] = {name: _summary(values) for name, values in (baselines or {}).items()}
    own_lines = task_lines(scores[0]) if len(scores) == 1 else []
    versions = VERSIONS | {"data": {"tokenizer": fingerprint}} if fingerprint else VERSIONS
    return write_run(folder, config=config, result=result, metrics=own_lines, versions=versions)


def _one(command: str, score: float) -> dict[str, Any]:
    return {
        "command": command,
        "task": "sst2",
        "split": "dev",
        "metrics": {"accuracy": score, "loss": 0.5},
        "main_metric": "accuracy",
        "higher_is_better": True,
        "control": None,
        "seconds": 10.0,
        "tokens": 90000,
        "tokens_per_second": 9000.0,
        "num_parameters": 5_400_000,
    }


def _summary(scores: Sequence[float]) -> dict[str, Any]:
    mean = sum(scores) / len(scores)
    return {
        "metrics": {"accuracy": mean},
        "seeds": [{"seed": seed, "metrics": {"accuracy": score}} for seed, score in enumerate(scores)],
        "mean": mean,
        "n": len(scores),
    }
