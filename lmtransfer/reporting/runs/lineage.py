"""Relations between runs: the pretraining behind a run and its cost, and the settings in which two runs differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePath
from typing import Any

from lmtransfer.config.revisions import split_revision, with_revision
from lmtransfer.config.settings import is_without_effect
from lmtransfer.reporting.runs.collect import RUN_FILES, Run, read_run
from lmtransfer.reporting.runs.scores import number
from lmtransfer.runs.labels import flatten, node_label
from lmtransfer.runs.result import FINAL
from lmtransfer.runs.trust import is_own

#: The commands that produce pretrained encoders.
PRETRAINED = ("pretrain", "import")

#: Further keys that are ignored when settings are compared: the origin of the weights, seeds, the scored split, the
#: task's name, and a key that hardly affects what a model learns.
_NOT_SETTINGS = ("init", "tokenizer_from", "seed", "seeds", "split", "task.name", "train.micro_batch_tokens")
#: The key of the learning rate, or of the grid from which the rate was chosen.
LEARNING_RATES = "learning_rates"
#: The key of the tokenizer's fingerprint.
TOKENIZER = "tokenizer"


def starting_point(run: Run, runs: Sequence[Run]) -> Run | None:
    """Find the run whose weights ``run`` started from, which its config names as ``init`` (``run`` in an evaluation).

    The path is searched for among ``runs``, first as a whole and then by its last parts, in case the runs were moved
    together, and finally, for a run that the user produced, on disk. For a revision, the run is returned as it was at
    that revision.
    """
    reference = run.config.get("run" if run.command == "evaluate" else "init")
    if not reference:
        return None
    path, revision = split_revision(reference)
    start = _run_at(path, run, runs)
    return start if start is None or revision is None else run_at_revision(start, revision)


def _run_at(path: str, run: Run, runs: Sequence[Run]) -> Run | None:
    target, names = PurePath(path), {path, str(Path(path))}
    for other in runs:
        if str(other.path) in names:
            return other
    whole = f"/{target.as_posix()}"
    matches = [other for other in runs if other.key != run.key and "/" in other.key and whole.endswith(f"/{other.key}")]
    if matches:
        return max(matches, key=lambda other: other.key.count("/"))
    if target.name == FINAL:
        return _run_at(str(target.parent), run, runs)  # the run that trained this final model
    if target.is_absolute() and is_own(run.path) and any((Path(path) / file).is_file() for file in RUN_FILES):
        return read_run(Path(path), key="/".join(target.parts[-2:]))
    return None


def run_at_revision(run: Run, tokens: int) -> Run:
    """Return a pretraining run as it was after ``tokens`` tokens; words, seconds and FLOP are proportional shares."""
    end = _mean_per_seed(run, "tokens")
    entries = {key: run.result[key] for key in ("command", "num_parameters", "seeds") if key in run.result}
    spent = {
        name: tokens * whole / end
        for name in ("tokens", "words", "seconds", "flops")
        if end and (whole := read_total(run, name)) is not None
    }
    lines = tuple(line for line in run.metrics if (seen := line.get("tokens")) is not None and seen <= tokens)
    key = with_revision(run.key, tokens)
    return replace(run, key=key, result={**entries, **spent}, metrics=lines, revision=tokens)


def pretraining_run(run: Run, runs: Sequence[Run]) -> Run | None:
    """Return the nearest pretraining run or imported model in a run's lineage; None if there is none."""
    return next((ancestor for ancestor in lineage(run, runs) if ancestor.command in PRETRAINED), None)


def lineage(run: Run, runs: Sequence[Run]) -> list[Run]:
    """Return the run, its starting point, the starting point of that run, and so on."""
    ancestors: list[Run] = []
    current: Run | None = run
    while current is not None and current.weights not in {ancestor.weights for ancestor in ancestors}:
        ancestors.append(current)
        current = starting_point(current, runs)
    return ancestors


