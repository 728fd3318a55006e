"""The settings of a task's run, for comparing runs: everything except the weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lmtransfer.config.settings import is_without_effect
from lmtransfer.reporting.runs.collect import Run
from lmtransfer.runs.labels import flatten

#: Keys to ignore, besides those without any effect: the origin of the weights, the scored split, the task's name, and
#: keys that hardly affect what a model learns.
_IGNORED_KEYS = ("init", "tokenizer_from", "seed", "seeds", "split", "task.name", "train.micro_batch_tokens")
#: Key of the learning rate, or of the grid from which it was chosen.
LEARNING_RATES = "learning_rates"
#: Key of the tokenizer's fingerprint.
TOKENIZER = "tokenizer"


def task_settings(run: Run, scored: Run | None = None) -> dict[str, Any]:
    """Return the settings of a task's run by dotted key, without those that have no effect.

    Keys with the value null are dropped. A single rate counts as a grid of one rate; a seed or a control has the grid
    from which its rate was chosen.

    Args:
        run: a probe, a finetuned run, or the run that an evaluation scored.
        scored: the evaluation of the run, if any.
    """
    config = dict(run.config)
    optimizer = dict(config.pop("optimizer", None) or {}) if isinstance(config.get("optimizer"), Mapping) else {}
    rate, grid = optimizer.pop("learning_rate", None), config.pop(LEARNING_RATES, None)
    settings = flatten({**config, "optimizer": optimizer})
    settings = {
        key: value
        for key, value in settings.items()
        if value not in (None, {}) and not is_without_effect(key, also=_IGNORED_KEYS)
    }
    grid = grid or run.result.get(LEARNING_RATES)
    rates = grid if isinstance(grid, list) and grid else [] if rate is None else [rate]
    if rates:
        settings[LEARNING_RATES] = sorted(rates, key=str)
    data = run.versions.get("data")
    if isinstance(data, Mapping) and data.get(TOKENIZER) is not None:
        settings[TOKENIZER] = data[TOKENIZER]
    settings["command"] = run.command
    if scored is not None:
        node = scored.config.get("task")
        settings |= {
            f"scored.{key}": value
            for key, value in flatten({"task": node}).items()
            if value is not None and key != "task.name"
        }
    return settings


def differing_keys(one: Mapping[str, Any], other: Mapping[str, Any], *, but: Sequence[str] = ()) -> list[str]:
    """Return the keys in which two runs differ, in alphabetical order.

    Args:
        one: settings of the first run.
        other: settings of the second run.
        but: keys that may differ.
    """
    keys = sorted(one.keys() | other.keys())
    return [key for key in keys if key not in but and one.get(key) != other.get(key)]


def differences_text(one: Mapping[str, Any], other: Mapping[str, Any], keys: Sequence[str], *, most: int = 6) -> str:
    """Describe differences, as in ``model.dim (16 against 256), train.epochs (1 against 20)``.

    Args:
        one: settings of the first run.
        other: settings of the second run.
        keys: the keys in which they differ.
        most: maximum number of keys to name with their values; the rest are counted.
    """
    texts = [
        key if key == TOKENIZER else f"{key} ({_as_text(one.get(key))} against {_as_text(other.get(key))})"
        for key in keys[:most]
    ]
    more = len(keys) - len(texts)
    return ", ".join([*texts, *([f"{more} more"] if more else [])])


def is_chosen_on_scored_split(config: Mapping[str, Any]) -> bool:
    """Whether the checkpoint or the learning rate of a run was chosen on the examples on which it is scored.

    Args:
        config: the run's configuration, including the scored split.
    """
    task, rates = config.get("task"), config.get("learning_rates")
    has_choice = config.get("checkpoint") == "best" or (isinstance(rates, list) and len(rates) > 1)
    chooses_on_dev = isinstance(task, Mapping) and task.get("dev_from_train") is None
    return has_choice and chooses_on_dev and config.get("split") == "dev"


def _as_text(value: Any) -> str:
    text = "none" if value is None else str(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
