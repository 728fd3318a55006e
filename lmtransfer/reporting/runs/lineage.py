"""The lineage of runs: the pretraining of a finetuned run, and its total cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path, PurePath

from lmtransfer.config.revisions import split_revision, with_revision
from lmtransfer.reporting.runs.collect import RUN_FILES, Run, read_run
from lmtransfer.reporting.runs.scores import number
from lmtransfer.runs.labels import node_label

#: The commands that produce pretrained encoders.
PRETRAINED = ("pretrain", "import")


def starting_point(run: Run, runs: Sequence[Run]) -> Run | None:
    """Find the run that ``run`` took its weights from: named by ``init``, or by ``run`` for an evaluation.

    The path is looked up in ``runs``, then by its end (in case the runs were moved together), then on the disk. For a
    revision, the result is the run as it was at that revision.
    """
    reference = run.config.get("run" if run.command == "evaluate" else "init")
    if not isinstance(reference, str) or not reference:
        return None
    path, revision = split_revision(reference)
    start = _run_at(path, run, runs)
    return start if start is None or revision is None else run_at_revision(start, revision)


def _run_at(path: str, run: Run, runs: Sequence[Run]) -> Run | None:
    """Return the run at the path that ``run`` names."""
    target = PurePath(path)
    for other in runs:
        if other.path == Path(path) or str(other.path) == path:
            return other
    matches = [other for other in runs if other.key != run.key and _same_end(target, other)]
    if matches:
        return max(matches, key=lambda other: other.key.count("/"))
    if target.is_absolute() and any((Path(path) / file).is_file() for file in RUN_FILES):
        return read_run(Path(path), key="/".join(target.parts[-2:]))
    return None


def run_at_revision(run: Run, tokens: int) -> Run:
    """Return a pretraining run as of ``tokens`` tokens, with a proportional share of its seconds and FLOP."""
    end = _mean_per_seed(run, "tokens")
    entries = {key: run.result[key] for key in ("command", "num_parameters", "seeds") if key in run.result}
    spent = {
        name: tokens * whole / end
        for name in ("tokens", "seconds", "flops")
        if end and (whole := read_total(run, name)) is not None
    }
    lines = tuple(line for line in run.metrics if (seen := number(line.get("tokens"))) is not None and seen <= tokens)
    key = with_revision(run.key, tokens)
    return replace(run, key=key, result={**entries, **spent}, metrics=lines, revision=tokens)


def pretraining_run(run: Run, runs: Sequence[Run]) -> Run | None:
    """Find the nearest pretraining run in a run's lineage; None if there is none.

    An imported model counts as a pretraining run.
    """
    return next((ancestor for ancestor in lineage(run, runs) if ancestor.command in PRETRAINED), None)


def lineage(run: Run, runs: Sequence[Run]) -> list[Run]:
    """Return the run, its starting point, the starting point's own starting point, and so on."""
    ancestors: list[Run] = []
    current: Run | None = run
    while current is not None and current.weights not in {ancestor.weights for ancestor in ancestors}:
        ancestors.append(current)
        current = starting_point(current, runs)
    return ancestors


def is_pretraining(run: Run) -> bool:
    """Whether the run trained on unlabelled text, was imported, or evaluated such a run."""
    measures_text = run.command == "evaluate" and bool(run.result) and run.result.get("task") is None
    return run.command in PRETRAINED or measures_text


def pretraining_text(run: Run, runs: Sequence[Run]) -> str:
    """Return the texts of a pretraining run and of the runs that it continued, earliest first: ``published + imdb``."""
    texts = []
    for stage in reversed(lineage(run, runs)):
        if stage.command == "import":
            texts.append("published")
        elif stage.command == "pretrain":
            texts.append(node_label(stage.config.get("corpus")))
    return " + ".join(dict.fromkeys(text for text in texts if text))


def pretraining_budget(run: Run | None, runs: Sequence[Run]) -> tuple[float | None, float | None]:
    """Return real tokens and seconds of a pretraining run and the runs that it continued; None if unknown.

    The numbers of a run with several seeds are means over the seeds.
    """
    tokens: float | None = None
    seconds: float | None = None
    for stage in [] if run is None else lineage(run, runs):
        tokens, seconds = _add(tokens, _mean_per_seed(stage, "tokens")), _add(seconds, _mean_per_seed(stage, "seconds"))
    return tokens, seconds


def _mean_per_seed(run: Run, name: str) -> float | None:
    """Return the same as ``read_total``, but the mean per seed for a run with several seeds."""
    cost, seeds = read_total(run, name), run.result.get("seeds")
    return cost if cost is None or not isinstance(seeds, list) or not seeds else cost / len(seeds)


def read_total(run: Run, name: str) -> float | None:
    """Return the ``tokens`` or ``seconds`` of a run: from its result, else from its last logged step."""
    value = number(run.result.get(name))
    if value is not None:
        return value
    return next((value for line in reversed(run.metrics) if (value := number(line.get(name))) is not None), None)


def _same_end(path: PurePath, other: Run) -> bool:
    """Whether the end of a path is the key of a run, such as ``pretrain/imdb``."""
    parts = tuple(other.key.split("/"))
    return len(parts) > 1 and path.parts[-len(parts) :] == parts


def _add(total: float | None, value: float | None) -> float | None:
    return total if value is None else (total or 0.0) + value
