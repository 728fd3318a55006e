"""What a run of a task was trained with, so that two of them can be held against each other: all but the weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lmtransfer.config.without_effect import is_without_effect
from lmtransfer.former_names import LEFT_OUT
from lmtransfer.reporting.runs.collect import Run
from lmtransfer.reporting.runs.labels import flatten

#: Keys that say where the weights came from or what was scored, or that hardly change what is learnt: of no account
#: here, beside those without any effect.
_OF_NO_ACCOUNT = ("init", "tokenizer_from", "seed", "seeds", "split", "train.micro_batch_tokens")
#: Stands for the rate, or the grid that it was chosen from.
LEARNING_RATES = "learning_rates"
#: Stands for the tokenizer, by its fingerprint.
TOKENIZER = "tokenizer"


def task_settings(run: Run, scored: Run | None = None) -> dict[str, Any]:
    """The settings of a run of a task by dotted key, without those that make no difference.

    A key that is null is left out, as if it were not there; so is one that says what older runs meant that lack it.
    One rate is a grid of one.

    Args:
        run: a probe, a finetuned run, or what an evaluation scored.
        scored: the evaluation, where there is one.
    """
    config = dict(run.config)
    optimizer = dict(config.pop("optimizer", None) or {}) if isinstance(config.get("optimizer"), Mapping) else {}
    rate, grid = optimizer.pop("learning_rate", None), config.pop(LEARNING_RATES, None)
    found = flatten({**config, "optimizer": optimizer})
    found = {
        key: value
        for key, value in found.items()
        if value not in (None, {}, LEFT_OUT.get(key)) and not is_without_effect(key, also=_OF_NO_ACCOUNT)
    }
    rates = grid if isinstance(grid, list) and grid else [] if rate is None else [rate]
    if rates:
        found[LEARNING_RATES] = sorted(rates, key=str)
    data = run.versions.get("data")
    if isinstance(data, Mapping) and data.get(TOKENIZER) is not None:
        found[TOKENIZER] = data[TOKENIZER]
    found["command"] = run.command
    if scored is not None:
        asked = scored.config.get("task")
        found |= {f"scored.{key}": value for key, value in flatten({"task": asked}).items() if value is not None}
    return found


def differing(one: Mapping[str, Any], other: Mapping[str, Any], *, but: Sequence[str] = ()) -> list[str]:
    """The keys in which two runs differ, in alphabetical order.

    Args:
        one: settings of a run.
        other: of the other.
        but: keys that may differ.
    """
    keys = sorted(one.keys() | other.keys())
    return [key for key in keys if key not in but and one.get(key) != other.get(key)]


def differences_text(one: Mapping[str, Any], other: Mapping[str, Any], keys: Sequence[str], *, most: int = 6) -> str:
    """Such as ``model.dim (16 against 256), train.epochs (1 against 20)``.

    Args:
        one: settings of a run.
        other: of the other.
        keys: in which they differ.
        most: so many keys are named with their values; the rest are counted.
    """
    named = [
        key if key == TOKENIZER else f"{key} ({_shown(one.get(key))} against {_shown(other.get(key))})"
        for key in keys[:most]
    ]
    more = len(keys) - len(named)
    return ", ".join([*named, *([f"{more} more"] if more else [])])


def chosen_on_what_is_scored(config: Mapping[str, Any]) -> bool:
    """Whether the checkpoint or the learning rate of a run of a task was chosen on the very examples it is scored on.

    Args:
        config: of the run; its result is of the split that the config names.
    """
    task, rates = config.get("task"), config.get("learning_rates")
    chooses = config.get("checkpoint") == "best" or (isinstance(rates, list) and len(rates) > 1)
    by_dev = isinstance(task, Mapping) and task.get("dev_from_train") is None
    return chooses and by_dev and config.get("split") == "dev"


def _shown(value: Any) -> str:
    text = "none" if value is None else str(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
