"""The facts of a model card: architecture, data, objective, budget and hardware, from the files of the runs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lmtransfer.config.component import resolve
from lmtransfer.errors import ConfigError
from lmtransfer.exporting.run import OpenRun
from lmtransfer.objectives.base import Objective
from lmtransfer.reporting.runs.collect import Run, read_run
from lmtransfer.reporting.runs.scores import number
from lmtransfer.runs.labels import model_label, node_label, objective_label
from lmtransfer.system.units import count, duration, in_percent, shown

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")
_METHODS = {
    "frozen": "frozen encoder with a trained head",
    "full": "finetuned",
    "gradual": "finetuned layer by layer",
    "joint": "finetuned on labels and on text together",
    "lora": "fixed encoder with trained low-rank updates (LoRA) and a trained head",
    "bitfit": "fixed encoder with trained biases (BitFit) and a trained head",
}


def facts_of(run: OpenRun, lineage: Sequence[Run], architecture: str, source: str | None) -> dict[str, str]:
    """Collect the facts, one line each, by the name of the fact; a fact that the files do not give is left out.

    Args:
        run: the exported run.
        lineage: the run, then the runs that it started from.
        architecture: class in transformers; empty if there is none.
        source: where the first run of the lineage was imported from; None if it was not imported.
    """
    parameters = sum(parameter.numel() for parameter in run.learner.parameters())
    tokenizer = run.saved.tokenizer
    facts = {
        "architecture": f"{architecture + ', ' if architecture else ''}{model_label(run.saved.config['model'])}, "
        f"{count(parameters)} parameters",
        "vocabulary": f"{tokenizer.num_pieces:,} pieces",
        **({"imported from": name} if (name := hub_name(source)) else {}),
    }
    stages = pretrainings(lineage)
    for number_of_stage, stage in enumerate(reversed(stages), start=1):
        prefix = "" if len(stages) == 1 else f"pretraining {number_of_stage}: "
        facts |= {f"{prefix}{key}": text for key, text in _of_pretraining(stage).items()}
    if run.kind not in ("encoder", "pretraining"):
        facts |= _of_task(run, lineage[0])
    return facts


def _of_pretraining(stage: Run) -> dict[str, str]:
    objective: Mapping[str, Any] = stage.config["objective"]
    losses = [_with_title(name, node) for name, node in (objective.get("losses") or {}).items()]
    settings = {
        "mask_prob": "mask_prob {}",
        "causal_share": "{} of the rows read left to right",
        "max_length": "rows of up to {} tokens",
    }
    details = [text.format(objective[key]) for key, text in settings.items() if number(objective.get(key)) is not None]
    found = {
        "pretraining text": corpus_label(stage),
        "objective": ", ".join([" and ".join(losses), *details]),
        "phases": _phases(stage),
        "budget": _budget(stage.result),
        "weights": _weights(stage.result),
        "hardware": _hardware(stage.versions),
        "validation": _validation(stage.result),
    }
    return {key: text for key, text in found.items() if text}


def _phases(stage: Run) -> str:
    """The phases of a run with their shares of the budget; the last one has the run's own objective."""
    phases, own = stage.config.get("phases"), stage.config["objective"]
    if not isinstance(phases, Mapping):
        return ""
    return ", then ".join(
        f"{name} ({objective_label(node.get('objective') or own)}, {100 * share:.3g} % of the budget)"
        for name, node in phases.items()
        if isinstance(node, Mapping) and (share := number(node.get("share"))) is not None
    )


def _weights(result: Mapping[str, Any]) -> str:
    """Describe which average of the weights was exported; empty if the weights are not an average."""
    weights = result.get("weights")
    return weights if isinstance(weights, str) else ""


def _with_title(name: str, node: Any) -> str:
    """Return title and name of an objective; only the name if it has no title or its class cannot be imported."""
    try:
        objective = resolve(node["_target_"])
    except (ConfigError, KeyError, TypeError):
        return name
    title = objective.title if issubclass(objective, Objective) else ""
    return f"{title} ({name})" if title else name


def _of_task(run: OpenRun, named: Run) -> dict[str, str]:
    config = run.saved.config
    task, transfer = config["task"], config["transfer"]
    num_train = number(named.result.get("num_train"))
    seed = number(config.get("seed"))
    found = {
        "task": node_label(task) + (f", {num_train:,.0f} labelled examples" if num_train else ""),
        "labels": ", ".join(run.labels) if len(run.labels) <= 50 else f"{len(run.labels)}",
        "transfer": _METHODS.get(str(transfer.get("freeze")), str(transfer.get("freeze"))),
        "seed": "" if seed is None else f"{seed:.0f}",
        "task budget": _budget(read_run(run.saved.path).result),  # of the exported seed
        "task hardware": _hardware(named.versions),
    }
    return {key: text for key, text in found.items() if text}


def _budget(result: Mapping[str, Any]) -> str:
    """Steps, tokens and time; of several seeds those of one, as one is exported."""
    steps, tokens, seconds = (number(result.get(key)) for key in ("steps", "tokens", "seconds"))
    seeds = result.get("seeds")
    if isinstance(seeds, list) and seeds:  # a joint result has their sums
        tokens, seconds = (None if value is None else value / len(seeds) for value in (tokens, seconds))
    known = [
        None if steps is None else f"{steps:,.0f} steps",
        None if tokens is None else f"{count(tokens)} tokens",
        None if seconds is None else duration(seconds),
    ]
    return ", ".join(text for text in known if text)


def _hardware(versions: Mapping[str, Any]) -> str:
    devices, threads = number(versions.get("world_size")), number(versions.get("threads"))
    name = versions.get("gpu") or versions.get("processor")
    if not isinstance(name, str) or not name:
        return ""
    many = f"{devices:.0f} x " if devices and devices > 1 else ""
    if not threads or versions.get("gpu"):
        return f"{many}{name}"
    return f"{many}{name}, {threads:.0f} thread{'s' if threads > 1 else ''}"


def _validation(result: Mapping[str, Any]) -> str:
    metrics = result.get("metrics")
    known = {key: number(value) for key, value in metrics.items()} if isinstance(metrics, Mapping) else {}
    texts = [
        f"{key} {shown(value, key)}{' %' if in_percent(key) else ''}"
        for key, value in known.items()
        if value is not None
    ]
    return ", ".join(texts)


def hub_name(source: str | None) -> str | None:
    """Return the hub name that a run was imported from; None for a local folder, which is private to one machine."""
    name = (source or "").removeprefix("hf:")
    return name if _HUB_NAME.fullmatch(name) and not Path(name).exists() else None


def pretrainings(lineage: Sequence[Run]) -> list[Run]:
    """The runs that trained on text, the last one first."""
    return [run for run in lineage if "objective" in run.config and "corpus" in run.config and "task" not in run.config]


def corpus_label(run: Run) -> str:
    """Return the name of a run's corpus, with its parts if it is a mixture."""
    node = run.config["corpus"]
    parts = node.get("parts") if isinstance(node, Mapping) else None
    name = node_label(node)
    return f"{name} ({', '.join(map(str, parts))})" if isinstance(parts, Mapping) and parts else name