def is_pretraining(run: Run) -> bool:
    """Whether a run pretrained or imported an encoder, or evaluated one on held-out text."""
    measures_text = run.command == "evaluate" and bool(run.result) and run.result.get("task") is None
    return run.command in PRETRAINED or measures_text


def pretraining_text(run: Run, runs: Sequence[Run]) -> str:
    """Return the names of the texts in a pretraining run's lineage, earliest first: ``published + imdb``."""
    texts = []
    for stage in reversed(lineage(run, runs)):
        if stage.command == "import":
            texts.append("published")
        elif stage.command == "pretrain":
            texts.append(node_label(stage.config.get("corpus")))
    return " + ".join(dict.fromkeys(text for text in texts if text))


def pretraining_budget(run: Run | None, runs: Sequence[Run]) -> tuple[float | None, float | None]:
    """Return the real tokens and the seconds of a pretraining run and its lineage; None if unknown.

    For a run with several seeds, both are means over the seeds.
    """
    stages = [] if run is None else lineage(run, runs)
    tokens, seconds = ([_mean_per_seed(stage, name) for stage in stages] for name in ("tokens", "seconds"))
    return _total(tokens), _total(seconds)


def _mean_per_seed(run: Run, name: str) -> float | None:
    """Return ``read_total`` divided by the number of seeds."""
    cost, seeds = read_total(run, name), run.result.get("seeds")
    return cost if cost is None or not seeds else cost / len(seeds)


def read_total(run: Run, name: str) -> float | None:
    """Return a total, such as ``tokens`` or ``seconds``, from a run's result or, failing that, the last logged step."""
    value = number(run.result.get(name))
    if value is not None:
        return value
    return next((value for line in reversed(run.metrics) if (value := line.get(name)) is not None), None)


def _total(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def task_settings(run: Run, scored: Run | None = None) -> dict[str, Any]:
    """Return the settings that affect a run on a task, by dotted key, except those that are null.

    A single learning rate counts as a grid with one rate. A seed or a control has the grid from which its rate was
    chosen.

    Args:
        scored: the evaluation of the run, if any; the settings of its task are included.
    """
    config = dict(run.config)
    optimizer = dict(config.pop("optimizer", None) or {})
    rate, grid = optimizer.pop("learning_rate", None), config.pop(LEARNING_RATES, None)
    settings = flatten({**config, "optimizer": optimizer})
    settings = {
        key: value
        for key, value in settings.items()
        if value not in (None, {}) and not is_without_effect(key, also=_NOT_SETTINGS)
    }
    rates = grid or run.result.get(LEARNING_RATES) or ([] if rate is None else [rate])
    if rates:
        settings[LEARNING_RATES] = sorted(rates, key=str)
    tokenizer = run.versions.get("data", {}).get(TOKENIZER)
    if tokenizer is not None:
        settings[TOKENIZER] = tokenizer
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
    """Return the keys whose values differ, except those in ``but``, in alphabetical order."""
    keys = sorted(one.keys() | other.keys())
    return [key for key in keys if key not in but and one.get(key) != other.get(key)]


def differences_text(one: Mapping[str, Any], other: Mapping[str, Any], keys: Sequence[str], *, most: int = 6) -> str:
    """Describe differences: ``model.dim (16 against 256), train.epochs (1 against 20)``.

    Args:
        most: the maximum number of keys to name; the rest are only counted.
    """
    texts = [
        key if key == TOKENIZER else f"{key} ({_as_text(one.get(key))} against {_as_text(other.get(key))})"
        for key in keys[:most]
    ]
    more = len(keys) - len(texts)
    return ", ".join([*texts, *([f"{more} more"] if more else [])])


def is_chosen_on_scored_split(config: Mapping[str, Any]) -> bool:
    """Whether a run's checkpoint or learning rate was chosen on the examples that score the run."""
    task, rates = config.get("task") or {}, config.get("learning_rates") or ()
    has_choice = config.get("checkpoint") == "best" or len(rates) > 1
    return has_choice and bool(task) and task.get("dev_from_train") is None and config.get("split") == "dev"


def _as_text(value: Any) -> str:
    text = "none" if value is None else str(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
